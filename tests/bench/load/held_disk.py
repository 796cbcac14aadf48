"""A disk of a known rate: limits the bytes per second that this process and its children read.

It uses a control group of version 1 or 2 and needs root. A virtual machine's disk has a varying
rate because of caches and quotas below it; a lower limit gives it a known rate.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_GROUPS: Final = Path("/sys/fs/cgroup")
_DEVICES: Final = Path("/sys/dev/block")


class CannotHold(Exception):
    """The rate cannot be limited; the message says why."""


@contextmanager
def reads_held_to(bytes_per_s: int, folder: Path) -> Iterator[None]:
    """Limits the reads from the disk with the folder. Child processes must end within the block.

    Raises `CannotHold`.
    """
    device = _whole_device(folder)
    try:
        home, group = _enter_group(device, bytes_per_s)
    except OSError as error:
        raise CannotHold(f"no disk can be held for this process: {error}") from error
    try:
        yield
    finally:
        _move_to(home)
        group.rmdir()


def _move_to(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _enter_group(device: str, bytes_per_s: int) -> tuple[Path, Path]:
    """Moves this process to a limited group; returns its earlier group and the new one."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    memberships = [line.split(":", 2) for line in lines]
    paths = {name: path for _, names, path in memberships for name in names.split(",")}
    if "blkio" in paths:
        home = parent = _GROUPS / "blkio" / paths["blkio"].lstrip("/")
        setting, value = "blkio.throttle.read_bps_device", f"{device} {bytes_per_s}"
    else:  # Version 2: who has members has no limits to give, but for the root.
        home = _GROUPS / paths[""].lstrip("/")
        parent = _GROUPS if home == _GROUPS else home.parent
        setting, value = "io.max", f"{device} rbps={bytes_per_s}"
        (parent / "cgroup.subtree_control").write_text("+io")
    group = parent / f"held-disk-{os.getpid()}"
    group.mkdir()
    try:
        (group / setting).write_text(value)
        _move_to(group)
    except OSError:
        group.rmdir()
        raise
    return home, group


def _whole_device(folder: Path) -> str:
    """The disk as `major:minor`, because limits apply to disks, not to partitions."""
    number = folder.stat().st_dev
    device = (_DEVICES / f"{os.major(number)}:{os.minor(number)}").resolve()
    if not device.exists():
        raise CannotHold(f"{folder} is on no disk of its own; TMPDIR names another folder")
    if (device / "partition").exists():
        device = device.parent
    return (device / "dev").read_text().strip()
