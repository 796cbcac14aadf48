"""Decides which records of a table over an archive and its logs come from files, and which from a log (SA3).

Records that manifests name come from files, and all others from the log. The table therefore has no record twice,
whether or not the log has truncated it. A hole between archive and log is an error.
"""

from typing import NamedTuple

from rollbook.api.spark.core.archive_manifests import ArchiveFile, Chain
from rollbook.api.spark.core.plan import Span
from rollbook.api.spark.core.stream_offsets import Point, TailPoint, replaced
from rollbook.proto.errors import BeyondTail, LogDataLoss


class Clip(NamedTuple):
    """The records of one file from `start` up to `end`, which is excluded."""

    log: str
    file: ArchiveFile
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        return self.start == self.file.first and self.end == self.file.next


class Parts(NamedTuple):
    clips: tuple[Clip, ...]
    spans: tuple[Span, ...]


def is_overtaken(chain: Chain | None, tail: TailPoint | None) -> bool:
    """Returns whether the log was truncated beyond the end of these manifests, so that either newer manifests
    exist or records are lost.
    """
    return chain is not None and tail is not None and tail.head > chain.next


def divide(
    log: str,
    chain: Chain | None,
    tail: TailPoint | None,
    start: int | None = None,
    end: int | None = None,
    *,
    is_strict: bool = True,
) -> Parts:
    """Divides a range between files and the log. A `start` of None means the first existing record, and -1 the tail.
    An `end` of None means the tail.

    Raises `LogReplaced`, `LogDataLoss`, `BeyondTail`.
    """
    if chain is not None and tail is not None and chain.uid != tail.uid:
        raise replaced(log, Point(chain.uid, chain.next), tail)
    if chain is not None and tail is not None and is_overtaken(chain, tail) and is_strict:
        raise LogDataLoss(
            f"records [{chain.next}, {tail.head}) of {log} are neither in the archive nor in the log",
            next_step="to go on without these records, set failOnDataLoss=false",
            log=log,
        )
    heads = ([chain.first] if chain else []) + ([tail.head] if tail else [])
    nexts = ([chain.next] if chain else []) + ([tail.tail] if tail else [])
    head, last = min(heads, default=0), max(nexts, default=0)
    if start is None:
        start = head
    elif start < 0:
        start = last
    if start > last:
        raise BeyondTail(
            f"{log} ends at {last}, and {start} is beyond its end",
            next_step=f"name an offset from {head} to {last}",
            log=log,
        )
    if start < head and is_strict:
        raise LogDataLoss(
            f"records [{start}, {head}) of {log} were truncated before they were archived",
            next_step="to go on without these records, set failOnDataLoss=false",
            log=log,
        )
    stop = last if end is None else min(max(end, start), last)
    clips = tuple(
        Clip(log, file, max(file.first, start), min(file.next, stop))
        for file in (chain.files_in(start, stop) if chain and start < stop else ())
    )
    spans: list[Span] = []
    if tail is not None:
        before = (tail.head, chain.first if chain else tail.tail)
        after = (max(chain.next, tail.head) if chain else tail.tail, tail.tail)
        for low, high in (before, after):
            low, high = max(low, start), min(high, stop)
            if high > low:
                spans.append(Span(log, tail.uid, low, high))
    return Parts(clips, tuple(spans))
