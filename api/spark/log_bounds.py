"""Finds, for plans on the driver, the segments of logs and the offsets of start and end positions."""

import time
from collections.abc import Iterable, Mapping
from typing import Final

from rollbook.api.spark.core.options import Selection, StartPositions
from rollbook.api.spark.core.plan import MeasuredSegment, record_bytes_of
from rollbook.api.spark.core.stream_offsets import TOLERATE, TailPoint
from rollbook.api.spark.shared_client import ServerChannel
from rollbook.logservice import messages
from rollbook.logservice.ids import FIRST_SEGMENT, LogName, SegmentId
from rollbook.logservice.position_syntax import AtOffset, Earliest, Latest, Position
from rollbook.proto.errors import BeyondTail, LogDataLoss, NoSuchLog

_SEGMENTS_S: Final = 60.0  # Seconds for which the mean sizes of segments are reused.


class Logs:
    def __init__(self, channel: ServerChannel) -> None:
        self._channel = channel
        self._segments: dict[str, tuple[float, list[MeasuredSegment]]] = {}

    def segments_of(self, log: str) -> list[MeasuredSegment]:
        known = self._segments.get(log)
        if known is None or time.monotonic() - known[0] > _SEGMENTS_S:
            known = time.monotonic(), self._ask_segments(LogName.parse(log))
            self._segments[log] = known
        return known[1]

    def record_bytes(self, logs: Iterable[str]) -> dict[str, int]:
        return {log: record_bytes_of(self.segments_of(log)) for log in logs}

    def _ask_segments(self, log: LogName) -> list[MeasuredSegment]:
        found: list[MeasuredSegment] = []
        start: SegmentId | None = FIRST_SEGMENT
        while start is not None:
            page: messages.Segments = self._channel.ask(messages.ListSegments(log, start))
            found += [
                MeasuredSegment(each.base_offset, each.next_offset, each.records, each.bytes)
                for each in page.segments
                if each.base_offset is not None
            ]
            start = page.next_segment
        return found

    def places(
        self,
        wanted: StartPositions,
        tails: Mapping[str, TailPoint],
        *,
        finds_latest: bool,
        is_strict: bool,
    ) -> dict[str, int]:
        """Returns the offset of the wanted position in each log."""
        return {
            log: self._place(log, wanted.of(log), tail, finds_latest, is_strict)
            for log, tail in tails.items()
        }

    def _place(
        self, log: str, wanted: Position, tail: TailPoint, finds_latest: bool, is_strict: bool
    ) -> int:
        match wanted:
            case Earliest():
                return tail.head
            case Latest():
                return tail.tail
            case AtOffset(offset):
                return self._checked(log, offset, tail, is_strict)
        beyond = BeyondTail(
            f"{log} has no record at {wanted} or later",
            next_step="to start at its tail, set timestampNotFound=latest",
            log=log,
            tail=tail.tail,
        )
        try:
            found: messages.FoundOffset = self._channel.ask(
                messages.FindOffset(LogName.parse(log), wanted, tail.uid)
            )
        except BeyondTail as error:
            if finds_latest:
                return tail.tail
            raise beyond from error
        if found.offset >= tail.tail and not finds_latest and found.offset >= found.tail:
            raise beyond
        return min(max(found.offset, tail.head), tail.tail)

    def _checked(self, log: str, offset: int, tail: TailPoint, is_strict: bool) -> int:
        if offset > tail.tail:
            raise BeyondTail(
                f"{log} ends at {tail.tail}, and {offset} is beyond its end",
                next_step=f"name an offset from {tail.head} to {tail.tail}",
                log=log,
            )
        if offset < tail.head and is_strict:
            raise LogDataLoss(
                f"records [{offset}, {tail.head}) of {log} were truncated before they were read",
                next_step=TOLERATE,
                log=log,
                head=tail.head,
                tail=tail.tail,
            )
        return max(offset, tail.head)


def require_some(selection: Selection, known: Iterable[str]) -> None:
    """Raises `NoSuchLog` if a log that the selection names does not exist."""
    there = dict.fromkeys(known)
    missing = [name for name in selection.names if name not in there]
    if missing:
        raise NoSuchLog(
            f"there is no log {', '.join(missing)}",
            next_step="create it: rollbook log create NAME, or read the logs that exist with prefix=NAMESPACE/",
        )
