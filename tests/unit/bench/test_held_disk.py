"""A disk that is held gives no more than was said; where none can be held, that is said."""

import time
from pathlib import Path

import pytest

from tests.bench.load.held_disk import CannotHold, reads_held_to
from tests.bench.load.victim import drop_from_cache

_BYTES = 8_000_000


def test_a_held_disk_is_no_quicker_and_is_let_go(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(_BYTES))
    drop_from_cache(file)
    before = _memberships()
    refusal = ""
    began = time.monotonic()
    try:
        with reads_held_to(_BYTES, tmp_path):
            assert _memberships() != before
            file.read_bytes()
    except CannotHold as error:  # Not for everybody.
        refusal = str(error)
    assert time.monotonic() - began > 0.5 or "no disk" in refusal
    assert _memberships() == before


def test_a_folder_that_is_on_no_disk_is_refused() -> None:
    with pytest.raises(CannotHold, match="TMPDIR"), reads_held_to(_BYTES, Path("/proc")):
        pass


def _memberships() -> str:
    return Path("/proc/self/cgroup").read_text()
