"""Auditors and replication workers of both makes: what one marks the other repairs, and either leads."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from rollbook.api.cli.recovery import group as recovery
from tests.interop import shell
from tests.interop.cluster import RECOVERY_SESSION_TIMEOUT_MS, ROLLBOOK, Cluster, Make, empty
from tests.interop.copies import busiest, rollbook, wait_whole, write_ledgers
from tests.interop.puppet import Client, Protocol
from tests.support.processes import REPOSITORY
from tests.support.zookeeper import ZooKeeperServer, tree

BOOKIES = 3  # One to lose, and two for the copies.
SETTINGS = {"zkTimeout": RECOVERY_SESSION_TIMEOUT_MS}  # A killed bookie is missed soon.


@dataclass(frozen=True, slots=True)
class Place:
    cluster: Cluster
    client: Client


@pytest.fixture(scope="module")
def javas(
    java: None, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """Made by Java, of Java bookies."""
    folder = tmp_path_factory.mktemp("javas-recovery")
    with tree(zookeeper_server) as own, empty(own, folder, "longhierarchical") as cluster:
        for _ in range(BOOKIES):
            cluster.add_bookie(Make.JAVA, settings=SETTINGS)
        shell.run(cluster.bookies[0].config_path, "initnewcluster")
        cluster.start()
        yield Place(cluster, cluster.puppet().connect(cluster.metadata, Protocol.V3))


@pytest.fixture(scope="module")
def ours(
    java: None, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """Made by us, of our bookies."""
    folder = tmp_path_factory.mktemp("our-recovery")
    with tree(zookeeper_server) as own, empty(own, folder) as cluster:
        command = [*ROLLBOOK, "cluster", "init", "--metadata", cluster.metadata]
        subprocess.run(command, cwd=REPOSITORY, check=True)
        for _ in range(BOOKIES):
            cluster.add_bookie(Make.ROLLBOOK, settings=SETTINGS)
        cluster.start()
        yield Place(cluster, cluster.puppet().connect(cluster.metadata, Protocol.V3))


@pytest.fixture(autouse=True)
def whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test no recovery process runs, and all bookies do."""
    places = [
        request.getfixturevalue(name) for name in ("javas", "ours") if name in request.fixturenames
    ]
    yield
    for place in places:
        place.cluster.end_recovery()
        for bookie in place.cluster.bookies:
            if not bookie.is_running:
                bookie.start()


def lose_a_bookie(place: Place) -> None:
    """Its copies are made elsewhere; then it is back, as a bookie that has leftovers of them."""
    cluster, client = place.cluster, place.client
    ids = write_ledgers(client)
    lost = busiest(cluster, client, ids)
    lost.kill()
    wait_whole(cluster, client, ids, lost)
    lost.start()


def wait_auditors(cluster: Cluster, *names: str) -> None:
    """Until these stand for auditor, in this order."""
    cluster.wait_until(lambda: cluster.auditors() == list(names), f"auditors are {names}")
    assert rollbook(cluster, recovery, "auditor")["auditor"] == names[0]


def test_we_make_the_copies_of_a_lost_java_bookie(javas: Place) -> None:
    javas.cluster.start_recovery("ours")
    lose_a_bookie(javas)


def test_javas_worker_makes_the_copies_that_our_auditor_misses_and_java_leads_after_us(
    ours: Place,
) -> None:
    leader = ours.cluster.start_recovery("ours", "--no-worker")
    wait_auditors(ours.cluster, "ours")
    ours.cluster.start_javas_autorecovery("java")
    wait_auditors(ours.cluster, "ours", "java")
    lose_a_bookie(ours)
    leader.kill()
    wait_auditors(ours.cluster, "java")
    lose_a_bookie(ours)


def test_our_worker_makes_the_copies_that_javas_auditor_misses(ours: Place) -> None:
    ours.cluster.start_javas_autorecovery("java", only_audits=True)
    wait_auditors(ours.cluster, "java")
    ours.cluster.start_recovery("ours", "--no-auditor")
    lose_a_bookie(ours)


def test_we_lead_when_javas_auditor_is_killed(ours: Place) -> None:
    leader = ours.cluster.start_javas_autorecovery("java")
    wait_auditors(ours.cluster, "java")
    ours.cluster.start_recovery("ours")
    wait_auditors(ours.cluster, "java", "ours")
    leader.kill()
    wait_auditors(ours.cluster, "ours")
    lose_a_bookie(ours)
