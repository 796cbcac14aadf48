"""Files of the machine.

Writes are made directly on the loop, since a write to the page cache takes microseconds, as does a
read of cached pages. Other reads, `sync` and `write_and_sync` wait for the device. `truncate`,
`unlink`, and the `close` after it may go through all blocks of a file, which takes 40 ms for 128
MiB. These calls run on the disk's own threads, so that the loop goes on. Changes of one file still
take effect in the order of the calls, since each waits for the previous change of this file. Reads
do not wait for changes, but `close` waits for reads.

If the device is quick, a small `write_and_sync` runs on the loop and blocks it, since the way to a
thread and back costs as much as the sync itself. It does not run there while other work uses the
device, nor soon after a slow sync. Callers can ask `is_quick` first, and then need no task.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from rollbook.proto.errors import DirectoryInUse
from rollbook.proto.ports import Buffer, DiskSpace, FileStat, OpenMode
from rollbook.proto.runtime.direct_reads import DirectFiles, read_cold
from rollbook.proto.runtime.disk_threads import Threads
from rollbook.proto.runtime.file_read_ahead import Ahead, foresee
from rollbook.proto.runtime.fsync_and_fallocate import reserve, sync_data
from rollbook.proto.runtime.page_cache_limit import WrittenLately
from rollbook.proto.runtime.page_cache_probe import probe_page_cache, read_fully

T = TypeVar("T")

# A sync may block the loop for this long; three bookies on one disk need it.
_ON_THE_SPOT_S: Final = 0.002
_ON_THE_SPOT_BYTES: Final = 64 * 1024
# Each small sync reduces the expected time to this share of it: after a slow one of 10 ms, it takes 32 quick
# ones until syncs count as quick again.
_SLOWNESS_KEPT: Final = 0.95
# One thread for each file that may be synced at the same time: journal, entry logs, ledgers.
_SYNC_THREADS: Final = 4
_READ_THREADS: Final = 4  # These are separate threads, so that no sync waits for reads.
_CALM_S: Final = 1.0  # For this long after a write, further writes are expected.
_BUFFERS_PER_WRITE: Final = min(1024, os.sysconf("SC_IOV_MAX"))
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_FLAGS: Final = {
    OpenMode.READ: os.O_RDONLY,
    OpenMode.WRITE: os.O_RDWR,
    OpenMode.CREATE: os.O_RDWR | os.O_CREAT | os.O_EXCL,
}


class _Device:
    """Runs work that waits for the device, in a thread or on the loop."""

    def __init__(self, written_kept_bytes: int) -> None:
        self.readers = Threads("disk-read", _READ_THREADS)
        self.ahead = Ahead()
        self.direct = DirectFiles()
        self.written = WrittenLately(written_kept_bytes)
        self._threads = Threads("disk", _SYNC_THREADS)
        self._under_way = 0
        # How long a small sync may take: the time of the slowest one, which is gradually forgotten.
        self._expected_s = 1.0

    def is_quick(self, size: int) -> bool:
        return _is_small(size) and not self._under_way and self._expected_s < _ON_THE_SPOT_S

    def on_small_sync(self, took_s: float) -> None:
        self._expected_s = max(took_s, self._expected_s * _SLOWNESS_KEPT)

    async def run(self, work: Callable[[], object]) -> float:
        """Returns how many seconds the work took, without the way to the thread and back."""
        self._under_way += 1
        try:
            return await self._threads.run(work)
        finally:
            self._under_way -= 1

    def close(self) -> None:
        self.readers.close()
        self.ahead.close()
        self._threads.close()


class _Naming:
    """Adds the file's name to system errors, as Python does for calls that take a name."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = self._path


