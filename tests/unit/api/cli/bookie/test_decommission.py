"""Commands alone drain a bookie and remove it from a running cluster (BL16, BL25, BL26)."""

import asyncio
import json
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from rollbook.api.cli.bookie.command_table import group
from rollbook.ledger.open_client import connect
from rollbook.proto.errors import InvalidRequest
from tests.support import processes
from tests.support.ledger_cluster import ProcessCluster
from tests.unit.api.cli.server.test_recovery import LOST, until_gone, until_whole, write_ledgers

NAMES = ("bk-1", "bk-2", "bk-3", LOST)


def test_a_bookie_is_drained_and_removed(tmp_path: Path) -> None:
    with processes.family() as children:
        cluster = ProcessCluster(children, tmp_path, NAMES)
        command = (sys.executable, "-m", "rollbook.api.cli.main", "server", "recovery")
        more = ("--metadata", cluster.url, "--log-level", "error")
        children.start(*command, *more, environment={"ROLLBOOK_WORKER_GRACE_S": "0"})
        ids = asyncio.run(write_ledgers(cluster.url, 6))

        def run(*words: str) -> Result:
            return CliRunner().invoke(group, [*words, "--metadata", cluster.url])

        assert run("safe-to-remove", LOST).exit_code == 5
        drained = run("drain", LOST, "--wait", "-o", "json")
        assert drained.exit_code == 0, drained.output
        assert [row["state"] for row in json.loads(drained.output)] == ["drained"]
        asyncio.run(until_whole(cluster.url, ids))
        assert run("safe-to-remove", LOST).exit_code == 0
        assert isinstance(run("remove", LOST, "--yes").exception, InvalidRequest)
        cluster.bookies[LOST].kill()
        asyncio.run(until_gone(cluster.url))
        assert run("remove", LOST, "--yes").exit_code == 0
        assert isinstance(run("undrain", LOST).exception, InvalidRequest)
        asyncio.run(_append(cluster.url))


async def _append(url: str) -> None:
    async with connect(url) as ledgers:
        writer = await ledgers.create()
        await writer.append(b"the others go on")
        await writer.close()
