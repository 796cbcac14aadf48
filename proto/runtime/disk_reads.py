"""Reads files: from the page cache if it has the data, otherwise in a thread. Large reads bypass
the page cache.

Large read-ahead is done by the system itself where possible (`disk_aio.py`), otherwise by a thread.

A sequential reader announces its next read (`File.prefetch`), so that the data is being read, or is
already in memory, when it is requested. Read-ahead is returned once, and not at all if the file has
changed in the meantime.
"""

import mmap
import os
import time
from collections.abc import Callable
from contextlib import suppress
from threading import local
from typing import Final, NamedTuple

from rollbook.proto.ports import Buffer
from rollbook.proto.runtime.disk_aio import KernelRead, KernelReads
from rollbook.proto.runtime.disk_threads import Threads
from rollbook.proto.runtime.system_calls import cached_pages

_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
_RANDOM: Final[int | None] = getattr(os, "POSIX_FADV_RANDOM", None)
_WILL_NEED: Final[int | None] = getattr(os, "POSIX_FADV_WILLNEED", None)
_DIRECT: Final[int | None] = getattr(os, "O_DIRECT", None)
_DIRECT_BYTES_MIN: Final = 128 * 1024
_DIRECT_BYTES_MAX: Final = 1024 * 1024  # The largest direct read. Larger reads are rare.
# Positions and sizes of direct reads must be multiples of a block; this size is enough on any device.
_BLOCK: Final = 4096
# The size of the buffer of each thread and of each read-ahead.
_BUFFER_BYTES: Final = _DIRECT_BYTES_MAX + 2 * _BLOCK
_DIRECT_FILES_MAX: Final = 16
# The maximum number of positions of one file that are remembered as read without the page cache.
_POSITIONS_MAX: Final = 4096
_AHEAD_THREADS: Final = 2
_AHEAD_BYTES_MAX: Final = 16 * 1024 * 1024  # The limit for the read-ahead of all files together.
# Read-ahead is kept at least this long for the reader that announced it.
_AHEAD_KEPT_S: Final = 1.0

_of_thread: Final = local()
# Devices that are known to report uncached data as uncached.
_telling_devices: Final[set[int]] = set()


def probe_page_cache(descriptor: int, position: int, length: int) -> bool:
    """Returns whether the page cache holds both ends of this range, or True if the kernel cannot say.

    It also records which devices report their cached pages correctly.
    """
    if _NOWAIT is None or not length:
        return True
    is_large = length >= _DIRECT_BYTES_MIN
    if is_large and _is_surely_absent(descriptor, position, length):
        return False
    byte, at = bytearray(1), position
    try:
        for at in (position, position + length - 1):
            os.preadv(descriptor, [byte], at, _NOWAIT)
    except BlockingIOError:
        if is_large and cached_pages(descriptor, at, 1):  # The read above has cached it.
            _telling_devices.add(os.fstat(descriptor).st_dev)
        return False
    except OSError:
        return True
    return True


def _is_surely_absent(descriptor: int, position: int, length: int) -> bool:
    """Returns whether the page cache surely lacks a part of this range. The check reads no page in,
    since that would cost a disk read.

    A file system on top of another one may not know which pages are cached below it, so a device is
    trusted only after it has reported a cached page.
    """
    cached = cached_pages(descriptor, position, length)
    pages = (position + length - 1) // mmap.PAGESIZE - position // mmap.PAGESIZE + 1
    if cached is None or cached >= pages:
        return False
    return cached > 0 or os.fstat(descriptor).st_dev in _telling_devices


def read_fully(descriptor: int, position: int, length: int) -> bytes:
    found = os.pread(descriptor, length, position)
    if len(found) == length or not found:
        return found
    # This is due to a signal or to the end of the file; only another read shows which.
    parts = [found]
    got = len(found)
    while got < length and (found := os.pread(descriptor, length - got, position + got)):
        parts.append(found)
        got += len(found)
    return b"".join(parts)


