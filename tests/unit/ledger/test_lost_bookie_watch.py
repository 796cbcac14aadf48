"""Idle writers replace lost bookies (WR11; AR29); real bookies on real sockets in this process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollbook.ledger.core.lost_bookie_rules import LostMembers
from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.ids import BookieId
from rollbook.proto.metadata import LedgerState
from tests.support.ledger_cluster import LocalCluster

PATIENCE_S = 30.0
GONE = BookieId("bk-2")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    names = ("bk-1", "bk-2", "bk-3", "bk-4")
    async with asyncio.timeout(PATIENCE_S), LocalCluster(tmp_path, names) as cluster:
        yield cluster


async def writer_on_lost_bookie(ledgers: Ledgers) -> LedgerWriter:
    while True:
        writer = await ledgers.create()
        if GONE in writer.metadata.fragments[0].ensemble:
            return writer


async def lose(cluster: LocalCluster, ledgers: Ledgers) -> None:
    await cluster.stop(GONE)
    while ledgers.live().find(GONE):
        await asyncio.sleep(0.01)


async def test_idle_writer_replaces_a_lost_bookie(cluster: LocalCluster) -> None:
    async with cluster.connect() as ledgers:
        await ledgers.until_writable(4, PATIENCE_S)
        writers = [await writer_on_lost_bookie(ledgers) for _ in range(3)]
        await writers[0].append(b"first")
        await lose(cluster, ledgers)
        watch = ledgers._lost_bookie_watch
        await watch.look()
        assert all(GONE in w.metadata.fragments[-1].ensemble for w in writers), "it may return"
        watch._absences = LostMembers(absent_ns=0)
        await watch.look()
        while any(GONE in writer.metadata.fragments[-1].ensemble for writer in writers):
            await asyncio.sleep(0.01)
        for writer in writers:
            await writer.append(b"more")
            stored = await ledgers.metadata(writer.ledger_id, fresh=True)
            assert stored.metadata.state is LedgerState.OPEN
            assert GONE not in stored.metadata.fragments[-1].ensemble
        assert [f.first_entry for f in writers[0].metadata.fragments] == [0, 1]
        for writer in writers:
            await writer.close()


async def test_lost_bookie_without_successor_keeps_its_slot(cluster: LocalCluster) -> None:
    """WR12: it is reported as vacant."""
    async with cluster.connect() as ledgers:
        await ledgers.until_writable(4, PATIENCE_S)
        writer = await writer_on_lost_bookie(ledgers)
        other = next(
            b for b in ledgers.live().writable if b not in writer.metadata.fragments[0].ensemble
        )
        await cluster.stop(other)
        await lose(cluster, ledgers)
        while len(ledgers.live().writable) > 2:
            await asyncio.sleep(0.01)
        ledgers._lost_bookie_watch._absences = LostMembers(absent_ns=0)
        await ledgers._lost_bookie_watch.look()
        assert not writer._open_ensemble.down
        assert writer.vacant_seats == {GONE: "it is not registered"}
        await writer.append(b"two of three are enough")
        await writer.close()


async def test_quarantined_successor_is_probed_and_takes_the_slot(cluster: LocalCluster) -> None:
    """A quarantine can outlast the time for which re-replication waits for a writer."""
    async with cluster.connect() as ledgers:
        await ledgers.until_writable(4, PATIENCE_S)
        writer = await writer_on_lost_bookie(ledgers)
        (other,) = (
            b for b in ledgers.live().writable if b not in writer.metadata.fragments[0].ensemble
        )
        ledgers._health.on_failure(other, ledgers._clock.monotonic_ns())
        await lose(cluster, ledgers)
        watch = ledgers._lost_bookie_watch
        watch._absences = LostMembers(absent_ns=0)
        await watch.look()
        assert not writer._open_ensemble.down, "no bookie can take the slot yet"
        await watch.look()
        while GONE in writer.metadata.fragments[-1].ensemble:
            await asyncio.sleep(0.01)
        assert other in writer.metadata.fragments[-1].ensemble
        await writer.close()
