"""Repair of marked ledgers; real bookies on real sockets and disks in this process."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollbook.ledger.config import ClientConfig
from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.cluster import underreplication_marks as marks_module
from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes
from rollbook.proto.cluster.uncertain_writes import put_surely
from rollbook.proto.cluster.underreplication_marks import Lock, Marks
from rollbook.proto.errors import MetadataUnavailable
from rollbook.proto.formats.lifecycle import Lifecycle, LifecycleState
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.metadata import LedgerState
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.recovery import autorecovery as server_module
from rollbook.recovery.autorecovery import (
    PartState,
    ProcessIdentity,
    RecoveryConfig,
    RecoveryServer,
)
from rollbook.recovery.config import AuditConfig, WorkerConfig
from rollbook.recovery.copy_limits import ByteBudget
from rollbook.recovery.core.repair_failures import Failure, after_failure
from rollbook.recovery.drain_task_nodes import DrainTasks
from rollbook.recovery.ledger_repair import LedgerRepair
from rollbook.recovery.recovery_orders import RateOrder
from rollbook.recovery.repair_failure_nodes import Failures
from rollbook.recovery.worker import Worker
from tests.support.ledger_cluster import LocalCluster
from tests.unit.proto.cluster.faulty import FaultyStore

PATIENCE_S = 60.0
QUICK = ClientConfig(read_deadline_s=2.0, recovery_patience_s=0.3)
LOST = BookieId("bk-2")
CONFIG = WorkerConfig(grace_s=0.0, look_again_s=0.5, locked_pause_s=0.05, settle_s=0.01)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    names = ("bk-1", "bk-2", "bk-3", "bk-4")
    async with asyncio.timeout(PATIENCE_S), LocalCluster(tmp_path, names) as cluster:
        yield cluster


class SteppedClock(SystemClock):
    """The system clock plus an offset, so that a test can skip periods without waiting."""

    ahead_s = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.ahead_s * 10**9


class Site:
    """A client, a store and a worker beside a cluster."""

    def __init__(self, cluster: LocalCluster, ledgers: Ledgers, store: MetadataStore) -> None:
        self.cluster = cluster
        self.ledgers = ledgers
        self.store = store
        self.clock = SteppedClock()
        self.marks = Marks(store, ledgers.cluster.root)
        self.drains = DrainTasks(store, ledgers.cluster)
        self.failures = Failures(store, ledgers.cluster)
        self.worker = self.make_worker()

    def make_worker(self, config: WorkerConfig = CONFIG, **more: Any) -> Worker:
        return Worker(self.ledgers, self.store, self.clock, config, name="here", **more)

    async def write(
        self, count: int, *, is_closed: bool = True, ack: int = 2, write: int = 3, ensemble: int = 3
    ) -> LedgerId:
        """Write a ledger with a slot on the bookie `LOST`."""
        while True:
            writer = await self.ledgers.create(ensemble=ensemble, write=write, ack=ack)
            if LOST in writer.metadata.fragments[0].ensemble:
                break
            await writer.close()
        writer.append_many([b"%0100d" % number for number in range(count)])
        await writer.flush()
        await (writer.close() if is_closed else writer.stop())
        return writer.ledger_id

    async def lose(self) -> None:
        await self.cluster.stop(LOST)
        while self.ledgers.live().find(LOST):
            await asyncio.sleep(0.01)

    async def bring_back(self) -> None:
        await self.cluster.start(LOST)
        while not self.ledgers.live().find(LOST):
            await asyncio.sleep(0.01)

    async def drain(self, state: LifecycleState = LifecycleState.DRAINING) -> None:
        """Put the bookie `LOST` into this lifecycle state."""
        nodes = LifecycleNodes(self.store, self.ledgers.cluster)
        found = await nodes.read(LOST)
        token = "2" if found.version is None else f"{found.version:x}"
        await nodes.write(found, Lifecycle(state, token))

    async def mark(self, *ledger_ids: LedgerId, bookie: BookieId = LOST) -> None:
        for ledger_id in ledger_ids:
            await self.marks.mark(ledger_id, (bookie,), 1)

    async def marked(self) -> list[LedgerId]:
        return [each async for each in self.marks.ids()]

    async def require_whole(self, ledger_id: LedgerId, count: int) -> None:
        """Wait until all copies are sound: third copies may still be in flight."""
        while not (verdict := await self.ledgers.verify(ledger_id)).is_sound:
            await asyncio.sleep(0.05)
        assert verdict.entries == count
        stored = await self.ledgers.metadata(ledger_id, fresh=True)
        live = self.ledgers.live()
        for fragment in stored.metadata.fragments:
            assert all(live.find(bookie) for bookie in fragment.ensemble)


@asynccontextmanager
async def site_of(cluster: LocalCluster) -> AsyncIterator[Site]:
    store = await open_metadata_store(cluster.url)
    try:
        async with cluster.connect(QUICK) as ledgers:
            await ledgers.until_writable(4, PATIENCE_S)
            site = Site(cluster, ledgers, store)
            await site.marks.prepare()
            await site.drains.prepare()
            await site.failures.prepare()
            yield site
    finally:
        await store.close()


async def test_copies_of_a_lost_bookie_are_re_replicated(cluster: LocalCluster) -> None:
    """AR3, AR21, AR22, AR23, AR24, AR30, AR31, AR32, AR33, AR34, AR35."""
    async with site_of(cluster) as site:
        ids = {await site.write(count): count for count in (200, 3, 0)}
        striped = await site.write(120, ensemble=4, write=2)
        await site.lose()
        await site.mark(*ids)
        await site.worker.work_once()
        for ledger_id, count in ids.items():
            await site.require_whole(ledger_id, count)
        assert await site.marked() == []
        assert await site.marks.locked() == set()
        assert site.worker.stats.repaired == 3
        assert site.worker.stats.entries == 203
        assert LOST in (await site.ledgers.metadata(striped)).metadata.fragments[0].ensemble


async def test_leading_auditor_counts_overdue_ledgers(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the leading auditor counts them."""
    monkeypatch.setattr(server_module, "_COUNT_S", 0)
    async with site_of(cluster) as site:
        config = RecoveryConfig(audit=AuditConfig(overdue_s=600))
        parts = (site.ledgers, site.store, SystemClock(), random.Random(1), config)
        server = RecoveryServer(*parts, ProcessIdentity(BookieId("here")))
        await site.mark(LedgerId(7))  # Marked in 1970.
        await site.marks.mark(LedgerId(8), (LOST,), SystemClock().wall_us() // 1000)
        await server._count_short()
        assert server.stats.short_ledgers() == 0
        server.parts["auditor"] = PartState(state="leading")
        await server._count_short()
        assert (server.stats.short_ledgers(), server.stats.overdue_ledgers()) == (2, 1)


async def test_worker_follows_the_configured_copy_rate(cluster: LocalCluster) -> None:
    """AR21: at its start and while it runs; an unreadable rate means the configured maximum."""
    async with site_of(cluster) as site:
        order, worker = RateOrder(site.store, site.ledgers.cluster), site.worker
        await order.write(1_000)
        running = asyncio.create_task(worker.run())
        for written, rate in ((1_000, 1_000), (0, 0), (5_000, 5_000)):
            await order.write(written)
            while worker.throttle.bytes_per_s != rate:
                await asyncio.sleep(0.01)
        await put_surely(site.store, order.path, b"much")
        while worker.throttle.bytes_per_s != CONFIG.bytes_per_s_max:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_only_the_lost_stripe_is_copied(tmp_path: Path) -> None:
    names = tuple(f"bk-{number}" for number in range(1, 7))
    async with (
        asyncio.timeout(PATIENCE_S),
        LocalCluster(tmp_path, names) as cluster,
        site_of(cluster) as site,
    ):
        ledger_id = await site.write(100, ensemble=5, write=3)
        await site.lose()
        await site.mark(ledger_id)
        await site.worker.work_once()
        await site.require_whole(ledger_id, 100)
        assert site.worker.stats.entries == 60


async def test_repair_completes_with_a_minimal_memory_budget(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads wait for memory of copies that are still being written, and all memory is given back."""
    held: list[tuple[int, int]] = []
    take = ByteBudget.take

    async def note(budget: ByteBudget, size: int) -> None:
        await take(budget, size)
        held.append((budget.used, size))

    monkeypatch.setattr(ByteBudget, "take", note)
    async with site_of(cluster) as site:
        ledger_id = await site.write(100)
        await site.lose()
        await site.mark(ledger_id)
        site.worker = site.make_worker(replace(CONFIG, bytes_in_memory_max=1, entries_at_once=10))
        async with asyncio.timeout(60):
            await site.worker.work_once()
        await site.require_whole(ledger_id, 100)
        assert len(held) >= 10
        assert all(used == size for used, size in held)  # Each read was alone in memory.
        assert site.worker._budget.used == 0


async def test_abandoned_ledger_is_closed_after_the_grace_period(cluster: LocalCluster) -> None:
    """AR26, AR27, RP4: the first look only starts the period."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(50, is_closed=False)
        await site.lose()
        await site.mark(ledger_id)
        site.worker = site.make_worker(replace(CONFIG, grace_s=60))
        await site.worker.work_once()
        stored = await site.ledgers.metadata(ledger_id, fresh=True)
        assert stored.metadata.state is LedgerState.OPEN
        assert await site.marked() == [ledger_id]
        site.clock.ahead_s += 61
        await site.worker.work_once()
        await site.require_whole(ledger_id, 50)
        assert await site.marked() == []


async def test_grace_periods_of_many_ledgers_run_in_parallel(cluster: LocalCluster) -> None:
    """RP4: a walk over several pages must not forget the periods of earlier pages."""
    async with site_of(cluster) as site:
        ledger_ids = [await site.write(5, is_closed=False) for _ in range(6)]
        await site.lose()
        for ledger_id in ledger_ids:
            await site.mark(ledger_id)
        site.worker = site.make_worker(replace(CONFIG, grace_s=60, ledgers_at_once=1))
        await site.worker.work_once()
        site.clock.ahead_s += 61
        await site.worker.work_once()
        assert await site.marked() == []


async def test_live_writer_is_not_fenced_by_a_repair(cluster: LocalCluster) -> None:
    """AR28, AR29: the writer changes its ensemble; its earlier fragment is repaired."""
    async with site_of(cluster) as site:
        writer = await site.ledgers.create()
        while LOST not in writer.metadata.fragments[0].ensemble:
            await writer.close()
            writer = await site.ledgers.create()
        await writer.append(b"first")
        await site.lose()
        for number in range(20):
            await writer.append(b"%d" % number)
        while LOST in writer.metadata.fragments[-1].ensemble:
            await asyncio.sleep(0.01)
        await site.mark(writer.ledger_id)
        await site.worker.work_once()
        assert await site.marked() == []
        await writer.append(b"still open")
        await writer.close()
        await site.require_whole(writer.ledger_id, 22)


async def test_lost_slot_of_an_unclaimed_ledger_is_replaced(cluster: LocalCluster) -> None:
    async with site_of(cluster) as site:
        while True:
            ledger_id = await site.ledgers.reserve()
            stored = await site.ledgers.metadata(ledger_id)
            if LOST in stored.metadata.fragments[0].ensemble:
                break
        await site.lose()
        await site.mark(ledger_id)
        await site.worker.work_once()
        stored = await site.ledgers.metadata(ledger_id, fresh=True)
        assert stored.metadata.state is LedgerState.OPEN
        assert not stored.metadata.names(LOST)
        assert await site.marked() == []
        writer = await site.ledgers.claim(ledger_id)
        await writer.append(b"x")
        await writer.close()


async def test_returned_bookie_keeps_its_slot_and_gets_only_what_it_lacks(
    cluster: LocalCluster,
) -> None:
    """RP2, RP6: a complete bookie gets no copies."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(100)
        before = (await site.ledgers.metadata(ledger_id)).metadata
        await site.lose()
        await site.mark(ledger_id)
        await site.bring_back()
        await site.worker.work_once()
        assert await site.marked() == []
        assert site.worker.stats.entry_bytes == 0
        assert (await site.ledgers.metadata(ledger_id, fresh=True)).metadata == before


async def test_formatted_bookie_gets_its_entries_back(cluster: LocalCluster) -> None:
    """A registered bookie is not whole if it was formatted."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(100)
        await site.lose()
        await cluster.format(LOST)
        await site.bring_back()
        await site.mark(ledger_id)
        await site.worker.work_once()
        assert site.worker.stats.entries == 100
        await site.require_whole(ledger_id, 100)
        assert await cluster.bookies[LOST].storage.entry_ids(ledger_id) == list(range(100))


async def test_draining_bookie_is_replaced_while_it_serves(cluster: LocalCluster) -> None:
    """BL20, BL21."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(100)
        await site.drain()
        await site.drains.mark(ledger_id, (LOST,), 1)
        await site.worker.work_once()
        stored = await site.ledgers.metadata(ledger_id, fresh=True)
        assert not stored.metadata.names(LOST)
        await site.require_whole(ledger_id, 100)
        assert [each async for each in site.drains.ids()] == []


async def test_task_for_a_bookie_that_does_not_drain_moves_and_fences_nothing(
    cluster: LocalCluster,
) -> None:
    """RP2, RP4, LC6: the bookie is only checked, and keeps its slots."""
    async with site_of(cluster) as site:
        ids = [await site.write(20), await site.write(20, is_closed=False)]
        for ledger_id in ids:
            await site.drains.mark(ledger_id, (LOST,), 1)
        await site.worker.work_once()
        await site.worker.work_once()
        assert [each async for each in site.drains.ids()] == []
        found = [(await site.ledgers.metadata(each, fresh=True)).metadata for each in ids]
        assert [each.state for each in found] == [LedgerState.CLOSED, LedgerState.OPEN]
        assert all(each.names(LOST) for each in found)


async def test_check_task_waits_for_an_absent_bookie(
    cluster: LocalCluster,
) -> None:
    """RP2: only a marked loss moves its slot to another bookie."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(20)
        await site.lose()
        await site.drains.mark(ledger_id, (LOST,), 1)
        await site.worker.work_once()
        assert (await site.ledgers.metadata(ledger_id, fresh=True)).metadata.names(LOST)
        assert [each async for each in site.drains.ids()] == [ledger_id]
        assert await site.failures.read(ledger_id) is not None


async def test_drain_cancelled_during_the_copy_moves_no_slot(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RP2: the swap is conditional on the lifecycle version of the drain."""
    copy = LedgerRepair._copy

    async def copy_and_call_off(self: LedgerRepair, *arguments: Any) -> Any:
        copied = await copy(self, *arguments)
        if copied.entries:
            await site.drain(LifecycleState.ACTIVE)
        return copied

    async with site_of(cluster) as site:
        ledger_id = await site.write(20)
        await site.drain()
        await site.drains.mark(ledger_id, (LOST,), 1)
        monkeypatch.setattr(LedgerRepair, "_copy", copy_and_call_off)
        await site.worker.work_once()
        assert (await site.ledgers.metadata(ledger_id, fresh=True)).metadata.names(LOST)
        assert [each async for each in site.drains.ids()] == []


async def test_each_loss_has_its_own_grace_period(cluster: LocalCluster) -> None:
    """RP4: the period of an earlier loss does not shorten that of the next one."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(20, is_closed=False)
        site.worker = site.make_worker(replace(CONFIG, grace_s=60))
        await site.drain()
        await site.drains.mark(ledger_id, (LOST,), 1)
        await site.worker.work_once()
        found = await site.drains.read(ledger_id)
        lock = await site.marks.take(ledger_id, "another worker")
        assert found is not None
        assert lock is not None
        await site.drains.unmark(found, lock)
        await site.marks.release(lock)
        site.clock.ahead_s += 61
        await site.worker.work_once()
        await site.drains.mark(ledger_id, (LOST,), 1)
        await site.worker.work_once()
        stored = await site.ledgers.metadata(ledger_id, fresh=True)
        assert stored.metadata.state is LedgerState.OPEN


@pytest.mark.parametrize("is_formatted", [False, True])
async def test_restarted_target_is_checked_and_copied_again(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, is_formatted: bool
) -> None:
    """RP3: a formatted target has lost the copies, so they are made again."""
    copy, targets = LedgerRepair._copy, list[BookieId]()

    async def copy_and_restart(self: LedgerRepair, metadata: Any, repair: Any, target: Any) -> Any:
        copied = await copy(self, metadata, repair, target)
        targets.append(target)
        if len(targets) == 1:
            await cluster.stop(target)
            if is_formatted:
                await cluster.format(target)
            await cluster.start(target)
            while (info := self._ledgers.live().find(target)) is None or (
                info.address != cluster.bookies[target].advertised
            ):
                await asyncio.sleep(0.01)
        return copied

    async with site_of(cluster) as site:
        ledger_id = await site.write(40)
        await site.lose()
        await site.mark(ledger_id)
        monkeypatch.setattr(LedgerRepair, "_copy", copy_and_restart)
        await site.worker.work_once()
        assert targets == targets[:1] * 2
        assert site.worker.stats.entries == (80 if is_formatted else 40)
        await site.require_whole(ledger_id, 40)


async def test_local_bookie_is_the_preferred_target(cluster: LocalCluster) -> None:
    """AR22, AR23, AR31: for segments without a copy on it; other bookies take the rest."""
    local = BookieId("bk-4")
    async with site_of(cluster) as site:
        was_member: dict[LedgerId, bool] = {}
        while len({*was_member.values()}) < 2:
            ledger_id = await site.write(5, ensemble=2, write=2)
            metadata = (await site.ledgers.metadata(ledger_id)).metadata
            was_member[ledger_id] = metadata.names(local)
        await site.lose()
        await site.mark(*was_member)
        site.worker = site.make_worker(local_bookie=local)
        await site.worker.work_once()
        for ledger_id in was_member:
            await site.require_whole(ledger_id, 5)
            metadata = (await site.ledgers.metadata(ledger_id, fresh=True)).metadata
            assert metadata.names(local)


async def test_worker_repairs_nothing_while_recovery_is_disabled(cluster: LocalCluster) -> None:
    """AR10, AR11."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(5)
        await site.lose()
        await site.mark(ledger_id)
        await site.marks.disable()
        await site.worker.work_once()
        assert await site.marked() == [ledger_id]
        await site.marks.enable()
        await site.worker.work_once()
        assert await site.marked() == []


async def test_mark_without_bookies_spreads_copies_over_racks(cluster: LocalCluster) -> None:
    """Only a worker with a map of racks handles such a mark."""
    racks = ("bk-1=a", "bk-2=a", "bk-3=a", "bk-4=b")
    async with site_of(cluster) as site, cluster.connect(replace(QUICK, racks=racks)) as mapped:
        await mapped.until_writable(4, PATIENCE_S)
        while True:
            ledger_id = await site.write(20)
            if not (await site.ledgers.metadata(ledger_id)).metadata.names(BookieId("bk-4")):
                break
        await site.marks.mark(ledger_id, (), 1)
        await site.worker.work_once()
        assert await site.marked() == [ledger_id]
        worker = Worker(mapped, site.store, SystemClock(), CONFIG, name="mapped")
        await worker.work_once()
        assert await site.marked() == []
        assert (await site.ledgers.metadata(ledger_id, fresh=True)).metadata.names(BookieId("bk-4"))
        await site.require_whole(ledger_id, 20)


async def test_ledger_locked_by_another_worker_is_skipped(cluster: LocalCluster) -> None:
    """AR21."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(5)
        await site.lose()
        await site.mark(ledger_id)
        other = await open_metadata_store(cluster.url)
        try:
            locks = Marks(other, site.ledgers.cluster.root)
            lock = await locks.take(ledger_id, "somebody else")
            assert isinstance(lock, Lock)
            await site.worker.work_once()
            assert await site.marked() == [ledger_id]
            await locks.release(lock)
        finally:
            await other.close()
        site.clock.ahead_s += 1  # Ends the pause for locked ledgers.
        await site.worker.work_once()
        assert await site.marked() == []


async def test_worker_reuses_its_own_unreleased_lock(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MK5: the metadata store became unavailable during the release."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(5)
        await site.lose()
        await site.mark(ledger_id)
        lock = await site.marks.take(ledger_id, "here")
        assert lock is not None

        async def be_away(*_: Any, **__: Any) -> None:
            raise MetadataUnavailable("away")

        with monkeypatch.context() as away:
            away.setattr(marks_module, "delete_surely", be_away)
            with pytest.raises(MetadataUnavailable):
                await site.marks.release(lock)
        assert await site.marks.locked() == {ledger_id}
        await site.make_worker(marks=site.marks).work_once()
        assert await site.marked() == []
        assert await site.marks.locked() == set()


async def test_failed_repair_is_recorded_and_not_retried_at_once(cluster: LocalCluster) -> None:
    """AR25, RP5: no bookie can take the slot; the lock is released, and the mark stays."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(5, ensemble=4, write=4)
        await site.lose()
        await site.mark(ledger_id)
        for _ in range(3):
            await site.worker.work_once()
        failure = await site.failures.read(ledger_id)
        assert failure is not None
        assert (failure.attempts, failure.code) == (1, "QUORUM_UNAVAILABLE")
        assert site.worker.stats.failed == 1
        assert await site.marked() == [ledger_id]
        assert await site.marks.locked() == set()


async def test_repair_that_just_failed_elsewhere_is_not_retried(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RP5: another worker's repair fails between this worker's look and its lock."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(5)
        await site.lose()
        await site.mark(ledger_id)
        take, now_ms = Marks.take, SystemClock().wall_us() // 1000
        failure = after_failure(None, now_ms, "BOOKIE_UNREACHABLE", "bk-2 is away")

        async def take_after_the_other(marks: Marks, of: LedgerId, holder: str) -> Lock | None:
            await site.failures.write(of, failure)
            return await take(marks, of, holder)

        monkeypatch.setattr(Marks, "take", take_after_the_other)
        await site.worker.work_once()
        assert (site.worker.stats.failed, site.worker.stats.repaired) == (0, 0)
        assert await site.failures.read(ledger_id) == failure
        assert await site.marked() == [ledger_id]
        assert await site.marks.locked() == set()


async def test_new_drain_makes_a_failed_ledger_due(cluster: LocalCluster) -> None:
    """RP7: also a retried drain; earlier attempts do not count."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(5, ensemble=4, write=4)
        await site.drains.mark(ledger_id, [LOST], 1)
        later_ms = SystemClock().wall_us() // 1000 + 300_000
        await site.failures.write(ledger_id, Failure(7, "QUORUM_UNAVAILABLE", "", 1, later_ms))
        await site.worker.work_once()
        attempts = []
        for _ in range(2):
            await site.drain()
            for worker in (site.make_worker(), site.make_worker()):
                await worker.work_once()
            failure = await site.failures.read(ledger_id)
            assert failure is not None
            attempts.append((failure.attempts, failure.drains))
        assert attempts == [(1, ("2",)), (1, ("0",))]


async def test_unreachable_copies_are_not_reported_as_lost(cluster: LocalCluster) -> None:
    async with site_of(cluster) as site:
        ledger_id = await site.write(5, ensemble=1, write=1, ack=1)
        await site.lose()
        await site.mark(ledger_id)
        await site.worker.work_once()
        failure = await site.failures.read(ledger_id)
        assert failure is not None
        assert (failure.code, failure.is_unrecoverable) == ("ENTRY_UNAVAILABLE", False)


async def test_mark_of_a_deleted_ledger_is_removed(cluster: LocalCluster) -> None:
    async with site_of(cluster) as site:
        ledger_id = await site.write(5)
        await site.lose()
        await site.mark(ledger_id)
        await site.ledgers.delete(ledger_id)
        await site.worker.work_once()
        assert await site.marked() == []


async def test_running_worker_notices_new_marks(cluster: LocalCluster) -> None:
    """AR20."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(5)
        await site.lose()
        running = asyncio.create_task(site.worker.run())
        try:
            await site.mark(ledger_id)
            while await site.marked():
                await asyncio.sleep(0.02)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await site.require_whole(ledger_id, 5)


async def test_repairs_start_before_all_marks_are_read(cluster: LocalCluster) -> None:
    """Each mark read takes round trips, and a lost bookie leaves many thousands of marks."""
    async with site_of(cluster) as site:
        await site.mark(*map(LedgerId, range(300)))
        store = FaultyStore(site.store)
        worker = Worker(site.ledgers, store, SystemClock(), CONFIG, name="here")
        found = [task.ledger_id async for task in worker._due()]
        assert found == list(range(300))
        all_reads, store.reads = store.reads, 0
        async with aclosing(worker._due()) as due:
            await anext(due)
        assert store.reads < all_reads / 3
