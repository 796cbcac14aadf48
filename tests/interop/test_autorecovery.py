"""Auditors and replication workers of both makes: each repairs what the other marks, and each can lead."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from rollbook.api.cli.bookie.command_table import group as bookies
from rollbook.api.cli.recovery.commands import group as recovery
from tests.interop import shell
from tests.interop.cluster import (
    PATIENCE_S,
    ROLLBOOK,
    Bookie,
    Cluster,
    Make,
    empty,
)
from tests.interop.copies import (
    busiest,
    check_copies,
    naming,
    rollbook,
    run,
    wait_whole,
    write_ledgers,
)
from tests.interop.puppet import Client, Pending, Protocol, Puppet
from tests.interop.shell import Tell
from tests.support.processes import REPOSITORY
from tests.support.zookeeper import ZooKeeperServer, tree

BOOKIES = 3  # One to lose, and two for the copies.


@dataclass(frozen=True, slots=True)
class Setup:
    cluster: Cluster
    puppet: Puppet
    client: Client


def place(cluster: Cluster) -> Setup:
    puppet = cluster.puppet()
    return Setup(cluster, puppet, puppet.connect(cluster.metadata, Protocol.V3))


@pytest.fixture(scope="module")
def java_place(
    java: None, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Setup]:
    """A cluster initialised by Java, with Java bookies."""
    folder = tmp_path_factory.mktemp("javas-recovery")
    with tree(zookeeper_server) as own, empty(own, folder, "longhierarchical") as cluster:
        for _ in range(BOOKIES):
            cluster.add_bookie(Make.JAVA)
        shell.run(cluster.bookies[0].config_path, "initnewcluster")
        cluster.start()
        yield place(cluster)


@pytest.fixture(scope="module")
def our_place(
    java: None, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Setup]:
    """A cluster initialised by us, with our bookies."""
    folder = tmp_path_factory.mktemp("our-recovery")
    with tree(zookeeper_server) as own, empty(own, folder) as cluster:
        command = [*ROLLBOOK, "cluster", "init", "--metadata", cluster.metadata]
        subprocess.run(command, cwd=REPOSITORY, check=True)
        for _ in range(BOOKIES):
            cluster.add_bookie(Make.ROLLBOOK)
        cluster.start()
        yield place(cluster)


@pytest.fixture
def javas(java_place: Setup) -> Iterator[Setup]:
    yield java_place
    mend(java_place)


@pytest.fixture
def ours(our_place: Setup) -> Iterator[Setup]:
    yield our_place
    mend(our_place)


def mend(found: Setup) -> None:
    """Restore the cluster: no recovery processes, all bookies running, no ledgers and no marks."""
    down = [bookie for bookie in found.cluster.bookies if not bookie.is_running]
    for bookie in down:
        bookie.begin()
    found.cluster.end_recovery()
    for bookie in down:
        bookie.wait_serving()
    rollbook(found.cluster, recovery, "delay", "1")
    run(found.cluster, recovery, "resume")
    for ledger_id in found.client.ledgers():
        found.client.delete(ledger_id)
    found.cluster.remove_marks()


def lose_a_bookie(place: Setup, *, by_java: bool = False) -> None:
    """Kill a bookie, wait until its copies are made elsewhere, and start it with its old files."""
    cluster, client = place.cluster, place.client
    ids = write_ledgers(client)
    lost = busiest(cluster, client, ids)
    lost.kill()
    wait_whole(cluster, client, ids, lost, by_java=by_java)
    lost.start()


def wait_auditors(cluster: Cluster, *names: str) -> None:
    """Wait until these are the candidates for auditor, in this order."""
    cluster.wait_until(lambda: cluster.auditors() == list(names), f"auditors are {names}")
    assert rollbook(cluster, recovery, "auditor")["auditor"] == names[0]


def test_our_recovery_copies_ledgers_of_a_lost_java_bookie(javas: Setup) -> None:
    javas.cluster.start_recovery("ours")
    lose_a_bookie(javas)


def test_java_worker_repairs_our_auditors_marks_then_java_leads(
    ours: Setup,
) -> None:
    leader = ours.cluster.start_recovery("ours", "--no-worker")
    wait_auditors(ours.cluster, "ours")
    ours.cluster.start_javas_autorecovery("java")
    wait_auditors(ours.cluster, "ours", "java")
    lose_a_bookie(ours, by_java=True)
    leader.kill()
    wait_auditors(ours.cluster, "java")
    lose_a_bookie(ours, by_java=True)


def test_our_worker_repairs_ledgers_marked_by_javas_auditor(ours: Setup) -> None:
    ours.cluster.start_javas_autorecovery("java", only_audits=True)
    wait_auditors(ours.cluster, "java")
    ours.cluster.start_recovery("ours", "--no-auditor")
    lose_a_bookie(ours)


def test_drain_ends_under_javas_auditor_and_our_auditor_takes_over(ours: Setup) -> None:
    cluster, client = ours.cluster, ours.client
    leader = cluster.start_javas_autorecovery("java")
    wait_auditors(cluster, "java")
    cluster.start_recovery("ours")
    wait_auditors(cluster, "java", "ours")
    ids = write_ledgers(client)[:-1]  # The open ledger's writer does not know of drains.
    leaving = busiest(cluster, client, ids)
    (drained,) = rollbook(cluster, bookies, "drain", leaving.bookie_id, "--wait")
    assert drained["state"] == "drained"
    assert not naming(client, ids, leaving)
    check_copies(client, ids)
    assert rollbook(cluster, bookies, "safe-to-remove", leaving.bookie_id)["safe_to_remove"]
    rollbook(cluster, bookies, "undrain", leaving.bookie_id)
    leaving.wait_writable()
    leader.kill()
    wait_auditors(cluster, "ours")
    lose_a_bookie(ours)


# --- Commands -----------------------------------------------------------------------------------


def start_shell(ours: Setup, *words: str) -> Pending:
    """Start a command of Java's shell in the running JVM; the result is its exit code."""
    config = str(ours.cluster.bookies[0].config_path)
    return ours.puppet.start("shell", config=config, words=words)


