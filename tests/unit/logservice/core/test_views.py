"""What is shown of a log, page by page."""

from dataclasses import replace

import pytest

from rollbook.logservice.core.ledger_list import LedgerList, Segment, SegmentState
from rollbook.logservice.core.rolling import SEGMENTS_MAX
from rollbook.logservice.core.views import segments_page
from rollbook.logservice.ids import FIRST_SEGMENT, Offset, OwnerEpoch, SegmentId
from rollbook.proto.ids import LedgerId
from tests.unit.logservice.lists import ANNA, EMPTY


def many(count: int) -> LedgerList:
    """More than a log rolls to: each new owner begins one more."""
    segments = tuple(
        Segment(
            *(SegmentId(number), LedgerId(number), OwnerEpoch(1), "owner", 0),
            *(SegmentState.CLOSED, Offset(number), Offset(number + 1), 0, 100),
        )
        for number in range(count)
    )
    return replace(EMPTY.with_owner(ANNA), segments=segments, next_segment_id=SegmentId(count))


@pytest.mark.parametrize("limit", [1_000, 10_000])
def test_pages_lose_no_segment(limit: int) -> None:
    listed = many(SEGMENTS_MAX + 200)
    found: list[int] = []
    start: SegmentId | None = FIRST_SEGMENT
    while start is not None:
        page = segments_page(listed, start, limit)
        assert len(page.segments) <= limit
        found += [each.segment_id for each in page.segments]
        start = page.next_segment
    assert found == list(range(SEGMENTS_MAX + 200))


def test_pages_go_on_behind_what_was_truncated_meanwhile() -> None:
    listed = many(30)
    page = segments_page(listed, FIRST_SEGMENT, 10)
    assert page.next_segment == 10
    truncated = listed.with_head(Offset(20), Offset(30))
    page = segments_page(truncated, page.next_segment, 100)
    assert [each.segment_id for each in page.segments] == list(range(20, 30))
    assert page.next_segment is None
