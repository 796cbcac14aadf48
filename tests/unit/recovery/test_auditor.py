"""The auditor marks the ledgers of lost bookies, also on a failing metadata store."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from rollbook.proto.cluster.bookie_watcher import BookieWatcher
from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.cluster.election import Election
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.formats.service_info import describe_bookie, pack_service_info
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import Address, CreateMode, Delete, MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery import metastore_outage_retries
from rollbook.recovery.auditor import Auditor
from rollbook.recovery.check_times import CheckTimes
from rollbook.recovery.config import AuditConfig
from rollbook.recovery.core.ledger_checks import CheckKind
from rollbook.recovery.ledger_index import LedgerIndex
from rollbook.recovery.recovery_orders import AuditOrders
from tests.unit.proto.cluster.faulty import Fate, FaultyStore
from tests.unit.recovery.test_ledger_index import closed, ledger, moved

ROOT = "/ledgers"
B = [BookieId(f"b{number}:3181") for number in range(6)]
DEADLINE_S = 10.0


class Site:
    """A cluster whose bookies are only registrations and cookies."""

    def __init__(self, service: MemoryService, store: FaultyStore, people: MetadataStore) -> None:
        self.service = service
        self.store = store  # The auditor's store.
        self.people = people
        self.cluster: Cluster
        self.nodes: LedgerNodes
        self.marks = Marks(people, ROOT)

    async def start(self, bookies: int) -> None:
        self.cluster = await initialise(self.people, ROOT, random.Random(1))
        self.nodes = LedgerNodes(self.people, ROOT, self.cluster.layout)
        for number in range(bookies):
            await self.people.create(f"{ROOT}/cookies/{B[number]}")
            await self.register(number)

    async def register(self, number: int) -> None:
        data = pack_service_info(describe_bookie(Address(f"b{number}", 3181)))
        await self.people.create(f"{ROOT}/available/{B[number]}", data, CreateMode.EPHEMERAL)

    async def lose(self, number: int) -> None:
        await self.people.delete(f"{ROOT}/available/{B[number]}")

    async def make(self, ledger_id: int, *members: int) -> None:
        await self.nodes.create(ledger(ledger_id, *(B[each] for each in members)))

    async def marked(self) -> dict[int, set[int]]:
        found = {}
        with contextlib.suppress(Exception):
            async for ledger_id in self.marks.ids():
                mark = await self.marks.read(ledger_id)
                if mark is not None:
                    found[int(ledger_id)] = {B.index(each) for each in mark.mark.missing}
        return found

    async def until_marked(self, expected: dict[int, set[int]]) -> None:
        async def is_so() -> bool:
            return await self.marked() == expected

        await until(is_so)

    @contextlib.asynccontextmanager
    async def auditor(
        self,
        delay_s: int = 0,
        store: MetadataStore | None = None,
        name: str = "auditor:1",
        bookie_check_s: int = 0,
    ) -> AsyncIterator["CountingAuditor"]:
        store = store or self.store
        watcher = BookieWatcher(store, ROOT)
        await watcher.start()
        index = LedgerIndex(store, self.cluster, SystemClock())
        config = AuditConfig(lost_bookie_delay_s=delay_s, bookie_check_s=bookie_check_s)
        auditor = CountingAuditor(
            store, self.cluster, SystemClock(), watcher, index, Marks(store, ROOT), config
        )
        election = Election(
            store, self.marks.election_folder, BookieId(name), above=self.cluster.root
        )
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(index.run()), loop.create_task(election.serve(auditor.lead))]
        try:
            yield auditor
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await watcher.close()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await holds():
            await asyncio.sleep(0.005)


class CountingAuditor(Auditor):
    audits = 0  # Started audits; when one starts, the previous one has finished.

    async def _audit(self) -> None:
        self.audits += 1
        await super()._audit()


async def settled(auditor: CountingAuditor, missing: set[int]) -> None:
    """Wait until the auditor has seen exactly these missing and has finished an audit."""

    async def has_seen() -> bool:
        return set(auditor.state.missing) == {B[each] for each in missing}

    await until(has_seen)
    audits = auditor.audits
    auditor._has_news.set()

    async def has_audited() -> bool:
        return auditor.audits > audits

    await until(has_audited)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metastore_outage_retries, "RETRY_PAUSE_S", 0.001)


@pytest.fixture
async def site(service: MemoryService, store: FaultyStore, rival: MetadataStore) -> Site:
    site = Site(service, store, rival)
    await site.start(4)
    return site


async def test_ledgers_of_a_lost_bookie_are_marked(site: Site) -> None:
    """AU1, AR2, AR17, AR18, AR19."""
    for ledger_id in range(20):
        await site.make(ledger_id, ledger_id % 4, (ledger_id + 1) % 4)
    async with site.auditor():
        await site.lose(2)
        await site.until_marked({each: {2} for each in range(20) if each % 4 in (1, 2)})


async def test_restarts_within_the_delay_mark_nothing(site: Site) -> None:
    """AU1: three of four bookies restart, one after the other."""
    await site.make(1, 0, 1, 2)
    async with site.auditor(delay_s=60) as auditor:
        for number in range(3):
            await site.lose(number)
            await settled(auditor, {number})
            await site.register(number)
            await settled(auditor, set())
    assert await site.marked() == {}


async def test_writing_the_delay_again_triggers_an_audit(site: Site) -> None:
    await site.make(1, 0, 1, 2)
    async with site.auditor(delay_s=60) as auditor:
        await site.lose(1)
        await settled(auditor, {1})
        assert await site.marked() == {}
        assert await site.marks.delay() == (60, 0)
        await site.marks.set_delay(60)
        await site.until_marked({1: {1}})


async def test_loss_of_more_than_half_needs_approval(site: Site) -> None:
    """AU2."""
    for ledger_id in range(4):
        await site.make(ledger_id, ledger_id, (ledger_id + 1) % 4)
    async with site.auditor() as auditor:
        gone = [Delete(f"{ROOT}/available/{B[number]}") for number in range(3)]
        await site.people.transaction(gone)
        await settled(auditor, {0, 1, 2})
        assert auditor.state.is_braked
        assert await site.marked() == {}
        orders = AuditOrders(site.people, site.cluster)
        await orders.ask_for_checks(1, "aa", approved=[B[0], B[1], B[2]])
        await site.until_marked({0: {0, 1}, 1: {1, 2}, 2: {2}, 3: {0}})


async def test_nothing_is_marked_while_recovery_is_disabled(site: Site) -> None:
    """AR10, AR11."""
    await site.make(1, 0, 1)
    await site.marks.prepare()
    await site.marks.disable()
    async with site.auditor() as auditor:
        await site.lose(0)
        await settled(auditor, {0})
        assert await site.marked() == {}
        await site.marks.enable()
        await site.until_marked({1: {0}})


async def test_new_ledger_on_a_lost_bookie_is_marked(site: Site) -> None:
    """AU4: a client picked its ensemble before the loss, and creates the ledger after the pass."""
    await site.make(1, 0, 1)
    async with site.auditor() as auditor:
        await site.lose(0)
        await site.until_marked({1: {0}})
        await site.make(2, 0, 3)
        await site.until_marked({1: {0}, 2: {0}})
        assert auditor.state.passes == 1


async def test_sweep_restores_a_deleted_mark(site: Site) -> None:
    """AU4: BookKeeper's worker may have found the copies sound and deleted the mark."""
    await site.make(1, 0, 1)
    async with site.auditor() as auditor:
        await site.lose(0)
        await site.until_marked({1: {0}})
        await site.people.delete(site.marks.path(LedgerId(1)))
        auditor._index.request_sweep()
        await site.until_marked({1: {0}})


