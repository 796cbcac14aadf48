"""When a reader has caught up, is unsure or falls behind, and what its heartbeats report (RL3, RL6)."""

import random
from collections.abc import Sequence

import pytest

from rollbook.logservice.core.reader_catch_up import (
    ASK_AGAIN_S,
    ReaderPosition,
    ReaderProgress,
    has_read_all,
)
from rollbook.logservice.ids import FIRST_OFFSET, Offset, OwnerEpoch
from rollbook.logservice.messages import CaughtUp, FellBehind, LogTail, Progress, WaitsFor
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from tests.unit.logservice.lists import rolled

OURS, OTHERS = "1" * 32, "2" * 32
LEDGER, OTHER_LEDGER = LedgerId(100), LedgerId(101)


def progress(start: int = 0) -> ReaderProgress:
    return ReaderProgress(Offset(start))


def at(next_offset: int, last_timestamp_us: int = 0, now_us: int = 0) -> ReaderPosition:
    return ReaderPosition(Offset(next_offset), last_timestamp_us, now_us)


def owner_tail(tail: int, *, uid: str = OURS, last_entry: int | None = None) -> LogTail:
    confirmed = None if last_entry is None else EntryId(last_entry)
    return LogTail(
        FIRST_OFFSET,
        Offset(tail),
        is_sealed=False,
        timestamp_us=0,
        owner="anna:7400",
        owner_epoch=OwnerEpoch(1),
        uid=uid,
        ledger_id=LEDGER,
        last_entry=confirmed,
    )


def answered(
    rule: ReaderProgress, answer: LogTail | None, position: int, now_s: float
) -> Sequence[CaughtUp | Progress]:
    """The events after everything that bookies report was read and the owner was asked."""
    rule.on_all_read()
    if answer is not None:
        rule.on_owner_tail(answer, OURS)
    return rule.on_answer(answer, at(position), now_s)


# --- Caught up ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("next_entry", "last_add_confirmed", "is_closed", "expected"),
    [
        (5, 4, False, True),
        (4, 4, False, False),
        (5, 4, True, False),
        (0, NO_ENTRY, False, True),
    ],
)
def test_all_is_read_at_the_end_of_a_ledger_that_is_still_written_to(
    next_entry: int, last_add_confirmed: int, is_closed: bool, expected: bool
) -> None:
    """RL6."""
    found = has_read_all(EntryId(next_entry), EntryId(last_add_confirmed), is_closed=is_closed)
    assert found is expected


def test_a_reader_has_caught_up_when_it_has_read_up_to_the_owners_answer() -> None:
    """RL6: it is reported once."""
    rule = progress()
    assert answered(rule, owner_tail(4), 3, 0.0) == ()
    assert (rule.is_live, rule.waits_for) == (False, WaitsFor.FETCHING)
    assert answered(rule, owner_tail(4), 4, 0.0) == (CaughtUp(Offset(4)),)
    assert (rule.is_live, rule.waits_for) == (True, WaitsFor.NOTHING)
    assert rule.on_owner_awaited(Offset(4)) == ()


def test_earlier_owner_report_does_not_count_as_an_answer() -> None:
    """RL6: only a tail given after the request counts."""
    rule = progress()
    assert rule.on_owner_tail(owner_tail(4), OURS)
    assert not rule.is_live
    foreign = owner_tail(2, uid=OTHERS)
    assert answered(rule, foreign, 4, 0.0) == ()
    assert (rule.is_live, rule.waits_for) == (False, WaitsFor.FETCHING)


def test_a_reader_at_the_owner_catches_up_at_the_owners_tail() -> None:
    """RL6."""
    rule = progress()
    assert rule.on_memory_entered(Offset(3), Offset(5)) == ()
    assert (rule.is_live, rule.waits_for) == (False, WaitsFor.NOTHING)
    assert rule.on_memory_read(Offset(4), Offset(5)) == ()
    assert rule.on_memory_read(Offset(5), Offset(5)) == (CaughtUp(Offset(5)),)
    assert rule.on_memory_read(Offset(6), Offset(6)) == ()


def test_reader_of_a_log_without_an_owner_catches_up_at_its_lists_end() -> None:
    """RL6: it reports that it waits for the next owner."""
    rule = progress()
    assert rule.on_owner_awaited(Offset(7)) == (CaughtUp(Offset(7)),)
    assert rule.waits_for is WaitsFor.OWNER


