"""Lives of a storage, recorded with all operations on its disk.

A *trace* is several lives of the real storage in the simulator: adds of many shapes, fences,
explicit LACs, drops and deletions from several writers, idle times, concurrent checkpoints,
compactions and scrubs, clean stops, kills and power cuts, and in some seeds a full disk or failing
syncs. It has every operation on the disk in order, and the requests and responses up to each of
them.
"""

import asyncio
import itertools
import random
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from rollbook.bookie import catalog_files as catalog_module
from rollbook.bookie.compaction import Compactor
from rollbook.bookie.config import SpaceConfig, StorageConfig
from rollbook.bookie.core.disk_usage import DiskUsage
from rollbook.bookie.scrub import Scrubber
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import BadConfig, RollbookError
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.wire import v2_adds, v3_adds
from rollbook.proto.wire.add_columns import Adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest, ledger_key
from tests.simulation.kernel import Node, World
from tests.simulation.kernel.filesystem import Operation
from tests.support.entries import pack_entry

LEDGERS: Final = (1, 2, 2**62)
KEY: Final = ledger_key(b"secret")
FRAME_BYTES_MAX: Final = 5 * 1024 * 1024
_LIVES_MAX: Final = 3
_FULL_BYTES: Final = (0, 2_000, 20_000)  # Free bytes of a disk that counts as full.


@dataclass
class Promises:
    """Requests and responses by ledger, each with the number of disk operations before it.

    Adds and drops are numbered in request order: a drop removes earlier adds.
    """

    sent: dict[tuple[int, int], list[tuple[int, int, bytes]]] = field(default_factory=dict)
    """When, the number of the add, and its bytes."""
    acked: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    """When, and the number of the add."""
    drop_sent: list[tuple[int, int, int]] = field(default_factory=list)  # When, number, ledger.
    drop_acked: list[tuple[int, int, int]] = field(default_factory=list)
    fence_sent: dict[int, int] = field(default_factory=dict)
    fence_acked: dict[int, int] = field(default_factory=dict)
    lac_sent: list[tuple[int, int, int]] = field(default_factory=list)  # When, ledger, LAC.
    lac_acked: list[tuple[int, int, int]] = field(default_factory=list)
    delete_sent: dict[int, int] = field(default_factory=dict)
    delete_acked: dict[int, int] = field(default_factory=dict)

    def times(self) -> list[int]:
        """The ascending times of all requests and responses."""
        when = [time for sent in self.sent.values() for time, _, _ in sent]
        when += [time for acked in self.acked.values() for time, _ in acked]
        when += [time for time, _, _ in (*self.lac_sent, *self.lac_acked)]
        when += [time for time, _, _ in (*self.drop_sent, *self.drop_acked)]
        for by_ledger in (self.fence_sent, self.fence_acked, self.delete_sent, self.delete_acked):
            when += by_ledger.values()
        return sorted({*when})


@dataclass
class Trace:
    seed: int
    config: StorageConfig
    operations: list[Operation] = field(default_factory=list)
    promises: Promises = field(default_factory=Promises)


def lac_packet(ledger_id: int, lac: int) -> bytes:
    return LedgerDigest(DigestType.CRC32C, b"secret", LedgerId(ledger_id)).pack_lac(EntryId(lac))


def record(seed: int) -> Trace:
    """Several lives of one store, between clean stops, kills and power cuts."""
    world = World(seed)
    chance = world.random("storage workload")
    trace = Trace(seed, _draw_config(chance))
    life = Life(trace, chance)
    node = world.node("b1")

    async def scenario() -> None:
        node.start(life.live)
        for _ in range(chance.randint(0, _LIVES_MAX - 1)):
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            if chance.random() < 0.7:
                node.power_cut()
            node.disk.heal()
            node.restart()
        await asyncio.sleep(1.0)
        node.kill()
        node.disk.record = None  # Teardown of the world runs `finally` blocks of dead processes.

    world.run(scenario())
    return trace