def tell(ours: Setup, *words: str) -> None:
    assert start_shell(ours, *words).result() == 0


def test_javas_shell_controls_our_auditor_and_worker(ours: Setup) -> None:
    cluster, client = ours.cluster, ours.client
    ask = Tell(cluster.bookies[0].config_path)
    cluster.start_recovery("ours", "--no-worker")
    wait_auditors(cluster, "ours")
    assert "auditor=ours" in ask("whoisauditor")
    tell(ours, "lostbookierecoverydelay", "-set", "600")
    assert rollbook(cluster, recovery, "delay") == {"delay_s": 600}
    ids = write_ledgers(client)
    lost = busiest(cluster, client, ids)
    lost.kill()
    cluster.wait_until(lambda: lost.standing is None, f"{lost.bookie_id} is gone")
    short = naming(client, ids, lost)
    assert not cluster.marked()
    tell(ours, "triggeraudit")
    cluster.wait_until(
        lambda: sorted(cluster.marked()) == short, "all are marked without the delay"
    )
    listed = ask("listunderreplicated", "-missingreplica", lost.bookie_id, "-printmissingreplica")
    found = re.findall(r"Under-replicated ledger .*ledgerId=(\d+)", listed)
    assert sorted(map(int, found)) == short
    assert f"missingReplica={lost.bookie_id}" in listed
    tell(ours, "autorecovery", "-disable")
    assert rollbook(cluster, recovery, "status")["autorecovery"] == "paused"
    cluster.start_recovery("worker", "--no-auditor")
    tell(ours, "recover", "-force", lost.bookie_id)
    assert not naming(client, ids, lost)
    assert sorted(cluster.marked()) == short  # Our worker is paused.
    tell(ours, "autorecovery", "-enable")
    wait_whole(cluster, client, ids, lost)


@dataclass(frozen=True, slots=True)
class Decommissioning:
    ids: list[int]
    lost: Bookie
    command: Pending


