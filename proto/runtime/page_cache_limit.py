"""Limits how much of the written data the system keeps in its page cache.

Readers of recent data find it in the page cache. By default all data stays there until memory is
short. But each new page of memory is expensive: on a virtual machine the host has to provide it,
which takes several times as long as writing to it. Therefore only the newest data stays, and the
pages of older data are released for new writes.
"""

import asyncio
import mmap
import os
from collections import deque
from contextlib import suppress
from typing import Final, NamedTuple

_NOT_NEEDED: Final[int | None] = getattr(os, "POSIX_FADV_DONTNEED", None)
_STRETCH_BYTES: Final = 256 * 1024  # This much is released at once, on the loop, in some 50 µs.
# The system keeps pages in groups, and releases a group only if it is requested from end to end.
_BUNCH_BYTES: Final = 2 * 1024 * 1024


class _PageRange(NamedTuple):
    of: "WrittenFile"
    start: int
    end: int


class WrittenLately:
    """Limits how much of the page cache the written bytes of all files of a disk take."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` is the limit; if it is 0, the system decides."""
        self._bytes_max = bytes_max if _NOT_NEEDED is not None else 0
        self._bytes = 0
        self._stretches: deque[_PageRange] = deque()  # Oldest first.

    def of(self, descriptor: int) -> "WrittenFile":
        return WrittenFile(self, descriptor)

    def add(self, stretch: _PageRange) -> None:
        if not self._bytes_max:
            return
        self._stretches.append(stretch)
        self._bytes += stretch.end - stretch.start
        if self._bytes > self._bytes_max:  # The task that waits for this write is woken first.
            asyncio.get_running_loop().call_soon(self._let_go)

    def _let_go(self) -> None:
        while self._bytes > self._bytes_max:
            oldest = self._stretches.popleft()
            self._bytes -= oldest.end - oldest.start
            oldest.of.let_go(oldest.start, oldest.end)

    def forget(self, written: "WrittenFile") -> None:
        gone = [stretch for stretch in self._stretches if stretch.of is written]
        if gone:
            self._stretches = deque(each for each in self._stretches if each.of is not written)
            self._bytes -= sum(stretch.end - stretch.start for stretch in gone)


class WrittenFile:
    """The written bytes of one open file that grows at its end. Bytes that are written again count
    only once.
    """

    def __init__(self, lately: WrittenLately, descriptor: int) -> None:
        self._lately = lately
        self._descriptor = descriptor
        self._start = 0  # The position of the first byte that does not count yet.
        self._end = 0

    def on_written(self, position: int, end: int) -> None:
        if end <= self._end:
            return
        # The gap was not written through this object, so it does not count.
        if position > self._end + _STRETCH_BYTES:
            self._start = position - position % mmap.PAGESIZE
        self._end = end
        if end - self._start >= _STRETCH_BYTES:
            whole = end - end % mmap.PAGESIZE
            self._lately.add(_PageRange(self, self._start, whole))
            self._start = whole

    def let_go(self, start: int, end: int) -> None:
        """Releases pages, together with a group that overlaps their start, which stayed when
        earlier pages were released.
        """
        assert _NOT_NEEDED is not None
        start = max(0, start - _BUNCH_BYTES)
        with suppress(OSError):  # It is advice.
            os.posix_fadvise(self._descriptor, start, end - start, _NOT_NEEDED)

    def close(self) -> None:
        """Call this before the descriptor is closed. The pages stay, since the file may be opened again."""
        self._lately.forget(self)
