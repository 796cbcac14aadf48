"""Crash images of a bookie's identity: no bookie is locked out and no copy let in, unless a flaw
is planted."""

from collections.abc import Iterator

import pytest

from tests.crash.images.identities import crash_identity_everywhere
from tests.crash.images.life import small_and_quiet
from tests.crash.images.run import find_flaw


@pytest.fixture(autouse=True)
def _small_and_quiet() -> Iterator[None]:
    with small_and_quiet():
        yield


def test_no_power_cut_locks_a_bookie_out_or_lets_a_copy_in() -> None:
    """B8: cuts during creation, start and format, at every change of directories and metadata."""
    crashes = crash_identity_everywhere(0, sample=2)
    assert not crashes.failures
    assert crashes.images > crashes.moments > 100
    assert crashes.again > 0


@pytest.mark.parametrize("name", ["a stamp's name is not synced", "a format doubts nothing"])
def test_planted_identity_flaw_is_found(name: str) -> None:
    assert find_flaw((name, 0)).what
