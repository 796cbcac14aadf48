"""An operator can follow one ledger through the logs of clients, bookies and repair workers."""

import asyncio
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from rollbook.bookie.config import SpaceConfig
from tests.support.ledger_cluster import LocalCluster
from tests.unit.recovery.test_worker import LOST, PATIENCE_S, site_of

_STEPS = (
    "ledger_created",
    "ledger_bookie_failed",
    "ledger_bookie_replaced",
    "ledger_recovery_started",
    "ledger_fenced",
    "ledger_closed",
    "ledger_recovered",
    "ledger_seat_replaced",
    "ledger_repaired",
    "ledger_deleted",
    "ledger_collected",
)


async def test_logged_events_cover_a_ledgers_whole_life(tmp_path: Path) -> None:
    """A bookie is replaced, the writer dies, recovery, repair and a delete follow."""
    names = ("bk-1", "bk-2", "bk-3", "bk-4")
    space = SpaceConfig(gc_interval_s=0.1, gc_quarantine_s=0.0)
    with capture_logs() as events:
        async with (
            asyncio.timeout(PATIENCE_S),
            LocalCluster(tmp_path, names, space=space) as cluster,
            site_of(cluster) as site,
        ):
            neighbour = await site.write(3)
            writer = await site.ledgers.create()
            while LOST not in writer.metadata.fragments[0].ensemble:
                await writer.close()
                writer = await site.ledgers.create()
            ledger_id = writer.ledger_id
            await writer.append(b"on the first ensemble")
            await site.lose()
            while LOST in writer.metadata.fragments[-1].ensemble:
                await writer.append(b"on the second one")
            await writer.stop()
            await (await site.ledgers.open_recover(ledger_id)).close()
            await site.mark(ledger_id, neighbour)
            await site.worker.work_once()
            await site.ledgers.delete(ledger_id)
            while "ledger_collected" not in _life(events, ledger_id):
                for bookie in cluster.bookies.values():
                    await bookie.space.garbage.collect()
                await asyncio.sleep(0.02)
    life = _life(events, ledger_id)
    assert tuple(each for each in life if each in _STEPS) == _STEPS
    changes = [e for e in _of(events, ledger_id) if e["event"] == "ledger_fragments_changed"]
    ensembles = [
        str(each["fragments"]) for each in changes
    ]  # One change by the writer, one by the repair.
    assert [LOST in each for each in ensembles] == [False, False]
    assert "ledger_deleted" not in _life(events, neighbour)


def _of(events: list[Any], ledger_id: int) -> list[Any]:
    return [each for each in events if each.get("ledger_id") == ledger_id]


def _life(events: list[Any], ledger_id: int) -> list[str]:
    """The names of the ledger's events, in order of their first occurrence."""
    return [*dict.fromkeys(each["event"] for each in _of(events, ledger_id))]
