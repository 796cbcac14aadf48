"""Dying owners of the embedded store, in small; `python -m tests crash` is the long form."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.embedded_store import run_kills, run_power_cuts
from tests.support import forgetful
from tests.support.forgetful import ForgetfulDisk
from tests.support.processes import ChildFailed


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
    assert crashes.acknowledged > 500
    assert crashes.unknown > 0  # Else nobody was at work when they died.


def test_power_cuts_lose_no_promise(disk: ForgetfulDisk) -> None:
    crashes = run_power_cuts(disk, 4, 1, silent)
    assert not crashes.violations
    assert crashes.acknowledged > 200
    assert disk.statistics()["forgets"] == 4


def test_a_store_that_never_syncs_is_found_out(disk: ForgetfulDisk) -> None:
    """Else the test above would prove nothing."""
    try:
        crashes = run_power_cuts(disk, 2, 1, silent, careless=True)
    except ChildFailed:
        return  # What is left of the store cannot even be opened.
    assert crashes.violations
