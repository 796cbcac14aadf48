"""Segments and history of a log, page by page."""

from dataclasses import replace

import pytest

from rollbook.logservice.core.ledger_list import LedgerList, ListedSegmentState, LogEvent, Segment
from rollbook.logservice.core.roll_rules import SEGMENTS_MAX
from rollbook.logservice.core.segments_and_history import history_of, segments_page
from rollbook.logservice.ids import FIRST_SEGMENT, Offset, OwnerEpoch, SegmentId
from rollbook.proto.ids import LedgerId
from tests.unit.logservice.lists import ANNA, BERT, EMPTY, closed


def many(count: int) -> LedgerList:
    """More segments than rolls make: each new owner begins one more."""
    segments = tuple(
        Segment(
            SegmentId(number),
            LedgerId(number),
            OwnerEpoch(1),
            "owner",
            0,
            ListedSegmentState.CLOSED,
            Offset(number),
            Offset(number + 1),
            0,
            100,
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


def test_page_after_a_truncation_starts_at_the_new_head() -> None:
    listed = many(30)
    page = segments_page(listed, FIRST_SEGMENT, 10)
    assert page.next_segment == 10
    truncated = listed.with_head(Offset(20), Offset(30))
    page = segments_page(truncated, page.next_segment, 100)
    assert [each.segment_id for each in page.segments] == list(range(20, 30))
    assert page.next_segment is None


def test_history_names_the_server_that_began_a_segment() -> None:
    """If the history still has an event of that owner."""
    listed = EMPTY.with_owner(ANNA).with_successor(LedgerId(7), "it had no owner", 10)
    listed = closed(listed, 0, 5, 15).with_owner(BERT).with_successor(LedgerId(8), "owner died", 20)
    opened = LogEvent("log_opened", 20, listed.owner_epoch, BERT.server_id, "owner died")
    listed = listed.with_event(opened).with_successor(LedgerId(9), "size", 30)
    told = [(each.kind, each.server) for each in history_of(listed, 100).events]
    bert = BERT.server_id
    assert sorted(told[1:3]) == [("log_opened", bert), ("segment_started", bert)]
    assert (told[0], told[3]) == (("segment_started", bert), ("segment_started", ""))
