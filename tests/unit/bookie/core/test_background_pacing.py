"""Pauses of background work, and the lulls it waits for."""

import random

import pytest

from rollbook.bookie.core.background_pacing import Lull, StepPauses

MS = 10**6


@pytest.mark.parametrize("seed", range(20))
def test_pauses_are_proportional_to_time_worked(seed: int) -> None:
    """Pauses add up for short steps too; a step that waited for the disk causes only a short pause."""
    chance = random.Random(seed)
    now_ns, worked_ns, rested_ns = 0, 0, 0
    rests = StepPauses(now_ns)
    for _ in range(1_000):
        step_ns = chance.choice((1_000, 100_000, 400_000, 2_000_000))
        now_ns += step_ns
        worked_ns += step_ns
        rest_ns = round(rests.on_paused(now_ns, 2.0) * 1e9)
        assert rest_ns == 0 or rest_ns >= 1_000_000  # Timers are no finer than 1 ms.
        rested_ns += rest_ns
        now_ns += rest_ns + chance.randrange(1_000_000)  # The event loop returns late.
        rests.on_resumed(now_ns)
    assert 2 * worked_ns - 1_000_000 <= rested_ns <= 2 * worked_ns
    assert rests.on_paused(now_ns + 10**9, 2.0) <= 0.01


def test_lull_is_a_short_loop_turn() -> None:
    lull = Lull(0, patience_s=1.0)
    assert not lull.has_come(0, 2 * MS)
    assert not lull.has_come(5 * MS, 6 * MS)
    assert lull.has_come(7 * MS, 7 * MS + 20_000)


def test_busy_loop_is_waited_for_at_most_the_patience() -> None:
    """Otherwise compaction would never end under constant adds, and the disk would fill up."""
    now_ns, looks, lull = 0, 0, Lull(0, patience_s=0.02)
    while not lull.has_come(now_ns, now_ns + 2 * MS):
        now_ns, looks = now_ns + 4 * MS, looks + 1
    assert looks == 5


def test_urgent_work_delays_a_lull_until_patience_ends() -> None:
    lull = Lull(0, patience_s=0.02)
    assert not lull.has_come(5 * MS, 5 * MS, is_preceded=True)
    assert lull.has_come(5 * MS, 5 * MS)
    assert lull.has_come(20 * MS, 20 * MS, is_preceded=True)
