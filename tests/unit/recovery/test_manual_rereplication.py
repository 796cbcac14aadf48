"""Manual re-replication of lost bookies (AR36, AR39, AR40); real bookies in this process."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollbook.proto.ids import BookieId
from rollbook.recovery.config import WorkerConfig
from rollbook.recovery.manual_rereplication import Evacuation, EvacuationOrder
from tests.support.ledger_cluster import LocalCluster
from tests.unit.recovery.test_worker import LOST, PATIENCE_S, Site, site_of

CONFIG = WorkerConfig(grace_s=0.1)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    names = ("bk-1", "bk-2", "bk-3", "bk-4")
    async with asyncio.timeout(PATIENCE_S), LocalCluster(tmp_path, names) as cluster:
        yield cluster


def evacuation(site: Site, order: EvacuationOrder) -> Evacuation:
    return Evacuation(site.ledgers, site.store, order, CONFIG, name="a person")


ORDER = EvacuationOrder(bookies=[LOST])


async def test_every_ledger_naming_the_bookie_is_repaired(cluster: LocalCluster) -> None:
    async with site_of(cluster) as site:
        ids = {await site.write(count): count for count in (40, 0)}
        abandoned = await site.write(7, is_closed=False)
        await site.lose()
        progress: list[tuple[int, int]] = []
        found = await evacuation(site, ORDER).run(lambda *numbers: progress.append(numbers))
        assert found.is_complete
        assert (found.ledgers, found.repaired, found.closed) == (3, 3, 1)
        assert progress[-1] == (3, 3)
        for ledger_id, count in {**ids, abandoned: 7}.items():
            await site.require_whole(ledger_id, count)
        assert await site.marks.locked() == set()
        again = await evacuation(site, ORDER).run()
        assert again.ledgers == 0


async def test_rehearsal_counts_ledgers_and_changes_nothing(cluster: LocalCluster) -> None:
    async with site_of(cluster) as site:
        ledger_id = await site.write(5)
        await site.lose()
        found = await evacuation(site, replace(ORDER, is_rehearsal=True)).run()
        assert (found.ledgers, found.repaired) == (1, 0)
        assert (await site.ledgers.metadata(ledger_id)).metadata.names(LOST)


async def test_open_ledgers_can_be_skipped(cluster: LocalCluster) -> None:
    async with site_of(cluster) as site:
        ledger_id = await site.write(5, is_closed=False)
        await site.lose()
        found = await evacuation(site, replace(ORDER, skips_open=True)).run()
        assert (found.skipped_open, found.closed, found.is_complete) == (1, 0, False)
        assert not (await site.ledgers.metadata(ledger_id, fresh=True)).metadata.is_closed


async def test_given_target_takes_the_slots(cluster: LocalCluster) -> None:
    """AR37."""
    async with site_of(cluster) as site:
        ids = [await site.write(5, ensemble=2, write=2) for _ in range(4)]
        await site.lose()
        target = BookieId("bk-4")
        found = await evacuation(site, replace(ORDER, targets=[target])).run()
        assert found.is_complete
        for ledger_id in ids:
            assert (await site.ledgers.metadata(ledger_id, fresh=True)).metadata.names(target)


async def test_failed_ledgers_are_reported_and_the_rest_repaired(cluster: LocalCluster) -> None:
    async with site_of(cluster) as site:
        whole, stuck = await site.write(5), await site.write(5, ensemble=1, write=1, ack=1)
        await site.lose()
        found = await evacuation(site, ORDER).run()
        assert found.repaired == 1
        assert [problem.ledger_id for problem in found.failed] == [stuck]
        assert "bk-2: unreachable" in found.failed[0].reason
        await site.require_whole(whole, 5)


async def test_slots_spread_over_bookies_without_a_target(cluster: LocalCluster) -> None:
    """AR38: the target is drawn for each segment, so no bookie takes all segments."""
    async with site_of(cluster) as site:
        ids = [await site.write(1, ensemble=2, write=2) for _ in range(16)]
        before = [(await site.ledgers.metadata(each)).metadata for each in ids]
        await site.lose()
        assert (await evacuation(site, ORDER).run()).is_complete
        takers: Counter[BookieId] = Counter()
        for ledger_id, old in zip(ids, before, strict=True):
            new = (await site.ledgers.metadata(ledger_id, fresh=True)).metadata
            takers.update({*new.fragments[0].ensemble} - {*old.fragments[0].ensemble})
        assert sum(takers.values()) == len(ids)
        assert max(takers.values()) < len(ids)
