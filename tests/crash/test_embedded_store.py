"""A few crashes of the embedded store's owners; `python -m tests crash` runs many."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollbook.proto.runtime.metastore import open_metadata_store
from tests.crash.embedded_store import run_failed_syncs, run_kills, run_power_cuts
from tests.crash.flaws import FOUND_BY_FAILED_SYNCS, FOUND_BY_KILLS, FOUND_BY_POWER_CUTS
from tests.crash.load import FOLDERS
from tests.crash.rig import Outcome, read_tree
from tests.support import forgetful
from tests.support.forgetful import ForgetfulDisk
from tests.support.processes import ChildFailed, family

pytestmark = pytest.mark.timeout(600)  # Each crash has its own time-outs.


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ForgetfulDisk]:
    forgetful.require()
    with forgetful.mount(tmp_path / "forgetful") as mounted:
        yield mounted


def silent(_text: str) -> None:
    pass


def test_killed_owners_lose_no_promise(tmp_path: Path) -> None:
    crashes = run_kills(tmp_path, 12, 1, silent)
    assert not crashes.violations
    assert crashes.acknowledged > 12 * 30  # The test waits for 30 before each crash.
    assert crashes.unknown > 0  # Clients were working when the owners died.


def test_power_cuts_lose_no_promise(disk: ForgetfulDisk) -> None:
    crashes = run_power_cuts(disk, 4, 1, silent)
    assert not crashes.violations
    assert crashes.acknowledged > 4 * 30
    assert disk.statistics()["forgets"] == 4


def test_failed_fsyncs_lose_no_promise(disk: ForgetfulDisk) -> None:
    """An owner that appends to a log with a hole in it would break many promises."""
    crashes = run_failed_syncs(disk, 3, 1, silent)
    assert not crashes.violations
    assert disk.statistics()["syncs_failed"] >= 3


def test_a_store_is_created_whole_or_not_at_all(disk: ForgetfulDisk) -> None:
    """After a cut at any moment the next attempt succeeds, and its result survives a power cut."""
    chance = random.Random(1)
    disk.slow_sync(0.004)  # This makes cuts during the creation likely.
    for number in range(4):
        url = f"sqlite://{disk.path}/{number}.db"
        for _ in range(2):
            with family() as children:
                children.start_module("tests.crash.server", url, "create")
                time.sleep(chance.uniform(0.2, 0.7))
            disk.forget(keep=chance.random(), seed=number)
        with family() as children:
            assert children.start_module("tests.crash.server", url, "create").wait() == 0
        disk.forget()
        assert set(FOLDERS) < asyncio.run(everything_in(url)).keys()


async def everything_in(url: str) -> dict[str, tuple[str, int]]:
    async with await open_metadata_store(url, serve=True) as store:
        return await read_tree(store, FOLDERS)


@pytest.mark.parametrize("flaw", [flaw.__name__ for flaw in FOUND_BY_KILLS])
def test_kills_find_planted_store_flaw(flaw: str, tmp_path: Path) -> None:
    """Otherwise the test of the real store would prove nothing. Some flaws show only at some moments."""

    def run(seed: int) -> Outcome:
        folder = tmp_path / str(seed)
        folder.mkdir()
        return run_kills(folder, 5, seed, silent, flaw=flaw)

    assert any(is_found_out(run, seed) for seed in range(6))


@pytest.mark.parametrize("flaw", [flaw.__name__ for flaw in FOUND_BY_POWER_CUTS])
def test_power_cuts_find_planted_store_flaw(flaw: str, disk: ForgetfulDisk) -> None:
    assert is_found_out(lambda seed: run_power_cuts(disk, 2, seed, silent, flaw=flaw), 1)


@pytest.mark.parametrize("flaw", [flaw.__name__ for flaw in FOUND_BY_FAILED_SYNCS])
def test_failed_fsyncs_find_planted_store_flaw(flaw: str, disk: ForgetfulDisk) -> None:
    assert is_found_out(lambda seed: run_failed_syncs(disk, 2, seed, silent, flaw=flaw), 1)


def is_found_out(run: Callable[[int], Outcome], seed: int) -> bool:
    try:
        return bool(run(seed).violations)
    except ChildFailed:
        return True  # The store could not even be opened.
