"""What the disk does without anybody's server: to append to a file, and to sync that."""

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
    """Appends `size` bytes to a file that was allocated like a journal's, and syncs; returns how long."""
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
    """Of a block, where servers that are measured have their files: the median of 300."""
    with (
        tempfile.TemporaryDirectory() as folder,
        bare_journal(Path(folder, "bare"), _BLOCK_BYTES) as write,
    ):
        return round(median(write() for _ in range(_COUNT)) * 1000, 3)
