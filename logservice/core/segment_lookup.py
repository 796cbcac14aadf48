"""Finds a segment of a log by offset, by time or by ledger, and checks whether a segment follows another one.

The list has a segment's base offset once everything before the segment is settled; such a base never
changes. The last segment has no base in the list until its predecessor is closed there.
"""

from bisect import bisect_right
from collections.abc import Sequence

from rollbook.logservice.core.control_blocks import Follows, unpack_control
from rollbook.logservice.core.ledger_list import Segment
from rollbook.logservice.core.record_block import Block
from rollbook.logservice.ids import Offset
from rollbook.proto.ids import EntryId, LedgerId


def find_segment(segments: Sequence[Segment], offset: Offset) -> Segment | None:
    """The last segment with a known base that begins at or before the offset; None if there is none."""
    count = _settled_count(segments)
    index = bisect_right(segments, offset, hi=count, key=_base)
    return segments[index - 1] if index else None


def _base(segment: Segment) -> Offset:
    assert segment.base_offset is not None
    return segment.base_offset


def from_last_settled(segments: Sequence[Segment]) -> Sequence[Segment]:
    return segments[max(_settled_count(segments) - 1, 0) :]


def _settled_count(segments: Sequence[Segment]) -> int:
    count = len(segments)
    while count and segments[count - 1].base_offset is None:  # At most one base is unknown.
        count -= 1
    return count


def continues(first: Block, end: tuple[LedgerId, EntryId]) -> bool:
    """Return whether a segment that begins with this block follows a ledger that is CLOSED at that entry."""
    if not first.is_control:
        return False
    kind = unpack_control(first)
    return isinstance(kind, Follows) and (kind.ledger_id, kind.last_entry) == end


def find_segment_at(segments: Sequence[Segment], timestamp_us: int) -> Segment | None:
    """The first segment that may hold a record of that time or later; None if all records are older."""
    for segment in segments:
        latest_us = segment.last_timestamp_us
        if latest_us is None or latest_us >= timestamp_us:
            return segment
    return None


def successor_of(segments: Sequence[Segment], ledger_id: LedgerId) -> Segment | None:
    """The segment after that ledger; None if it is the last one, or not listed."""
    index = index_of(segments, ledger_id)
    return None if index is None or index + 1 == len(segments) else segments[index + 1]


def index_of(segments: Sequence[Segment], ledger_id: LedgerId) -> int | None:
    """The index of the ledger's segment, searched from the end, where readers usually are."""
    for index in range(len(segments) - 1, -1, -1):
        if segments[index].ledger_id == ledger_id:
            return index
    return None
