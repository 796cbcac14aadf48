"""LT1: an age is time that was lived through."""

import random

import pytest

from rollbook.logservice.core.downtime_gaps import (
    GAPS_MAX,
    NO_GAPS,
    LivedTime,
    LivedTimeGap,
    Witness,
)
from rollbook.proto.errors import BadMetadata

S = 1_000_000


def test_what_nobody_lived_through_makes_nothing_older() -> None:
    lived = NO_GAPS.with_gap(100, 1100)
    assert lived.age_us(0, 50) == 50
    assert lived.age_us(50, 2000) == 950  # 50 before the gap, 900 after it.
    assert lived.age_us(1200, 2000) == 800
    assert lived.age_us(100, 1100) == 0
    assert lived.age_us(600, 1100) == 0  # Within it.
    assert lived.age_us(50, 600) == 50  # It has not ended yet.


@pytest.mark.parametrize("seed", range(20))
def test_of_many_gaps_the_oldest_are_merged_and_nothing_gets_older_by_that(seed: int) -> None:
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


def test_a_witness_notices_when_all_were_away_or_all_clocks_were_set() -> None:
    witness = Witness(1000 * S)
    assert witness.on_beat(1001 * S) is witness  # Nothing worth a write.
    assert witness.on_beat(900 * S) is witness  # Clocks that are set back take no time away.
    later = witness.on_beat(1040 * S)
    assert later == Witness(1040 * S)
    assert later.is_close(1340 * S)
    assert not later.is_close(1341 * S)
    away = later.on_beat(9000 * S)
    assert away == Witness(9000 * S, LivedTime((LivedTimeGap(1040 * S, 9000 * S),)))
    assert away.lived.age_us(1000 * S, 9010 * S) == 50 * S
    assert Witness.unpack(away.pack()) == away


@pytest.mark.parametrize("cut", range(1, 29))
def test_what_is_damaged_is_not_read(cut: int) -> None:
    packed = Witness(5, NO_GAPS.with_gap(1, 2)).pack()
    with pytest.raises(BadMetadata):
        Witness.unpack(packed[:-cut])
    with pytest.raises(BadMetadata):
        LivedTime.unpack(packed[8:] + bytes(cut))
