"""Checks find missing, bad and badly placed copies on real bookies, and repairs fix them."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollbook.ledger.ledgers import Ledgers, credentials
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.underreplication_marks import Checked, Marks
from rollbook.proto.errors import BookieTimeout
from rollbook.proto.formats.replication import pack_checked_at
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.wire.digest import DigestType, Entry, LedgerDigest, ledger_key
from rollbook.recovery import ledger_checks
from rollbook.recovery.check_times import CheckTimes
from rollbook.recovery.config import AuditConfig
from rollbook.recovery.copier import Copier
from rollbook.recovery.copy_limits import ByteBudget, Throttle
from rollbook.recovery.core.ledger_checks import CheckKind
from rollbook.recovery.ledger_checks import Checks, CheckSchedule, CheckState
from rollbook.recovery.recovery_adds import Restorer
from rollbook.recovery.repair_failure_nodes import BadCopies
from rollbook.recovery.worker import Worker
from tests.support.ledger_cluster import LocalCluster
from tests.unit.recovery.test_worker import CONFIG, LOST, PATIENCE_S, QUICK, Site, site_of

COPIES, LEDGERS, PLACEMENT = CheckKind.COPIES, CheckKind.LEDGERS, CheckKind.PLACEMENT
FOURTH = BookieId("bk-4")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    names = ("bk-1", "bk-2", "bk-3", "bk-4")
    async with asyncio.timeout(PATIENCE_S), LocalCluster(tmp_path, names) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_checks, "SECOND_LOOK_S", 0.01)
    monkeypatch.setattr(ledger_checks, "_PAUSE_S_MIN", 0.01)


async def opened() -> None:
    """A gate that is always open."""


async def check(
    site: Site,
    kind: CheckKind,
    *,
    percent: float = 0,
    ledgers: Ledgers | None = None,
    state: CheckState | None = None,
) -> CheckState:
    config = AuditConfig(ledgers_check_percent=percent)
    made = Checks(
        ledgers or site.ledgers, site.store, SystemClock(), random.Random(1), site.marks, config
    )
    await made.prepare()
    state = state or CheckState()
    await made.works(opened)[kind](state)
    return state


async def give_slot(
    site: Site, ledger_id: LedgerId, to: BookieId, entry_ids: Iterable[int]
) -> None:
    """Move the lost bookie's slot like a repair that copied only these entries."""
    nodes = LedgerNodes(site.store, site.ledgers.cluster.root, site.ledgers.cluster.layout)
    stored = await nodes.read(ledger_id, fresh=True)
    metadata = stored.metadata
    password, kind = credentials(metadata, None, None)
    digest = LedgerDigest(kind, password, ledger_id)
    copier = Copier(
        site.ledgers.bookies,
        site.ledgers.config,
        digest,
        ledger_key(password),
        mean_entry_bytes=100,
        budget=ByteBudget(1 << 20),
        throttle=Throttle(1 << 30),
    )
    ensemble = metadata.fragments[0].ensemble
    await copier.copy(to, map(EntryId, entry_ids), lambda _: ensemble)
    await nodes.swap(
        stored, metadata.with_replacement(EntryId(0), LOST, to), [], site.store.session
    )


async def spoil(site: Site, ledger_id: LedgerId, bookie: BookieId, entry_id: int) -> None:
    """Overwrite an entry with bytes that the bookie accepts and that fail the writer's digest."""
    wrong = LedgerDigest(DigestType.CRC32, b"", ledger_id)
    restorer = Restorer(bookie, wrong, ledger_key(b""), site.ledgers.bookies, site.ledgers.config)
    await restorer.put([Entry(ledger_id, EntryId(entry_id), EntryId(0), 100, b"x" * 100)], 0)
    await restorer.flush()
    restorer.close()


async def write_elsewhere(site: Site, count: int) -> LedgerId:
    """Write a ledger without a slot on the fourth bookie."""
    while True:
        ledger_id = await site.write(count, ack=3)
        if not (await site.ledgers.metadata(ledger_id)).metadata.names(FOURTH):
            return ledger_id


async def test_missing_entry_inside_a_copy_is_found_and_restored(cluster: LocalCluster) -> None:
    """AU5: BookKeeper reads only the first and the last entry, which are present."""
    async with site_of(cluster) as site:
        await site.write(0, ack=3)
        ledger_id = await write_elsewhere(site, 100)
        await give_slot(site, ledger_id, FOURTH, (each for each in range(100) if each != 50))
        state = await check(site, COPIES)
        assert state.ledgers >= 2
        assert (state.marked, state.undecided) == (1, 0)
        mark = await site.marks.read(ledger_id)
        assert mark is not None
        assert mark.mark.missing == (FOURTH,)
        await site.worker.work_once()
        assert site.worker.stats.entries == 1
        await site.require_whole(ledger_id, 100)
        assert (await check(site, COPIES)).marked == 0


