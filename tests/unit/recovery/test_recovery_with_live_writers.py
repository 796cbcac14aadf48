"""A whole recovery server (auditor, steward, worker) with real bookies and live writers."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rollbook.ledger.core.lost_bookie_rules import LostMembers
from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import BookieId
from rollbook.proto.metadata import LedgerState
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery.autorecovery import ProcessIdentity, RecoveryConfig, RecoveryServer
from rollbook.recovery.config import AuditConfig, StewardConfig, WorkerConfig
from rollbook.recovery.core import bookie_drain_states
from rollbook.recovery.ledger_repair import LedgerRepair
from tests.support.ledger_cluster import LocalCluster
from tests.unit.recovery.test_worker import PATIENCE_S, QUICK, Site, site_of

NAMES = tuple(f"bk-{number}" for number in range(1, 6))
LOST, LEAVING = BookieId("bk-2"), BookieId("bk-4")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with asyncio.timeout(PATIENCE_S), LocalCluster(tmp_path, NAMES) as cluster:
        yield cluster


@asynccontextmanager
async def recovery(
    site: Site, delay_s: int, grace_s: float = 30.0
) -> AsyncIterator[RecoveryServer]:
    config = RecoveryConfig(
        AuditConfig(lost_bookie_delay_s=delay_s),
        WorkerConfig(grace_s=grace_s, look_again_s=0.2, settle_s=0.02),
        StewardConfig(look_again_s=0.1),
    )
    async with site.cluster.connect(QUICK) as ledgers:
        server = RecoveryServer(
            ledgers,
            site.store,
            SystemClock(),
            random.Random(1),
            config,
            ProcessIdentity(BookieId("recovery-1")),
        )
        running = asyncio.create_task(server.run())
        try:
            while not server.parts or any(
                server.parts[part].state != "leading" for part in ("auditor", "steward")
            ):
                await asyncio.sleep(0.01)
            yield server
            if running.done():
                running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_live_writers_and_reserved_ledgers_are_not_fenced(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RP4, WR11, AR28: one bookie is lost and one drained; idle writers continue."""
    monkeypatch.setattr(LostMembers.__init__, "__defaults__", (300_000_000,))
    closed: list[int] = []
    close = LedgerRepair._close

    async def close_counted(self: LedgerRepair, *args: Any) -> None:
        closed.append(self.found.ledger_id)
        await close(self, *args)

    monkeypatch.setattr(LedgerRepair, "_close", close_counted)
    async with site_of(cluster) as site:
        await site.ledgers.until_writable(5, PATIENCE_S)
        writers = [await site.ledgers.create() for _ in range(40)]
        for writer in writers[::2]:
            await writer.append(b"before")
        reserved = [await site.ledgers.reserve() for _ in range(6)]
        async with recovery(site, delay_s=0, grace_s=5.0):
            await site.lose()
            nodes = LifecycleNodes(site.store, site.ledgers.cluster)
            found = await nodes.read(LEAVING)
            await nodes.write(found, bookie_drain_states.drain(found.lifecycle, "aa", 1, ledgers=1))
            ids = [*(writer.ledger_id for writer in writers), *reserved]

            async def names_any(ledger_id: int) -> bool:
                metadata = (await site.ledgers.metadata(ledger_id, fresh=True)).metadata
                return metadata.names(LOST) or metadata.names(LEAVING)

            for ledger_id in ids:
                while await names_any(ledger_id):
                    await asyncio.sleep(0.02)
            while (await nodes.read(LEAVING)).lifecycle.state is not LifecycleState.DRAINED:
                await asyncio.sleep(0.02)
        assert closed == []
        for writer in writers:
            await writer.append(b"after")
            stored = await site.ledgers.metadata(writer.ledger_id, fresh=True)
            assert stored.metadata.state is LedgerState.OPEN
        for ledger_id in reserved:
            await (await site.ledgers.claim(ledger_id)).append(b"first")


async def test_bookies_restarting_within_the_delay_are_not_copied(cluster: LocalCluster) -> None:
    """AU1: one bookie restarts, then two at once; no byte is copied."""
    async with site_of(cluster) as site:
        await site.ledgers.until_writable(5, PATIENCE_S)
        ids = [await site.write(20, ack=3) for _ in range(6)]
        before = [(await site.ledgers.metadata(each)).metadata for each in ids]
        async with recovery(site, delay_s=60) as server:
            assert server.auditor is not None
            assert server.worker is not None
            for names in (("bk-1",), ("bk-2", "bk-3")):
                for name in names:
                    await cluster.stop(name)
                while set(server.auditor.state.missing) != set(names):
                    await asyncio.sleep(0.01)
                for name in names:
                    await cluster.start(name)
                while server.auditor.state.missing:
                    await asyncio.sleep(0.01)
            assert server.worker.stats.entry_bytes == 0
            assert await site.marked() == []
        after = [(await site.ledgers.metadata(each, fresh=True)).metadata for each in ids]
        assert after == before