def _draw_config(chance: random.Random) -> StorageConfig:
    """Uses small files, since images are copied, and many files show more than one."""
    return StorageConfig(
        "/bookie/journal",
        ("/bookie/ledgers1", "/bookie/ledgers2")[: chance.choice((1, 2, 2))],
        journal_file_bytes=16 * 1024,
        index_bytes_max=chance.choice((80, 300, 1 << 20)),
        cache_bytes=64 * 1024,
        waiting_files_max=chance.choice((1, 4)),
        idle_after_ms=chance.choice((1, 5, 5, 50)),
        zeros_ahead_bytes=chance.choice((0, 8 * 1024, 256 * 1024)),
    )


@contextmanager
def small_and_quiet() -> Iterator[None]:
    """Catalogs grow in small steps and are rewritten often; recoveries are not logged."""
    before = (catalog_module._STEP_BYTES, catalog_module._ANEW_BYTES)
    catalog_module._STEP_BYTES, catalog_module._ANEW_BYTES = 4096, 4096
    configuration = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        yield
    finally:
        structlog.configure(**configuration)
        catalog_module._STEP_BYTES, catalog_module._ANEW_BYTES = before


class _Background:
    """Compaction and scrub of a storage while it serves."""

    def __init__(self, node: Node, storage: Storage, config: StorageConfig) -> None:
        space = SpaceConfig(compaction_bytes_per_s=10**9, scrub_bytes_per_s=10**9)
        usage = DiskUsage(config.journal_dir, config.ledger_dirs, full=1, warning=1, low_water=1)
        machine = (node.disk, node.clock, node.randomness)
        self.compactor = Compactor(*machine, storage, config, space, usage)
        self.scrubber = Scrubber(storage, node.clock, space, {})

    async def close(self) -> None:
        await self.compactor.close()
        await self.scrubber.close()


