"""Compares the speed of the forgetful file system with the native one: `python -m` this package."""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support import forgetful

_SECONDS: Final = 1.0
_BLOCK: Final = os.urandom(1 << 20)
_BLOCKS_PER_SYNC: Final = 16
_FILE_BLOCKS: Final = 256


def per_second(step: Callable[[int], None]) -> float:
    started, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < _SECONDS:
        step(count)
        count += 1
    return count / passed


def measure(folder: Path) -> tuple[float, float, float]:
    """Small synced writes per second; MB/s written, synced now and then; MB/s read again."""
    file = os.open(folder / "measured", os.O_RDWR | os.O_CREAT, 0o600)

    def write_small(number: int) -> None:
        os.pwrite(file, _BLOCK[:4096], number * 4096)
        os.fdatasync(file)

    def write_large(number: int) -> None:
        os.pwrite(file, _BLOCK, number % _FILE_BLOCKS << 20)
        if number % _BLOCKS_PER_SYNC == 0:
            os.fdatasync(file)

    def read_large(number: int) -> None:
        os.pread(file, len(_BLOCK), number % _FILE_BLOCKS << 20)

    rates = per_second(write_small), per_second(write_large), per_second(read_large)
    os.close(file)
    os.unlink(folder / "measured")
    return rates


def main() -> None:
    if why := forgetful.why_not():
        sys.exit(f"no forgetful file system: {why}; it takes {forgetful.HOW_TO_ENABLE}")
    with tempfile.TemporaryDirectory() as root, forgetful.mount(Path(root) / "f") as disk:
        for name, folder in (("native", Path(root)), ("forgetful", disk.path)):
            small, written, read = measure(folder)
            line = f"{name:<10}{small:8,.0f} synced 4 KiB writes/s"
            print(f"{line}{written:8,.0f} MiB/s written{read:8,.0f} MiB/s read", flush=True)
        started = time.perf_counter()
        disk.forget()
        print(f"a power cut takes {1000 * (time.perf_counter() - started):.1f} ms")


if __name__ == "__main__":
    main()
