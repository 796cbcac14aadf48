"""How a drain goes on, by what is known."""

from dataclasses import replace

import pytest

from rollbook.proto.ids import BookieId, EntryId
from rollbook.recovery.core.drain_steps import (
    ATTEMPTS_WITHOUT_TARGET,
    DrainFacts,
    Step,
    is_final,
    is_stuck,
    next_step,
)
from rollbook.recovery.core.repair_failures import Failure, LostEntries, after_failure


def without_target(attempts: int) -> Failure:
    """The record after that many refusals for lack of bookies."""
    return Failure(attempts, "QUORUM_UNAVAILABLE", "", in_a_row=attempts)


@pytest.mark.parametrize(
    ("is_writable", "named", "stuck", "expected"),
    [
        (True, 5, 0, Step.WAIT),
        (True, 0, 0, Step.WAIT),  # BL19: clients may pick it as long as it is writable.
        (False, 5, 0, Step.COPY),
        (False, 5, 4, Step.COPY),  # One can still be copied.
        (False, 5, 5, Step.FAIL),
        (False, 0, 0, Step.VERIFY),
    ],
)
def test_the_next_step(is_writable: bool, named: int, stuck: int, expected: Step) -> None:
    """LC4, BL7, BL11, BL23."""
    assert next_step(DrainFacts(is_writable, named, stuck)) is expected


def test_what_trying_again_can_hardly_help() -> None:
    loss = LostEntries(EntryId(0), EntryId(1), (BookieId("b1:3181"),))
    assert is_final(Failure(1, "DATA_LOST", "", losses=(loss,)))
    assert not is_final(Failure(100, "BOOKIE_UNREACHABLE", ""))
    assert is_final(without_target(ATTEMPTS_WITHOUT_TARGET))
    assert not is_final(without_target(ATTEMPTS_WITHOUT_TARGET - 1))


def test_attempts_that_failed_for_other_reasons_end_no_drain() -> None:
    """LC5: three tries whose source was away and then one refusal once called a drain failed."""
    failure = None
    for _ in range(ATTEMPTS_WITHOUT_TARGET):
        failure = after_failure(failure, 1000, "ENTRY_UNAVAILABLE", "b1 is away")
    for tries in range(1, ATTEMPTS_WITHOUT_TARGET + 1):
        failure = after_failure(failure, 1000, "QUORUM_UNAVAILABLE", "no bookie is left")
        assert is_final(failure) is (tries == ATTEMPTS_WITHOUT_TARGET)


def test_a_drain_that_is_tried_again_does_not_fail_by_what_was_before() -> None:
    """RP7: bookies may have come since, or copies that were lost."""
    no_target = replace(without_target(ATTEMPTS_WITHOUT_TARGET), drains=("a", "b"))
    assert is_stuck(no_target, "a")
    assert is_stuck(no_target, "b")
    assert not is_stuck(no_target, "c")
    assert not is_stuck(Failure(1, "QUORUM_UNAVAILABLE", "", drains=("a",)), "a")
    loss = LostEntries(EntryId(0), EntryId(1), (BookieId("b1:3181"),))
    assert is_stuck(Failure(1, "DATA_LOST", "", losses=(loss,), drains=("a",)), "a")
    assert not is_stuck(Failure(1, "DATA_LOST", "", losses=(loss,), drains=("a",)), "b")
