"""LT1: ages count only time in which the cluster was up."""

import random

import pytest

from rollbook.logservice.core.age_without_downtime import (
    GAPS_MAX,
    NO_GAPS,
    LivedTime,
    LivedTimeGap,
    Witness,
)
from rollbook.proto.errors import BadMetadata

S = 1_000_000


def test_age_excludes_gaps() -> None:
    lived = NO_GAPS.with_gap(100, 1100)
    assert lived.age_us(0, 50) == 50
    assert lived.age_us(50, 2000) == 950  # 50 before the gap, 900 after it.
    assert lived.age_us(1200, 2000) == 800
    assert lived.age_us(100, 1100) == 0
    assert lived.age_us(600, 1100) == 0  # It starts within the gap.
    assert lived.age_us(50, 600) == 50  # The gap has not ended yet.


@pytest.mark.parametrize("seed", range(20))
def test_merging_the_oldest_gaps_never_increases_an_age(seed: int) -> None:
    chance, now, exact, gaps = random.Random(seed), 0, NO_GAPS, list[LivedTimeGap]()
    for _ in range(3 * GAPS_MAX):
        start = now + chance.randint(1, 100)
        now = start + chance.randint(1, 1000)
        exact = exact.with_gap(start, now)
        gaps.append(LivedTimeGap(start, now))
        assert len(exact.gaps) <= GAPS_MAX
    for _ in range(200):
        since = chance.randint(0, now)
        truth = LivedTime(tuple(gaps)).age_us(since, now)
        assert 0 <= exact.age_us(since, now) <= truth
    first_kept = exact.gaps[1].start_us
    assert exact.age_us(first_kept, now) == LivedTime(tuple(gaps)).age_us(first_kept, now)
    assert LivedTime.unpack(exact.pack()) == exact


def test_witness_records_a_gap_after_an_outage() -> None:
    witness = Witness(1000 * S)
    assert witness.on_beat(1001 * S) is witness  # Too little time has passed for a write.
    assert witness.on_beat(900 * S) is witness  # Clocks that are set back cause no gap.
    later = witness.on_beat(1040 * S)
    assert later == Witness(1040 * S)
    assert later.is_close(1340 * S)
    assert not later.is_close(1341 * S)
    away = later.on_beat(9000 * S)
    assert away == Witness(9000 * S, LivedTime((LivedTimeGap(1040 * S, 9000 * S),)))
    assert away.lived.age_us(1000 * S, 9010 * S) == 50 * S
    assert Witness.unpack(away.pack()) == away


@pytest.mark.parametrize("cut", range(1, 29))
def test_damaged_witness_is_rejected(cut: int) -> None:
    packed = Witness(5, NO_GAPS.with_gap(1, 2)).pack()
    with pytest.raises(BadMetadata):
        Witness.unpack(packed[:-cut])
    with pytest.raises(BadMetadata):
        LivedTime.unpack(packed[8:] + bytes(cut))
