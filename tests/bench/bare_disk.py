"""Measures the disk without a server: appending to a file and syncing it."""

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

_FILE_BYTES: Final = 16 * 1024 * 1024
_BLOCK_BYTES: Final = 4096
_COUNT: Final = 300


@contextmanager
def bare_journal(path: Path, size: int) -> Iterator[Callable[[], float]]:
    """Yields a function that appends `size` bytes to an allocated file and syncs; returns seconds."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, _FILE_BYTES)
    os.fdatasync(descriptor)
    contents = bytes(size)
    positions = itertools.count(0, size)

    def write() -> float:
        began = time.perf_counter()
        os.pwrite(descriptor, contents, next(positions))
        os.fdatasync(descriptor)
        return time.perf_counter() - began

    try:
        yield write
    finally:
        os.close(descriptor)


def sync_ms() -> float:
    """The median of 300 syncs of a block, on the disk with the files of the measured servers."""
    with (
        tempfile.TemporaryDirectory() as folder,
        bare_journal(Path(folder, "bare"), _BLOCK_BYTES) as write,
    ):
        return round(median(write() for _ in range(_COUNT)) * 1000, 3)
