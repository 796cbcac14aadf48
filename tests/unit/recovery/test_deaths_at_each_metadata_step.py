"""Auditor, steward and worker die after each of their metadata steps; the next process continues.

A step is a write that the store has applied. Each story is run with a death after step 1, 2, 3 …
until a run completes before its death.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.errors import MetadataUnavailable
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.recovery import metastore_outage_retries
from rollbook.recovery.check_times import CheckTimes
from rollbook.recovery.core.ledger_checks import CheckKind
from rollbook.recovery.worker import Worker
from tests.support.ledger_cluster import LocalCluster
from tests.unit.proto.cluster.faulty import FaultyStore
from tests.unit.recovery.test_auditor import Site as AuditSite
from tests.unit.recovery.test_auditor import until
from tests.unit.recovery.test_drain_steward import DrainSite, make_closed
from tests.unit.recovery.test_worker import CONFIG, LOST, PATIENCE_S, Site, site_of

T = TypeVar("T")
NEVER = 10**9
STEPS_MAX = 60  # A run with more steps counts as endless.


class MortalStore(FaultyStore):
    """Its process dies after `steps` writes: all later requests fail."""

    def __init__(self, store: MetadataStore, steps: int = NEVER) -> None:
        super().__init__(store)
        self.steps = 0
        self.is_dead = asyncio.Event()
        self.at_step: Callable[[int], Awaitable[None]] | None = None
        self._steps_max = steps

    async def _read(self, call: Callable[[], Awaitable[T]]) -> T:
        self._require_life()
        return await super()._read(call)

    async def _write(self, call: Callable[[], Awaitable[T]]) -> T:
        self._require_life()
        if self.at_step is not None:
            await self.at_step(self.steps + 1)
        result = await super()._write(call)
        self.steps += 1
        if self.steps >= self._steps_max:
            self.is_dead.set()
        self._require_life()
        return result

    def _require_life(self) -> None:
        if self.is_dead.is_set():
            raise MetadataUnavailable("its process was killed")


@contextlib.asynccontextmanager
async def mortal(service: MemoryService, steps: int) -> AsyncIterator[MortalStore]:
    """Its session ends with the context, which releases vote and locks."""
    raw = await service.connect()
    try:
        yield MortalStore(raw, steps)
    finally:
        await raw.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metastore_outage_retries, "RETRY_PAUSE_S", 0.001)


async def ended_alive(store: MortalStore, is_done: Callable[[], Awaitable[bool]]) -> bool:
    """Wait for the end or the death of the run; return whether it ended alive."""
    async with asyncio.timeout(PATIENCE_S):
        while not store.is_dead.is_set():
            if await is_done():
                return True
            await asyncio.sleep(0.002)
    return False


async def run_for_each_step(story: Callable[[int], Awaitable[bool]]) -> int:
    """Run with a death after step 1, 2, 3 … until a run ends alive; return its steps."""
    for step in range(1, STEPS_MAX):
        if await story(step):
            return step - 1
    raise AssertionError("it writes again and again")


# --- The auditor --------------------------------------------------------------------------------


async def test_next_auditor_completes_marks_after_a_death_at_any_step() -> None:
    """AU4, AU5, AR14: finally every ledger is marked once, and the check's time is recorded."""

    async def story(step: int) -> bool:
        async with contextlib.AsyncExitStack() as stack:
            service = MemoryService(SystemClock(), random.Random(0))
            stack.push_async_callback(service.close)
            people = await stack.enter_async_context(await service.connect())
            site = AuditSite(service, FaultyStore(people), people)
            await site.start(4)
            for ledger_id in range(6):
                await site.make(ledger_id, ledger_id % 4, (ledger_id + 1) % 4)
            await site.lose(1)
            expected = {each: {1} for each in range(6) if each % 4 in (0, 1)}
            times = CheckTimes(people, site.cluster, site.marks)

            async def is_done() -> bool:
                completed_ms = await times.completed_ms(CheckKind.BOOKIES)
                return completed_ms is not None and await site.marked() == expected

            async with (
                mortal(service, step) as store,
                site.auditor(store=store, bookie_check_s=3600),
            ):
                is_alive = await ended_alive(store, is_done)
            if is_alive:
                return True
            async with (
                await service.connect() as second,
                site.auditor(store=second, name="auditor:2", bookie_check_s=3600),
            ):
                await until(is_done)
            return False

    assert await run_for_each_step(story) >= 5


# --- The steward --------------------------------------------------------------------------------