def test_a_reader_falls_behind_only_after_it_has_caught_up() -> None:
    """RL6: it catches up again, and reports that again."""
    rule = progress()
    assert rule.on_memory_lost(Offset(9)) == ()
    rule.on_memory_entered(Offset(5), Offset(5))
    assert rule.on_memory_lost(Offset(9)) == (FellBehind(Offset(9)),)
    assert rule.on_memory_lost(Offset(9)) == ()
    assert rule.on_memory_entered(Offset(9), Offset(9)) == (CaughtUp(Offset(9)),)


def test_reader_that_lags_without_an_owner_names_the_tail_it_knows() -> None:
    rule = progress()
    rule.on_records(Offset(0), Offset(5), 500)
    rule.on_memory_entered(Offset(5), Offset(5))
    assert rule.on_memory_lost(None) == (FellBehind(Offset(5)),)


# --- Unreachable owner ---------------------------------------------------------------------------------------


def test_unreachable_owner_is_reported_once() -> None:
    """RL6."""
    rule = progress()
    rule.on_list(rolled(10))
    expected = Progress(Offset(10), FIRST_OFFSET, Offset(10), 0, 0, 0, WaitsFor.OWNER)
    assert answered(rule, None, 10, 0.0) == (expected,)
    assert rule.waits_for is WaitsFor.OWNER
    assert answered(rule, None, 11, 5.0) == ()
    assert not rule.is_live


def test_unreachable_owner_is_reported_again_after_an_answer() -> None:
    """RL6."""
    rule = progress()
    assert answered(rule, None, 1, 0.0) != ()
    assert answered(rule, owner_tail(1), 1, 5.0) == (CaughtUp(Offset(1)),)
    rule.on_memory_lost(Offset(2))
    assert answered(rule, None, 2, 10.0) != ()


def test_an_owner_that_did_not_answer_is_asked_again_after_a_pause() -> None:
    rule = progress()
    assert rule.may_ask(0.0)
    answered(rule, None, 1, 10.0)
    assert not rule.may_ask(10.0 + ASK_AGAIN_S - 0.001)
    assert rule.may_ask(10.0 + ASK_AGAIN_S)


def test_new_records_do_not_extend_the_pause() -> None:
    """RL6: otherwise frequent appends would keep the reader unsure for as long as they last."""
    rule = progress()
    answered(rule, None, 1, 10.0)
    for step in range(1, 4):
        answered(rule, None, 1 + step, 10.0 + step * ASK_AGAIN_S / 4)
    assert rule.may_ask(10.0 + ASK_AGAIN_S)


def test_an_owner_that_answers_is_asked_again_without_a_pause() -> None:
    rule = progress()
    answered(rule, owner_tail(4), 3, 10.0)
    assert rule.may_ask(10.0)


# --- Reports of an owner at another server --------------------------------------------------------


@pytest.mark.parametrize(
    ("uid_of_report", "uid_of_log", "counts"),
    [(OURS, OURS, True), (OTHERS, OURS, False), ("", OURS, True), (OTHERS, "", True)],
)
def test_a_report_about_another_log_of_the_name_does_not_count(
    uid_of_report: str, uid_of_log: str, counts: bool
) -> None:
    rule = progress()
    report = owner_tail(4, uid=uid_of_report)
    assert rule.on_owner_tail(report, uid_of_log) is counts
    assert rule.owner_tail is (report if counts else None)
    assert rule.tail == (4 if counts else 0)


def test_the_owner_confirms_entries_of_the_ledger_that_it_names() -> None:
    rule = progress()
    assert rule.confirmed_in(LEDGER) == NO_ENTRY
    rule.on_owner_tail(owner_tail(4), OURS)  # The owner is of an earlier release.
    assert rule.confirmed_in(LEDGER) == NO_ENTRY
    rule.on_owner_tail(owner_tail(4, last_entry=3), OURS)
    assert rule.confirmed_in(LEDGER) == 3
    assert rule.confirmed_in(OTHER_LEDGER) == NO_ENTRY


# --- Heartbeats -----------------------------------------------------------------------------------


