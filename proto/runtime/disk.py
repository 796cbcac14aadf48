"""Files of the machine.

Writes go straight to the system: they mean the page cache and take microseconds, and so do reads of what
that has. What waits for the device (other reads, `sync`, `write_and_sync`) or may go through a whole
file's blocks (`truncate`, `unlink`, and `close` behind it: 40 ms for 128 MiB) runs on the disk's own
threads, so that the loop goes on; what changes one file still takes effect in the order of the calls,
since each change waits for the file's previous one. Reads wait for nobody, and `close` for them.

Where the device is quick, a small `write_and_sync` waits for it on the spot: the way to a thread and
back costs as much as the sync itself. Not while anything else is under way there, and not until
a slow sync is forgotten.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Final

from rollbook.proto.errors import DirectoryInUse
from rollbook.proto.ports import Buffer, DiskSpace, FileStat, OpenMode

_ON_THE_SPOT_S: Final = 0.0005  # So long may a sync hold the loop: as long as a chunk of adds does.
_ON_THE_SPOT_BYTES: Final = 64 * 1024
_SLOWNESS_KEPT: Final = 0.9  # Of what is expected, at each sync: 10 ms are forgotten after 30.
_SYNC_THREADS: Final = 4  # One per file that syncs at the same time: journal, entry logs, ledgers.
_READ_THREADS: Final = 4  # Of their own: no sync stands behind reads.
_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
_WILL_NEED: Final[int | None] = getattr(os, "POSIX_FADV_WILLNEED", None)
_BUFFERS_PER_WRITE: Final = min(1024, os.sysconf("SC_IOV_MAX"))
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_FLAGS: Final = {
    OpenMode.READ: os.O_RDONLY,
    OpenMode.WRITE: os.O_RDWR,
    OpenMode.CREATE: os.O_RDWR | os.O_CREAT | os.O_EXCL,
}


class _Job:
    """A system call in one of the disk's threads, awaited on the loop that asked for it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.took_s = 0.0  # Without the way to the thread and back.
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._has_ended = False
        self._is_given_up = False  # Nobody wants to hear how it ended, only when.

    async def wait(self) -> None:
        """To the end, however often cancelled: the descriptor must outlive the system call."""
        try:
            await self._ended
        except asyncio.CancelledError:
            self._is_given_up = True
            while not self._has_ended:
                self._ended = self._loop.create_future()
                with suppress(asyncio.CancelledError):
                    await self._ended
            raise

    def run(self) -> None:
        """In the thread."""
        error: BaseException | None = None
        began = time.perf_counter()
        try:
            self._work()
        except BaseException as raised:  # noqa: BLE001  Whoever waits is told.
            error = raised
        self.took_s = time.perf_counter() - began
        try:
            self._loop.call_soon_threadsafe(self._end, error)
        except RuntimeError:
            pass  # The loop was closed: nobody waits any more.

    def _end(self, error: BaseException | None) -> None:
        self._has_ended = True
        if self._ended.done():
            return
        if error and not self._is_given_up:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)