async def test_bad_copy_is_found_and_rewritten(cluster: LocalCluster) -> None:
    """AU9: entry lists include bad copies, so bad entries are recorded beside the mark."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(40, ack=3)
        await spoil(site, ledger_id, LOST, 7)
        assert (await check(site, COPIES)).marked == 0, "the entry is listed"
        assert (await check(site, LEDGERS, percent=0)).marked == 0, (
            "the entry is neither first nor last"
        )
        assert (await check(site, LEDGERS, percent=100)).marked == 1
        bad = BadCopies(site.store, site.ledgers.cluster)
        assert await bad.read(ledger_id) == {LOST: ((7, 7),)}
        await site.worker.work_once()
        await site.require_whole(ledger_id, 40)
        assert await site.marked() == []
        assert await bad.read(ledger_id) is None
        assert site.worker.stats.entries == 1


@pytest.mark.parametrize("kind", [COPIES, LEDGERS])
async def test_check_waits_for_an_absent_bookie_until_it_is_marked_as_lost(
    cluster: LocalCluster, kind: CheckKind
) -> None:
    """AU5, AU6: the delay holds for every check; the absent bookie's copies are not judged."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(20, ack=3)
        await site.lose()
        state = CheckState()
        waiting = asyncio.create_task(check(site, kind, percent=100, state=state))
        while not state.undecided:
            await asyncio.sleep(0.01)
        assert await site.marked() == []
        assert not waiting.done()
        await site.marks.mark(ledger_id, [LOST], 1)
        await waiting
        assert (state.marked, state.undecided) == (0, 0)


async def test_check_judges_a_bookie_that_returns_during_it(cluster: LocalCluster) -> None:
    """AU5: otherwise the bookie's losses would be found only by the next check."""
    async with site_of(cluster) as site:
        ledger_id = await write_elsewhere(site, 30)
        await give_slot(site, ledger_id, FOURTH, range(29))
        await cluster.stop("bk-4")
        while site.ledgers.live().find(FOURTH):
            await asyncio.sleep(0.01)
        state = CheckState()
        waiting = asyncio.create_task(check(site, COPIES, state=state))
        while not state.undecided:
            await asyncio.sleep(0.01)
        await cluster.start("bk-4")
        await waiting
        assert (state.marked, state.undecided) == (1, 0)