class Direct:
    """A second descriptor of a file, which bypasses the page cache. It is closed when nothing uses it any more.

    For data that is read once, new pages would cost more than the rest of the read, and displace other pages.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = -1
        self._positions: set[int] = set()  # The positions of direct reads.
        if _DIRECT is None:
            return
        with suppress(OSError):
            # The flag belongs to the open file, so the file has to be opened again, although its
            # name may have changed.
            self._descriptor = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | _DIRECT)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def note_read(self, descriptor: int, position: int) -> bool:
        """Records a read at this position. Returns whether the position was read before and the
        page cache has kept the file's last page since then.
        """
        end = max(os.fstat(descriptor).st_size - 1, 0)
        if position in self._positions and self._has_kept(descriptor, end):
            return True
        if position in self._positions or len(self._positions) >= _POSITIONS_MAX:
            self._positions.clear()
        if not self._positions and _WILL_NEED is not None:
            os.posix_fadvise(descriptor, end, 1, _WILL_NEED)
        self._positions.add(position)
        return False

    def _has_kept(self, descriptor: int, position: int) -> bool:
        # A probe would find a page that was never written, even if it is not cached.
        cached = cached_pages(descriptor, position, 1)
        return probe_page_cache(descriptor, position, 1) if cached is None else cached > 0

    def start(self, reads: KernelReads, position: int, length: int) -> KernelRead | None:
        """Starts a read of all blocks that overlap the range. Returns None if that is not possible now."""
        start, size = _blocks_of(position, length)
        return reads.start(self._descriptor, start, size) if self._descriptor >= 0 else None

    def read(self, position: int, length: int) -> bytes:
        """Reads in a thread. If that is not possible, it returns less than requested, or nothing;
        an ordinary read then raises the reason.
        """
        start, size = _blocks_of(position, length)
        buffer: mmap.mmap | None = getattr(_of_thread, "buffer", None)
        if buffer is None:  # mmap returns an address that is aligned for direct reads.
            buffer = _of_thread.buffer = mmap.mmap(-1, _BUFFER_BYTES)
        try:
            with memoryview(buffer)[:size] as room:
                end = os.preadv(self._descriptor, [room], start)
                return bytes(room[position - start : min(end, position - start + length)])
        except OSError:
            return b""


def _blocks_of(position: int, length: int) -> tuple[int, int]:
    """Returns the start and the size of the blocks that overlap the range."""
    start = position - position % _BLOCK
    return start, -(-(position + length) // _BLOCK) * _BLOCK - start


class DirectFiles:
    """The files that were read most recently. They are kept open, since opening a file takes longer
    than reading from it.
    """

    def __init__(self) -> None:
        self._files: dict[object, Direct] = {}

    def of(self, file: object, descriptor: int, position: int, length: int) -> Direct | None:
        """Returns None if the page cache serves a read of this length better. Data that is read a
        second time should stay cached.
        """
        if not _DIRECT_BYTES_MIN <= length <= _DIRECT_BYTES_MAX:
            return None
        direct = self._files.pop(file, None) or Direct(descriptor)
        self._files[file] = direct
        if len(self._files) > _DIRECT_FILES_MAX:
            del self._files[next(iter(self._files))]
        return None if direct.note_read(descriptor, position) else direct

    def forget(self, file: object) -> None:
        self._files.pop(file, None)


def read_cold(descriptor: int, position: int, length: int, direct: Direct | None) -> bytes:
    """Reads uncached data in a thread, and bypasses the page cache if possible."""
    if direct and len(found := direct.read(position, length)) == length:
        return found
    return read_fully(descriptor, position, length)


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
        margin = position % _BLOCK if by_kernel else 0
        how = by_kernel or _ThreadRead(self._threads, read)
        self._stretches[file, position] = _CachedRange(file, position, length, how, margin)
        self._bytes += length

    def _start_by_kernel(self, direct: Direct, position: int, length: int) -> KernelRead | None:
        if self._has_kernel and self._kernel is None:
            self._kernel = KernelReads.begin(_BUFFER_BYTES)
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
