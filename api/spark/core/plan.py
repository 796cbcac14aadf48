"""Pure functions that plan which offsets a trigger reads, and which tasks read them.

A replayed batch is planned again, perhaps by another process. The same range, segments and limits give the
same tasks. With any limits, tasks and their spans are in the order of logs and offsets, so a query that keeps
rows in order passes them to a sink in the same order each time.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from rollbook.api.spark.core.options import SplitLimits

_MIB: Final = 1024 * 1024
# The minimum size on either side of a cut at the end of a segment.
PIECE_BYTES_MIN: Final = 16 * _MIB
# Small spans share a task up to this total size, because each task costs about 10 ms.
TASK_BYTES: Final = 64 * _MIB
TASK_RECORDS: Final = 250_000  # The maximum number of records of spans that share a task.
RECORD_BYTES: Final = 100  # The assumed size of a record if nothing is known.


class Span(NamedTuple):
    """The records of one log from `start` up to `end`, which is excluded."""

    log: str
    uid: str
    start: int
    end: int


class MeasuredSegment(NamedTuple):
    """A segment's range of offsets, with the number and the bytes of its records. `end` is None while the segment
    is open.
    """

    start: int
    end: int | None
    records: int
    bytes: int


class SizedSpan(NamedTuple):
    span: Span
    bytes: int  # Approximate.

    @property
    def records(self) -> int:
        return self.span.end - self.span.start


Task = tuple[Span, ...]


# --- The amount to read ----------------------------------------------------------------------


def divide(limit: int, backlogs: Mapping[str, int], turn: int = 0) -> dict[str, int]:
    """Divides `limit` evenly among the logs. Logs that need less leave the rest to the others.

    If the limit is smaller than the number of logs, the logs take turns: the caller adds the number of granted
    records to `turn`, so that each log gets its turn.
    """
    names = sorted(name for name, backlog in backlogs.items() if backlog > 0)
    granted = dict.fromkeys(names, 0)
    left = limit
    hungry = sorted(names, key=lambda name: (backlogs[name], name))
    while hungry and left >= len(hungry):
        each = left // len(hungry)
        least = backlogs[hungry[0]] - granted[hungry[0]]
        portion = min(each, least)
        for name in hungry:
            granted[name] += portion
        left -= portion * len(hungry)
        hungry = [name for name in hungry if granted[name] < backlogs[name]]
    rest = sorted(hungry)
    first = turn % len(rest) if rest else 0
    for name in (*rest[first:], *rest[:first])[:left]:
        granted[name] += 1
    return granted


def next_ends(
    starts: Mapping[str, int],
    tails: Mapping[str, int],
    *,
    rows_max: int = 0,
    bytes_max: int = 0,
    record_bytes: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Returns the offsets at which a trigger that begins at `starts` ends. A limit of 0 means no limit. With a limit in
    bytes, each log may get one record too many.
    """
    backlogs = {name: max(tails.get(name, 0) - start, 0) for name, start in starts.items()}
    turn = sum(starts.values())
    granted = dict(backlogs)
    if bytes_max:
        sizes = {name: max((record_bytes or {}).get(name, RECORD_BYTES), 1) for name in backlogs}
        demand = {name: backlog * sizes[name] for name, backlog in backlogs.items()}
        for name, portion in divide(bytes_max, demand, turn).items():
            granted[name] = min(backlogs[name], -(-portion // sizes[name]))
    if rows_max:
        granted |= divide(rows_max, granted, turn)
    return {name: start + granted[name] for name, start in starts.items()}


def record_bytes_of(segments: Sequence[MeasuredSegment]) -> int:
    """Returns the mean size of a log's records, from its last segments with records."""
    recent = [each for each in segments if each.records > 0][-2:]
    records = sum(each.records for each in recent)
    return max(sum(each.bytes for each in recent) // records, 1) if records else RECORD_BYTES


# --- The tasks -------------------------------------------------------------------------------


def split(
    spans: Iterable[Span], segments: Mapping[str, Sequence[MeasuredSegment]], limits: SplitLimits
) -> list[Task]:
    """Returns tasks that read each record of the spans once."""
    pieces: list[SizedSpan] = []
    for span in sorted(spans):
        if span.end > span.start:
            for piece in _at_segments(span, segments.get(span.log, ())):
                pieces += _divided(piece, _parts_of(piece, limits))
    if limits.partitions_min > len(pieces):
        pieces = _at_least(pieces, limits.partitions_min)
    return _coalesced(pieces, limits)


def _at_segments(span: Span, segments: Sequence[MeasuredSegment]) -> list[SizedSpan]:
    inside = [each.start for each in segments if span.start < each.start < span.end]
    bounds = [span.start, *sorted(dict.fromkeys(inside)), span.end]
    weights = [_bytes_of(start, end, segments) for start, end in pairwise(bounds)]
    found: list[SizedSpan] = []
    start, gathered, left = span.start, 0, sum(weights)
    for (_, end), weight in zip(pairwise(bounds), weights, strict=True):
        gathered, left = gathered + weight, left - weight
        if end == span.end or (gathered >= PIECE_BYTES_MIN and left >= PIECE_BYTES_MIN):
            found.append(SizedSpan(span._replace(start=start, end=end), gathered))
            start, gathered = end, 0
    return found


def _bytes_of(start: int, end: int, segments: Sequence[MeasuredSegment]) -> int:
    """Returns the approximate size of a range, from the mean record size of its first segment."""
    mean = RECORD_BYTES * 1.0
    for each in segments:
        if each.records > 0 and each.start <= start:
            mean = each.bytes / each.records
    return max(round((end - start) * mean), 1)


def _parts_of(piece: SizedSpan, limits: SplitLimits) -> int:
    parts = -(-piece.bytes // limits.bytes_max)
    if limits.records_max:
        parts = max(parts, -(-piece.records // limits.records_max))
    return min(max(parts, 1), piece.records)


def _divided(piece: SizedSpan, parts: int) -> list[SizedSpan]:
    span, records = piece.span, piece.records
    bounds = [span.start + records * part // parts for part in range(parts + 1)]
    return [
        SizedSpan(
            span._replace(start=start, end=end), max(piece.bytes * (end - start) // records, 1)
        )
        for start, end in pairwise(bounds)
    ]


def _at_least(pieces: Sequence[SizedSpan], count: int) -> list[SizedSpan]:
    """Divides the largest pieces until there are `count` pieces, if there are enough records."""
    by_size = [(-each.bytes, each) for each in pieces if each.records > 1]
    done = [each for each in pieces if each.records <= 1]
    heapq.heapify(by_size)
    while by_size and len(by_size) + len(done) < count:
        _, largest = heapq.heappop(by_size)
        for half in _divided(largest, 2):
            if half.records > 1:
                heapq.heappush(by_size, (-half.bytes, half))
            else:
                done.append(half)
    return sorted([*(each for _, each in by_size), *done])


def _coalesced(pieces: Sequence[SizedSpan], limits: SplitLimits) -> list[Task]:
    bytes_max, records_max = min(TASK_BYTES, limits.bytes_max), TASK_RECORDS
    if limits.records_max:
        records_max = min(records_max, limits.records_max)
    left_over = len(pieces) - max(
        limits.partitions_min, 1
    )  # The number of pieces that may still be joined to others.
    tasks: list[list[Span]] = []
    size = records = 0
    for piece in pieces:
        joins = (
            bool(tasks)
            and left_over > 0
            and size + piece.bytes <= bytes_max
            and records + piece.records <= records_max
        )
        if joins:
            left_over -= 1
            last = tasks[-1][-1]
            if (last.log, last.end) == (piece.span.log, piece.span.start):
                tasks[-1][-1] = last._replace(end=piece.span.end)
            else:
                tasks[-1].append(piece.span)
            size, records = size + piece.bytes, records + piece.records
        else:
            tasks.append([piece.span])
            size, records = piece.bytes, piece.records
    return [tuple(task) for task in tasks]