async def test_ledger_moved_during_a_disconnect_is_marked(site: Site) -> None:
    """RI1, AU4: while disconnected, a closed ledger is moved to b3, and b3 is lost."""
    await site.make(1, 0, 1)
    await closed(site.nodes, 1)
    raw = site.store.store
    async with site.auditor() as auditor:
        await site.lose(2)
        await settled(auditor, {2})
        line = site.service.line(raw)
        line.suspend()
        await moved(site.nodes, 1, B[1], B[3])
        await site.lose(3)
        line.resume()
        await site.until_marked({1: {3}})


async def test_ledgers_are_marked_in_batches_around_existing_marks(site: Site) -> None:
    """AU4: ledgers next to an already marked one are marked one by one."""
    for ledger_id in range(300):
        await site.make(ledger_id, 0, 1)
    await site.marks.prepare()
    await site.marks.mark(LedgerId(100), [B[3]], 1)
    async with site.auditor() as auditor:
        await settled(auditor, set())
        site.store.writes = 0
        await site.lose(0)
        await site.until_marked({each: {0, 3} if each == 100 else {0} for each in range(300)})
        assert auditor.state.marked == 300
    assert site.store.writes < 100


async def test_second_auditor_completes_the_marks_of_a_stopped_one(
    site: Site, service: MemoryService
) -> None:
    """AU4, AR14: the next auditor scans again; existing marks stay unchanged."""
    for ledger_id in range(50):
        await site.make(ledger_id, 0, 1)
    async with await service.connect() as second:
        async with site.auditor() as first:
            await site.lose(0)

            async def is_half_way() -> bool:
                return len(await site.marked()) >= 5

            await until(is_half_way)
            assert first.state.lost == [B[0]]
        async with site.auditor(store=second, name="auditor:2"):
            await site.until_marked({each: {0} for each in range(50)})
        found = await site.marks.read(LedgerId(0))
        assert found is not None
        assert found.version == 0


