"""Reads files: from the page cache if that has the data, otherwise in a thread, and large reads past
that cache.

The system itself does large read-ahead where it can (`disk_aio.py`); elsewhere a thread does.

A sequential reader announces what comes next (`File.prefetch`), so that it is being read, or
here, when it is requested. Read-ahead is returned once, and not at all if the file has changed
in the meantime.
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
_DIRECT_BYTES_MAX: Final = 1024 * 1024  # The largest direct read; larger ones are rare.
_BLOCK: Final = 4096  # Positions and sizes of direct reads are multiples of it, on any device.
# The buffer of each thread, and of each read ahead.
_BUFFER_BYTES: Final = _DIRECT_BYTES_MAX + 2 * _BLOCK
_DIRECT_FILES_MAX: Final = 16
# Positions of one file that are known to have been read past the page cache.
_POSITIONS_MAX: Final = 4096
_AHEAD_THREADS: Final = 2
_AHEAD_BYTES_MAX: Final = 16 * 1024 * 1024  # The total of all files.
_AHEAD_KEPT_S: Final = 1.0  # It is kept at least this long for the reader that announced it.

_of_thread: Final = local()
_telling_devices: Final[set[int]] = set()  # Uncached data there is known to be so.


def probe_page_cache(descriptor: int, position: int, length: int) -> bool:
    """Returns whether the page cache holds both ends of this range. True where the kernel cannot be asked.

    It also notes devices that report their cached pages truthfully.
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
        if is_large and cached_pages(descriptor, at, 1):  # The query itself has cached it.
            _telling_devices.add(os.fstat(descriptor).st_dev)
        return False
    except OSError:
        return True
    return True


def _is_surely_absent(descriptor: int, position: int, length: int) -> bool:
    """Returns whether the page cache surely lacks it. Asks without reading a page in, which would
    cost a disk read.

    A file system on top of another one may not know of the pages below; so a device is trusted only
    after it has reported one.
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
    parts = [found]  # A signal or the end of the file; only another read shows which.
    got = len(found)
    while got < length and (found := os.pread(descriptor, length - got, position + got)):
        parts.append(found)
        got += len(found)
    return b"".join(parts)


class Direct:
    """The file of a descriptor past the page cache, closed with its last user.

    Pages for data that is read once cost more than all the rest of the read, and displace others.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = -1
        self._positions: set[int] = set()  # The bytes read from there.
        if _DIRECT is None:
            return
        with suppress(OSError):
            # The flag belongs to the open file, so the file has to be opened again, whatever its name
            # is by now.
            self._descriptor = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | _DIRECT)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def note_read(self, descriptor: int, position: int) -> bool:
        """Record a read at this position. Returns whether the position was read before and the page cache has kept
        the file's last page since then.
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
        cached = cached_pages(descriptor, position, 1)  # Never written, it would be there if tried.
        return probe_page_cache(descriptor, position, 1) if cached is None else cached > 0

    def start(self, reads: KernelReads, position: int, length: int) -> KernelRead | None:
        """Starts a read of all blocks that overlap the range."""
        start, size = _blocks_of(position, length)
        return reads.start(self._descriptor, start, size) if self._descriptor >= 0 else None

    def read(self, position: int, length: int) -> bytes:
        """Reads in a thread. Returns nothing, or less than requested, if that is impossible; an ordinary
        read then raises the reason."""
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
    """Files that were read last: opening one takes longer than reading from it."""

    def __init__(self) -> None:
        self._files: dict[object, Direct] = {}

    def of(self, file: object, descriptor: int, position: int, length: int) -> Direct | None:
        """None if the page cache serves this length better. Data that is read a second time should stay
        cached."""
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
    """Reads uncached pages in a thread, past the cache if possible."""
    if direct and len(found := direct.read(position, length)) == length:
        return found
    return read_fully(descriptor, position, length)


def foresee(descriptor: int) -> None:
    """Turns off the system's read-ahead: the reader announces its next reads itself."""
    if _RANDOM is not None:
        os.posix_fadvise(descriptor, 0, 0, _RANDOM)


class _ThreadRead:
    """Like `KernelRead`, but reads in a thread."""

    def __init__(self, threads: Threads, read: Callable[[], bytes]) -> None:
        self._read = read
        self._found: bytes | None = None  # None: a direct read raises the reason.
        self._job = threads.start(self._work)

    def _work(self) -> None:
        with suppress(OSError):
            self._found = self._read()

    def poll(self) -> bool:
        """Returns whether it has ended; like `KernelRead.poll`, which has to ask the kernel."""
        return self._job.has_ended

    async def wait(self) -> None:
        await self._job.wait()

    def piece(self, start: int, length: int) -> bytes | None:
        return None if self._found is None else self._found[start : start + length]

    def let_go(self) -> None:
        pass


class _CachedRange:
    """A range of a file that is being read, or is in memory."""

    __slots__ = ("began_s", "file", "is_outdated", "length", "margin", "position", "read")

    def __init__(
        self, file: object, position: int, length: int, read: KernelRead | _ThreadRead, margin: int
    ) -> None:
        self.file = file
        self.position = position
        self.length = length
        self.read = read
        self.margin = margin  # Bytes before it that are read, too.
        self.began_s = time.monotonic()
        self.is_outdated = False


class Taken(NamedTuple):
    contents: Buffer
    let_go: Callable[[], None]  # Releases the bytes: their memory may then get another file's.


class Ahead:
    """Read-ahead of all files. No other read waits for it."""

    def __init__(self) -> None:
        self._threads = Threads("disk-ahead", _AHEAD_THREADS)
        self._kernel: KernelReads | None = None  # Opened by the first read that may use it.
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
        """Starts read-ahead, past the page cache if `direct` is given. Does nothing if other readers may
        still want too much of the read-ahead in memory."""
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
        """Makes room for read-ahead; half of the room is reserved for files that have none so far."""
        has_some = any(stretch.file is file for stretch in self._stretches.values())
        bytes_max = _AHEAD_BYTES_MAX // 2 if has_some else _AHEAD_BYTES_MAX
        while self._bytes + length > bytes_max:
            oldest = next(iter(self._stretches.values()), None)
            if oldest is None or not oldest.read.poll():
                return False
            if time.monotonic() - oldest.began_s < _AHEAD_KEPT_S:
                return False
            self._drop(oldest)
            oldest.read.let_go()  # Frees the buffer for the next read.
        return True

    async def take(self, file: object, position: int, length: int) -> Taken | None:
        """Returns the range or a part of it; None: it was not read, or cannot be."""
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
        """Drops read-ahead of a file, so that later reads see what was written."""
        for stretch in self._of(file):
            stretch.is_outdated = True

    async def end(self, file: object) -> None:
        """Returns when no read of it is running."""
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
