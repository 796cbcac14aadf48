"""The end of a log: which source is asked, and how its answer is used."""

from dataclasses import replace

import pytest

from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.core.log_end_source import (
    EndSource,
    TailWatch,
    closed_end,
    end_of_closed_range,
    is_dated,
    listed_end,
    may_have_grown,
    require_within,
    source_of_end,
    unowned_end,
)
from rollbook.logservice.core.log_incarnations import text_of
from rollbook.logservice.ids import Offset
from rollbook.proto.errors import BeyondTail
from tests.unit.logservice.lists import ANNA, EMPTY, UID, closed, rolled

OPEN = rolled(10, 25)  # Two closed segments, and an open one.
CLOSED = closed(OPEN, OPEN.segments[-1].segment_id, 40)
ELSEWHERE = "bert:7400"


@pytest.mark.parametrize(
    ("listed", "owner", "source"),
    [
        (OPEN, ELSEWHERE, EndSource.OWNER),
        (OPEN, "", EndSource.OPENING),
        (
            OPEN,
            ANNA.address,
            EndSource.OPENING,
        ),  # The list names this server, which does not have the log.
        (CLOSED, ELSEWHERE, EndSource.LIST),
        (CLOSED, "", EndSource.LIST),
        (EMPTY, "", EndSource.LIST),  # It has no segment.
    ],
)
def test_end_source_depends_on_list_and_owner(
    listed: LedgerList, owner: str, source: EndSource
) -> None:
    assert source_of_end(listed, owner, ANNA.address) is source


def test_segment_list_knows_the_end_of_a_closed_log_without_an_owner() -> None:
    """RL7, LS14."""
    assert unowned_end(CLOSED) is None, "its owner may open a segment"
    assert unowned_end(OPEN.with_released()) is None, "a segment is open"
    end = unowned_end(CLOSED.with_released())
    assert end is not None
    assert (end.tail, end.owner, end.is_sealed, end.uid) == (40, "", False, text_of(UID))


def test_an_end_is_never_before_the_head() -> None:
    truncated = replace(CLOSED, head=Offset(30))
    assert listed_end(truncated, Offset(25), "").tail == 30
    assert listed_end(truncated, Offset(31), ELSEWHERE).owner == ELSEWHERE


def test_a_range_within_closed_segments_needs_no_owner() -> None:
    assert closed_end(OPEN) == 25
    assert closed_end(EMPTY) is None
    within = end_of_closed_range(OPEN, Offset(3), Offset(25), ELSEWHERE)
    assert within is not None
    assert (within.tail, within.owner) == (25, ELSEWHERE)
    assert end_of_closed_range(OPEN, Offset(3), Offset(26), ELSEWHERE) is None
    assert end_of_closed_range(OPEN, Offset(26), Offset(3), ELSEWHERE) is None
    assert end_of_closed_range(EMPTY, Offset(0), Offset(0), ELSEWHERE) is None


def test_offset_beyond_the_tail_is_retried_unless_the_log_is_sealed() -> None:
    tail = listed_end(CLOSED, Offset(40), "")
    assert not may_have_grown(Offset(40), tail)
    assert may_have_grown(Offset(41), tail)
    assert not may_have_grown(Offset(41), replace(tail, is_sealed=True))
    require_within(Offset(40), tail)
    with pytest.raises(BeyondTail) as raised:
        require_within(Offset(41), tail)
    assert (raised.value.ids["offset"], raised.value.ids["tail"]) == (41, 40)


def test_missing_tail_time_is_searched_again_after_a_pause() -> None:
    watch, tail = TailWatch(heartbeat_s=2, pause_s=5), listed_end(CLOSED, Offset(40), "")
    assert watch.wants_time(tail, 0)
    watch.on_looked(tail, 1)  # It was not found.
    assert not watch.wants_time(tail, 5.9)
    assert watch.wants_time(tail, 6)
    found = replace(tail, timestamp_us=77)
    watch.on_looked(found, 6)
    assert watch.with_time(tail) == found
    assert not watch.wants_time(found, 100)
    grown = replace(tail, tail=Offset(41))
    assert watch.with_time(grown) == grown, "the time belongs to the previous record"
    assert watch.wants_time(grown, 6)


def test_a_log_without_records_needs_no_time() -> None:
    empty = listed_end(EMPTY, Offset(0), "")
    assert is_dated(empty)
    assert not TailWatch(heartbeat_s=2, pause_s=5).wants_time(empty, 0)


def test_watcher_gets_changes_at_once_and_the_tail_with_each_heartbeat() -> None:
    watch, tail = TailWatch(heartbeat_s=2, pause_s=5), listed_end(CLOSED, Offset(40), "")
    assert watch.heartbeat_due_s is None, "the first tail is waited for without a limit"
    assert watch.is_due(tail, 0)
    watch.on_sent(tail, 10)
    assert watch.heartbeat_due_s == 12
    assert not watch.is_due(tail, 11.9)
    assert watch.is_due(tail, 12)
    assert watch.is_due(replace(tail, tail=Offset(41)), 10)
    assert watch.is_due(replace(tail, timestamp_us=77), 10), "its time was found"