async def test_next_steward_completes_drain_after_a_death_at_any_step() -> None:
    """LC2, LC4, LC5: finally the bookie is drained, and no task is left."""

    async def story(step: int) -> bool:
        async with contextlib.AsyncExitStack() as stack:
            service = MemoryService(SystemClock(), random.Random(0))
            stack.push_async_callback(service.close)
            people = await stack.enter_async_context(await service.connect())
            site = DrainSite(service, FaultyStore(people), people)
            await site.start(4)
            await make_closed(site, range(3), 0, 1)
            await site.obey(0)
            await site.drain(0)

            async def is_done() -> bool:
                with contextlib.suppress(AssertionError):  # The lock is taken.
                    await site.work(target=2)
                is_drained = (await site.lifecycle_of(0)).state is LifecycleState.DRAINED
                return is_drained and not await site.published()

            async with mortal(service, step) as store, site.steward(store=store):
                is_alive = await ended_alive(store, is_done)
            if is_alive:
                return True
            async with (
                await service.connect() as second,
                site.steward(store=second, name="steward:2"),
            ):
                await until(is_done)
            return False

    assert await run_for_each_step(story) >= 5


# --- The worker, its source and its target -----------------------------------------------------


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    names = ("bk-1", "bk-2", "bk-3", "bk-4", "bk-5")
    async with asyncio.timeout(PATIENCE_S), LocalCluster(tmp_path, names) as cluster:
        yield cluster


def worker_on(site: Site, store: MetadataStore) -> Worker:
    marks = Marks(store, site.ledgers.cluster.root)
    config = replace(CONFIG, locked_pause_s=0.0, retry_pause_s=0.0)
    return Worker(site.ledgers, store, SystemClock(), config, name="mortal", marks=marks)


async def require_repaired(site: Site, ledger_id: int, count: int) -> None:
    assert ledger_id not in await site.marked()
    assert await site.marks.locked() == set()
    metadata = (await site.ledgers.metadata(ledger_id, fresh=True)).metadata
    assert not metadata.names(LOST)
    verdict = await site.ledgers.verify(ledger_id)
    assert (verdict.is_sound, verdict.entries) == (True, count)


async def test_next_worker_completes_repair_after_a_death_at_any_step(
    cluster: LocalCluster,
) -> None:
    """RP1, RP6, MK2, MK3: copies do not count before the swap; the next worker continues."""
    async with site_of(cluster) as site:
        await site.ledgers.until_writable(5, PATIENCE_S)
        ids = [await site.write(3, ack=3) for _ in range(16)]
        await site.lose()
        remaining = iter(ids)

        async def story(step: int) -> bool:
            ledger_id = next(remaining)
            await site.mark(ledger_id)
            raw = await open_metadata_store(cluster.url)
            try:
                store = MortalStore(raw, step)
                with contextlib.suppress(MetadataUnavailable):
                    await worker_on(site, store).work_once()
            finally:
                await raw.close()
            if not store.is_dead.is_set():
                await require_repaired(site, ledger_id, 3)
                return True
            await worker_on(site, site.store).work_once()
            await require_repaired(site, ledger_id, 3)
            return False

        assert await run_for_each_step(story) >= 3


@pytest.mark.parametrize("who", ["source", "target"])
async def test_repair_completes_after_source_or_target_dies_at_any_step(
    cluster: LocalCluster, who: str
) -> None:
    """RP1, RP3: killed before each write of the repair in turn, restarted after the worker's run."""
    async with site_of(cluster) as site:
        await site.ledgers.until_writable(5, PATIENCE_S)
        ids: list[LedgerId] = []
        while len(ids) < 4:
            ledger_id = await site.write(3, ack=3)
            if not (await site.ledgers.metadata(ledger_id)).metadata.names(BookieId("bk-4")):
                ids.append(ledger_id)
        await site.lose()
        remaining = iter(ids)

        async def story(step: int) -> bool:
            ledger_id = next(remaining)
            ensemble = (await site.ledgers.metadata(ledger_id)).metadata.fragments[0].ensemble
            source = next(each for each in ensemble if each != LOST)
            victim = source if who == "source" else BookieId("bk-4")
            is_killed = False

            async def kill(at: int) -> None:
                nonlocal is_killed
                if at == step and not is_killed:
                    is_killed = True
                    await cluster.stop(victim)

            raw = await open_metadata_store(cluster.url)
            try:
                store = MortalStore(raw)
                store.at_step = kill
                await site.mark(ledger_id)
                marks = Marks(store, site.ledgers.cluster.root)
                worker = Worker(
                    site.ledgers,
                    store,
                    SystemClock(),
                    replace(CONFIG, retry_pause_s=0.0),
                    name="here",
                    local_bookie=BookieId("bk-4"),
                    marks=marks,
                )
                await worker.work_once()
            finally:
                await raw.close()
            if is_killed:
                await cluster.start(victim)
                while (info := site.ledgers.live().find(victim)) is None or (
                    info.address != cluster.bookies[victim].advertised
                ):
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(PATIENCE_S):
                while ledger_id in await site.marked():
                    await worker_on(site, site.store).work_once()
                    await asyncio.sleep(0.01)
            await require_repaired(site, ledger_id, 3)
            return step == 3  # Steps 1 to 3 write lock, swap and mark; later ones only clean up.

        await run_for_each_step(story)
