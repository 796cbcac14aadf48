"""How a file is read: from the page cache if that has it, else in a thread; what is large past that cache.

Whoever reads in order says what comes next (`File.will_read`), so that it is on its way, or here, when it
is asked for. What was read ahead is handed out once, and not at all if the file has changed meanwhile.
"""

import mmap
import os
import time
from collections.abc import Callable
from contextlib import suppress
from threading import local
from typing import Final

from rollbook.proto.runtime.disk_threads import Job, Threads

_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
_RANDOM: Final[int | None] = getattr(os, "POSIX_FADV_RANDOM", None)
_DIRECT: Final[int | None] = getattr(os, "O_DIRECT", None)
_DIRECT_BYTES_MIN: Final = 128 * 1024
_DIRECT_BYTES_MAX: Final = (
    1024 * 1024
)  # What is more at a time is rare. Each thread has such a buffer.
_BLOCK: Final = (
    4096  # Positions and sizes of direct reads are multiples of it, whatever the device.
)
_DIRECT_FILES_MAX: Final = 16
_AHEAD_THREADS: Final = 2
_AHEAD_BYTES_MAX: Final = 16 * 1024 * 1024  # Of all files.
_AHEAD_KEPT_S: Final = 1.0  # So long at least for whoever said that he will read it.

_of_thread: Final = local()


def is_at_hand(descriptor: int, position: int, length: int) -> bool:
    """Whether the page cache has it, to judge by its ends. Where one cannot ask, it is read at once."""
    if _NOWAIT is None or not length:
        return True
    byte = bytearray(1)
    try:
        for at in (position, position + length - 1):
            os.preadv(descriptor, [byte], at, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def read_fully(descriptor: int, position: int, length: int) -> bytes:
    found = os.pread(descriptor, length, position)
    if len(found) == length or not found:
        return found
    parts = [found]  # A signal or the end of the file; only reading again tells.
    got = len(found)
    while got < length and (found := os.pread(descriptor, length - got, position + got)):
        parts.append(found)
        got += len(found)
    return b"".join(parts)


class Direct:
    """The file of a descriptor past the page cache, closed with the last one who knows this.

    Pages for what is read once cost more than all the rest of reading it, and others lose theirs to it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = -1
        if _DIRECT is None:
            return
        with suppress(OSError):
            # The flag is of whoever opened the file, so it has to be opened again, whatever its name
            # is by now.
            self._descriptor = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | _DIRECT)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def read(self, position: int, length: int) -> bytes:
        """In a thread. Nothing, or less than asked for, where that cannot be; the ordinary way tells why."""
        start = position - position % _BLOCK
        size = -(-(position + length) // _BLOCK) * _BLOCK - start
        buffer: mmap.mmap | None = getattr(_of_thread, "buffer", None)
        if buffer is None:  # Its address is a multiple, too.
            buffer = _of_thread.buffer = mmap.mmap(-1, _DIRECT_BYTES_MAX + 2 * _BLOCK)
        try:
            with memoryview(buffer)[:size] as room:
                end = os.preadv(self._descriptor, [room], start)
                return bytes(room[position - start : min(end, position - start + length)])
        except OSError:
            return b""


class DirectFiles:
    """Those that were read last; to open one takes longer than to read from it."""

    def __init__(self) -> None:
        self._files: dict[object, Direct] = {}

    def of(self, file: object, descriptor: int, length: int) -> Direct | None:
        """None where so much is better read as ever."""
        if not _DIRECT_BYTES_MIN <= length <= _DIRECT_BYTES_MAX:
            return None
        direct = self._files.pop(file, None) or Direct(descriptor)
        self._files[file] = direct
        if len(self._files) > _DIRECT_FILES_MAX:
            del self._files[next(iter(self._files))]
        return direct

    def forget(self, file: object) -> None:
        self._files.pop(file, None)


def read_cold(descriptor: int, position: int, length: int, direct: Direct | None) -> bytes:
    """In a thread: what the page cache does not have, past it if that is given and can."""
    if direct and len(found := direct.read(position, length)) == length:
        return found
    return read_fully(descriptor, position, length)


def foresee(descriptor: int) -> None:
    """Its reader says what comes next: what the system guesses would be read twice."""
    if _RANDOM is not None:
        os.posix_fadvise(descriptor, 0, 0, _RANDOM)


class _Stretch:
    """Of a file: on its way, or here."""

    __slots__ = (
        "began_s",
        "file",
        "found",
        "is_outdated",
        "job",
        "length",
        "position",
    )

    def __init__(self, file: object, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length
        self.began_s = time.monotonic()
        self.is_outdated = False
        self.found: bytes | None = None  # None: whoever reads it by himself is told why.
        self.job: Job

    def read(self, read: Callable[[], bytes]) -> None:
        """In the thread."""
        with suppress(OSError):
            self.found = read()


class Ahead:
    """What is read before anybody waits for it, of all files. No other read stands behind these."""

    def __init__(self) -> None:
        self._threads = Threads("disk-ahead", _AHEAD_THREADS)
        self._stretches: dict[tuple[object, int], _Stretch] = {}  # Oldest first.
        self._bytes = 0

    def start(self, file: object, position: int, length: int, read: Callable[[], bytes]) -> None:
        """Unless there is too much that others may still want."""
        if (file, position) in self._stretches or not self._make_room(length):
            return
        stretch = self._stretches[file, position] = _Stretch(file, position, length)
        self._bytes += length
        stretch.job = self._threads.start(lambda: stretch.read(read))

    def _make_room(self, length: int) -> bool:
        while self._bytes + length > _AHEAD_BYTES_MAX:
            oldest = next(iter(self._stretches.values()), None)
            if oldest is None or not oldest.job.has_ended:
                return False
            if time.monotonic() - oldest.began_s < _AHEAD_KEPT_S:
                return False
            self._drop(oldest)
        return True

    async def take(self, file: object, position: int, length: int) -> bytes | None:
        """All of it or a part; None: it was not read, or cannot be."""
        for stretch in self._of(file):
            start = position - stretch.position
            if 0 <= start <= stretch.length - length and not stretch.is_outdated:
                self._drop(stretch)
                await stretch.job.wait()
                return None if stretch.found is None else stretch.found[start : start + length]
        return None

    def outdate(self, file: object) -> None:
        """Whoever reads it now sees what was written."""
        for stretch in self._of(file):
            stretch.is_outdated = True

    async def end(self, file: object) -> None:
        """Returns when nothing of it is read any more."""
        while stretches := self._of(file):
            await stretches[0].job.wait()
            self._drop(stretches[0])

    def _of(self, file: object) -> list[_Stretch]:
        if not self._stretches:
            return []
        return [each for each in self._stretches.values() if each.file is file]

    def _drop(self, stretch: _Stretch) -> None:
        if self._stretches.pop((stretch.file, stretch.position), None):
            self._bytes -= stretch.length

    def close(self) -> None:
        """Returns when everything that was asked for is done."""
        self._threads.close()
