"""A drain with real processes: bookies, and a recovery server with auditor, steward and worker."""

import asyncio
import sys
from pathlib import Path

from rollbook.ledger.open_client import connect
from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes
from rollbook.proto.cluster.cluster_root import open_cluster
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.recovery.core.bookie_drain_states import drain
from tests.support import processes
from tests.support.ledger_cluster import ProcessCluster

PATIENCE_S = 60.0
LEAVING = BookieId("bk-4")
LEDGERS = 12


async def drain_it(url: str) -> None:
    async with connect(url) as ledgers, await open_metadata_store(url) as store:
        await ledgers.until_writable(4, PATIENCE_S)
        ids: list[LedgerId] = []
        for number in range(LEDGERS):
            writer = await ledgers.create()
            writer.append_many([b"%0100d" % entry for entry in range(50)])
            await writer.flush()
            await (writer.close() if number % 2 else writer.stop())
            if writer.metadata.names(LEAVING):  # Other unclosed ledgers stay open.
                ids.append(writer.ledger_id)
        nodes = LifecycleNodes(store, await open_cluster(store, "/ledgers"))
        found = await nodes.read(LEAVING)
        await nodes.write(found, drain(found.lifecycle, "ab", 1, ledgers=LEDGERS))
        async with asyncio.timeout(PATIENCE_S):
            while (await nodes.read(LEAVING)).lifecycle.state is not LifecycleState.DRAINED:
                await asyncio.sleep(0.05)
        for ledger_id in ids:
            assert not (await ledgers.metadata(ledger_id, fresh=True)).metadata.names(LEAVING)
            verdict = await ledgers.verify(ledger_id)
            assert (verdict.is_sound, verdict.entries) == (True, 50)


def test_drain_of_a_serving_bookie_empties_it(tmp_path: Path) -> None:
    """LC4, BL4, BL6, BL11, BL18 to BL23: its copies are re-replicated, and it becomes drained."""
    names = ("bk-1", "bk-2", "bk-3", LEAVING)
    with processes.family() as children:
        cluster = ProcessCluster(children, tmp_path, names)
        command = (sys.executable, "-m", "rollbook.api.cli.main", "server", "recovery")
        server = children.start(
            *command,
            "--metadata",
            cluster.url,
            "--name",
            "recovery-1",
            "--log-level",
            "error",
            environment={"ROLLBOOK_WORKER_GRACE_S": "0"},
        )
        assert "ready" in server.line()
        asyncio.run(drain_it(cluster.url))