class _Threads:
    """They have a bare queue: that is half of what a hop through an executor costs."""

    def __init__(self, name: str, count: int) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, work: Callable[[], None]) -> float:
        """Returns how many seconds it took there, without the way."""
        job = _Job(work)
        self._jobs.put(job)
        await job.wait()
        return job.took_s

    def close(self) -> None:
        """Returns when everything that was asked for is done."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while job := self._jobs.get():
            job.run()


class _Device:
    """Where to wait for it."""

    def __init__(self) -> None:
        self.readers = _Threads("disk-read", _READ_THREADS)
        self._threads = _Threads("disk", _SYNC_THREADS)
        self._under_way = 0
        self._expected_s = 1.0  # How long a small sync may take: the slowest, gradually forgotten.

    async def run(self, work: Callable[[], None], *, is_small: bool = False) -> None:
        if is_small and not self._under_way and self._expected_s < _ON_THE_SPOT_S:
            began = time.perf_counter()
            work()
            took_s = time.perf_counter() - began
        else:
            self._under_way += 1
            try:
                took_s = await self._threads.run(work)
            finally:
                self._under_way -= 1
        if is_small:
            self._expected_s = max(took_s, self._expected_s * _SLOWNESS_KEPT)

    def close(self) -> None:
        self.readers.close()
        self._threads.close()


class SystemFile:
    def __init__(self, descriptor: int, device: _Device) -> None:
        self._descriptor = descriptor
        self._device = device
        self._turn = asyncio.Lock()  # Fair: first come, first served.
        self._reads = 0  # In threads.
        self._reads_ended = asyncio.Event()

    async def size(self) -> int:
        return os.fstat(self._open_descriptor()).st_size

    async def read_at(self, position: int, length: int) -> bytes:
        descriptor = self._open_descriptor()
        if _is_at_hand(descriptor, position, length):
            return _read_fully(descriptor, position, length)
        found: list[bytes] = []
        self._reads += 1
        try:
            await self._device.readers.run(
                lambda: found.append(_read_fully(descriptor, position, length))
            )
        finally:
            self._reads -= 1
            self._reads_ended.set()
        return found[0]

    def will_read(self, position: int, length: int) -> None:
        if _WILL_NEED is not None:
            os.posix_fadvise(self._open_descriptor(), position, length, _WILL_NEED)

    async def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        async with self._turn:
            _write_fully(self._open_descriptor(), position, buffers)

    async def sync(self) -> None:
        async with self._turn:
            await self._device.run(lambda: os.fdatasync(self._open_descriptor()))

    async def write_and_sync(self, position: int, buffers: Sequence[Buffer]) -> None:
        def work() -> None:
            _write_fully(self._open_descriptor(), position, buffers)
            os.fdatasync(self._open_descriptor())

        is_small = sum(map(len, buffers)) <= _ON_THE_SPOT_BYTES
        async with self._turn:
            await self._device.run(work, is_small=is_small)

    async def truncate(self, size: int) -> None:
        async with self._turn:
            await self._device.run(lambda: os.ftruncate(self._open_descriptor(), size))

    async def allocate(self, position: int, length: int) -> None:
        def work() -> None:
            descriptor = self._open_descriptor()
            size = os.fstat(descriptor).st_size
            try:
                os.posix_fallocate(descriptor, position, length)
            except OSError:
                os.ftruncate(descriptor, size)  # Else it keeps what it found: all there was.
                raise

        async with self._turn:
            await self._device.run(work)

    async def close(self) -> None:
        async with self._turn:
            while self._reads:
                self._reads_ended.clear()
                await self._reads_ended.wait()
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                await self._device.run(lambda: os.close(descriptor))

    def _open_descriptor(self) -> int:
        if self._descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._descriptor


class SystemLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.token = _token_of(descriptor)

    async def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _token_of(descriptor: int) -> str:
    """A file lock lives in one kernel, from its boot on: a copy of the file is another lock, and so
    is the file itself on another machine.
    """
    try:
        with open(_BOOT_ID, "rb") as file:
            boot = file.read()
    except OSError:
        return ""
    found = os.fstat(descriptor)
    name = b"%b %d %d" % (boot, found.st_dev, found.st_ino)
    return hashlib.blake2b(name, digest_size=16).hexdigest()


class SystemDisk:
    def __init__(self) -> None:
        self._device = _Device()

    async def open(self, path: str, mode: OpenMode) -> SystemFile:
        # Python opens with O_CLOEXEC: a child never inherits a descriptor.
        return SystemFile(os.open(path, _FLAGS[mode], 0o600), self._device)

    async def stat(self, path: str) -> FileStat | None:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return FileStat(found.st_size, stat.S_ISDIR(found.st_mode), found.st_dev)

    async def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    async def make_directory(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    async def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    async def link(self, source: str, target: str) -> None:
        os.link(source, target)

    async def unlink(self, path: str) -> None:
        await self._device.run(lambda: os.unlink(path))

    async def sync_directory(self, path: str) -> None:
        def work() -> None:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

        await self._device.run(work)

    async def space(self, path: str) -> DiskSpace:
        found = os.statvfs(path)
        return DiskSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    async def lock(self, path: str) -> SystemLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise DirectoryInUse(
                f"another process holds {path}", next_step="stop it, or choose another directory"
            ) from error
        return SystemLock(descriptor)

    def close(self) -> None:
        self._device.close()


def _is_at_hand(descriptor: int, position: int, length: int) -> bool:
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


def _read_fully(descriptor: int, position: int, length: int) -> bytes:
    found = os.pread(descriptor, length, position)
    if len(found) == length or not found:
        return found
    parts = [found]  # A signal or the end of the file; only reading again tells.
    got = len(found)
    while got < length and (found := os.pread(descriptor, length - got, position + got)):
        parts.append(found)
        got += len(found)
    return b"".join(parts)


def _write_fully(descriptor: int, position: int, buffers: Sequence[Buffer]) -> None:
    for start in range(0, len(buffers), _BUFFERS_PER_WRITE):
        batch = buffers[start : start + _BUFFERS_PER_WRITE]
        expected = sum(map(len, batch))
        written = os.pwritev(descriptor, batch, position)
        if written < expected:  # The disk filled up half-way, or a signal came: go on by bytes.
            rest = memoryview(b"".join(batch))[written:]
            while rest:
                done = os.pwrite(descriptor, rest, position + expected - len(rest))
                rest = rest[done:]
        position += expected
