"""Only copies beyond the ack quorum may be given up (LS13), until there are more bookies (LS16)."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from rollbook.logservice.core.degraded_ensembles import (
    ALL_COPIES,
    FULL_ENSEMBLE,
    VACANT_SLOT,
    RollToMoreBookies,
    better_segment,
    bookies_for_better,
    degraded_quorum,
    degraded_to,
)
from rollbook.proto.quorum import Quorum


@pytest.mark.parametrize(
    ("wanted", "usable", "smaller"),
    [
        (Quorum(3, 3, 2), 3, None),
        (Quorum(3, 3, 2), 4, None),
        (Quorum(3, 3, 2), 2, Quorum(2, 2, 2)),
        (Quorum(3, 3, 2), 1, None),
        (Quorum(3, 3, 2), 0, None),
        (Quorum(4, 3, 2), 3, Quorum(3, 3, 2)),
        (Quorum(5, 3, 2), 2, Quorum(2, 2, 2)),
        (Quorum(2, 2, 2), 1, None),
        (Quorum(3, 2, 1), 1, Quorum(1, 1, 1)),
    ],
)
def test_a_smaller_ledger_keeps_the_ack_quorum(
    wanted: Quorum, usable: int, smaller: Quorum | None
) -> None:
    """LS13."""
    assert degraded_quorum(wanted, usable) == smaller
    if smaller is not None:
        assert degraded_to(wanted, smaller) == usable


def test_a_ledger_as_wanted_is_not_degraded() -> None:
    """LS13: neither is a larger one, which was made before the settings changed."""
    assert degraded_to(Quorum(3, 3, 2), Quorum(3, 3, 2)) == 0
    assert degraded_to(Quorum(3, 3, 2), Quorum(5, 5, 3)) == 0


# --- When a new segment is begun (LS16) -----------------------------------------------------------


def attempts(rule: RollToMoreBookies, *, until_s: int, vacant: Callable[[int], int]) -> list[int]:
    """The seconds in which a new segment is begun, if enough bookies always take new ledgers."""
    found = []
    for now_s in range(until_s):
        reason = rule.reason_to_roll(now_s, is_made_short=False, vacant=vacant(now_s))
        if reason is not None:
            assert reason == VACANT_SLOT
            found.append(now_s)
            rule.on_attempt(now_s, reason)
    return found


def test_segment_made_with_too_few_bookies_rolls_at_once() -> None:
    """LS13."""
    rule = RollToMoreBookies()
    assert rule.reason_to_roll(0.0, is_made_short=True, vacant=0) == FULL_ENSEMBLE
    assert rule.reason_to_roll(0.0, is_made_short=True, vacant=1) == FULL_ENSEMBLE


def test_vacant_slot_causes_a_roll_after_15_seconds() -> None:
    """LS16."""
    assert attempts(RollToMoreBookies(), until_s=20, vacant=lambda _: 1) == [15]
    assert attempts(RollToMoreBookies(), until_s=20, vacant=lambda now_s: now_s < 14) == []


def test_bookie_that_returns_and_fails_again_does_not_defer_the_roll() -> None:
    """LS16."""
    rule = RollToMoreBookies()
    assert attempts(rule, until_s=20, vacant=lambda now_s: now_s % 3 == 0) == [15]


def test_each_further_attempt_waits_twice_as_long() -> None:
    """LS16: a bookie that responds but takes no entries must not cause a loop of rolls."""
    found = attempts(RollToMoreBookies(), until_s=3000, vacant=lambda _: 1)
    assert [after - before for before, after in pairwise([0, *found])] == [
        15,
        15,
        30,
        60,
        120,
        240,
        480,
        600,
        600,
        600,
    ]


def test_failed_roll_is_retried_soon_and_then_less_often() -> None:
    """LS16."""
    rule = RollToMoreBookies()
    found = []
    for now_s in range(40):
        if (reason := rule.reason_to_roll(now_s, is_made_short=True, vacant=0)) is not None:
            found.append(now_s)
            rule.on_attempt(now_s, reason)
    assert found == [0, 1, 3, 7, 15, 31]


def test_watching_ends_once_all_slots_stay_taken() -> None:
    """LS16."""
    rule = RollToMoreBookies()
    assert rule.is_over
    assert attempts(rule, until_s=16, vacant=lambda _: 1) == [15]
    for now_s in range(16, 31):
        assert rule.reason_to_roll(now_s, is_made_short=False, vacant=0) is None
        assert not rule.is_over
    rule.reason_to_roll(31, is_made_short=False, vacant=0)
    assert rule.is_over
    assert rule.attempts == 0


def test_a_better_segment_has_all_copies_or_the_whole_ensemble() -> None:
    """LS16: in a cluster of three, a log that wants four bookies and three copies gets its copies."""
    wanted = Quorum(4, 3, 2)
    assert bookies_for_better(wanted, Quorum(3, 3, 2), FULL_ENSEMBLE) == 4
    assert bookies_for_better(wanted, Quorum(3, 3, 2), VACANT_SLOT) == 3
    assert bookies_for_better(wanted, Quorum(2, 2, 2), FULL_ENSEMBLE) == 3
    assert bookies_for_better(wanted, wanted, VACANT_SLOT) == 3


@pytest.mark.parametrize(
    ("made", "reason", "allows_degraded", "expected"),
    [
        (Quorum(3, 3, 2), FULL_ENSEMBLE, True, (FULL_ENSEMBLE, 4)),
        (Quorum(2, 2, 2), FULL_ENSEMBLE, True, (ALL_COPIES, 3)),
        (Quorum(4, 3, 2), VACANT_SLOT, True, (VACANT_SLOT, 3)),
        (Quorum(2, 2, 2), VACANT_SLOT, True, (VACANT_SLOT, 3)),
        (Quorum(3, 3, 2), FULL_ENSEMBLE, False, (FULL_ENSEMBLE, 4)),
        (Quorum(2, 2, 2), FULL_ENSEMBLE, False, (FULL_ENSEMBLE, 4)),
        (Quorum(4, 3, 2), VACANT_SLOT, False, (VACANT_SLOT, 4)),
    ],
)
def test_the_reason_of_a_better_segment_names_the_bookies_it_needs(
    made: Quorum, reason: str, allows_degraded: bool, expected: tuple[str, int]
) -> None:
    """LS16: a log that allows no degraded segments needs its full ensemble."""
    found = better_segment(Quorum(4, 3, 2), made, reason, allows_degraded=allows_degraded)
    assert found == expected


def test_all_copies_are_a_full_ensemble_unless_the_log_stripes() -> None:
    """LS16."""
    wanted, made = Quorum(3, 3, 2), Quorum(2, 2, 2)
    found = better_segment(wanted, made, FULL_ENSEMBLE, allows_degraded=True)
    assert found == (FULL_ENSEMBLE, 3)


def test_vacant_slot_of_a_short_segment_causes_no_roll_at_once() -> None:
    """LS16: while a bookie restarts, a new segment would be no better."""
    rule = RollToMoreBookies()
    reasons = [rule.reason_to_roll(now_s, is_made_short=True, vacant=1) for now_s in range(17)]
    assert reasons == [*([FULL_ENSEMBLE] * 15), VACANT_SLOT, VACANT_SLOT]
