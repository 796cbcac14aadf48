"""Reads large ranges of a file past the page cache (`O_DIRECT`), if they are read for the first time."""

import mmap
import os
from contextlib import suppress
from threading import local
from typing import Final

from rollbook.proto.runtime.aio_reads import KernelRead, KernelReads
from rollbook.proto.runtime.page_cache_probe import DIRECT_BYTES_MIN, probe_page_cache, read_fully
from rollbook.proto.runtime.system_calls import cached_pages

_WILL_NEED: Final[int | None] = getattr(os, "POSIX_FADV_WILLNEED", None)
_DIRECT: Final[int | None] = getattr(os, "O_DIRECT", None)
_DIRECT_BYTES_MAX: Final = 1024 * 1024  # The largest direct read. Larger reads are rare.
# Positions and sizes of direct reads must be multiples of a block; this size is enough on any device.
BLOCK: Final = 4096
# The size of the buffer of each thread and of each read-ahead.
BUFFER_BYTES: Final = _DIRECT_BYTES_MAX + 2 * BLOCK
_DIRECT_FILES_MAX: Final = 16
# The maximum number of positions of one file that are remembered as read without the page cache.
_POSITIONS_MAX: Final = 4096
_of_thread: Final = local()


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
            buffer = _of_thread.buffer = mmap.mmap(-1, BUFFER_BYTES)
        try:
            with memoryview(buffer)[:size] as room:
                end = os.preadv(self._descriptor, [room], start)
                return bytes(room[position - start : min(end, position - start + length)])
        except OSError:
            return b""


def _blocks_of(position: int, length: int) -> tuple[int, int]:
    """Returns the start and the size of the blocks that overlap the range."""
    start = position - position % BLOCK
    return start, -(-(position + length) // BLOCK) * BLOCK - start


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
        if not DIRECT_BYTES_MIN <= length <= _DIRECT_BYTES_MAX:
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
