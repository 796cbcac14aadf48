"""The next step of a drain, by the known facts."""

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
    """The failure after this number of refusals for lack of bookies."""
    return Failure(attempts, "QUORUM_UNAVAILABLE", "", in_a_row=attempts)


@pytest.mark.parametrize(
    ("is_writable", "named", "stuck", "expected"),
    [
        (True, 5, 0, Step.WAIT),
        (True, 0, 0, Step.WAIT),  # BL19: clients may pick a writable bookie.
        (False, 5, 0, Step.COPY),
        (False, 5, 4, Step.COPY),  # One ledger can still be copied.
        (False, 5, 5, Step.FAIL),
        (False, 0, 0, Step.VERIFY),
    ],
)
def test_next_step_follows_from_the_drain_facts(
    is_writable: bool, named: int, stuck: int, expected: Step
) -> None:
    """LC4, BL7, BL11, BL23."""
    assert next_step(DrainFacts(is_writable, named, stuck)) is expected


def test_data_loss_and_repeated_lack_of_targets_are_final() -> None:
    loss = LostEntries(EntryId(0), EntryId(1), (BookieId("b1:3181"),))
    assert is_final(Failure(1, "DATA_LOST", "", losses=(loss,)))
    assert not is_final(Failure(100, "BOOKIE_UNREACHABLE", ""))
    assert is_final(without_target(ATTEMPTS_WITHOUT_TARGET))
    assert not is_final(without_target(ATTEMPTS_WITHOUT_TARGET - 1))


def test_attempts_failing_for_other_reasons_are_not_final() -> None:
    """LC5: attempts with an unreachable source do not count towards those without a target."""
    failure = None
    for _ in range(ATTEMPTS_WITHOUT_TARGET):
        failure = after_failure(failure, 1000, "ENTRY_UNAVAILABLE", "b1 is away")
    for tries in range(1, ATTEMPTS_WITHOUT_TARGET + 1):
        failure = after_failure(failure, 1000, "QUORUM_UNAVAILABLE", "no bookie is left")
        assert is_final(failure) is (tries == ATTEMPTS_WITHOUT_TARGET)


def test_failures_of_earlier_drains_do_not_count_as_stuck() -> None:
    """RP7: bookies or lost copies may have returned since."""
    no_target = replace(without_target(ATTEMPTS_WITHOUT_TARGET), drains=("a", "b"))
    assert is_stuck(no_target, "a")
    assert is_stuck(no_target, "b")
    assert not is_stuck(no_target, "c")
    assert not is_stuck(Failure(1, "QUORUM_UNAVAILABLE", "", drains=("a",)), "a")
    loss = LostEntries(EntryId(0), EntryId(1), (BookieId("b1:3181"),))
    assert is_stuck(Failure(1, "DATA_LOST", "", losses=(loss,), drains=("a",)), "a")
    assert not is_stuck(Failure(1, "DATA_LOST", "", losses=(loss,), drains=("a",)), "b")
