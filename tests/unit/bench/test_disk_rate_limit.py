"""Limiting the read rate of a disk: the limit is set, or the reason against it is reported."""

from pathlib import Path

import pytest

from tests.bench.load.held_disk import CannotHold, reads_held_to

_BYTES_PER_S = 8_000_000


def test_disk_limit_is_set_and_removed(tmp_path: Path) -> None:
    """Reads back the setting. The kernel enforces the rate, which is not measured here."""
    before = _memberships()
    limits, refusal = "", ""
    try:
        with reads_held_to(_BYTES_PER_S, tmp_path):
            assert _memberships() != before
            limits = _limits_of_this_process()
    except CannotHold as error:  # Not every machine allows it.
        refusal = str(error)
    assert str(_BYTES_PER_S) in limits or "no disk" in refusal
    assert _memberships() == before


def test_folder_without_a_disk_is_refused() -> None:
    with pytest.raises(CannotHold, match="TMPDIR"), reads_held_to(_BYTES_PER_S, Path("/proc")):
        pass


def _memberships() -> str:
    return Path("/proc/self/cgroup").read_text()


def _limits_of_this_process() -> str:
    lines = [line.split(":", 2) for line in _memberships().splitlines()]
    paths = {name: path.lstrip("/") for _, names, path in lines for name in names.split(",")}
    if "blkio" in paths:
        setting = Path("blkio", paths["blkio"], "blkio.throttle.read_bps_device")
    else:
        setting = Path(paths[""], "io.max")
    return (Path("/sys/fs/cgroup") / setting).read_text()
