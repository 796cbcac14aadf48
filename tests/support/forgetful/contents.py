"""One file with two states: what is on disk, and what memory has in addition.

The disk's side is a backing file: its bytes and its length are the durable image, all of it and
nothing else. Memory's side is a length and the pages that differ from the disk. `sync` makes the
disk equal to memory, `forget` makes memory equal to the disk.

- A page is *dirty* until it was synced. A sync that fails drops the mark but keeps the page: as on
  Linux, programs go on reading what they wrote, the next sync succeeds, and the bytes are lost.
- `_disk_end`: memory reads zeros beyond it, whatever the disk still holds there. A truncation
  lowers it at once; the backing file is cut by the next sync.
- `write_back` lets some dirty sectors reach the disk on their own, as the kernel's flusher does:
  each sector arrives whole or not at all, in any order, and the length grows or does not. Only a
  cut goes first: a sector that lies beyond a cut never arrives while the cut has not.
"""

import os
import random
from collections.abc import Iterator
from typing import Final

PAGE: Final = 4096
SECTOR: Final = 512
_RUN_PAGES_MAX: Final = 1024  # One pwritev takes this many buffers.


class Contents:
    __slots__ = (
        "_dirty",
        "_disk_end",
        "_fd",
        "_pages",
        "_path",
        "durable_size",
        "reserved",
        "size",
    )

    def __init__(self, path: str) -> None:
        self.size = 0
        self.durable_size = 0
        self.reserved = 0  # Bytes of space this file holds; `Volume` counts them.
        self._path = path
        self._fd = -1  # The backing file appears with the first byte that reaches the disk.
        self._disk_end = 0
        self._pages: dict[int, bytearray] = {}
        self._dirty: dict[int, None] = {}

    @property
    def dirty_bytes(self) -> int:
        return len(self._dirty) * PAGE

    @property
    def is_synced(self) -> bool:
        return not self._dirty and self.size == self.durable_size == self._disk_end

    # --- What programs do -----------------------------------------------------------------------

    def read(self, position: int, length: int) -> bytearray:
        length = max(0, min(length, self.size - position))
        data = bytearray(length)
        on_disk = min(length, self._disk_end - position)
        if on_disk > 0:
            os.preadv(self._fd, [memoryview(data)[:on_disk]], position)
        if self._pages and length:
            for index in range(position // PAGE, (position + length - 1) // PAGE + 1):
                if (page := self._pages.get(index)) is not None:
                    start = index * PAGE - position
                    if start >= 0:
                        end = min(start + PAGE, length)
                        data[start:end] = page[: end - start]
                    else:
                        end = min(start + PAGE, length)
                        data[:end] = page[-start : end - start]
        return data

    def write(self, position: int, data: bytes | memoryview) -> None:
        pages, dirty, done, length = self._pages, self._dirty, 0, len(data)
        while done < length:
            index, within = divmod(position + done, PAGE)
            count = min(PAGE - within, length - done)
            if count == PAGE:
                pages[index] = bytearray(data[done : done + PAGE])
            else:
                page = pages.get(index)
                if page is None:
                    page = pages[index] = self._load(index)
                page[within : within + count] = data[done : done + count]
            dirty[index] = None
            done += count
        self.size = max(self.size, position + length)

    def zero(self, position: int, length: int) -> None:
        """Zeros a range, like a punched hole: the length of the file stays."""
        if position < self.size:
            self.write(position, bytes(min(length, self.size - position)))

    def truncate(self, size: int) -> None:
        if size < self.size:
            first, within = divmod(size, PAGE)
            for index in [i for i in self._pages if i >= first + bool(within)]:
                del self._pages[index]
                self._dirty.pop(index, None)
            if page := self._pages.get(first):
                page[within:] = bytes(PAGE - within)
            self._disk_end = min(self._disk_end, size)
        self.size = size

    def _load(self, index: int) -> bytearray:
        page = bytearray(PAGE)
        on_disk = min(PAGE, self._disk_end - index * PAGE)
        if on_disk > 0:
            os.preadv(self._fd, [memoryview(page)[:on_disk]], index * PAGE)
        return page

    # --- What the disk does ---------------------------------------------------------------------

    def sync(self) -> int:
        """Makes contents and length durable; returns the number of bytes written."""
        if self.is_synced:
            return 0
        self._open_backing()
        if self._disk_end < self.durable_size:
            os.ftruncate(self._fd, self._disk_end)
        written = len(self._dirty) * PAGE
        for first, run in self._dirty_runs():
            os.pwritev(self._fd, run, first * PAGE)
        os.ftruncate(self._fd, self.size)  # The last page reaches beyond the end.
        for index in self._dirty:
            del self._pages[index]
        self._dirty.clear()
        self.durable_size = self._disk_end = self.size
        return written

    def fail_sync(self) -> None:
        """Models a sync that failed with EIO: dirty data counts as clean and is never written."""
        self._dirty.clear()

    def write_back(self, chance: random.Random, fraction: float) -> None:
        """Writes about `fraction` of the dirty data to disk; memory stays unchanged."""
        if self.is_synced:
            return
        self._open_backing()
        is_cut = self._disk_end >= self.durable_size
        if not is_cut and chance.random() < fraction:
            os.ftruncate(self._fd, self._disk_end)
            self.durable_size, is_cut = self._disk_end, True
        reach = self.size if is_cut else self._disk_end // SECTOR * SECTOR
        arrived_end = 0
        for index in sorted(self._dirty):
            for start in range(index * PAGE, min(index * PAGE + PAGE, reach), SECTOR):
                if chance.random() < fraction:
                    within, end = start % PAGE, min(start + SECTOR, reach)
                    os.pwrite(self._fd, self._pages[index][within : within + end - start], start)
                    arrived_end = end
        if is_cut:
            sizes = [s for s in (self.durable_size, arrived_end, reach) if s >= self.durable_size]
            self.durable_size = self._disk_end = chance.choice(sizes)
            os.ftruncate(self._fd, self.durable_size)

    def unsynced_bytes(self) -> int:
        """Bytes of sectors that a power cut would change; sectors equal to the disk do not count."""
        return sum(
            SECTOR
            for index, page in self._pages.items()
            for start, old in self._durable_sectors(index)
            if page[start : start + SECTOR] != old
        )

    def _durable_sectors(self, index: int) -> Iterator[tuple[int, bytes]]:
        on_disk = min(PAGE, self.durable_size - index * PAGE)
        page = os.pread(self._fd, on_disk, index * PAGE) if on_disk > 0 else b""
        page = page.ljust(PAGE, b"\0")
        return ((start, page[start : start + SECTOR]) for start in range(0, PAGE, SECTOR))

    def forget(self) -> None:
        """Drops the memory state, so that only the disk's state is left."""
        self._pages.clear()
        self._dirty.clear()
        self.size = self._disk_end = self.durable_size

    def discard(self) -> None:
        """Removes the file and its backing file."""
        if self._fd >= 0:
            os.close(self._fd)
            os.unlink(self._path)
            self._fd = -1

    def _open_backing(self) -> None:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def _dirty_runs(self) -> list[tuple[int, list[bytearray]]]:
        """Dirty pages by position: the first index of each run of neighbours, and its pages."""
        runs: list[tuple[int, list[bytearray]]] = []
        following = -1
        for index in sorted(self._dirty):
            if index != following or len(runs[-1][1]) == _RUN_PAGES_MAX:
                runs.append((index, []))
            runs[-1][1].append(self._pages[index])
            following = index + 1
        return runs
