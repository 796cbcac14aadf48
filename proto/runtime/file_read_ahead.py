"""Reads a file ahead of a sequential reader, which announces its next read (`File.prefetch`). The data is then
being read, or is already in memory, when it is requested.

Large read-ahead is done by the system itself where possible (`aio_reads.py`), otherwise by a thread.
Read-ahead is returned once, and not at all if the file has changed in the meantime.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from rollbook.proto.ports import Buffer
from rollbook.proto.runtime.aio_reads import KernelRead, KernelReads
from rollbook.proto.runtime.direct_reads import BLOCK, BUFFER_BYTES, Direct
from rollbook.proto.runtime.disk_threads import Threads

_RANDOM: Final[int | None] = getattr(os, "POSIX_FADV_RANDOM", None)
_AHEAD_THREADS: Final = 2
_AHEAD_BYTES_MAX: Final = 16 * 1024 * 1024  # The limit for the read-ahead of all files together.
# Read-ahead is kept at least this long for the reader that announced it.
_AHEAD_KEPT_S: Final = 1.0


def foresee(descriptor: int) -> None:
    """Turns off the system's read-ahead, for a reader that announces its next reads itself."""
    if _RANDOM is not None:
        os.posix_fadvise(descriptor, 0, 0, _RANDOM)


class _ThreadRead:
    """A read with the methods of `KernelRead`, but done in a thread."""

    def __init__(self, threads: Threads, read: Callable[[], bytes]) -> None:
        self._read = read
        # None until the read has ended, or if it failed; a direct read then raises the reason.
        self._found: bytes | None = None
        self._job = threads.start(self._work)

    def _work(self) -> None:
        with suppress(OSError):
            self._found = self._read()

    def poll(self) -> bool:
        """Returns whether the read has ended. `KernelRead.poll` has to ask the kernel for that."""
        return self._job.has_ended

    async def wait(self) -> None:
        await self._job.wait()

    def piece(self, start: int, length: int) -> bytes | None:
        return None if self._found is None else self._found[start : start + length]

    def let_go(self) -> None:
        pass


class _CachedRange:
    """A range of a file that is being read or is in memory."""

    __slots__ = ("began_s", "file", "is_outdated", "length", "margin", "position", "read")

    def __init__(
        self, file: object, position: int, length: int, read: KernelRead | _ThreadRead, margin: int
    ) -> None:
        self.file = file
        self.position = position
        self.length = length
        self.read = read
        self.margin = margin  # The number of bytes before the range that are read, too.
        self.began_s = time.monotonic()
        self.is_outdated = False


class Taken(NamedTuple):
    contents: Buffer
    # Releases the bytes; their memory may then be used for another read.
    let_go: Callable[[], None]


class Ahead:
    """The read-ahead of all files. No other read waits for it."""

    def __init__(self) -> None:
        self._threads = Threads("disk-ahead", _AHEAD_THREADS)
        self._kernel: KernelReads | None = None  # Set up by the first read that may use it.
        self._has_kernel = True
        self._stretches: dict[tuple[object, int], _CachedRange] = {}  # Oldest first.
        self._bytes = 0

    def has(self, file: object, position: int) -> bool:
        return (file, position) in self._stretches

    def start(
        self,
        file: object,
        position: int,
        length: int,
        direct: Direct | None,
        read: Callable[[], bytes],
    ) -> None:
        """Starts read-ahead, which bypasses the page cache if `direct` is given. Does nothing if
        there is no room, because other readers may still want the read-ahead in memory.
        """
        if self.has(file, position) or not self._make_room(file, length):
            return
        by_kernel = self._start_by_kernel(direct, position, length) if direct else None
        margin = position % BLOCK if by_kernel else 0
        how = by_kernel or _ThreadRead(self._threads, read)
        self._stretches[file, position] = _CachedRange(file, position, length, how, margin)
        self._bytes += length

    def _start_by_kernel(self, direct: Direct, position: int, length: int) -> KernelRead | None:
        if self._has_kernel and self._kernel is None:
            self._kernel = KernelReads.begin(BUFFER_BYTES)
            self._has_kernel = self._kernel is not None
        return direct.start(self._kernel, position, length) if self._kernel else None

    def _make_room(self, file: object, length: int) -> bool:
        """Makes room for read-ahead, and returns whether there is enough. Half of the room is
        reserved for files that have no read-ahead yet.
        """
        has_some = any(stretch.file is file for stretch in self._stretches.values())
        bytes_max = _AHEAD_BYTES_MAX // 2 if has_some else _AHEAD_BYTES_MAX
        while self._bytes + length > bytes_max:
            oldest = next(iter(self._stretches.values()), None)
            if oldest is None or not oldest.read.poll():
                return False
            if time.monotonic() - oldest.began_s < _AHEAD_KEPT_S:
                return False
            self._drop(oldest)
            oldest.read.let_go()  # This frees the buffer for the next read.
        return True

    async def take(self, file: object, position: int, length: int) -> Taken | None:
        """Returns the bytes of this range, or None if they were not read ahead or could not be read."""
        for stretch in self._of(file):
            start = position - stretch.position
            if 0 <= start <= stretch.length - length and not stretch.is_outdated:
                self._drop(stretch)
                contents: Buffer | None = None
                try:
                    await stretch.read.wait()
                    contents = stretch.read.piece(stretch.margin + start, length)
                finally:
                    if contents is None:
                        stretch.read.let_go()
                return None if contents is None else Taken(contents, stretch.read.let_go)
        return None

    def outdate(self, file: object) -> None:
        """Marks the read-ahead of a file as outdated, so that later reads see what was written."""
        for stretch in self._of(file):
            stretch.is_outdated = True

    async def end(self, file: object) -> None:
        """Returns when no read of this file is running."""
        while stretches := self._of(file):
            await stretches[0].read.wait()
            self._drop(stretches[0])
            stretches[0].read.let_go()

    def _of(self, file: object) -> list[_CachedRange]:
        if not self._stretches:
            return []
        return [each for each in self._stretches.values() if each.file is file]

    def _drop(self, stretch: _CachedRange) -> None:
        if self._stretches.get((stretch.file, stretch.position)) is stretch:
            del self._stretches[stretch.file, stretch.position]
            self._bytes -= stretch.length

    def close(self) -> None:
        """Returns when all requested reads have ended."""
        self._threads.close()
        if self._kernel:
            self._kernel.close()