@pytest.mark.parametrize("waits_for", list(WaitsFor))
@pytest.mark.parametrize("is_sure", [False, True])
def test_waiting_for_nothing_is_reported_only_if_certain(
    waits_for: WaitsFor, is_sure: bool
) -> None:
    """RL6."""
    rule = progress()
    rule.waits_for = waits_for
    found = rule.report_elsewhere(at(0), is_sure=is_sure).waits_for
    is_doubtful = waits_for is WaitsFor.NOTHING and not is_sure
    assert found is (WaitsFor.OWNER if is_doubtful else waits_for)
    here = rule.report_at_owner(at(0), owner_head=FIRST_OFFSET, owner_tail=FIRST_OFFSET)
    assert here.waits_for is waits_for


def test_a_reader_waits_for_a_replica_until_it_has_read_from_one() -> None:
    """RL3."""
    rule = progress()
    found = [rule.waits_for]
    for fact in (
        rule.on_roll_awaited,
        rule.on_segment_found,
        rule.on_replica_awaited,
        rule.on_segment_found,
        rule.on_more_to_read,
    ):
        fact()
        found.append(rule.waits_for)
    assert found == [
        WaitsFor.FETCHING,
        WaitsFor.ROLL,
        WaitsFor.FETCHING,
        WaitsFor.REPLICA,
        WaitsFor.REPLICA,
        WaitsFor.FETCHING,
    ]


def test_lag_is_estimated_from_the_records_read() -> None:
    """RL3: in bytes by the mean size of a record, in time by the age of the last one."""
    rule = progress()
    rule.on_records(Offset(0), Offset(4), 400)
    found = rule.report_at_owner(
        at(4, last_timestamp_us=70, now_us=100), owner_head=Offset(2), owner_tail=Offset(10)
    )
    assert found == Progress(Offset(4), Offset(2), Offset(10), 6, 600, 30, WaitsFor.FETCHING)


@pytest.mark.parametrize(
    ("tail", "last_timestamp_us", "now_us", "lag_us"),
    [
        (4, 70, 100, 0),  # Nothing follows.
        (5, 0, 100, 0),  # Nothing was read yet.
        (5, 70, 60, 0),  # The clock has gone back.
        (5, 70, 100, 30),
    ],
)
def test_time_lag_needs_a_read_record_and_a_later_one(
    tail: int, last_timestamp_us: int, now_us: int, lag_us: int
) -> None:
    """RL3."""
    rule = progress()
    rule.on_tail(Offset(tail))
    found = rule.report_elsewhere(at(4, last_timestamp_us, now_us), is_sure=True)
    assert (found.lag_us, found.lag_bytes) == (lag_us, 0)


def test_the_lag_counts_the_owners_tail_if_the_owner_is_here() -> None:
    rule = progress(3)
    rule.on_tail(Offset(5))
    assert rule.lag(Offset(3), None) == 2
    assert rule.lag(Offset(3), Offset(9)) == 6
    assert rule.lag(Offset(3), Offset(4)) == 2
    assert rule.lag(Offset(7), None) == 0


@pytest.mark.parametrize("seed", range(100))
def test_a_reader_is_live_exactly_from_caught_up_to_fell_behind(seed: int) -> None:
    """RL6: the events alternate, the tail never goes back, and no lag of 0 is reported below it."""
    chance = random.Random(seed)
    rule, position, was_live, tail = progress(), 0, False, 0
    for now_s in range(100):
        start, position = position, position + chance.randrange(3)
        rule.on_records(Offset(start), Offset(position), 10 * (position - start))
        known = Offset(position + chance.randrange(3))
        events: list[object] = []
        match chance.randrange(4):
            case 0:
                events += rule.on_memory_read(Offset(position), known)
            case 1:
                events += rule.on_memory_lost(known)
            case 2 if not rule.is_live:
                answer = owner_tail(known) if rule.may_ask(now_s) else None
                events += answered(rule, answer, position, now_s)
            case _:
                report = rule.report_elsewhere(at(position), is_sure=False)
                assert report.tail == max(rule.tail, position)
                assert report.lag_records == report.tail - position
        for event in events:
            assert not (isinstance(event, CaughtUp) and was_live)
            assert not (isinstance(event, FellBehind) and not was_live)
            was_live = was_live if isinstance(event, Progress) else isinstance(event, CaughtUp)
        assert rule.is_live is was_live
        assert rule.tail >= tail
        tail = rule.tail
