"""The Java client while bookies die, come back, or are read-only."""

import re
from collections.abc import Iterator

import pytest

from tests.interop import shell
from tests.interop.cluster import Bookie, Cluster
from tests.interop.expectations import ALL, PAIR, entries, payloads, refused
from tests.interop.puppet import PASSWORD, Client, JavaError, Protocol, Puppet, Shape
from tests.support.zookeeper import LocalZooKeeper


@pytest.fixture(autouse=True)
def whole(cluster: Cluster) -> Iterator[None]:
    """After each test, starts stopped bookies and makes read-only ones writable."""
    yield
    for bookie in cluster.bookies:
        if bookie.is_running and bookie.standing and bookie.standing.is_read_only:
            bookie.stop()
    down = [bookie for bookie in cluster.bookies if not bookie.is_running]
    for bookie in down:
        bookie.begin()
    for bookie in down:
        bookie.wait_serving()


@pytest.fixture
def client(cluster: Cluster, puppet: Puppet, protocol: Protocol) -> Client:
    """A new client for each test: an old one may not have noticed yet that a bookie is back."""
    return puppet.connect(cluster.metadata, protocol)


def members(client: Client, ledger_id: int, fragment: int = -1) -> list[str]:
    found: list[str] = client.metadata(ledger_id)["fragments"][fragment]["ensemble"]
    return found


def member(cluster: Cluster, client: Client, ledger_id: int) -> Bookie:
    return cluster.bookie(members(client, ledger_id)[0])


def wait_whole(cluster: Cluster, client: Client) -> None:
    """Wait until the client, which saw the fault, writes to every bookie again."""

    def writes() -> bool:
        try:
            return client.create(Shape(3, 3, 3)).append([b"one"]) == [0]
        except JavaError:  # Not enough bookies yet, or ZooKeeper's session is new.
            return False

    cluster.wait_until(writes, "every bookie is written to")


def wait_connected(cluster: Cluster, client: Client, bookie: Bookie, ledger_id: int) -> None:
    """Wait until the client has a new connection to the bookie."""

    def answers() -> bool:
        try:
            client.fence_one(bookie.bookie_id, ledger_id, entry=0, password="guessed")
        except JavaError as error:
            return error.name != "BKBookieHandleNotAvailableException"
        return True

    cluster.wait_until(answers, f"{bookie.bookie_id} answers")


def test_a_killed_bookie_is_replaced_while_writing(client: Client, cluster: Cluster) -> None:
    written = payloads(60, 200)
    writer = client.create(PAIR)
    writer.append(written[:30])
    lost = member(cluster, client, writer.ledger_id)
    lost.kill()
    assert writer.append(written[30:]) == list(range(30, 60))
    writer.close()
    assert lost.bookie_id in members(client, writer.ledger_id, 0)
    assert lost.bookie_id not in members(client, writer.ledger_id)
    assert client.open(writer.ledger_id, recover=False).read(0, 59) == entries(written)


def test_recovery_without_a_killed_bookie(client: Client, cluster: Cluster) -> None:
    written = payloads(60, 200)
    writer = client.create(PAIR)
    writer.append(written)
    member(cluster, client, writer.ledger_id).kill()
    reader = client.open(writer.ledger_id, recover=True)
    assert reader.last_confirmed == 59
    assert reader.read(0, 59) == entries(written)


def test_killed_bookies_keep_acked_entries_fences_and_keys(
    client: Client, cluster: Cluster
) -> None:

    written = payloads(60, 200)
    writer, fenced = client.create(ALL), client.create(Shape(3, 3, 3))
    writer.append(written)
    fenced.append([b"one"])
    for bookie in cluster.bookies:
        client.fence_one(bookie.bookie_id, fenced.ledger_id, entry=0, password=PASSWORD)
    for bookie in cluster.bookies:
        bookie.kill()
    cluster.start()
    for bookie in cluster.bookies:
        wait_connected(cluster, client, bookie, fenced.ledger_id)
        with refused("BKUnauthorizedAccessException"):
            client.fence_one(bookie.bookie_id, fenced.ledger_id, entry=0, password="guessed")
    with refused("BKLedgerFencedException"):
        fenced.append([b"late"])
    reader = client.open(writer.ledger_id, recover=True)
    assert reader.last_confirmed == 59
    assert reader.read(0, 59) == entries(written)


def test_stopped_bookie_is_unregistered_at_once(cluster: Cluster) -> None:
    bookie = cluster.bookies[0]
    bookie.stop()
    assert bookie.standing is None  # Before its session would expire.


def test_a_read_only_bookie_is_read_and_not_written(client: Client, cluster: Cluster) -> None:
    written = payloads(30, 200)
    writer = client.create(PAIR)
    writer.append(written)
    bookie = member(cluster, client, writer.ledger_id)
    bookie.stop()
    bookie.start(read_only=True)
    assert client.bookies()["read_only"] == [bookie.bookie_id]
    listed = shell.run(bookie.config_path, "listbookies", "-ro")
    assert re.findall(r"BookieID:([^,]*)", listed) == [bookie.bookie_id]
    writer.append([b"more"])  # That bookie refuses it, and the writer replaces it.
    assert bookie.bookie_id not in members(client, writer.ledger_id)
    # A fencing read is a read, too.
    assert client.fence_one(bookie.bookie_id, writer.ledger_id, entry=29, password=PASSWORD)
    assert bookie.bookie_id not in members(client, client.create(PAIR).ledger_id)
    with refused("BKNotEnoughBookiesException"):
        client.create(ALL)


def test_paused_bookie_comes_back_and_its_writer_continues(
    client: Client, cluster: Cluster
) -> None:
    writer = client.create(Shape(3, 3, 3))
    writer.append([b"one"])
    cluster.bookies[0].pause()
    waiting = writer.start_append([b"two"])
    cluster.bookies[0].resume()
    assert waiting.result() == [1]
    wait_whole(cluster, client)


def test_appends_continue_while_zookeeper_is_away(client: Client, cluster: Cluster) -> None:
    server = cluster.server
    if not isinstance(server, LocalZooKeeper):
        pytest.skip("zk: the server named by the environment is not ours to kill")
    writer = client.create(Shape(3, 3, 3))
    server.kill()
    try:
        for _ in range(20):
            writer.append([b"meanwhile"])
    finally:
        server.start()
    writer.close()
    wait_whole(cluster, client)


def test_copy_of_a_lost_bookie_is_made_on_another(client: Client, cluster: Cluster) -> None:
    written = payloads(60, 200)
    writer = client.create(PAIR)
    writer.append(written)
    writer.close()
    lost = member(cluster, client, writer.ledger_id)
    kept = members(client, writer.ledger_id)[1]
    lost.kill()
    client.replace_bookie(lost.bookie_id, writer.ledger_id)
    new, other = members(client, writer.ledger_id)
    assert other == kept
    assert new not in (kept, lost.bookie_id)
    cluster.bookie(kept).kill()  # Only the new copy can answer.
    assert client.open(writer.ledger_id, recover=False).read(0, 59) == entries(written)