async def test_copy_arriving_before_the_second_look_is_not_marked(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AU7: a writer's last third copies may arrive late."""
    judge, looks = Checks._judge_lists, 0

    async def judge_late(self: Checks, metadata: Any) -> Any:
        nonlocal looks
        looks += 1
        found = await judge(self, metadata)
        if looks == 1:
            found.short[LOST] = None
        return found

    monkeypatch.setattr(Checks, "_judge_lists", judge_late)
    async with site_of(cluster) as site:
        await site.write(3, ack=3)
        assert (await check(site, COPIES)).marked == 0
        assert looks >= 2


async def test_check_waits_for_replies_of_all_registered_bookies(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AU5: BookKeeper records the time even of a check that gave up."""
    async with site_of(cluster) as site:
        await site.write(3, ack=3)
        call, asked = site.ledgers.bookies.call, 0

        async def call_in_vain(bookie: BookieId, *args: Any, **more: Any) -> Any:
            nonlocal asked
            if bookie == LOST and asked < 3:
                asked += 1
                raise BookieTimeout(bookie=bookie)
            return await call(bookie, *args, **more)

        monkeypatch.setattr(ledger_checks, "_SILENT_S", 0.0)
        monkeypatch.setattr(site.ledgers.bookies, "call", call_in_vain)
        state = await check(site, COPIES)
        assert asked == 3
        assert (state.undecided, state.marked) == (0, 0)


async def test_short_copy_silent_at_the_second_look_is_checked_again(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AU5, AU7: otherwise the check would complete without a mark."""
    async with site_of(cluster) as site:
        ledger_id = await write_elsewhere(site, 30)
        await give_slot(site, ledger_id, FOURTH, range(29))
        call, asked = site.ledgers.bookies.call, 0

        async def call_in_vain(bookie: BookieId, request: Any, **more: Any) -> Any:
            nonlocal asked
            is_looked_at = bookie == FOURTH and request.ledger_id == ledger_id
            asked += is_looked_at
            if is_looked_at and asked == 2:
                raise BookieTimeout(bookie=bookie)
            return await call(bookie, request, **more)

        monkeypatch.setattr(ledger_checks, "_SILENT_S", 0.0)
        monkeypatch.setattr(site.ledgers.bookies, "call", call_in_vain)
        state = await check(site, COPIES)
        assert (state.undecided, state.marked) == (0, 1)
        assert asked == 4


async def test_foreign_bookie_without_ledger_lists_does_not_block_a_check(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AU5: BookKeeper's bookies do not answer such a request."""
    async with site_of(cluster) as site:
        await site.write(3, ack=3)

        async def call_in_vain(bookie: BookieId, *_: Any, **__: Any) -> Any:
            raise BookieTimeout(bookie=bookie)

        monkeypatch.setattr(site.ledgers.bookies, "call", call_in_vain)
        monkeypatch.setattr(site.ledgers.bookies, "has_extension", lambda *_: False)
        state = await check(site, COPIES)
        assert (state.undecided, state.marked) == (0, 0)


async def test_copies_in_one_rack_are_marked_if_another_rack_has_a_bookie(
    cluster: LocalCluster,
) -> None:
    """AU10: the mark names no bookie; the worker spreads the copies."""
    racks = ("bk-1=a", "bk-2=a", "bk-3=a", "bk-4=b")
    async with site_of(cluster) as site, cluster.connect(replace(QUICK, racks=racks)) as mapped:
        await mapped.until_writable(4, PATIENCE_S)
        ledger_id = await write_elsewhere(site, 20)
        await site.write(3, ack=3)
        assert PLACEMENT not in Checks(
            site.ledgers, site.store, SystemClock(), random.Random(1), site.marks, AuditConfig()
        ).works(opened), "that client knows no racks"
        await check(site, PLACEMENT, ledgers=mapped)
        mark = await site.marks.read(ledger_id)
        assert mark is not None
        assert mark.mark.missing == ()
        worker = Worker(mapped, site.store, SystemClock(), CONFIG, name="mapped")
        await worker.work_once()
        assert (await check(site, PLACEMENT, ledgers=mapped)).marked == 0
        await site.require_whole(ledger_id, 20)
        await cluster.stop("bk-4")
        while mapped.live().find(FOURTH):
            await asyncio.sleep(0.01)
        left = await check(site, PLACEMENT, ledgers=mapped)
        assert left.marked == 0, "no bookie could take a slot"


# --- Schedule -----------------------------------------------------------------------------------


class MovingClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)

    def wall_us(self) -> int:
        return int(self.now_s * 1e6)

    def let_others_run(self) -> None:
        pass


async def test_checks_run_on_schedule_and_record_times_for_bookkeeper(
    service: MemoryService, store: MetadataStore
) -> None:
    """AU5: times go to the nodes that BookKeeper's auditor reads, only after the check ended."""
    cluster = await initialise(store, "/ledgers", random.Random(1))
    marks, clock = Marks(store, "/ledgers"), MovingClock()
    times = CheckTimes(store, cluster, marks)
    config = AuditConfig(copies_check_s=100, ledgers_check_s=0)
    schedule = CheckSchedule(times, clock, config)
    schedule.on_order(None)
    ran: list[CheckKind] = []
    may_end = asyncio.Event()

    def work(kind: CheckKind) -> Any:
        async def run(_: CheckState) -> None:
            ran.append(kind)
            await may_end.wait()

        return run

    running = asyncio.create_task(schedule.run({each: work(each) for each in (COPIES, LEDGERS)}))
    try:
        async with asyncio.timeout(60):
            while not ran:
                await asyncio.sleep(0.001)
            assert await marks.checked_at_ms(Checked.REPLICAS) is None, "the check still runs"
            may_end.set()
            while await marks.checked_at_ms(Checked.REPLICAS) is None:
                await asyncio.sleep(0.001)
            node = await store.get("/ledgers/underreplication/replicascheckctime")
            assert node is not None
            assert node.value == pack_checked_at(1_000_000)
            assert ran == [COPIES], "an interval of 0 means never"
            schedule.on_order(5)
            while len(ran) < 3:
                await asyncio.sleep(0.001)
            assert sorted(ran[1:], key=str) == [COPIES, LEDGERS], "the order requests both checks"
            while await marks.checked_at_ms(Checked.ALL_LEDGERS) is None:
                await asyncio.sleep(0.001)
            clock.now_s += 101
            schedule.ask(CheckKind.BOOKIES)  # This check has no work here, but wakes the schedule.
            while len(ran) < 4:
                await asyncio.sleep(0.001)
            assert ran[3] is COPIES
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
