"""Recovery as processes: copies of a killed bookie are made on other bookies."""

import asyncio
import json
import re
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result

from rollbook.api.cli.recovery.commands import group as recovery_commands
from rollbook.api.cli.server.bookie_settings import read_bookie_config, settings_of
from rollbook.api.cli.server.commands import group
from rollbook.api.cli.server.recovery import load_recovery_settings, recovery_of_bookie
from rollbook.ledger.open_client import connect
from rollbook.proto.errors import BadConfig, NotConfirmed
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.wire.messages import ListEntries
from rollbook.recovery.copier import listed_in
from tests.messages import raises_message
from tests.support import processes
from tests.support.ledger_cluster import ProcessCluster

PATIENCE_S = 60.0
LOST = BookieId("bk-4")
QUICK = {"ROLLBOOK_AUDIT_LOST_BOOKIE_DELAY_S": "1", "ROLLBOOK_WORKER_GRACE_S": "0"}


async def write_ledgers(url: str, count: int) -> list[LedgerId]:
    """Write ledgers, every second one left open; returns the ids of those with copies on `LOST`."""
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


async def until_dropped(url: str, ids: list[LedgerId]) -> None:
    """Wait until the restarted bookie has deleted the copies that metadata no longer names."""
    async with asyncio.timeout(PATIENCE_S), connect(url) as ledgers:
        while not ledgers.live().find(LOST):
            await asyncio.sleep(0.1)
        for ledger_id in ids:
            while True:
                reply = await ledgers.bookies.call(LOST, ListEntries(ledger_id), deadline_s=60)
                if not listed_in(reply, ledger_id).count:
                    break
                await asyncio.sleep(0.1)


def test_killed_bookies_copies_are_re_replicated(tmp_path: Path) -> None:
    """AR1, AR2, AR3, AR5, AR6, AR12, AR16, AR18, AR23, BL24: auditor and worker run in one process,
    apart from the bookies.
    """
    names = ("bk-1", "bk-2", "bk-3", LOST)
    with processes.family() as children:
        cluster = ProcessCluster(children, tmp_path, names)
        ids = asyncio.run(write_ledgers(cluster.url, 16))
        command = (sys.executable, "-m", "rollbook.api.cli.main", "server", "recovery")
        servers = [
            children.start(
                *command,
                "--metadata",
                cluster.url,
                "--name",
                name,
                "--log-level",
                "error",
                "--http",
                "127.0.0.1:0",
                environment=QUICK,
            )
            for name in ("recovery-1", "recovery-2")
        ]
        pages: list[str] = []
        for name, server in zip(("recovery-1", "recovery-2"), servers, strict=True):
            line = server.line()
            assert line.startswith(f"ready: recovery server {name}, auditor and worker (http on ")
            pages.append(line.partition("(http on ")[2].strip(" )\n"))
        cluster.bookies[LOST].kill()
        asyncio.run(until_whole(cluster.url, ids))
        shown = "".join(urlopen(f"http://{page}/metrics").read().decode() for page in pages)
        counted = [
            float(each)
            for each in re.findall(r"^rollbook_recovery_repairs_total (.*)$", shown, re.MULTILINE)
        ]
        assert sum(counted) >= len(ids)
        assert sorted(re.findall(r"^rollbook_recovery_is_auditor (.)", shown, re.MULTILINE)) == [
            "0",
            "1",
        ]


def test_bookies_with_recovery_re_replicate_a_killed_bookie(tmp_path: Path) -> None:
    """AR4, AR20, BL24: recovery runs inside the bookies; the restarted one drops surplus copies."""
    names = ("bk-1", "bk-2", "bk-3", LOST)
    with processes.family() as children:
        more = {"ROLLBOOK_WITH_RECOVERY": "1", "ROLLBOOK_SPACE_SURPLUS_INTERVAL_S": "0.5"}
        cluster = ProcessCluster(children, tmp_path, names, more | QUICK)
        ids = asyncio.run(write_ledgers(cluster.url, 6))
        cluster.bookies[LOST].kill()
        asyncio.run(until_whole(cluster.url, ids))
        cluster.start(LOST)
        asyncio.run(until_dropped(cluster.url, ids))


