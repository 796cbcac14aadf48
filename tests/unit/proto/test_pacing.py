"""Pacing of background work."""

import random

import pytest

from rollbook.proto.pacing import Pace

S = 10**9


@pytest.mark.parametrize("seed", range(50))
def test_pace_is_kept_without_saving_up_unused_time(seed: int) -> None:
    chance = random.Random(seed)
    pace = Pace(1000.0)
    now_s, spent, usable_s = 0.0, 0, 0.0
    for _ in range(200):
        size = chance.randint(1, 100)
        wait_s = pace.spend(size, int(now_s * S))
        spent += size
        now_s += wait_s
        usable_s += wait_s
        if chance.random() < 0.1:
            pause_s = chance.uniform(0, 5)
            usable_s += min(pause_s, 0.05)
            now_s += pause_s
        assert spent <= 1000 * (usable_s + 0.06)


def test_rate_can_be_changed_while_in_use() -> None:
    pace = Pace(1000.0)
    assert pace.spend(1000, 10 * S) == pytest.approx(0.95, abs=0.01)
    pace.bytes_per_s = 1_000_000.0
    assert pace.spend(1000, 11 * S) == 0.0
