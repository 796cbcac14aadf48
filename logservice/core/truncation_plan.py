"""Computes the effects of a truncation without making it.

    before = 1700      head           1700
                        v              v
    [ 0 … 999 ][ 1000 … 1499 ][ 1500 … 1999 ][ 2000 … ]
      deleted     deleted       kept whole: 200 records of it are hidden

Readers see the exact new head immediately. A ledger is deleted as a whole, when nothing in it is readable
and its successor has begun (LL4). A guard below the new head prevents the truncation (LL6).
"""

from dataclasses import dataclass

from rollbook.logservice.core.ledger_list import NOT_COUNTED, LedgerList, Segment, Size, Sizes
from rollbook.logservice.core.truncation_guards import TruncationGuards
from rollbook.logservice.ids import Offset
from rollbook.logservice.messages import TruncateAnswer


@dataclass(frozen=True, slots=True)
class TruncationPlan:
    listed: LedgerList  # The list after the truncation.
    answer: TruncateAnswer


def plan_truncation(
    listed: LedgerList,
    before: Offset,
    *,
    confirmed: Offset,
    is_begun: bool,
    guards: TruncationGuards,
    written: Sizes = NOT_COUNTED,
) -> TruncationPlan:
    """The plan of a truncation. `confirmed`, `is_begun` and the errors are the same as for `LedgerList.with_head`.

    The guards below `before` are returned and raise no error here; `Guarded` is raised when the plan is written.
    """
    wanted = listed.with_head(before, confirmed, is_begun=is_begun)
    gone = listed.segments[: len(listed.segments) - len(wanted.segments)]
    return TruncationPlan(
        wanted,
        TruncateAnswer(
            old_head=listed.head,
            new_head=wanted.head,
            records=wanted.head - listed.head,
            segments=tuple(segment.segment_id for segment in gone),
            freed_bytes=sum(segment.size(written).bytes for segment in gone),
            kept_bytes=sum(
                _bytes_below(segment, segment.size(written), wanted.head)
                for segment in wanted.segments
            ),
            guards=guards.below(before),
        ),
    )


def _bytes_below(segment: Segment, size: Size, head: Offset) -> int:
    """The size of the records below the head, estimated as if all records of the segment had the same size."""
    if segment.base_offset is None or not size.records:
        return 0
    hidden = min(max(head - segment.base_offset, 0), size.records)
    return size.bytes * hidden // size.records
