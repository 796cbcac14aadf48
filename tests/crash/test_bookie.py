"""A few crashes of bookies; `python -m tests crash` runs many."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from rollbook.proto.errors import ConnectionLost, Unavailable
from tests.crash.bookie import run_failed_syncs, run_full_disks, run_kills, run_power_cuts
from tests.crash.bookie_flaws import (
    FOUND_BY_FAILED_SYNCS,
    FOUND_BY_KILLS,
    FOUND_BY_LOST_NAMES,
    FOUND_BY_POWER_CUTS,
)
from tests.crash.bookie_rig import Outcome
from tests.support import forgetful
from tests.support.forgetful import ForgetfulDisk, Names
from tests.support.processes import ChildFailed

_LARGE: Final = 16 << 20

pytestmark = pytest.mark.timeout(600)  # Each crash has its own time-outs.


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ForgetfulDisk]:
    forgetful.require()
    with forgetful.mount(tmp_path / "forgetful") as mounted:
        yield mounted


@pytest.fixture
def strict_disk(tmp_path: Path) -> Iterator[ForgetfulDisk]:
    forgetful.require()
    with forgetful.mount(tmp_path / "strict", Names.POSIX) as mounted:
        yield mounted


def silent(_text: str) -> None:
    pass


def test_killed_bookies_lose_no_promise(tmp_path: Path) -> None:
    """This includes SIGTERM under load, a pause, and kills during a start."""
    crashes = run_kills(tmp_path, 13, 1, silent)
    assert not crashes.violations
    assert crashes.acknowledged > 13 * 300
    assert crashes.unknown > 0  # Clients were working when it died.
    assert len(crashes.endings_s) == 1


def test_power_cuts_lose_no_promise(disk: ForgetfulDisk) -> None:
    crashes = run_power_cuts(disk, 3, 1, silent)
    assert not crashes.violations
    assert crashes.acknowledged > 3 * 300
    assert len(crashes.dropped) == 3  # Each of them forgot something.
    assert min(crashes.dropped) > 0


def test_power_cuts_under_posix_names_lose_no_promise(strict_disk: ForgetfulDisk) -> None:
    crashes = run_power_cuts(strict_disk, 2, 2, silent)
    assert not crashes.violations
    assert len(crashes.dropped) == 2


def test_failed_fsyncs_end_the_bookie_and_lose_no_promise(disk: ForgetfulDisk) -> None:
    """The first read of an entry with an unknown outcome decides it permanently."""
    crashes = run_failed_syncs(disk, 2, 1, silent)
    assert not crashes.violations
    assert disk.statistics()["syncs_failed"] >= 2


def test_full_disk_refuses_adds_and_loses_no_promise(disk: ForgetfulDisk) -> None:
    crashes = run_full_disks(disk, 2, 1, silent)
    assert not crashes.violations
    assert crashes.refused > 0


@pytest.mark.parametrize("flaw", FOUND_BY_KILLS)
def test_kills_find_planted_bookie_flaw(flaw: str, tmp_path: Path) -> None:
    """Otherwise the test of the real bookie would prove nothing."""
    assert is_found_out(lambda: run_kills(tmp_path, 8, 1, silent, flaw=flaw))


@pytest.mark.parametrize("flaw", FOUND_BY_POWER_CUTS)
def test_power_cuts_find_planted_bookie_flaw(flaw: str, disk: ForgetfulDisk) -> None:
    assert is_found_out(lambda: run_power_cuts(disk, 8, 1, silent, flaw=flaw))


@pytest.mark.parametrize("flaw", FOUND_BY_LOST_NAMES)
def test_lost_names_find_planted_bookie_flaw(flaw: str, strict_disk: ForgetfulDisk) -> None:
    assert is_found_out(lambda: run_power_cuts(strict_disk, 8, 1, silent, flaw=flaw))


@pytest.mark.parametrize("flaw", FOUND_BY_FAILED_SYNCS)
def test_failed_fsyncs_find_planted_bookie_flaw(flaw: str, disk: ForgetfulDisk) -> None:
    assert is_found_out(
        lambda: run_failed_syncs(disk, 10, 1, silent, flaw=flaw, journal_file_bytes=_LARGE)
    )


def is_found_out(run: Callable[[], Outcome]) -> bool:
    try:
        return bool(run().violations)
    except (ChildFailed, ConnectionLost, Unavailable):
        return True  # The bookie could not even serve what was left.
