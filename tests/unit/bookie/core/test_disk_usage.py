"""Disk usage levels, and the choice of a directory for new logs."""

import pytest

from rollbook.bookie.core.disk_usage import DiskUsage, Level, pick_directory
from rollbook.proto.ports import DiskSpace

TOTAL = 1000
J, A, B = "/journal", "/a", "/b"


def usage() -> DiskUsage:
    return DiskUsage(J, (A, B), full=0.95, warning=0.9, low_water=0.93)


def look(usage: DiskUsage, **used: int) -> list[Level]:
    paths = {"j": J, "a": A, "b": B}
    spaces = {paths[name]: DiskSpace(TOTAL, TOTAL - of) for name, of in used.items()}
    return [each.level for each in usage.on_look(spaces)]


def test_disk_level_rises_at_thresholds_and_falls_at_low_water() -> None:
    disks = usage()
    assert look(disks, j=0, a=899, b=0) == []
    assert look(disks, j=0, a=900, b=0) == [Level.WARNING]
    assert look(disks, j=0, a=949, b=0) == []
    assert look(disks, j=0, a=950, b=0) == [Level.FULL]
    assert look(disks, j=0, a=931, b=0) == []  # Usage is still above the low-water mark.
    assert disks.is_full(A)
    assert look(disks, j=0, a=930, b=0) == [Level.WARNING]
    assert look(disks, j=0, a=100, b=0) == [Level.ROOMY]


def test_disks_are_short_if_journal_or_all_ledger_dirs_are_full() -> None:
    disks = usage()
    look(disks, j=0, a=990, b=0)
    assert not disks.is_short
    look(disks, j=0, a=990, b=990)
    assert disks.is_short
    look(disks, j=0, a=0, b=990)
    assert not disks.is_short
    look(disks, j=960, a=0, b=0)
    assert disks.is_short
    assert disks.full_directories == [J]


def test_fuller_disk_is_checked_sooner() -> None:
    disks = usage()
    big = 10**13
    disks.on_look({J: DiskSpace(big, big), A: DiskSpace(big, big), B: DiskSpace(big, big)})
    assert disks.next_look_s(10) == 10
    disks.on_look({A: DiskSpace(big, big // 20 + 2 * 1024**3)})
    assert 1.5 < disks.next_look_s(10) < 2.5
    disks.on_look({A: DiskSpace(big, big // 20 + 1)})
    assert disks.next_look_s(10) == pytest.approx(0.2)


def test_new_logs_rotate_among_directories_with_room() -> None:
    roomy, tight = DiskSpace(1000, 900), DiskSpace(1000, 100)
    spaces = [roomy, tight, roomy]
    assert [pick_directory(spaces, [False] * 3, n) for n in range(4)] == [0, 2, 0, 2]
    assert [pick_directory(spaces, [True, False, False], n) for n in range(3)] == [2, 2, 2]
    assert [pick_directory(spaces, [True, False, True], n) for n in range(3)] == [1, 1, 1]
    assert pick_directory(spaces, [True] * 3, 1) == 2  # If all are full, it still picks one.