@pytest.fixture(scope="module")
def decommissioning(our_place: Setup) -> Decommissioning:
    """`decommissionbookie` of a killed bookie of ours, under our auditor and worker. The command sleeps for 30 s after it
    has requested an audit, and another test runs during that time.
    """
    cluster, client = our_place.cluster, our_place.client
    cluster.start_recovery("ours")
    wait_auditors(cluster, "ours")
    ids = write_ledgers(client)
    lost = busiest(cluster, client, ids)
    lost.kill()
    cluster.bookies.remove(lost)
    cluster.wait_until(lambda: lost.standing is None, f"{lost.bookie_id} is gone")
    command = ("decommissionbookie", "-bookieid", lost.bookie_id)
    return Decommissioning(ids, lost, start_shell(our_place, *command))


def test_our_commands_control_javas_recovery_on_java_bookies(javas: Setup) -> None:
    cluster, client = javas.cluster, javas.client
    auditor = cluster.start_javas_autorecovery("auditor", only_audits=True)
    wait_auditors(cluster, "auditor")
    rollbook(cluster, recovery, "delay", "600")
    run(cluster, recovery, "pause")
    assert rollbook(cluster, recovery, "status")["autorecovery"] == "paused"
    ids = write_ledgers(client)
    lost = busiest(cluster, client, ids)
    lost.kill()
    cluster.wait_until(lambda: lost.standing is None, f"{lost.bookie_id} is gone")
    short = naming(client, ids, lost)
    run(cluster, recovery, "resume")
    assert not cluster.marked()

    def is_marked_when_asked() -> bool:
        """Java's auditor does nothing until it has noticed that the bookie is missing."""
        rollbook(cluster, recovery, "audit")
        return sorted(cluster.marked()) == short

    cluster.wait_until(is_marked_when_asked, "all are marked without the delay")
    rows = rollbook(cluster, recovery, "ls")
    assert {row["ledger_id"]: row["bookies"] for row in rows} == {
        ledger_id: [lost.bookie_id] for ledger_id in short
    }
    is_open = ids[-1] in short
    moved = rollbook(
        cluster,
        recovery,
        "bookie",
        lost.bookie_id,
        "--skip-open",
        "--yes",
        code=5 if is_open else 0,
    )
    assert (moved["repaired"], moved["skipped_open"]) == (len(short) - is_open, int(is_open))
    auditor.kill()
    cluster.start_javas_autorecovery("java")
    wait_auditors(cluster, "java")
    wait_whole(cluster, client, ids, lost, by_java=True)


@pytest.mark.usefixtures("decommissioning")
def test_a_java_bookie_is_drained_and_removed(javas: Setup) -> None:
    """A Java bookie ignores our lifecycle states, so its operator makes it read-only."""
    cluster, client = javas.cluster, javas.client
    cluster.start_javas_autorecovery("java")
    wait_auditors(cluster, "java")
    cluster.start_recovery("ours")
    ids = write_ledgers(client)[:-1]
    leaving = busiest(cluster, client, ids)
    (draining,) = rollbook(cluster, bookies, "drain", leaving.bookie_id)
    assert draining["state"] == "draining"
    leaving.stop()
    leaving.start(read_only=True)
    cluster.wait_until(
        lambda: not naming(client, ids, leaving), f"no ledger names {leaving.bookie_id}"
    )
    check_copies(client, ids)
    leaving.stop()
    rollbook(cluster, bookies, "safe-to-remove", leaving.bookie_id)
    rollbook(cluster, bookies, "remove", leaving.bookie_id, "--yes")
    cluster.bookies.remove(leaving)


def test_javas_shell_decommissions_a_bookie_of_ours(
    ours: Setup, decommissioning: Decommissioning
) -> None:
    assert decommissioning.command.result(PATIENCE_S) == 0
    wait_whole(ours.cluster, ours.client, decommissioning.ids, decommissioning.lost)
    asked = run(ours.cluster, bookies, "safe-to-remove", decommissioning.lost.bookie_id, code=1)
    assert not asked  # The bookie no longer exists: its cookie was deleted.
