"""Every crash of a bookie's storage: its files as a power cut may leave them, reopened and judged.

A *trace* is a life of the real storage in the simulator: adds, fences, explicit LACs and deletions
from several writers, idle times, checkpoints, clean stops and power cuts, with every operation on
the disk in order, and what had been asked for and what had been answered by then. After each of
these operations the power may go. The *images* of that moment are all combinations of un-synced
sectors, sizes and names that the kernel's file system allows, up to `WAYS_MAX` of them; beyond, a
sample that begins with all and none. Each image is opened by the real recovery code, stepped by hand
without an event loop, and questioned:

- what was acknowledged is there: entries, fences, explicit LACs, deletions;
- nothing is there that nobody asked for, and nothing is UNKNOWN, since no bit has rotted;
- the same after everything was checkpointed;
- the same if the power goes again on the way, or goes only then, after the process alone had died
  and left behind what was never synced (sampled).
"""

import asyncio
import copy
import errno
import itertools
import logging
import os
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import structlog

from rollbook.bookie import catalog as catalog_module
from rollbook.bookie.config import StorageConfig
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import (
    BadConfig,
    EntryStateUnknown,
    NoSuchEntry,
    NoSuchLedger,
    RollbookError,
)
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.ports import Buffer, DiskSpace, FileStat, OpenMode
from rollbook.proto.wire import v2_adds, v3_adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest, ledger_key
from tests.simulation.kernel import World
from tests.simulation.kernel.filesystem import POWER_CUT, FileSystem, Operation
from tests.tally import Tally

T = TypeVar("T")

WAYS_MAX: Final = 64
SAMPLE: Final = 24
_SECOND_SAMPLE: Final = 6
_KILLS: Final = 4  # Process deaths, for each second crash of an image.
_FAILURES_MAX: Final = 5
_LIVES: Final = 3
CONFIG: Final = StorageConfig(
    "/bookie/journal",
    ("/bookie/ledgers1", "/bookie/ledgers2"),
    journal_file_bytes=16 * 1024,
    cache_bytes=64 * 1024,
    idle_after_ms=5,
)
_LEDGERS: Final = (1, 2, 3, 2**62)
_KEY: Final = ledger_key(b"secret")
_FRAME_BYTES_MAX: Final = 5 * 1024 * 1024


# --- A disk without a loop ----------------------------------------------------------------------


class StepFile:
    def __init__(self, disk: "StepDisk", number: int) -> None:
        self._disk = disk
        self._number = number

    async def size(self) -> int:
        return len(self._disk.system.files[self._number].contents)

    async def read_at(self, position: int, length: int) -> bytes:
        return self._disk.system.read(self._number, position, length)

    async def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._disk.do("write", self._number, position, b"".join(buffers))

    async def sync(self) -> None:
        self._disk.do("sync", self._number, self._disk.system.files[self._number].changes)

    async def write_and_sync(self, position: int, buffers: Sequence[Buffer]) -> None:
        await self.write_at(position, buffers)
        await self.sync()

    async def truncate(self, size: int) -> None:
        self._disk.do("resize", self._number, size)

    async def allocate(self, position: int, length: int) -> None:
        if position + length > await self.size():
            self._disk.do("resize", self._number, position + length)

    async def close(self) -> None:
        pass


class StepLock:
    async def release(self) -> None:
        pass


class StepDisk:
    """The Disk port over a file system in memory: nothing in it ever waits."""

    def __init__(self, system: FileSystem) -> None:
        self.system = system
        self.operations: list[Operation] = []

    def do(self, name: str, *arguments: Any) -> Any:
        self.operations.append((name, *arguments))
        return getattr(self.system, name)(*arguments)

    async def open(self, path: str, mode: OpenMode) -> StepFile:
        number = self.do("create", path) if mode is OpenMode.CREATE else self.system.find(path)
        if number is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return StepFile(self, number)

    async def stat(self, path: str) -> FileStat | None:
        number = self.system.find(path)
        if number is None:
            return None
        inode = self.system.files.get(number)
        return FileStat(0 if inode is None else len(inode.contents), inode is None, device=1)

    async def list_directory(self, path: str) -> list[str]:
        return self.system.list_directory(path)

    async def make_directory(self, path: str) -> None:
        self.do("make_directory", path)

    async def rename(self, source: str, target: str) -> None:
        self.do("rename", source, target)

    async def link(self, source: str, target: str) -> None:
        self.do("link", source, target)

    async def unlink(self, path: str) -> None:
        self.do("unlink", path)

    async def sync_directory(self, path: str) -> None:
        self.do("sync_directory", path)

    async def space(self, path: str) -> DiskSpace:
        return DiskSpace(1 << 40, 1 << 40)

    async def lock(self, path: str) -> StepLock:
        return StepLock()


