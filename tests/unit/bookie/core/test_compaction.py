"""Chooses the logs to rewrite, the groups to merge, and the times of compaction."""

import random

import pytest

from rollbook.bookie.core.catalog import LedgerInLog, Use
from rollbook.bookie.core.catalog_records import EntryLogInfo
from rollbook.bookie.core.compaction import (
    TARGET_BYTES,
    Candidate,
    CompactionGroup,
    CompactionKind,
    CompactionSchedule,
    candidate,
    hides_younger,
    is_between,
    pick_victims,
    sorted_bytes,
)

MIB = 1024 * 1024
S = 10**9


def log(number: int, live_mib: float, file_mib: float = 128, entries: int = 1000) -> Candidate:
    use = Use(1, entries, int(live_mib * MIB)) if live_mib else Use(0, 0, 0)
    return candidate(EntryLogInfo(number, 0, int(file_mib * MIB), number), use)


def test_victims_are_the_emptiest_logs_but_never_empty_ones() -> None:
    logs = [log(1, 100), log(2, 14), log(3, 0), log(4, 20), log(5, 1)]
    assert [each.number for each in pick_victims(logs, 0.2)] == [5, 2, 4]
    assert [each.number for each in pick_victims(logs, 0.8)] == [5, 2, 4, 1]
    assert pick_victims(logs, 0.0) == []
    assert [each.number for each in pick_victims(logs, 0.0, damaged={1: None})] == [1]


def test_similarly_empty_logs_are_picked_oldest_first() -> None:
    logs = [log(9, 41), log(8, 44), log(7, 42), log(6, 43), log(5, 20)]
    assert [each.number for each in pick_victims(logs, 0.8)] == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("entry_bytes", [0, 1, 20, 100, 1000, 10**6])
@pytest.mark.parametrize("entries", [1, 1000, 10**6])
def test_rewritten_log_counts_as_full(entries: int, entry_bytes: int) -> None:
    """B12: otherwise it would be rewritten again and again."""
    use = Use(max(1, entries // 100), entries, entries * entry_bytes)
    real = 1024 + 1100 + 120 * use.ledgers + 16.1 * entries + use.entry_bytes * 1.006
    assert Candidate(1, 1, int(real), use).fullness > 0.95
    assert sorted_bytes(use) < 1.3 * real + 4096


def test_group_is_bounded_by_bytes_and_free_space() -> None:
    batch = CompactionGroup(log(1, 20))
    assert batch.has_room_for(log(2, 20), TARGET_BYTES)
    assert not batch.has_room_for(log(2, 20), 30 * MIB)
    assert not batch.has_room_for(log(2, 240), 10**12)
    assert not batch.has_room_for(log(2, 1, entries=3 * 10**6), TARGET_BYTES)
    for number in range(2, 6):
        batch.add(log(number, 1))
    assert batch.numbers == [1, 2, 3, 4, 5]
    assert batch.sorted_bytes == sum(each.sorted_bytes for each in (log(1, 20), *[log(2, 1)] * 4))
    assert (batch.oldest, batch.age) == (1, 5)
    batch.add(log(0, 1))
    assert (batch.oldest, batch.age) == (0, 5)


def test_group_is_bounded_in_number_of_logs() -> None:
    """Each log of a group is an open file."""
    batch = CompactionGroup(log(1, 1))
    while not batch.is_full:
        assert batch.has_room_for(log(2, 1), TARGET_BYTES)
        batch.add(log(2, 1))
    assert len(batch.numbers) == 64
    assert not batch.has_room_for(log(2, 1), TARGET_BYTES)


def held(number: int, first: int, last: int) -> LedgerInLog:
    return LedgerInLog(number, first, last, last - first + 1, 100, last - 1)


def test_merge_that_would_hide_a_younger_repeat_is_detected() -> None:
    """B12: log 2 has entry 5 again, later than log 1."""
    all_of_it = [held(3, 20, 29), held(2, 5, 5), held(1, 0, 9)]

    def hides(*numbers: int) -> bool:
        return hides_younger(all_of_it, lambda number: number, list(numbers))

    assert hides(1, 3)
    assert not hides(1, 2)
    assert not hides(2, 3)
    assert not hides(1, 2, 3)
    assert not hides(1)
    assert hides(1, 4)  # Log 4 has nothing of this ledger, but makes the merged log younger.
    assert not hides(1, 2, 4)
    assert not hides(3, 4)
    assert not hides(0, 1)


@pytest.mark.parametrize("seed", range(300))
def test_merged_logs_return_the_same_copies(seed: int) -> None:
    """B12: for any ages, each entry is still read from the same log's copy."""
    chance = random.Random(seed)
    ages = dict(zip(range(5), chance.sample(range(100), 5), strict=True))
    entries = {
        number: frozenset(chance.sample(range(12), chance.randint(1, 12))) for number in range(5)
    }
    batch = chance.sample(range(5), chance.randint(1, 4))
    all_of_it = [
        LedgerInLog(number, min(has), max(has), len(has), 100, -1)
        for number, has in entries.items()
    ]
    logs = [EntryLogInfo(number, 0, 1, ages[number]) for number in range(5)]
    taken = [ages[number] for number in batch]
    is_mixed = any(
        is_between(each, min(taken), max(taken)) for each in logs if each.number not in batch
    )
    if hides_younger(all_of_it, ages.__getitem__, batch):
        assert is_mixed  # Only logs of mixed ages can hide a younger one.
        return

    def winner(order: list[int], entry_id: int) -> int:
        return next(number for number in order if entry_id in entries[number])

    youngest_first = sorted(range(5), key=ages.__getitem__, reverse=True)
    merged_age = max(ages[number] for number in batch)
    inside = [number for number in youngest_first if number in batch]
    after = sorted(
        range(5),
        key=lambda number: merged_age if number in batch else ages[number],
        reverse=True,
    )
    after = [number for number in after if number not in batch]
    place = sum(ages[number] > merged_age for number in after)
    after[place:place] = inside
    for entry_id in frozenset().union(*entries.values()):
        assert winner(youngest_first, entry_id) == winner(after, entry_id)


def test_minor_and_major_run_when_due_unless_suspended() -> None:
    schedule = CompactionSchedule(
        CompactionKind("minor", 0.2, 10), CompactionKind("major", 0.8, 100), 0
    )
    minor, major = schedule.minor, schedule.major
    assert schedule.due(9 * S) is None
    assert schedule.due(10 * S) is minor
    schedule.on_done(minor, 10 * S)
    assert schedule.due(19 * S) is None
    assert schedule.due(100 * S) is major
    schedule.suspend("major", True)
    assert schedule.due(100 * S) is minor
    assert schedule.is_suspended("major")
    schedule.suspend("major", False)
    schedule.on_done(major, 100 * S)
    assert schedule.due(101 * S) is None  # The major compaction counts as a minor one.
    assert schedule.due(101 * S, is_short=True) is major
    assert schedule.due(101 * S, has_damage=True) is minor


@pytest.mark.parametrize(("threshold", "interval_s"), [(0, 10), (-1, 10), (0.2, 0), (0.2, -5)])
def test_compaction_is_off_without_positive_threshold_and_interval(
    threshold: float, interval_s: float
) -> None:
    schedule = CompactionSchedule(
        CompactionKind("minor", threshold, interval_s), CompactionKind("major", 0, 0), 0
    )
    assert schedule.due(10**6 * S, is_short=True, has_damage=True) is None