class Life:
    """The writers of one storage, across its restarts."""

    def __init__(self, trace: Trace, chance: random.Random) -> None:
        self._trace = trace
        self._promises = trace.promises
        self._chance = chance
        self._next: dict[int, int] = dict.fromkeys(LEDGERS, 0)
        self._txn_ids = itertools.count(1)
        self._numbers = itertools.count(1)  # Numbers of adds and drops.
        # Small entries allow more images; large ones fill files.
        self._sizes = chance.choice(((0, 20, 100), (0, 600, 1500), (20, 1500, 6000)))
        self._echo_odds = chance.choice((0.0, 0.1, 0.5))
        self._payloads: dict[tuple[int, int], bytes] = {}  # A repeated entry has the same payload.
        self._counts = chance.choice(((1, 1, 2), (1, 1, 2), (1, 2, 5)))
        self._acts: tuple[int, ...] = (2, 4, 8, 16)
        self._full_odds = chance.choice((0.0, 0.0, 0.05))
        self._failed_sync_odds = chance.choice((0.0, 0.0, 0.03))
        self._space_odds = chance.choice((0, 0, 1, 4))  # Odds of deletions, compactions and scrubs.
        self._drop_odds = chance.choice((0, 0.5, 3))
        if self._space_odds > 1:  # These need entry logs.
            self._sizes, self._counts, self._acts = (600, 1500, 6000), (1, 2, 5), (8, 16, 24)
        self._background: _Background  # Background work of the current life.

    async def live(self, node: Node) -> None:
        """Runs until it is killed, is finished, or its disk fails."""
        node.disk.record = self._trace.operations
        try:
            await Storage.make(node.disk, self._trace.config, node.randomness)
        except BadConfig:
            pass  # The store was created in an earlier life.
        storage = await Storage.open(node.disk, self._trace.config, node.clock, node.randomness)
        storage.start()
        self._background = _Background(node, storage, self._trace.config)
        failed = asyncio.ensure_future(storage.failed())
        at_work = asyncio.ensure_future(self._work(node, storage))
        for task in (failed, at_work):
            task.add_done_callback(lambda _: over.set())
        over = asyncio.Event()
        await over.wait()
        if not failed.done():
            await at_work
            await self._background.close()
            await storage.close()
        # A process whose journal failed ends here; its supervisor starts it again.

    async def _work(self, node: Node, storage: Storage) -> None:
        waiting: list[asyncio.Future[Any]] = []
        for _ in range(self._chance.choice(self._acts)):
            self._trouble(node)
            action = self._chance.choices(
                (
                    self._add,
                    self._fence,
                    self._write_lac,
                    self._delete,
                    self._drop,
                    self._rest,
                    self._delete_for_good,
                    self._compact,
                    self._scrub,
                ),
                (
                    30,
                    2,
                    4,
                    0.7,
                    self._drop_odds,
                    5,
                    *(of * self._space_odds for of in (0.3, 3, 0.3)),
                ),
            )[0]
            if done := await action(storage):
                waiting.append(done)
            if len(waiting) > self._chance.randint(0, 6):
                await asyncio.gather(*waiting, return_exceptions=True)
                waiting.clear()
        if self._chance.random() < 0.5:
            await asyncio.gather(*waiting, return_exceptions=True)
        else:
            await asyncio.sleep(3600)

    def _trouble(self, node: Node) -> None:
        if self._chance.random() < self._full_odds:
            is_full = node.disk.capacity_bytes is not None
            left = node.disk.system.used_bytes + self._chance.choice(_FULL_BYTES)
            node.disk.capacity_bytes = None if is_full else left
        if self._chance.random() < self._failed_sync_odds:
            node.disk.fail_next_sync()

    @property
    def _now(self) -> int:
        return len(self._trace.operations)

    async def _rest(self, _storage: Storage) -> None:
        await asyncio.sleep(self._chance.choice((0.001, 0.02, 0.2)))

    # --- Adding -------------------------------------------------------------------------------

    async def _add(self, storage: Storage) -> asyncio.Future[Any] | None:
        adds, sent = self._draw_adds()
        number = next(self._numbers)
        admission = storage.add(adds)
        accepted: dict[int, None] = {
            group.ledger_id: None
            for group, refusal in zip(adds.groups, admission.refusals, strict=True)
            if refusal is None
        }
        for ledger_id, entry_id, body in sent:
            if ledger_id in accepted:
                self._promises.sent.setdefault((ledger_id, entry_id), []).append(
                    (self._now, number, body)
                )

        def on_done(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                for ledger_id, entry_id, _ in sent:
                    if ledger_id in accepted:
                        self._promises.acked.setdefault((ledger_id, entry_id), []).append(
                            (self._now, number)
                        )

        if admission.done:
            admission.done.add_done_callback(on_done)
        return admission.done

    def _draw_adds(self) -> tuple[Adds, list[tuple[int, int, bytes]]]:
        chance = self._chance
        is_recovery = chance.random() < 0.2
        pack_v3 = chance.random() < 0.3
        frames: list[bytes] = []
        sent: list[tuple[int, int, bytes]] = []
        for _ in range(chance.choice(self._counts)):
            ledger_id = chance.choice(LEDGERS[: chance.choice((1, 3))])
            entry_id = self._pick_entry(ledger_id)
            digest = LedgerDigest(chance.choice(list(DigestType)), b"secret", LedgerId(ledger_id))
            packer = (
                v3_adds.V3AddPacker(KEY, digest, self._txn_ids, is_recovery=is_recovery)
                if pack_v3
                else v2_adds.V2AddPacker(KEY, digest, is_recovery=is_recovery)
            )
            payload = self._payloads.setdefault((ledger_id, entry_id), self._draw_payload())
            lac = entry_id - 1 if chance.random() < 0.7 else chance.randint(-1, entry_id - 1)
            entry = (EntryId(entry_id), EntryId(lac), 0, payload)
            frames.append(packer.pack(*entry))
            sent.append((ledger_id, entry_id, pack_entry(digest, *entry)))
        take = v3_adds.take_adds if pack_v3 else v2_adds.take_adds
        adds, _ = take(b"".join(frames), 0, FRAME_BYTES_MAX)
        assert adds
        return adds, sent

    def _pick_entry(self, ledger_id: int) -> int:
        following = self._next[ledger_id]
        if self._chance.random() < 0.1:
            return self._chance.randint(0, following + 1)
        self._next[ledger_id] = following + 1
        return following

    def _draw_payload(self) -> bytes:
        # Bytes from the disk, so that a record contains records.
        if self._chance.random() < self._echo_odds:
            writes = [o[3] for o in self._trace.operations[-20:] if o[0] == "write"]
            if writes:
                return bytes(self._chance.choice(writes)[:2000])
        return self._chance.randbytes(self._chance.choice(self._sizes))

    # --- Fences, deletions, explicit LACs -----------------------------------------------------

    async def _fence(self, storage: Storage) -> asyncio.Future[Any]:
        ledger_id = self._chance.choice(LEDGERS)
        self._promises.fence_sent.setdefault(ledger_id, self._now)
        return self._task(storage.fence(ledger_id, KEY), self._promises.fence_acked, ledger_id)

    async def _delete(self, storage: Storage) -> asyncio.Future[Any]:
        ledger_id = self._chance.choice(LEDGERS)
        self._promises.delete_sent.setdefault(ledger_id, self._now)
        return self._task(storage.delete(ledger_id), self._promises.delete_acked, ledger_id)

    async def _delete_for_good(self, storage: Storage) -> asyncio.Future[Any]:
        """Deletes a ledger as garbage collection does."""
        ledger_id = self._chance.choice(LEDGERS)
        self._promises.delete_sent.setdefault(ledger_id, self._now)

        async def work() -> None:
            await storage.delete(ledger_id)
            await storage.save_facts([ledger_id])

        return self._task(work(), self._promises.delete_acked, ledger_id)

    async def _drop(self, storage: Storage) -> asyncio.Future[Any]:
        ledger_id, number = self._chance.choice(LEDGERS), next(self._numbers)
        saves = self._chance.random() < 0.7
        self._promises.drop_sent.append((self._now, number, ledger_id))
        dropping = asyncio.ensure_future(storage.drop(ledger_id))
        await asyncio.sleep(0)  # The drop is queued after all adds so far.

        async def work() -> None:
            try:
                await dropping
                self._promises.drop_acked.append((self._now, number, ledger_id))
                if saves:  # Otherwise a checkpoint saves them.
                    await storage.save_facts([ledger_id])
            except (RollbookError, OSError):
                return

        return asyncio.ensure_future(work())

    async def _compact(self, storage: Storage) -> asyncio.Future[Any]:
        """Compacts any logs, full or not, concurrently with other actions."""
        logs = list(storage.catalog.logs)
        chosen = self._chance.sample(logs, self._chance.randint(0, len(logs)))
        compactor = self._background.compactor
        compactor.damaged.update(dict.fromkeys(chosen))
        return self._task(compactor.compact(major=self._chance.random() < 0.5), {}, 0)

    async def _scrub(self, _storage: Storage) -> asyncio.Future[Any]:
        return self._task(self._background.scrubber.scrub(), {}, 0)

    def _task(
        self, coroutine: Coroutine[Any, Any, object], acked: dict[int, int], ledger_id: int
    ) -> asyncio.Future[Any]:
        async def work() -> None:
            try:
                await coroutine
            except (RollbookError, OSError):
                return
            acked.setdefault(ledger_id, self._now)

        return asyncio.ensure_future(work())

    async def _write_lac(self, storage: Storage) -> asyncio.Future[Any]:
        ledger_id = self._chance.choice(LEDGERS[: self._chance.choice((1, 3))])
        lac = self._chance.randint(0, 50)
        self._promises.lac_sent.append((self._now, ledger_id, lac))

        async def work() -> None:
            try:
                await storage.write_lac(ledger_id, KEY, lac, lac_packet(ledger_id, lac))
            except RollbookError:
                return
            self._promises.lac_acked.append((self._now, ledger_id, lac))

        return asyncio.ensure_future(work())
