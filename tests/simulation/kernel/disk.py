"""The Disk port over a file system that forgets what was not synced, slowly and with errors.

Latency is that of the device: reads and writes mean the page cache and return at once, or (in some
seeds) after other tasks had a turn. A large write can be seen half done; a sync takes its time, holds
the file's turn, and goes on when its caller is cancelled.
"""

import asyncio
import errno
import os
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from rollbook.proto.errors import DirectoryInUse
from rollbook.proto.ports import Buffer, DiskSpace, FileStat, OpenMode
from tests.simulation.kernel.filesystem import POWER_CUT, SECTOR, FileSystem, Operation, Write, lend
from tests.simulation.kernel.loop import Lane, VirtualLoop

T = TypeVar("T")
Span: TypeAlias = tuple[float, float]
Work: TypeAlias = Coroutine[Any, Any, T]

SYNC_S: Final[Span] = (0.000_2, 0.002)
TURN_S: Final[Span] = (0.0, 0.000_2)
UNLIMITED_BYTES: Final = 1 << 50
QUICK_BYTES_MAX: Final = 64 * 1024  # As on the machine.


class SimulatedFile:
    def __init__(self, disk: "SimulatedDisk", number: int, lane: Lane, *, writable: bool) -> None:
        self._disk = disk
        self._system = disk.system
        self._is_writable = writable
        self._turn = asyncio.Lock()
        self.number = number
        self.lane = lane
        self.is_open = True

    def _check(self, *, write: bool) -> None:
        dead = not self.is_open or self._system is not self._disk.system
        if dead or (write and not self._is_writable):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    async def size(self) -> int:
        self._check(write=False)
        return len(self._system.files[self.number].contents)

    async def read_at(self, position: int, length: int) -> bytes:
        self._check(write=False)
        if self._disk.turn_odds:
            await self._disk.take_turns()
            self._check(write=False)
        self._disk.meet_read_error()
        return self._system.read(self.number, position, length)

    async def read_with(self, position: int, length: int, use: Callable[[Buffer], T]) -> T:
        return lend(await self.read_at(position, length), use)

    def prefetch(self, position: int, length: int) -> None:
        self._check(write=False)

    async def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        async with self._turn:
            await self._write(position, b"".join(buffers))

    async def sync(self) -> None:
        async with self._turn:
            await self._sync()

    async def write_and_sync(self, position: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        async with self._turn:
            await self._write(position, data)
            await self._sync()

    def is_quick(self, size: int) -> bool:
        return not self._turn.locked() and self._disk.is_quick(size)

    def write_and_sync_now(self, position: int, buffers: Sequence[Buffer]) -> None:
        assert not self._turn.locked()
        self._check(write=True)
        self._store(position, b"".join(buffers))
        self._finish_sync(self._system.files[self.number].changes)

    async def truncate(self, size: int) -> None:
        async with self._turn:
            self._check(write=True)
            self._disk.do("resize", self.number, size)

    async def allocate(self, position: int, length: int) -> None:
        async with self._turn:
            self._check(write=True)
            await self._disk.take_turns()
            self._check(write=True)
            end = position + length
            old = len(self._system.files[self.number].contents)
            if end > old:
                if end - old > self._disk.free_bytes():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._disk.do("resize", self.number, end)

    async def close(self) -> None:
        async with self._turn:
            self.is_open = False
            self._disk.on_closed(self)

    async def _write(self, position: int, data: bytes) -> None:
        self._check(write=True)
        if self._disk.turn_odds and await self._disk.take_turns() and len(data) > SECTOR:
            half = self._disk.chance.randrange(1, len(data))
            self._store(position, data[:half])
            await self._disk.take_turns()
            position, data = position + half, data[half:]
        self._check(write=True)
        self._store(position, data)

    def _store(self, position: int, data: bytes) -> None:
        """To the page cache, up to the first error."""
        disk = self._disk
        failure: OSError | None = None
        if disk.meets_write_error():
            data = data[: disk.chance.randrange(len(data) + 1)]
            failure = OSError(errno.EIO, os.strerror(errno.EIO))
        grows = position + len(data) - len(self._system.files[self.number].contents)
        if grows > 0 and grows > (free := disk.free_bytes()):
            data = data[: max(0, len(data) - (grows - free))]
            failure = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if data:
            disk.do("write", self.number, position, data)
        if failure is not None:
            raise failure

    async def _sync(self) -> None:
        self._check(write=False)
        changes = self._system.files[self.number].changes
        await self._disk.on_device(lambda: self._finish_sync(changes))

    def _finish_sync(self, changes: int) -> None:
        disk = self._disk
        if self._system is not disk.system:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        inode = self._system.files[self.number]
        if not disk.meets_sync_error():
            synced = inode.pending[: max(0, changes - inode.synced)] if disk.on_synced else []
            disk.do("sync", self.number, changes)
            if disk.on_synced and (written := [c for c in synced if isinstance(c, Write)]):
                start = min(write.position for write in written)
                end = max(write.end for write in written)
                disk.on_synced(inode.durable, start, end)
            return
        dirty: dict[int, None] = {}
        for change in inode.pending[: max(0, changes - inode.synced)]:
            if isinstance(change, Write):
                dirty.update(dict.fromkeys(change.sectors()))
        chance = disk.chance
        lost = tuple(sector for sector in dirty if chance.random() < 0.7) or tuple(dirty)
        disk.do("fail_sync", self.number, changes, lost, chance.random() < 0.3)
        raise OSError(errno.EIO, os.strerror(errno.EIO))


class SimulatedLock:
    def __init__(self, disk: "SimulatedDisk", path: str, token: str, lane: Lane) -> None:
        self._disk = disk
        self._path = path
        self.token = token
        self.lane = lane

    async def release(self) -> None:
        if self._disk.locks.get(self._path) is self:
            del self._disk.locks[self._path]


class _Job:
    """What the device has been told to do. It is done even if nobody waits any more."""

    __slots__ = ("error", "is_done", "waiter", "work")

    def __init__(self, work: Callable[[], None], waiter: "asyncio.Future[None]") -> None:
        self.work = work
        self.waiter = waiter
        self.is_done = False
        self.error: OSError | None = None

    def run(self) -> None:
        try:
            self.work()
        except OSError as error:
            self.error = error
        self.is_done = True
        if not self.waiter.done():
            self.waiter.set_result(None)


class SimulatedDisk:
    """One disk, its faults, and the `Disk` port for what is on it."""

    def __init__(
        self, loop: VirtualLoop, chance: random.Random, device: int = 1, place: str = "/"
    ) -> None:
        self.system = FileSystem()
        self.device = device
        self.place = place  # Where it is mounted.
        self.chance = chance
        self.locks: dict[str, SimulatedLock] = {}
        self.machine = ""
        self._boots = 0  # Also of other disks in its place.
        # All that is done from here on; complete if it was set before anything, or before `wipe`.
        self.record: list[Operation] | None = None
        # Called for each sync that ends well: what of the file is durable now, and from where to where
        # that is new.
        self.on_synced: Callable[[bytearray, int, int], None] | None = None
        self.sync_s: Span = SYNC_S
        self.quick_odds = 0.0  # Of a sync that can be waited for on the spot.
        self.tail_odds = 0.0
        self.tail_s: Span = (0.0, 0.0)
        self.sync_error_odds = 0.0
        self.write_error_odds = 0.0
        self.read_error_odds = 0.0
        self.capacity_bytes: int | None = None
        # The mood of a run: whether the page cache answers at once, as it mostly does.
        self.turn_odds = chance.choice((0.0, 0.0, 0.05, 0.5))
        self.turn_s: Span = TURN_S
        self._loop = loop
        self._open: dict[SimulatedFile, None] = {}
        self._sync_errors_due = 0
        self._write_errors_due = 0
        self._is_hung = False
        self._under_way: dict[_Job, Lane] = {}
        self._hung: list[tuple[_Job, Lane]] = []
        self._make_durably(place)

    # --- The port -----------------------------------------------------------------------------

    async def open(self, path: str, mode: OpenMode) -> SimulatedFile:
        await self.take_turns()
        if mode is OpenMode.CREATE:
            number = self.do("create", path)
        else:
            found = self.system.find(path)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if found in self.system.directories:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            number = found
        file = SimulatedFile(self, number, self._loop.lane(), writable=mode is not OpenMode.READ)
        self._open[file] = None
        return file

    async def stat(self, path: str) -> FileStat | None:
        number = self.system.find(path)
        if number is None:
            return None
        inode = self.system.files.get(number)
        return FileStat(0 if inode is None else len(inode.contents), inode is None, self.device)

    async def list_directory(self, path: str) -> list[str]:
        await self.take_turns()
        return self.system.list_directory(path)

    async def make_directory(self, path: str) -> None:
        self.do("make_directory", path)

    async def rename(self, source: str, target: str) -> None:
        await self.take_turns()
        self.do("rename", source, target)

    async def link(self, source: str, target: str) -> None:
        await self.take_turns()
        self.do("link", source, target)

    async def unlink(self, path: str) -> None:
        await self.take_turns()
        self.do("unlink", path)
        self._forget_unnamed()

    async def sync_directory(self, path: str) -> None:
        system = self.system
        system.list_directory(path)  # Raises at once if there is none.

        def finish() -> None:
            if system is not self.system or self.meets_sync_error():
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.do("sync_directory", path)
            self._forget_unnamed()

        await self.on_device(finish)

    async def space(self, path: str) -> DiskSpace:
        total = UNLIMITED_BYTES if self.capacity_bytes is None else self.capacity_bytes
        return DiskSpace(total, self.free_bytes())

    async def lock(self, path: str) -> SimulatedLock:
        held = self.locks.get(path)
        if held is not None and held.lane.is_alive:
            raise DirectoryInUse(
                f"another process holds {path}", next_step="stop it, or choose another directory"
            )
        if self.system.find(path) is None:
            self.do("create", path)
        token = f"{self.machine}/{self.device}/{self._boots}/{self.system.find(path)}"
        lock = self.locks[path] = SimulatedLock(self, path, token, self._loop.lane())
        return lock

    # --- For scenarios ------------------------------------------------------------------------

    def fail_next_sync(self) -> None:
        self._sync_errors_due += 1

    def fail_next_write(self) -> None:
        self._write_errors_due += 1

    def hang(self) -> None:
        """No sync ends until `unhang`."""
        self._is_hung = True

    def unhang(self) -> None:
        self._is_hung = False
        hung, self._hung = self._hung, []
        for job, lane in hung:
            when = self._loop.now + self._latency()
            self._loop.call_at(when, self._run, job, context=lane.context)

    def heal(self) -> None:
        """As new, but for what is on it."""
        self.sync_s, self.tail_odds, self.capacity_bytes = SYNC_S, 0.0, None
        self.sync_error_odds = self.write_error_odds = self.read_error_odds = 0.0
        self._sync_errors_due = self._write_errors_due = 0
        self.unhang()

    def rot(self, path: str, position: int | None = None) -> int:
        """Flips one durable bit of the file; returns where, or -1 if it has none."""
        number = self._file(path)
        size = len(self.system.files[number].durable)
        if not size:
            return -1
        if position is None:
            position = self.chance.randrange(size)
        self.do("flip", number, position, self.chance.randrange(8))
        return position

    def make_stale(self, path: str) -> int:
        """One sector of the last sync never got to the disk; returns where, or -1."""
        number = self._file(path)
        replaced = self.system.files[number].replaced
        if not replaced:
            return -1
        index = self.chance.randrange(len(replaced))
        position = replaced[index].position
        self.do("revert_write", number, index)
        return position

    def drop_caches(self) -> None:
        self.do("drop_caches")

    def wipe(self) -> None:
        """Another disk in its place, empty."""
        self._boots += 1
        self.system = FileSystem()
        self.locks.clear()
        self._open.clear()
        if self.record is not None:
            self.record.clear()
        self._make_durably(self.place)

    def image(self) -> FileSystem:
        """As a snapshot of the disk has it: all that a power cut would leave now, and what it might."""
        return self.system.copy()

    def put_back(self, image: FileSystem) -> None:
        """Another disk in its place, as this one was then. Nobody may be at work on it."""
        assert self.record is None  # It cannot tell of this.
        self.wipe()
        self.system = image.copy()

    def contents(self, path: str) -> bytes | None:
        number = self.system.find(path)
        return None if number is None else bytes(self.system.files[number].contents)

    def durable(self, path: str) -> bytes | None:
        """The file as its last sync left it; None if a power cut could take its name."""
        number = self.system.find_durable(path)
        if number is None or number != self.system.find(path):
            return None
        return bytes(self.system.files[number].durable)

    # --- Life of the machine ----------------------------------------------------------------------

    def on_process_dead(self) -> None:
        """The page cache stays."""
        self._open = {file: None for file in self._open if file.lane.is_alive}
        self._under_way = {job: lane for job, lane in self._under_way.items() if lane.is_alive}
        self._hung = [(job, lane) for job, lane in self._hung if lane.is_alive]
        self._forget_unnamed()

    def on_power_lost(self) -> None:
        # The mood of a cut: all is lost, half of it, or hardly anything.
        newest_odds = self.chance.choice((0.0, 0.3, 0.7, 1.0))
        oldest_odds = self.chance.random()
        random_ = self.chance.random

        picks: list[int] = []

        def choose(count: int) -> int:
            if random_() < newest_odds:
                pick = count - 1
            else:
                pick = 0 if random_() < oldest_odds else int(random_() * count)
            picks.append(pick)
            return pick

        self.system = self.system.after_power_cut(choose)
        if self.record is not None:
            self.record.append((POWER_CUT, *picks))
        self._boots += 1
        self.locks.clear()
        self._open.clear()
        self._under_way.clear()
        self._hung.clear()
        self._is_hung = False

    # --- Inside -------------------------------------------------------------------------------

    def _make_durably(self, path: str) -> None:
        """A place where a disk is mounted: it is always there."""
        if path == "/":
            return
        self.do("make_directory", path)
        while path:
            path = path.rpartition("/")[0]
            self.do("sync_directory", path or "/")

    def do(self, name: str, *arguments: Any) -> Any:
        """Every change of the file system, so that it can be recorded."""
        result = getattr(self.system, name)(*arguments)
        if self.record is not None:
            self.record.append((name, *arguments))
        return result

    async def take_turns(self) -> bool:
        """Whether others ran meanwhile."""
        if not self.turn_odds or self.chance.random() >= self.turn_odds:
            return False
        await asyncio.sleep(self.chance.uniform(*self.turn_s))
        return True

    async def on_device(self, work: Callable[[], None]) -> None:
        """Returns when it is done. A cancelled caller waits for it all the same, as for a thread."""
        loop = self._loop
        job = _Job(work, loop.create_future())
        self._under_way[job] = loop.lane()
        loop.call_at(loop.now + self._latency(), self._run, job)
        cancelled: asyncio.CancelledError | None = None
        while not job.is_done:
            if job.waiter.done():
                job.waiter = loop.create_future()
            try:
                await job.waiter
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        if job.error is not None:
            raise job.error

    def _run(self, job: _Job) -> None:
        if self._is_hung:
            self._hung.append((job, self._loop.lane()))
        else:
            self._under_way.pop(job, None)
            job.run()

    def is_quick(self, size: int) -> bool:
        if size > QUICK_BYTES_MAX or self._under_way or self._is_hung or not self.quick_odds:
            return False
        return self.chance.random() < self.quick_odds

    def _latency(self) -> float:
        least, most = self.sync_s
        latency = least + (most - least) * self.chance.random()
        if self.tail_odds and self.chance.random() < self.tail_odds:
            latency += self.chance.uniform(*self.tail_s)
        return latency

    def meets_sync_error(self) -> bool:
        if self._sync_errors_due:
            self._sync_errors_due -= 1
            return True
        return self.sync_error_odds > 0 and self.chance.random() < self.sync_error_odds

    def meets_write_error(self) -> bool:
        if self._write_errors_due:
            self._write_errors_due -= 1
            return True
        return self.write_error_odds > 0 and self.chance.random() < self.write_error_odds

    def meet_read_error(self) -> None:
        if self.read_error_odds and self.chance.random() < self.read_error_odds:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def free_bytes(self) -> int:
        total = UNLIMITED_BYTES if self.capacity_bytes is None else self.capacity_bytes
        return max(0, total - self.system.used_bytes)

    def on_closed(self, file: SimulatedFile) -> None:
        if self._open.pop(file, self) is None:
            self._forget_unnamed()

    def _forget_unnamed(self) -> None:
        self.system.forget_unnamed([file.number for file in self._open])

    def _file(self, path: str) -> int:
        number = self.system.find(path)
        if number is None or number in self.system.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return number


class MachineDisk(SimulatedDisk):
    """The first disk of a machine, and the `Disk` port for everything that is mounted on it."""

    def __init__(
        self, loop: VirtualLoop, machine: str, stream: Callable[[str], random.Random]
    ) -> None:
        super().__init__(loop, stream(f"disk:{machine}"))
        self.machine = machine
        self._stream = stream
        self._mounted: list[SimulatedDisk] = []

    def mount(self, path: str) -> SimulatedDisk:
        """Another disk, with faults of its own, for this directory and what is below it."""
        assert self._on(path) is self, f"{path} is on a disk of its own already"
        chance = self._stream(f"disk:{self.machine}:{path}")
        disk = SimulatedDisk(self._loop, chance, device=2 + len(self._mounted), place=path)
        disk.machine = self.machine
        self._make_durably(path)
        self._mounted.append(disk)
        return disk

    def _on(self, path: str) -> SimulatedDisk:
        for disk in self._mounted:
            if path == disk.place or path.startswith(f"{disk.place}/"):
                return disk
        return self

    def _on_both(self, source: str, target: str) -> SimulatedDisk:
        disk = self._on(source)
        if disk is not self._on(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)
        return disk

    # Each returns what is to be awaited: a coroutine of its own would only be in between.

    def open(self, path: str, mode: OpenMode) -> Work[SimulatedFile]:
        return SimulatedDisk.open(self._on(path), path, mode)

    def stat(self, path: str) -> Work[FileStat | None]:
        return SimulatedDisk.stat(self._on(path), path)

    def list_directory(self, path: str) -> Work[list[str]]:
        return SimulatedDisk.list_directory(self._on(path), path)

    def make_directory(self, path: str) -> Work[None]:
        return SimulatedDisk.make_directory(self._on(path), path)

    def rename(self, source: str, target: str) -> Work[None]:
        return SimulatedDisk.rename(self._on_both(source, target), source, target)

    def link(self, source: str, target: str) -> Work[None]:
        return SimulatedDisk.link(self._on_both(source, target), source, target)

    def unlink(self, path: str) -> Work[None]:
        return SimulatedDisk.unlink(self._on(path), path)

    def sync_directory(self, path: str) -> Work[None]:
        return SimulatedDisk.sync_directory(self._on(path), path)

    def space(self, path: str) -> Work[DiskSpace]:
        return SimulatedDisk.space(self._on(path), path)

    def lock(self, path: str) -> Work[SimulatedLock]:
        return SimulatedDisk.lock(self._on(path), path)

    def on_process_dead(self) -> None:
        super().on_process_dead()
        for disk in self._mounted:
            disk.on_process_dead()

    def on_power_lost(self) -> None:
        super().on_power_lost()
        for disk in self._mounted:
            disk.on_power_lost()