class SystemFile:
    def __init__(self, path: str, descriptor: int, device: _Device) -> None:
        self._descriptor = descriptor
        self._naming = _Naming(path)
        self._device = device
        self._written = device.written.of(descriptor)
        self._turn = asyncio.Lock()  # The lock is fair: first come, first served.
        self._written_s = -_CALM_S  # The time at which the file was last written.
        self._is_foreseen = False  # True once a reader announces its next reads.
        self._reads = 0
        self._reads_ended = asyncio.Event()

    async def size(self) -> int:
        return os.fstat(self._open_descriptor()).st_size

    async def read_at(self, position: int, length: int) -> bytes:
        return await self.read_with(position, length, bytes)

    async def read_with(self, position: int, length: int, use: Callable[[Buffer], T]) -> T:
        descriptor = self._open_descriptor()
        self._reads += 1
        try:
            if taken := await self._device.ahead.take(self, position, length):
                try:
                    return use(taken.contents)
                finally:
                    taken.let_go()
            if probe_page_cache(descriptor, position, length):
                return use(read_fully(descriptor, position, length))
            return use(await self._read_in_thread(descriptor, position, length))
        finally:
            self._reads -= 1
            self._reads_ended.set()

    async def _read_in_thread(self, descriptor: int, position: int, length: int) -> bytes:
        found: list[bytes] = []
        is_calm = self._is_calm
        direct = self._device.direct.of(self, descriptor, position, length) if is_calm else None
        await self._device.readers.run(
            lambda: found.append(read_cold(descriptor, position, length, direct))
        )
        return found[0]

    def prefetch(self, position: int, length: int) -> None:
        descriptor = self._open_descriptor()
        if not self._is_calm or self._device.ahead.has(self, position):
            return
        if not self._is_foreseen:
            self._is_foreseen = True
            foresee(descriptor)
        is_cold = not probe_page_cache(descriptor, position, length)
        direct = self._device.direct.of(self, descriptor, position, length) if is_cold else None
        self._device.ahead.start(
            self,
            position,
            length,
            direct,
            lambda: read_cold(descriptor, position, length, direct),
        )

    async def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        async with self._turn:
            with self._naming:
                end = _write_fully(self._open_descriptor(), position, buffers)
            self._on_written(position, end)

    async def sync(self) -> None:
        async with self._turn:
            await self._run(lambda: sync_data(self._open_descriptor()))

    async def write_and_sync(self, position: int, buffers: Sequence[Buffer]) -> None:
        size = sum(map(len, buffers))
        async with self._turn:
            if self._device.is_quick(size):
                self._write_and_sync_here(position, buffers)
                return
            took_s = await self._run(lambda: self._write_and_sync(position, buffers))
            if _is_small(size):
                self._device.on_small_sync(took_s)
            self._on_written(position, position + size)

    def is_quick(self, size: int) -> bool:
        return self._device.is_quick(size) and not self._turn.locked()

    def write_and_sync_now(self, position: int, buffers: Sequence[Buffer]) -> None:
        assert not self._turn.locked()
        self._write_and_sync_here(position, buffers)

    def _write_and_sync_here(self, position: int, buffers: Sequence[Buffer]) -> None:
        began_s = time.monotonic()
        with self._naming:
            end = self._write_and_sync(position, buffers)
        ended_s = time.monotonic()
        self._on_written(position, end)
        self._device.on_small_sync(ended_s - began_s)

    def _write_and_sync(self, position: int, buffers: Sequence[Buffer]) -> int:
        end = _write_fully(self._open_descriptor(), position, buffers)
        sync_data(self._open_descriptor())
        return end

    async def truncate(self, size: int) -> None:
        async with self._turn:
            await self._run(lambda: os.ftruncate(self._open_descriptor(), size))
            self._on_changed()

    async def allocate(self, position: int, length: int) -> None:
        def work() -> None:
            descriptor = self._open_descriptor()
            size = os.fstat(descriptor).st_size
            try:
                reserve(descriptor, position, length)
            except OSError:
                # Without this, the file would keep the space that was reserved.
                os.ftruncate(descriptor, size)
                raise

        async with self._turn:
            await self._run(work)
            self._on_changed()

    async def close(self) -> None:
        async with self._turn:
            while self._reads:
                self._reads_ended.clear()
                await self._reads_ended.wait()
            await self._device.ahead.end(self)
            self._device.direct.forget(self)
            self._written.close()
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                await self._device.run(lambda: os.close(descriptor))

    async def _run(self, work: Callable[[], object]) -> float:
        with self._naming:
            return await self._device.run(work)

    @property
    def _is_calm(self) -> bool:
        """True if nothing was written lately. Otherwise direct reads would delay writes, and writes
        would outdate read-ahead.
        """
        return time.monotonic() - self._written_s >= _CALM_S

    def _on_written(self, position: int, end: int) -> None:
        self._on_changed()
        self._written.on_written(position, end)

    def _on_changed(self) -> None:
        self._written_s = time.monotonic()
        self._device.ahead.outdate(self)

    def _open_descriptor(self) -> int:
        if self._descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._descriptor


class SystemLock:
    """A lock on a file and on its directory. A lock on the file alone would not be enough: another
    process could remove the file and lock a new one of the same name.
    """

    def __init__(self, path: str) -> None:
        self._descriptors: list[int] = []
        try:
            # Opening creates a missing file.
            file = self._take(path, os.O_RDWR | os.O_CREAT, path)
            self._take(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY, path)
            if not _is_at(path, file):
                raise _in_use(path)  # Another process is removing the file right now.
        except BaseException:
            self._close()
            raise
        self.token = _token_of(file)

    def _take(self, path: str, flags: int, named: str) -> int:
        descriptor = os.open(path, flags, 0o600)
        self._descriptors.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise _in_use(named) from error
            if not flags & os.O_DIRECTORY:  # Some network file systems cannot lock directories.
                raise
        return descriptor

    async def release(self) -> None:
        self._close()

    def _close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def _in_use(path: str) -> DirectoryInUse:
    return DirectoryInUse(
        f"another process holds {path}", next_step="stop it, or choose another directory"
    )


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _token_of(descriptor: int) -> str:
    """Returns the token of a lock. A file lock exists in one kernel until its next boot; therefore
    a copy of the file has another token, and so has the same file on another machine.
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
    def __init__(self, written_kept_bytes: int = 0) -> None:
        """`written_kept_bytes` is how many written bytes stay in the page cache; with 0 the system decides."""
        self._device = _Device(written_kept_bytes)

    async def open(self, path: str, mode: OpenMode) -> SystemFile:
        # Python opens files with O_CLOEXEC, so a child process never inherits a descriptor.
        return SystemFile(path, os.open(path, _FLAGS[mode], 0o600), self._device)

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
        return SystemLock(path)

    def close(self) -> None:
        self._device.close()


def _is_small(size: int) -> bool:
    return size <= _ON_THE_SPOT_BYTES


def _write_fully(descriptor: int, position: int, buffers: Sequence[Buffer]) -> int:
    """Writes all buffers, and returns where the last one ends."""
    for start in range(0, len(buffers), _BUFFERS_PER_WRITE):
        batch = buffers[start : start + _BUFFERS_PER_WRITE]
        expected = sum(map(len, batch))
        written = os.pwritev(descriptor, batch, position)
        if written < expected:  # The disk became full, or a signal came: write the remaining bytes.
            rest = memoryview(b"".join(batch))[written:]
            while rest:
                done = os.pwrite(descriptor, rest, position + expected - len(rest))
                rest = rest[done:]
        position += expected
    return position
