"""Truncating logs frees space on bookies whose disks are full."""

import asyncio
from pathlib import Path

from rollbook.logservice import messages
from rollbook.logservice.core.record_block import pack_block
from rollbook.logservice.ids import LogName
from rollbook.logservice.position_syntax import Latest
from rollbook.proto.errors import NoSuchLedger, RollbookError
from tests.regressions.defects import defect
from tests.support.log_cluster import LogCluster, RunningServer

_LOG = LogName("default", "large")
_PATIENCE_S = 60.0


def _due() -> float:
    return asyncio.get_running_loop().time() + _PATIENCE_S


async def _fill(cluster: LogCluster, server: RunningServer) -> None:
    """Makes all bookies read-only and waits until the server has noticed."""
    for bookie in cluster.bookies.bookies.values():
        await bookie.set_read_only(True)
    async with asyncio.timeout(_PATIENCE_S):
        while len(server.ledgers.live().read_only) < 3:
            await asyncio.sleep(0.05)


async def _is_gone(server: RunningServer, ledger_id: int) -> bool:
    try:
        await server.ledgers.metadata(ledger_id, fresh=True)
    except NoSuchLedger:
        return True
    return False


@defect(
    "full-bookies-keep-open-segments",
    "Full bookies could not be emptied when all their data was in an open segment.",
)
def test_truncate_empties_full_bookies_of_an_open_segment(tmp_path: Path) -> None:
    asyncio.run(_empty(tmp_path, is_owned=True))


@defect(
    "full-bookies-keep-open-segments",
    "Full bookies could not be emptied when all their data was in an open segment.",
)
def test_truncate_empties_full_bookies_of_an_ownerless_log(tmp_path: Path) -> None:
    asyncio.run(_empty(tmp_path, is_owned=False))


async def _empty(folder: Path, *, is_owned: bool) -> None:
    async with LogCluster(folder) as cluster:
        server = await cluster.start_server("a")
        service = server.service
        await service.ensure_log(messages.EnsureLog(_LOG), _due())
        block = pack_block([b"x" * 1000] * 50)
        for _ in range(20):
            await service.append(messages.Append(_LOG, block), _due())
        (full,) = (await service.list_segments(messages.ListSegments(_LOG), _due())).segments
        await _fill(cluster, server)
        if not is_owned:
            try:
                await service.append(messages.Append(_LOG, block), _due())
            except RollbookError:
                pass  # The failed append costs the log its owner.
        told = await service.truncate(messages.Truncate(_LOG, Latest()), _due())
        assert told.new_head >= 1000
        async with asyncio.timeout(_PATIENCE_S):
            while not await _is_gone(server, full.ledger_id):
                await asyncio.sleep(0.05)
        for bookie in cluster.bookies.bookies.values():
            await bookie.set_read_only(False)
        async with asyncio.timeout(_PATIENCE_S):
            while len(server.ledgers.live().writable) < 3:
                await asyncio.sleep(0.05)
        ack = await service.append(messages.Append(_LOG, block), _due())
        assert ack.first_offset == told.new_head