def test_recovery_bookie_refuses_a_running_bookie_then_runs(tmp_path: Path) -> None:
    """AR16, AR36, AR39, AR40, BL26: `--dry-run` counts the ledgers, and `--yes` is required."""
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
        (["--metadata", "sqlite:///m", "--tls-certificate", "x.pem"], "tls_authorities"),
        (["--metadata", "sqlite:///m", "--tls-key", "x.pem"], "tls_certificate"),
    ],
)
def test_invalid_recovery_settings_are_refused_by_name(flags: list[str], setting: str) -> None:
    result = CliRunner().invoke(group, ["recovery", *flags], standalone_mode=False)
    assert isinstance(result.exception, BadConfig)
    assert setting in result.exception.settings


CONF = """
metadataServiceUri=zk+hierarchical://zk1:2181/ledgers
zkTimeout=20000
autoRecoveryDaemonEnabled=true
journalDirectories=/j
ledgerDirectories=/l
auditorPeriodicBookieCheckInterval=3600
auditorPeriodicCheckInterval=86400
auditorLedgerVerificationPercentage=5
underreplicatedLedgerRecoveryGracePeriod=600
auditorPeriodicPlacementPolicyCheckInterval=7200
lostBookieRecoveryDelay=60
openLedgerRereplicationGracePeriod=45000
rereplicationEntryBatchSize=100
replicationRateByBytes=1048576
rwRereplicateBackoffMs=7000
"""


def test_bookkeeper_conf_sets_recovery_settings(tmp_path: Path) -> None:
    """AR8, AR9: the file is read by a recovery server and by a bookie with recovery, and its values
    are converted from BookKeeper's units.
    """
    path = tmp_path / "bk_server.conf"
    path.write_text(CONF)
    alone = load_recovery_settings(str(path))
    file = read_bookie_config(str(path))
    inside = recovery_of_bookie(file, settings_of(file, bookie_id="bk-1"))
    for found in (alone, inside):
        assert found.server.metadata == "zk+hierarchical://zk1:2181/ledgers"
        assert found.server.session_timeout_s == 20.0
        assert (found.audit.bookie_check_s, found.audit.lost_bookie_delay_s) == (3600, 60)
        assert (found.audit.ledgers_check_s, found.audit.ledgers_check_percent) == (86_400, 5)
        assert (found.audit.placement_check_s, found.audit.overdue_s) == (7200, 600)
        worker = found.worker
        assert (worker.grace_s, worker.retry_pause_s) == (45.0, 7.0)
        assert (worker.entries_at_once, worker.bytes_per_s_max) == (100, 1024 * 1024)
    assert inside.server.name == "bk-1"
    path.write_text(CONF + "replicationRateByBytes=-1\nauditorPeriodicBookieCheckInterval=0\n")
    unlimited = load_recovery_settings(str(path))
    assert (unlimited.worker.bytes_per_s_max, unlimited.audit.bookie_check_s) == (0, 0)
    path.write_text(CONF + "openLedgerRereplicationGracePeriod=-1\n")
    with raises_message(BadConfig):
        load_recovery_settings(str(path))


def test_recovery_in_a_bookie_uses_the_bookies_tls_files(tmp_path: Path) -> None:
    path = tmp_path / "bookie.toml"
    path.write_text(
        """
[bookie]
metadata = "sqlite:///m"
tls_listen = "127.0.0.1:3182"
tls_certificate = "own.pem"
tls_authorities = "ca.pem"
with_recovery = true

[storage]
journal_dir = "/j"
ledger_dirs = ["/l"]

[recovery]
no_auditor = true

[worker]
bytes_per_s_max = 0
"""
    )
    file = read_bookie_config(str(path))
    settings = settings_of(file)
    assert settings.bookie.with_recovery
    found = recovery_of_bookie(file, settings)
    assert (found.server.tls_authorities, found.server.tls_certificate) == ("ca.pem", "own.pem")
    assert (found.server.no_auditor, found.worker.bytes_per_s_max) == (True, 0)
