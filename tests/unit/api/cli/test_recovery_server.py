"""Recovery as processes: a bookie is killed, and its copies are made elsewhere."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollbook.api.cli.recovery import group as recovery_commands
from rollbook.api.cli.server import group
from rollbook.ledger.connecting import connect
from rollbook.proto.errors import BadConfig, NotConfirmed
from rollbook.proto.ids import BookieId, LedgerId
from tests.support import processes
from tests.support.ledger_cluster import ProcessCluster

PATIENCE_S = 60.0
LOST = BookieId("bk-4")
QUICK = {"ROLLBOOK_AUDIT_LOST_BOOKIE_DELAY_S": "1", "ROLLBOOK_WORKER_GRACE_S": "0"}


async def write_ledgers(url: str, count: int) -> list[LedgerId]:
    """Every second one is left open by a writer that is gone. Those on the bookie that is lost."""
    ids = []
    async with connect(url) as ledgers:
        await ledgers.until_writable(4, PATIENCE_S)
        for number in range(count):
            writer = await ledgers.create()
            writer.append_many([b"%0100d" % entry for entry in range(50)])
            await writer.flush()
            await (writer.close() if number % 2 else writer.stop())
            if writer.metadata.names(LOST):
                ids.append(writer.ledger_id)
    return ids


async def until_whole(url: str, ids: list[LedgerId]) -> None:
    async with asyncio.timeout(PATIENCE_S), connect(url) as ledgers:
        for ledger_id in ids:
            while (await ledgers.metadata(ledger_id, fresh=True)).metadata.names(LOST):
                await asyncio.sleep(0.1)
            verdict = await ledgers.verify(ledger_id)
            assert (verdict.is_sound, verdict.entries) == (True, 50), ledger_id


async def until_gone(url: str) -> None:
    async with asyncio.timeout(PATIENCE_S), connect(url) as ledgers:
        while ledgers.live().find(LOST):
            await asyncio.sleep(0.1)


def test_a_killed_bookies_copies_are_made_elsewhere(tmp_path: Path) -> None:
    """A1, A2, A3, A5, A6, A12, A16, A18, A23, B24: one command starts auditor and worker, on a machine of their own."""
    names = ("bk-1", "bk-2", "bk-3", LOST)
    with processes.family() as children:
        cluster = ProcessCluster(children, tmp_path, names)
        ids = asyncio.run(write_ledgers(cluster.url, 16))
        command = (sys.executable, "-m", "rollbook.api.cli.main", "server", "recovery")
        servers = [
            children.start(
                *(*command, "--metadata", cluster.url, "--name", name, "--log-level", "error"),
                environment=QUICK,
            )
            for name in ("recovery-1", "recovery-2")
        ]
        for name, server in zip(("recovery-1", "recovery-2"), servers, strict=True):
            assert server.line() == f"ready: recovery server {name}, auditor and worker"
        cluster.bookies[LOST].kill()
        asyncio.run(until_whole(cluster.url, ids))


def test_a_person_moves_copies_and_takes_the_bookie_out(tmp_path: Path) -> None:
    """A36, A38, A39, A40, B26: refused while it takes entries, counted, done, and the cookie is gone."""
    names = ("bk-1", "bk-2", "bk-3", LOST)
    with processes.family() as children:
        cluster = ProcessCluster(children, tmp_path, names)
        ids = asyncio.run(write_ledgers(cluster.url, 3))

        def recover(*flags: str) -> Result:
            words = ["bookie", LOST, "--metadata", cluster.url, *flags]
            return CliRunner().invoke(recovery_commands, words)

        assert "is running and takes entries" in str(recover("--yes").exception)
        cluster.bookies[LOST].kill()
        asyncio.run(until_gone(cluster.url))
        counted = recover("--dry-run")
        assert (counted.exit_code, f"{len(ids)} ledgers name" in counted.output) == (0, True)
        assert isinstance(recover().exception, NotConfirmed)
        done = recover("--yes", "--skip-open", "--delete-cookie", "-o", "json")
        open_ids = [ledger_id for ledger_id in ids if not ledger_id % 2]
        assert json.loads(done.output)["skipped_open"] == len(open_ids)
        assert done.exit_code == (5 if open_ids else 0)


@pytest.mark.parametrize(
    ("flags", "setting"),
    [
        (["--metadata", "memory:x"], "metadata"),
        (["--metadata", "sqlite:///m", "--name", "a/b"], "name"),
        (["--metadata", "sqlite:///m", "--no-auditor", "--no-worker"], "no_worker"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(flags: list[str], setting: str) -> None:
    result = CliRunner().invoke(group, ["recovery", *flags], standalone_mode=False)
    assert isinstance(result.exception, BadConfig)
    assert setting in result.exception.settings