class StoppedClock:
    def monotonic_ns(self) -> int:
        return 0

    def wall_us(self) -> int:
        return 0


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs it to its end; it may give way, but there is nobody it could wait for."""
    try:
        while True:
            assert coroutine.send(None) is None
    except StopIteration as stop:
        result: T = stop.value
        return result


# --- What was asked, what was answered ----------------------------------------------------------


@dataclass
class Promises:
    """By ledger; each with the number of disk operations that had been done by then."""

    sent: dict[tuple[int, int], list[tuple[int, bytes]]] = field(default_factory=dict)
    acked: dict[tuple[int, int], int] = field(default_factory=dict)
    fence_sent: dict[int, int] = field(default_factory=dict)
    fence_acked: dict[int, int] = field(default_factory=dict)
    lac_sent: list[tuple[int, int, int]] = field(default_factory=list)  # When, ledger, LAC.
    lac_acked: list[tuple[int, int, int]] = field(default_factory=list)
    delete_sent: dict[int, int] = field(default_factory=dict)
    delete_acked: dict[int, int] = field(default_factory=dict)


@dataclass
class Trace:
    seed: int
    operations: list[Operation] = field(default_factory=list)
    promises: Promises = field(default_factory=Promises)


def lac_packet(ledger_id: int, lac: int) -> bytes:
    return LedgerDigest(DigestType.CRC32C, b"secret", LedgerId(ledger_id)).pack_lac(EntryId(lac))


class Life:
    """Writers of one storage; goes on with the next one after a stop."""

    def __init__(self, trace: Trace, chance: random.Random) -> None:
        self._trace = trace
        self._promises = trace.promises
        self._chance = chance
        self._next: dict[int, int] = dict.fromkeys(_LEDGERS, 0)
        self._txn_ids = itertools.count(1)

    async def live(self, node: Any) -> None:
        """Until it is killed, or has had enough."""
        node.disk.record = self._trace.operations
        try:
            await Storage.make(node.disk, CONFIG, node.randomness)
        except BadConfig:
            pass  # Made in an earlier life.
        storage = await Storage.open(node.disk, CONFIG, node.clock, node.randomness)
        storage.start()
        waiting: list[asyncio.Future[Any]] = []
        for _ in range(self._chance.randint(4, 20)):
            action = self._chance.choices(
                (self._add, self._fence, self._write_lac, self._delete, self._rest),
                (30, 2, 3, 0.7, 5),
            )[0]
            if done := await action(storage):
                waiting.append(done)
            if len(waiting) > self._chance.randint(0, 6):
                await asyncio.gather(*waiting, return_exceptions=True)
                waiting.clear()
        if self._chance.random() < 0.5:
            await asyncio.gather(*waiting, return_exceptions=True)
            await storage.close()
        else:
            await asyncio.sleep(3600)

    @property
    def _now(self) -> int:
        return len(self._trace.operations)

    async def _rest(self, _storage: Storage) -> None:
        await asyncio.sleep(self._chance.choice((0.001, 0.02, 0.2)))

    async def _add(self, storage: Storage) -> asyncio.Future[Any] | None:
        chance = self._chance
        count = chance.choice((1, 1, 2, 5, 14))
        is_recovery = chance.random() < 0.2
        pack_v3 = chance.random() < 0.3
        frames: list[bytes] = []
        sent: list[tuple[int, int, bytes]] = []
        for _ in range(count):
            ledger_id = chance.choice(_LEDGERS[: chance.choice((1, 4))])
            entry_id = self._pick_entry(ledger_id)
            digest = LedgerDigest(chance.choice(list(DigestType)), b"secret", LedgerId(ledger_id))
            packer = (
                v3_adds.V3AddPacker(_KEY, digest, self._txn_ids, is_recovery=is_recovery)
                if pack_v3
                else v2_adds.V2AddPacker(_KEY, digest, is_recovery=is_recovery)
            )
            payload, lac = self._payload(), EntryId(entry_id - 1)
            frames.append(packer.pack(EntryId(entry_id), lac, 0, payload))
            sent.append(
                (ledger_id, entry_id, digest.pack_entry(EntryId(entry_id), lac, 0, payload))
            )
        take = v3_adds.take_adds if pack_v3 else v2_adds.take_adds
        adds, _ = take(b"".join(frames), 0, _FRAME_BYTES_MAX)
        assert adds
        admission = storage.add(adds)
        accepted: dict[int, None] = {
            group.ledger_id: None
            for group, refusal in zip(adds.groups, admission.refusals, strict=True)
            if refusal is None
        }
        for ledger_id, entry_id, body in sent:
            if ledger_id in accepted:
                self._promises.sent.setdefault((ledger_id, entry_id), []).append((self._now, body))

        def on_done(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                for ledger_id, entry_id, _ in sent:
                    if ledger_id in accepted:
                        self._promises.acked.setdefault((ledger_id, entry_id), self._now)

        if admission.done:
            admission.done.add_done_callback(on_done)
        return admission.done

    def _pick_entry(self, ledger_id: int) -> int:
        following = self._next[ledger_id]
        if self._chance.random() < 0.1:
            return self._chance.randint(0, following + 1)
        self._next[ledger_id] = following + 1
        return following

    def _payload(self) -> bytes:
        if self._chance.random() < 0.1:  # What is on the disk already: records within a record.
            writes = [o[3] for o in self._trace.operations[-20:] if o[0] == "write"]
            if writes:
                return bytes(self._chance.choice(writes)[:2000])
        return self._chance.randbytes(self._chance.choice((0, 20, 100, 600, 1500)))

    async def _fence(self, storage: Storage) -> asyncio.Future[Any]:
        ledger_id = self._chance.choice(_LEDGERS)
        self._promises.fence_sent.setdefault(ledger_id, self._now)
        return self._task(storage.fence(ledger_id, _KEY), self._promises.fence_acked, ledger_id)

    async def _delete(self, storage: Storage) -> asyncio.Future[Any]:
        ledger_id = self._chance.choice(_LEDGERS)
        self._promises.delete_sent.setdefault(ledger_id, self._now)
        return self._task(storage.delete(ledger_id), self._promises.delete_acked, ledger_id)

    def _task(
        self, coroutine: Coroutine[Any, Any, None], acked: dict[int, int], ledger_id: int
    ) -> asyncio.Future[Any]:
        async def work() -> None:
            try:
                await coroutine
            except RollbookError:
                return
            acked.setdefault(ledger_id, self._now)

        return asyncio.ensure_future(work())

    async def _write_lac(self, storage: Storage) -> asyncio.Future[Any]:
        ledger_id, lac = self._chance.choice(_LEDGERS), self._chance.randint(0, 50)
        self._promises.lac_sent.append((self._now, ledger_id, lac))

        async def work() -> None:
            try:
                await storage.write_lac(ledger_id, _KEY, lac, lac_packet(ledger_id, lac))
            except RollbookError:
                return
            self._promises.lac_acked.append((self._now, ledger_id, lac))

        return asyncio.ensure_future(work())


def record(seed: int) -> Trace:
    """Several lives of one store, between clean stops and power cuts."""
    trace = Trace(seed)
    world = World(seed)
    chance = world.random("storage workload")
    life = Life(trace, chance)
    node = world.node("b1")

    async def scenario() -> None:
        node.start(life.live)
        for _ in range(chance.randint(0, _LIVES - 1)):
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            if chance.random() < 0.7:
                node.power_cut()
            node.restart()
        await asyncio.sleep(1.0)
        node.kill()

    world.run(scenario())
    return trace


# --- Images -------------------------------------------------------------------------------------


class Promise(AssertionError):
    """One that was not kept."""


def images(system: FileSystem, chance: random.Random, sample: int) -> Iterator[FileSystem]:
    """All states that a power cut may leave if they are few, else the extremes and a sample."""
    counts: list[int] = []

    def counted(count: int) -> int:
        counts.append(count)
        return count - 1

    yield system.after_power_cut(counted)
    ways = 1
    for count in counts:
        ways *= count
    if ways == 1:
        return
    if ways <= min(WAYS_MAX, sample):
        for picks in itertools.product(*map(range, counts)):
            yield system.after_power_cut(_following(picks))
        return
    yield system.after_power_cut(lambda _: 0)
    for _ in range(min(ways, sample)):
        odds, oldest = chance.random(), chance.random()
        yield system.after_power_cut(
            lambda count, odds=odds, oldest=oldest: (  # type: ignore[misc]  # Defaults bind.
                count - 1
                if chance.random() < odds
                else (0 if chance.random() < oldest else chance.randrange(count))
            )
        )


def _newest(count: int) -> int:
    return count - 1


def _following(picks: Sequence[int]) -> Callable[[int], int]:
    """Which choices come up depends on those before: where there are more, the oldest is taken."""
    rest = iter(picks)
    return lambda count: min(next(rest, 0), count - 1)


@dataclass(frozen=True)
class Due:
    """What a store owes after a crash, counted once for all images of one moment."""

    is_made: bool
    entries: list[tuple[int, int, bool, list[bytes]]]  # Ledger, entry, must be there, as what.
    deleted: list[int]  # These must be gone.
    in_doubt: list[int]  # Of these the deletion was asked for: there or gone.
    must_be_fenced: list[int]
    may_be_fenced: list[int]
    lac_least: dict[int, int]  # Of entries and packets.
    packets: dict[int, tuple[list[bytes], bool]]  # Which there may be, and whether there must be.


def due_at(promises: Promises, now: int) -> Due:
    def by_now(when: dict[int, int]) -> list[int]:
        return [ledger_id for ledger_id, time in when.items() if time <= now]

    deletions = by_now(promises.delete_sent)
    entries: list[tuple[int, int, bool, list[bytes]]] = []
    lac_least: dict[int, int] = {}
    for (ledger_id, entry_id), sent in promises.sent.items():
        bodies = [body for when, body in sent if when <= now]
        if not bodies:
            continue
        is_acked = promises.acked.get((ledger_id, entry_id), now + 1) <= now
        entries.append((ledger_id, entry_id, is_acked and ledger_id not in deletions, bodies))
        if is_acked:
            lac_least[ledger_id] = max(entry_id - 1, lac_least.get(ledger_id, -1))
    packets: dict[int, tuple[list[bytes], bool]] = {}
    for ledger_id in _LEDGERS:
        acked = [n for when, each, n in promises.lac_acked if each == ledger_id and when <= now]
        least = max(acked, default=-1)
        sent_lacs = [n for when, each, n in promises.lac_sent if each == ledger_id and when <= now]
        may = [lac_packet(ledger_id, lac) for lac in sent_lacs if lac >= least]
        packets[ledger_id] = (may, bool(acked))
        lac_least[ledger_id] = max(least, lac_least.get(ledger_id, -1))
    return Due(
        is_made=bool(entries),
        entries=entries,
        deleted=by_now(promises.delete_acked),
        in_doubt=deletions,
        must_be_fenced=by_now(promises.fence_acked),
        may_be_fenced=by_now(promises.fence_sent) + deletions,
        lac_least=lac_least,
        packets=packets,
    )


def reopen(system: FileSystem, due: Due, seed: int) -> StepDisk:
    """Opens the store, judges it, checkpoints all of it, judges it again."""
    disk = StepDisk(system)
    storage = open_store(disk, seed, is_made=due.is_made)
    judge(storage, due)
    while step(storage.checkpoint()):
        pass
    judge(storage, due)
    return disk


def open_store(disk: StepDisk, seed: int, *, is_made: bool) -> Storage:
    randomness = random.Random(seed)
    try:
        return step(Storage.open(disk, CONFIG, StoppedClock(), randomness))
    except BadConfig:
        if is_made:
            raise
    step(Storage.make(disk, CONFIG, randomness))
    return step(Storage.open(disk, CONFIG, StoppedClock(), randomness))


def answer(storage: Storage, ledger_id: int, entry_id: int) -> bytes | type[RollbookError]:
    if (found := storage.peek(ledger_id, entry_id)) is not None:
        return found
    try:
        return step(storage.read(ledger_id, entry_id))
    except (NoSuchLedger, NoSuchEntry, EntryStateUnknown) as error:
        return type(error)


def judge(storage: Storage, due: Due) -> None:
    last: dict[int, tuple[int, bytes]] = {}
    for ledger_id, entry_id, must, bodies in due.entries:
        found = answer(storage, ledger_id, entry_id)
        if isinstance(found, bytes):
            if found not in bodies:
                raise Promise(f"ledger {ledger_id} entry {entry_id} was never written like this")
            if ledger_id in due.deleted:
                raise Promise(f"ledger {ledger_id} was deleted and is back")
            if ledger_id not in last or last[ledger_id][0] < entry_id:
                last[ledger_id] = (entry_id, found)
        elif found is EntryStateUnknown:
            raise Promise(f"ledger {ledger_id} entry {entry_id} is unknown without damage")
        elif must:
            raise Promise(f"ledger {ledger_id} entry {entry_id} was acknowledged and is gone")
    for ledger_id in _LEDGERS:
        is_fenced = storage.is_fenced(ledger_id)
        if not is_fenced and ledger_id in due.must_be_fenced:
            raise Promise(f"ledger {ledger_id} has lost its fence")
        if is_fenced and ledger_id not in due.may_be_fenced:
            raise Promise(f"ledger {ledger_id} is fenced by nobody")
        if isinstance(answer(storage, ledger_id, 10**9), bytes):
            raise Promise(f"ledger {ledger_id} has an entry that nobody wrote")
        if ledger_id not in due.in_doubt:
            _judge_tail(storage, due, ledger_id, last.get(ledger_id))


def _judge_tail(storage: Storage, due: Due, ledger_id: int, last: tuple[int, bytes] | None) -> None:
    try:
        found = step(storage.read_last(ledger_id))
    except (NoSuchLedger, NoSuchEntry):
        found = b""
    if found != (last[1] if last else b""):
        raise Promise(f"ledger {ledger_id} has another last entry than {last}")
    if storage.last_add_confirmed(ledger_id) < due.lac_least[ledger_id]:
        raise Promise(f"the LAC of ledger {ledger_id} went back")
    packet = storage.lac_packet(ledger_id)
    may, must = due.packets[ledger_id]
    if packet is None and must:
        raise Promise(f"ledger {ledger_id} has lost an explicit LAC")
    if packet is not None and packet not in may:
        raise Promise(f"ledger {ledger_id} has an explicit LAC that is old or nobody's")


@dataclass
class CrashImages(Tally):
    """Images that were judged, by what they are images of."""

    seeds: int = 0
    points: int = 0  # Moments at which the power went.
    second_crashes: int = 0
    failures: list[str] = field(default_factory=list)


def crash_everywhere(
    seed: int, result: CrashImages, *, sample: int = SAMPLE, second_odds: float = 0.05
) -> None:
    """All crash points of one trace."""
    trace = record(seed)
    chance = random.Random(seed)
    system = FileSystem()
    result.seeds += 1
    for now, operation in enumerate(trace.operations, 1):
        system = _after(system, operation)
        result.points += 1
        due = due_at(trace.promises, now)
        for image in images(system, chance, sample):
            again = image.after_power_cut(_newest) if chance.random() < second_odds else None
            _judge(image, again, due, f"seed {seed} operation {now}", chance, result)
        if chance.random() < second_odds * _KILLS:  # Only the process dies: the page cache stays.
            again = copy.deepcopy(system)
            _judge(
                copy.deepcopy(system), again, due, f"seed {seed} killed at {now}", chance, result
            )
        if len(result.failures) > _FAILURES_MAX:
            return


def _judge(
    image: FileSystem,
    again: FileSystem | None,
    due: Due,
    name: str,
    chance: random.Random,
    result: CrashImages,
) -> None:
    try:
        _judge_image(image, again, due, chance, result)
    except (Promise, RollbookError, OSError, AssertionError) as error:
        result.failed += 1
        result.failures.append(f"{name}: {type(error).__name__}: {error}")


def _judge_image(
    image: FileSystem,
    before: FileSystem | None,
    due: Due,
    chance: random.Random,
    result: CrashImages,
) -> None:
    """`before` is the image once more, if the power is to go (again) while it is reopened."""
    disk = reopen(image, due, 1)
    result.passed += 1
    if before is None:
        return
    for operation in disk.operations[: chance.randint(1, max(1, len(disk.operations)))]:
        before = _after(before, operation)
    for again in images(before, chance, _SECOND_SAMPLE):
        result.second_crashes += 1
        reopen(again, due, 2)
        result.passed += 1


def _after(system: FileSystem, operation: Operation) -> FileSystem:
    name, *arguments = operation
    if name == POWER_CUT:
        picks = iter(arguments)
        return system.after_power_cut(lambda _: next(picks))
    getattr(system, name)(*arguments)
    return system


@contextmanager
def small_and_quiet() -> Iterator[None]:
    """Images are copied: small files make many of them. And each would log its recovery."""
    step_bytes, catalog_module._STEP_BYTES = catalog_module._STEP_BYTES, 4096
    configuration = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**configuration)
        catalog_module._STEP_BYTES = step_bytes


def run(images_min: int, seed: int, report: Callable[[int, int], None]) -> CrashImages:
    """Traces from `seed` on, until so many images have been judged."""
    result = CrashImages("images")
    with small_and_quiet():
        while result.passed + result.failed < images_min and len(result.failures) <= _FAILURES_MAX:
            crash_everywhere(seed, result)
            seed += 1
            report(min(images_min, result.passed + result.failed), images_min)
    return result
