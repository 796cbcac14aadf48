"""Repairs that fail: how often each is tried, and that nothing spins (RP5).

One worker handles all of them at once, and looks at tasks far more often than it may retry them.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollbook.bookie.disk_maintenance import Space
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.errors import MetadataUnavailable
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import LedgerState
from rollbook.recovery.ledger_repair import LedgerRepair
from rollbook.recovery.repair_failure_nodes import BadCopies
from rollbook.recovery.worker import Worker
from tests.support.ledger_cluster import LocalCluster
from tests.unit.proto.cluster.faulty import Fate, FaultyStore
from tests.unit.recovery.test_ledger_checks import give_slot, spoil
from tests.unit.recovery.test_worker import CONFIG, LOST, PATIENCE_S, Site, site_of

# Long enough that no retry happens within a test, even on a busy machine.
EAGER = replace(CONFIG, look_again_s=0.02, retry_pause_s=120.0)
FULL = BookieId("bk-4")
FIFTH = BookieId("bk-5")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    names = ("bk-1", "bk-2", "bk-3", "bk-4", "bk-5")
    async with asyncio.timeout(PATIENCE_S), LocalCluster(tmp_path, names) as cluster:
        yield cluster


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Counter[LedgerId]:
    run, counted = LedgerRepair.run, Counter[LedgerId]()

    async def run_counted(self: LedgerRepair) -> Any:
        counted[self.found.ledger_id] += 1
        return await run(self)

    monkeypatch.setattr(LedgerRepair, "run", run_counted)
    return counted


async def take_slot_back(site: Site, ledger_id: LedgerId, holder: BookieId) -> None:
    nodes = LedgerNodes(site.store, site.ledgers.cluster.root, site.ledgers.cluster.layout)
    stored = await nodes.read(ledger_id, fresh=True)
    given_back = stored.metadata.with_replacement(EntryId(0), holder, LOST)
    await nodes.swap(stored, given_back, [], site.store.session)


async def write_on(site: Site, members: set[str], count: int) -> LedgerId:
    """Write a closed ledger on exactly these bookies."""
    size = len(members)
    while True:
        ledger_id = await site.write(count, ensemble=size, write=size, ack=size)
        ensemble = (await site.ledgers.metadata(ledger_id)).metadata.fragments[0].ensemble
        if set(ensemble) == members:
            return ledger_id


class CountingWorker(Worker):
    rounds = 0  # Started rounds.

    async def work_once(self) -> None:
        self.rounds += 1
        await super().work_once()


async def work_on(
    site: Site,
    worker: CountingWorker | None = None,
    failed: Sequence[LedgerId] = (),
    repaired: Sequence[LedgerId] = (),
) -> None:
    """Run a worker until these have failed or been repaired, and for two more full rounds."""
    worker = worker or CountingWorker(site.ledgers, site.store, site.clock, EAGER, name="here")
    running = asyncio.create_task(worker.run())
    for ledger_id in failed:
        while await site.failures.read(ledger_id) is None:
            await asyncio.sleep(0.01)
    while {*repaired}.intersection(await site.marked()):
        await asyncio.sleep(0.01)
    rounds = worker.rounds
    while worker.rounds < rounds + 3:
        assert not running.done()
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def _look_at_no_disk(_: Space) -> None:
    pass


async def test_hard_repairs_are_tried_at_most_once_and_recorded(
    cluster: LocalCluster, attempts: Counter[LedgerId], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RP5, RP6: attempts, the recorded failure, and whether an operator must decide."""
    # Otherwise the full bookie would find free space ten seconds after its start.
    monkeypatch.setattr(Space, "_look", _look_at_no_disk)
    async with site_of(cluster) as site:
        await site.ledgers.until_writable(5, PATIENCE_S)
        empty = await write_on(site, {"bk-1", LOST, "bk-3"}, 0)
        single = await write_on(site, {LOST}, 3)
        rotten = await write_on(site, {LOST}, 3)
        no_target = await write_on(site, {"bk-1", LOST, "bk-3", FULL, FIFTH}, 3)
        full_target = await write_on(site, {"bk-1", LOST, "bk-3", FIFTH}, 3)
        malformed = await write_on(site, {"bk-1", LOST}, 3)
        # The only copy of this ledger is on a registered bookie.
        await give_slot(site, rotten, BookieId("bk-3"), range(3))
        await spoil(site, rotten, BookieId("bk-3"), 1)
        await BadCopies(site.store, site.ledgers.cluster).prepare()
        bad = BadCopies(site.store, site.ledgers.cluster)
        await bad.add(rotten, {BookieId("bk-3"): [EntryId(1)]})
        cluster.bookies[FULL].storage.refuses_adds = True
        await site.lose()
        await site.mark(empty, single, no_target, full_target, malformed)
        await site.mark(rotten, bookie=BookieId("bk-3"))
        await site.store.set(site.marks.path(malformed), b"\xff")
        fails = (single, rotten, no_target, full_target)
        await work_on(site, failed=fails, repaired=[empty])

        table = {
            # Attempts, code, whether an operator must decide.
            empty: (1, None, False),
            single: (1, "ENTRY_UNAVAILABLE", False),
            rotten: (1, "DATA_LOST", True),
            no_target: (1, "QUORUM_UNAVAILABLE", False),
            full_target: (1, "QUORUM_UNAVAILABLE", False),
            malformed: (0, None, False),
        }
        found = {}
        for ledger_id in table:
            failure = await site.failures.read(ledger_id)
            found[ledger_id] = (
                attempts[ledger_id],
                failure.code if failure else None,
                bool(failure and failure.is_unrecoverable),
            )
        assert found == table
        assert empty not in await site.marked()
        assert {single, rotten, no_target, full_target, malformed} <= {*await site.marked()}
        assert await site.marks.locked() == set()


