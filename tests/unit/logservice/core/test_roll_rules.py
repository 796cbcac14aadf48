"""LS3: when a segment ends."""

import random

from rollbook.logservice.core.roll_rules import AGE, BYTES, ENTRIES, SegmentLimits
from rollbook.logservice.log_config import LogConfig

CONFIG = LogConfig(roll_bytes=100_000, roll_entries=1000, roll_age_s=60)


def limits(seed: int = 1) -> SegmentLimits:
    return SegmentLimits(CONFIG, random.Random(seed))


def test_whichever_comes_first() -> None:
    reason = limits().reason_to_roll
    assert reason(1000, 10, 1.0, has_records=True) is None
    assert reason(110_000, 10, 1.0, has_records=True) == BYTES
    assert reason(1000, 1100, 1.0, has_records=True) == ENTRIES
    assert reason(1000, 10, 66.0, has_records=True) == AGE


def test_segment_without_records_stays_unless_barriers_made_it_long() -> None:
    assert limits().reason_to_roll(110_000, 10, 1e9, has_records=False) is None
    assert limits().reason_to_roll(110_000, 1100, 1.0, has_records=False) == ENTRIES


def test_logs_that_were_made_together_do_not_roll_together() -> None:
    ages = sorted(limits(seed).age_s for seed in range(1000))
    assert 54 <= ages[0] < 55
    assert 65 < ages[-1] <= 66


def test_another_configuration_holds_for_the_present_segment_too() -> None:
    changed = limits()
    changed.configure(LogConfig(roll_age_s=10))
    assert changed.reason_to_roll(0, 0, 11.0, has_records=True) == AGE