@pytest.mark.parametrize("seed", range(10))
async def test_all_ledgers_are_marked_despite_lost_replies(site: Site, seed: int) -> None:
    """AU4, LR1."""
    chance = random.Random(seed)
    for ledger_id in range(30):
        await site.make(ledger_id, ledger_id % 4, (ledger_id + 1) % 4)
    fates = [Fate.OK, Fate.OK, Fate.ANSWER_LOST, Fate.REQUEST_LOST, Fate.NOT_SENT]
    async with site.auditor():
        site.store.fates.extend(chance.choices(fates, k=60))
        site.store.read_fates.extend(chance.choices([*fates, Fate.OK, Fate.OK], k=20))
        await site.lose(1)
        await site.until_marked({each: {1} for each in range(30) if each % 4 in (0, 1)})


async def test_unreadable_mark_is_skipped_and_counted(site: Site) -> None:
    """MK4."""
    for ledger_id in (1, 2, 3):
        await site.make(ledger_id, 0, 1)
    await site.marks.prepare()
    await site.marks.mark(LedgerId(2), [B[5]], 1)
    await site.people.set(site.marks.path(LedgerId(2)), b"\xff")
    async with site.auditor() as auditor:
        await site.lose(0)

        async def is_done() -> bool:
            return auditor.state.passes == 1

        await until(is_done)
        assert auditor.state.marked == 2
        assert auditor.state.unreadable == 1


async def test_ledgers_are_marked_after_a_metadata_outage(site: Site) -> None:
    for ledger_id in range(10):
        await site.make(ledger_id, 0, 1)
    async with site.auditor() as auditor:
        await settled(auditor, set())
        line = site.service.line(site.store.store)
        line.suspend()
        await site.lose(0)
        reads = site.store.reads
        auditor._index.request_sweep()

        async def asks() -> bool:
            return site.store.reads > reads

        await until(asks)
        assert await site.marked() == {}
        line.resume()
        await site.until_marked({each: {0} for each in range(10)})


async def test_bookie_check_completes_once_all_losses_are_marked(
    site: Site,
) -> None:
    """AU5: not while recovery is disabled; the next auditor keeps the time of completion."""
    await site.make(1, 0, 1)
    await site.marks.prepare()
    await site.marks.disable()
    times = CheckTimes(site.people, site.cluster, site.marks)
    async with site.auditor(bookie_check_s=3600) as auditor:
        await site.lose(0)
        await settled(auditor, {0})

        async def is_checking() -> bool:
            return auditor.state.checks["bookies"].is_running

        await until(is_checking)
        assert await times.completed_ms(CheckKind.BOOKIES) is None
        await site.marks.enable()

        async def is_completed() -> bool:
            return await times.completed_ms(CheckKind.BOOKIES) is not None

        await until(is_completed)
        assert await site.marked() == {1: {0}}
    completed_ms = await times.completed_ms(CheckKind.BOOKIES)
    async with site.auditor(bookie_check_s=3600) as auditor:
        await settled(auditor, {0})
        states = auditor._schedule.states

        async def has_looked() -> bool:
            return states[CheckKind.BOOKIES].completed_ms == completed_ms

        await until(has_looked)
        assert not states[CheckKind.BOOKIES].is_running, "the check is not due"
        assert auditor._index.sweeps == 0
        await AuditOrders(site.people, site.cluster).ask_for_checks(1, "an old order, by its clock")
        await until(lambda: _is_later(times, completed_ms))


async def _is_later(times: CheckTimes, than_ms: int | None) -> bool:
    completed_ms = await times.completed_ms(CheckKind.BOOKIES)
    return completed_ms is not None and than_ms is not None and completed_ms > than_ms


async def test_writing_the_delay_again_checks_bookies_with_a_sweep(site: Site) -> None:
    """AU8: BookKeeper's `triggeraudit` requests an audit this way."""
    await site.make(1, 0, 1)
    async with site.auditor() as auditor:

        async def knows_the_delay() -> bool:
            return auditor._delay == (0, 0)

        await until(knows_the_delay)
        await site.marks.set_delay(0)
        times = CheckTimes(site.people, site.cluster, site.marks)

        async def is_completed() -> bool:
            return await times.completed_ms(CheckKind.BOOKIES) is not None

        await until(is_completed)
        assert auditor._index.sweeps == 1