async def test_repair_is_retryable_while_all_holders_answer_unknown(
    cluster: LocalCluster, attempts: Counter[LedgerId]
) -> None:
    """RP5: UNKNOWN replies never prove a loss."""
    async with site_of(cluster) as site:
        await site.ledgers.until_writable(5, PATIENCE_S)
        ledger_id = await write_on(site, {"bk-1", LOST}, 3)
        await give_slot(site, ledger_id, FIFTH, ())
        for holder in ("bk-1", FIFTH):
            await cluster.stop(holder)
            await cluster.format(holder)
            await cluster.start(holder)
            cluster.bookies[holder].storage.catalog.doubts.add(ledger_id, -1, 2**62)
        while not all(
            (info := site.ledgers.live().find(BookieId(each)))
            and info.address == cluster.bookies[each].advertised
            for each in ("bk-1", FIFTH)
        ):
            await asyncio.sleep(0.01)
        await site.mark(ledger_id, bookie=FIFTH)
        await work_on(site, failed=[ledger_id])
        failure = await site.failures.read(ledger_id)
        assert failure is not None
        assert (failure.code, failure.is_unrecoverable) == ("ENTRY_UNAVAILABLE", False)
        assert attempts[ledger_id] == 1


async def test_disabled_recovery_tries_no_repair(
    cluster: LocalCluster, attempts: Counter[LedgerId]
) -> None:
    """AR10."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(3)
        await site.lose()
        await site.mark(ledger_id)
        await site.marks.disable()
        await work_on(site)
        assert not attempts
        assert await site.marked() == [ledger_id]


async def test_worker_polls_slowly_during_a_metadata_outage(
    cluster: LocalCluster, attempts: Counter[LedgerId]
) -> None:
    """An outage costs a few requests a second, and the repair is made afterwards."""
    async with site_of(cluster) as site:
        ledger_id = await site.write(3)
        await site.lose()
        await site.mark(ledger_id)
        away = FaultyStore(site.store)
        marks = Marks(away, site.ledgers.cluster.root)
        worker = CountingWorker(site.ledgers, away, site.clock, EAGER, name="here", marks=marks)
        away.read_fates.extend([Fate.NOT_SENT] * 10_000)
        running = asyncio.create_task(worker.run())
        ended, _ = await asyncio.wait({running}, timeout=1.2)  # A real pause, to measure a rate.
        assert not ended
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        # Four loops ask every half second, each with its own retries.
        asked = 10_000 - len(away.read_fates)
        assert 0 < asked < 500
        assert not attempts
        away.read_fates.clear()
        await work_on(site, worker, repaired=[ledger_id])
        assert attempts[ledger_id] == 1
        await site.require_whole(ledger_id, 3)


# --- A repair and the ledger's own writer -------------------------------------------------------


@pytest.mark.parametrize("what", ["moves", "closes"])
async def test_writers_metadata_change_during_a_copy_survives(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """RP1, LM4: the writer changes its ensemble or closes between the copy and the swap."""
    async with site_of(cluster) as site:
        while True:
            writer = await site.ledgers.create()
            if writer.metadata.names(LOST):
                break
            await writer.close()
        await writer.append(b"first")
        await site.lose()
        while LOST in writer.metadata.fragments[-1].ensemble:
            await writer.append(b"x")
            await asyncio.sleep(0.01)
        copy, copies = LedgerRepair._copy, 0

        async def copy_and_race(self: LedgerRepair, *args: Any) -> Any:
            nonlocal copies
            copied = await copy(self, *args)
            copies += 1
            if what == "closes" and copies == 1:
                await writer.close()
            elif copies == 1:
                leaves = writer.metadata.fragments[-1].ensemble[0]
                assert writer.leave(MetadataUnavailable("planted"), leaves)
                while leaves in writer.metadata.fragments[-1].ensemble:
                    await writer.append(b"y")
                    await asyncio.sleep(0.01)
            return copied

        monkeypatch.setattr(LedgerRepair, "_copy", copy_and_race)
        await site.mark(writer.ledger_id)
        await site.worker.work_once()
        assert await site.marked() == [], "the repair does not starve"
        assert copies == 1
        metadata = (await site.ledgers.metadata(writer.ledger_id, fresh=True)).metadata
        assert not metadata.names(LOST)
        assert metadata.is_closed is (what == "closes")
        if what == "moves":
            assert metadata.state is LedgerState.OPEN
            assert len(metadata.fragments) >= 2, "the writer's change is there"
            await writer.append(b"still open")
            await writer.close()
        verdict = await site.ledgers.verify(writer.ledger_id)
        while not verdict.is_sound:
            await asyncio.sleep(0.05)
            verdict = await site.ledgers.verify(writer.ledger_id)
        assert verdict.entries == writer.last_add_confirmed + 1


# --- Returning bookies ---------------------------------------------------------------------------


async def test_returned_bookie_keeps_its_remaining_ledgers(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RP2: the rest of the ledgers is unmarked, and nothing of it is copied."""
    async with site_of(cluster) as site:
        ids = [await site.write(20) for _ in range(8)]
        await site.lose()
        await site.mark(*ids)
        repair, repairs = Worker._repair, 0

        async def repair_half(self: Worker, *args: Any) -> None:
            nonlocal repairs
            if repairs == 4:
                await site.bring_back()
            repairs += 1
            await repair(self, *args)

        monkeypatch.setattr(Worker, "_repair", repair_half)
        worker = site.make_worker(replace(CONFIG, ledgers_at_once=1))
        await worker.work_once()
        assert await site.marked() == []
        assert worker.stats.entries == 4 * 20
        named = [
            (await site.ledgers.metadata(each, fresh=True)).metadata.names(LOST) for each in ids
        ]
        assert sum(named) == 4
        for ledger_id in ids:
            await site.require_whole(ledger_id, 20)


async def test_damaged_entry_on_the_target_is_copied_again(cluster: LocalCluster) -> None:
    """RP1: the new holder already lists two entries, one of them with bad bytes."""
    async with site_of(cluster) as site:
        ledger_id = await write_on(site, {"bk-1", "bk-2", "bk-3"}, 50)
        for bookie in (FULL, FIFTH):
            await give_slot(site, ledger_id, bookie, [3])
            await take_slot_back(site, ledger_id, bookie)
            await spoil(site, ledger_id, bookie, 7)
        await site.lose()
        await site.mark(ledger_id)
        await site.worker.work_once()
        await site.require_whole(ledger_id, 50)
        assert site.worker.stats.entries == 49
