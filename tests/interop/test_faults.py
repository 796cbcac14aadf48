"""What the Java client does when bookies die, come back, or refuse to be written."""

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
    """Whatever a test did to its bookies: the next one finds them all writable."""
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
    """A new one for each test: one that lives on may not have noticed yet who came back."""
    return puppet.connect(cluster.metadata, protocol)


def members(client: Client, ledger_id: int, fragment: int = -1) -> list[str]:
    found: list[str] = client.metadata(ledger_id)["fragments"][fragment]["ensemble"]
    return found


def member(cluster: Cluster, client: Client, ledger_id: int) -> Bookie:
    return cluster.bookie(members(client, ledger_id)[0])


def wait_whole(cluster: Cluster, client: Client) -> None:
    """Until a client that lived through it all writes to every bookie again."""

    def writes() -> bool:
        try:
            return client.create(Shape(3, 3, 3)).append([b"one"]) == [0]
        except JavaError:  # Not enough bookies yet, or ZooKeeper's session is new.
            return False

    cluster.wait_until(writes, "every bookie is written to")


def wait_connected(cluster: Cluster, client: Client, bookie: Bookie, ledger_id: int) -> None:
    """Until a client that lost its connection to it has another one."""

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


def test_bookies_that_were_all_killed_have_what_they_acknowledged(
    client: Client, cluster: Cluster
) -> None:
    """Entries, fences and keys."""
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


def test_an_orderly_stop_is_seen_at_once(cluster: Cluster) -> None:
    bookie = cluster.bookies[0]
    bookie.stop()
    assert bookie.standing is None  # Not only when its session has run out.


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
    writer.append([b"more"])  # Refused by that bookie; the writer goes on with another.
    assert bookie.bookie_id not in members(client, writer.ledger_id)
    # That is a read, too.
    assert client.fence_one(bookie.bookie_id, writer.ledger_id, entry=29, password=PASSWORD)
    assert bookie.bookie_id not in members(client, client.create(PAIR).ledger_id)
    with refused("BKNotEnoughBookiesException"):
        client.create(ALL)


def test_a_bookie_that_was_taken_for_dead_comes_back(client: Client, cluster: Cluster) -> None:
    writer = client.create(Shape(3, 3, 3))
    writer.append([b"one"])
    cluster.bookies[0].pause()
    waiting = writer.start_append([b"two"])
    cluster.bookies[0].resume()
    assert waiting.result() == [1]
    wait_whole(cluster, client)


def test_writers_go_on_while_zookeeper_is_away(client: Client, cluster: Cluster) -> None:
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


def test_a_lost_bookie_is_copied_to_others(client: Client, cluster: Cluster) -> None:
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
    cluster.bookie(kept).kill()  # The copy alone has to answer.
    assert client.open(writer.ledger_id, recover=False).read(0, 59) == entries(written)
