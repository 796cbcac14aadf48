"""LS3: when a segment ends. LS5: when it gets a snapshot."""

import random

import pytest

from rollbook.logservice.core.roll_rules import AGE, BYTES, ENTRIES, SegmentLength, SegmentLimits
from rollbook.logservice.log_config import LogConfig

CONFIG = LogConfig(roll_bytes=100_000, roll_entries=1000, roll_age_s=60)


def limits(seed: int = 1) -> SegmentLimits:
    return SegmentLimits(CONFIG, random.Random(seed))


def test_segment_rolls_at_the_first_limit_reached() -> None:
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


def test_new_configuration_applies_to_the_open_segment() -> None:
    changed = limits()
    changed.configure(LogConfig(roll_age_s=10))
    assert changed.reason_to_roll(0, 0, 11.0, has_records=True) == AGE


MIB = 1024 * 1024
LARGE = LogConfig(roll_bytes=1024 * MIB, roll_entries=1_000_000, roll_age_s=60)


def length(
    config: LogConfig, entries: int, size: int, *, has_records: bool = True
) -> SegmentLength:
    written = SegmentLength(SegmentLimits(config, random.Random(1)))
    written.entries, written.bytes, written.has_records = entries, size, has_records
    return written


@pytest.mark.parametrize(
    ("entries", "size", "snapshot_bytes", "is_due"),
    [
        (1023, MIB, 0, False),
        (1024, MIB, 0, True),
        (10, 8 * MIB - 1, 0, False),
        (10, 8 * MIB, 0, True),
        (1024, MIB, MIB // 16, True),
        (1024, MIB, MIB // 16 + 1, False),  # It waits until more was written.
        (50_000, 16 * MIB, MIB, True),
        (50_000, 16 * MIB - 1, MIB, False),
        (1024, 0, 0, True),
    ],
)
def test_a_snapshot_bounds_the_replay_and_is_a_small_part_of_the_log(
    entries: int, size: int, snapshot_bytes: int, is_due: bool
) -> None:
    """LS5, LS11."""
    assert length(LARGE, entries, size).is_snapshot_due(snapshot_bytes) is is_due


def test_the_next_snapshot_is_counted_from_the_last_one() -> None:
    written = length(LARGE, 1024, MIB)
    written.on_snapshot()
    assert not written.is_snapshot_due(0)
    assert not written.is_look_due
    written.entries += 1023
    assert not written.is_snapshot_due(0)
    written.entries += 1
    assert written.is_snapshot_due(0)
    assert not written.is_snapshot_due(1), "no byte was written since"


@pytest.mark.parametrize(
    ("entries", "size", "is_full", "is_look_due"),
    [
        (900, 89_000, False, False),
        (10, 111_000, True, True),
        (1101, 1000, True, True),
    ],
)
def test_the_check_of_every_entry_notices_a_full_segment(
    entries: int, size: int, is_full: bool, is_look_due: bool
) -> None:
    written = length(CONFIG, entries, size)
    assert (written.is_full, written.is_look_due) == (is_full, is_look_due)


@pytest.mark.parametrize("entries", range(1000, 3000, 37))
@pytest.mark.parametrize("size", [0, 7 * MIB, 9 * MIB])
def test_the_check_of_every_entry_misses_no_snapshot(entries: int, size: int) -> None:
    written = length(LARGE, entries, size)
    assert written.is_look_due >= written.is_snapshot_due(0)


def test_a_segment_rolls_by_what_was_written_to_it() -> None:
    assert length(CONFIG, 10, 110_000).reason_to_roll(1.0) == BYTES
    assert length(CONFIG, 10, 1000).reason_to_roll(66.0) == AGE
    assert length(CONFIG, 10, 1000, has_records=False).reason_to_roll(66.0) is None
    assert length(CONFIG, 1100, 0, has_records=False).reason_to_roll(66.0) == ENTRIES
