"""Two clusters for all tests here: `cluster` has our bookies or, with `--bookies java`, Java bookies for
reference; `mixed` has both makes.
"""

import subprocess
from collections.abc import Iterator

import pytest

from tests.interop import shell, toolchain
from tests.interop.cluster import ROLLBOOK, Cluster, Make, empty, http_settings
from tests.interop.puppet import Client, Protocol, Puppet
from tests.support.java import PIECE, NoJava
from tests.support.processes import REPOSITORY
from tests.support.zookeeper import ZooKeeperServer, free_port, tree, zookeeper_server
from tests.tally import missing_piece

__all__ = ["zookeeper_server"]

BOOKIES = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bookies", choices=[make.value for make in Make], default=Make.ROLLBOOK.value
    )


@pytest.fixture(scope="session")
def make(request: pytest.FixtureRequest) -> Make:
    return Make(request.config.getoption("--bookies", Make.ROLLBOOK.value))


@pytest.fixture(scope="session")
def java() -> None:
    """Without the Java pieces, tests that use this are skipped, or fail if Java is required."""
    try:
        toolchain.PROJECT.ensure_built()
    except NoJava as error:
        pytest.skip(missing_piece(PIECE, str(error), toolchain.PROJECT.how_to_enable))


@pytest.fixture(scope="session")
def cluster(
    java: None,
    make: Make,
    zookeeper_server: ZooKeeperServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with tree(zookeeper_server) as own, empty(own, folder) as cluster:
        command = [*ROLLBOOK, "cluster", "init", "--metadata", cluster.metadata]
        subprocess.run(command, cwd=REPOSITORY, check=True)
        for _ in range(BOOKIES):
            cluster.add_bookie(make)
        cluster.start()
        yield cluster


@pytest.fixture(scope="session")
def mixed(
    java: None, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Initialised by Java: two of our bookies, one with a name, and a Java bookie."""
    folder = tmp_path_factory.mktemp("mixed")
    with tree(zookeeper_server) as own, empty(own, folder, "longhierarchical") as cluster:
        cluster.add_bookie(Make.ROLLBOOK)
        cluster.add_bookie(Make.ROLLBOOK, "bookie-by-name")
        cluster.http_port = free_port()
        # A JVM without processor time for a session's length may shut down; this one serves 200 tests.
        patient = {"zkTimeout": 10_000}
        cluster.add_bookie(Make.JAVA, settings=http_settings(cluster.http_port) | patient)
        shell.run(cluster.bookies[0].config_path, "initnewcluster")
        cluster.start()
        yield cluster


@pytest.fixture(scope="session")
def puppet(cluster: Cluster) -> Puppet:
    return cluster.puppet()


@pytest.fixture(scope="session")
def clients(cluster: Cluster, puppet: Puppet) -> dict[Protocol, Client]:
    return {protocol: puppet.connect(cluster.metadata, protocol) for protocol in Protocol}


@pytest.fixture(params=list(Protocol), ids=lambda protocol: str(protocol.value))
def protocol(request: pytest.FixtureRequest) -> Protocol:
    """A test that uses this or `client` runs with both versions."""
    return Protocol(request.param)


@pytest.fixture
def client(protocol: Protocol, clients: dict[Protocol, Client]) -> Client:
    return clients[protocol]


@pytest.fixture
def v2(clients: dict[Protocol, Client]) -> Client:
    """For batch reads, which Java's client sends over V2 only."""
    return clients[Protocol.V2]


@pytest.fixture
def v3(clients: dict[Protocol, Client]) -> Client:
    """For requests that Java's client sends over V3 only."""
    return clients[Protocol.V3]
