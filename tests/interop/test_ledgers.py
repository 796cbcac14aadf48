"""The Java client on ledgers whose bookies all run."""

import pytest

from tests.interop.cluster import Cluster
from tests.interop.expectations import (
    ALL,
    STRIPED,
    entries,
    java_is_fenced_off,
    payloads,
    refused,
)
from tests.interop.puppet import PASSWORD, Client, Digest, Protocol, Puppet, Shape, awaited

LARGEST = 5 * 1024 * 1024 - 256  # The frame's 5 MiB include all headers.
SOON_MS = 500
LONG_MS = 30_000


@pytest.mark.parametrize("digest", Digest, ids=lambda digest: str(digest.value))
@pytest.mark.parametrize("shape", [ALL, STRIPED, Shape(1, 1, 1)], ids=str)
def test_written_entries_are_read(client: Client, digest: Digest, shape: Shape) -> None:
    written = payloads(50, 300)
    writer = client.create(shape, digest)
    assert writer.append(written) == list(range(50))
    assert writer.read(0, 49) == entries(written)
    writer.close()
    reader = client.open(writer.ledger_id, digest, recover=False)
    assert (reader.last_confirmed, reader.length) == (49, 50 * 300)
    assert reader.read(0, 49) == entries(written)
    with refused("BKReadException"):
        reader.read(50, 50)


@pytest.mark.parametrize("digest", Digest, ids=lambda digest: str(digest.value))
@pytest.mark.parametrize("shape", [ALL, STRIPED], ids=str)
def test_recovery_keeps_acked_entries_and_fences_the_writer(
    client: Client, digest: Digest, shape: Shape
) -> None:
    written = payloads(20, 100)
    writer = client.create(shape, digest)
    writer.append(written)
    reader = client.open(writer.ledger_id, digest, recover=True)
    assert (reader.last_confirmed, reader.length) == (19, 20 * 100)
    assert reader.read(0, 19) == entries(written)
    with java_is_fenced_off():
        writer.append([b"late"])
    metadata = client.metadata(writer.ledger_id)
    assert (metadata["state"], metadata["last_entry"]) == ("CLOSED", 19)


def test_recovery_closes_a_ledger_that_was_never_written(client: Client) -> None:
    writer = client.create(ALL)
    assert client.open(writer.ledger_id, recover=True).last_confirmed == -1
    with refused("BKLedgerFencedException"):
        writer.append([b"late"])


def test_a_writer_is_fenced_at_full_speed(client: Client) -> None:
    """Recovery keeps every acknowledged entry."""
    writer = client.create(ALL)
    written = payloads(3000, 100)
    for first in range(0, 500, 100):
        writer.append(written[first : first + 100])
    rest = writer.start_append(written[500:])
    reader = client.open(writer.ledger_id, recover=True)
    last = reader.last_confirmed
    assert last >= 499
    assert reader.read(0, last) == entries(written)[: last + 1]
    if last < 2999:
        with java_is_fenced_off():
            rest.result()


def test_two_recoveries_at_once_agree(clients: dict[Protocol, Client]) -> None:
    writer = clients[Protocol.V3].create(ALL)
    writer.append(payloads(200, 100))
    racers = [client.start_open(writer.ledger_id, recover=True) for client in clients.values()]
    assert {racer.result()["last_confirmed"] for racer in racers} == {199}


def test_concurrent_writers_of_four_ledgers_keep_all_entries(client: Client) -> None:
    written = payloads(2500, 100)
    writers = [client.create(STRIPED) for _ in range(4)]
    for sent in [writer.start_append(written) for writer in writers]:
        assert sent.result() == list(range(2500))
    for writer in writers:
        assert writer.read(0, 2499) == entries(written)


@pytest.mark.parametrize("size", [0, LARGEST])
def test_empty_and_largest_entries_are_read_back(client: Client, size: int) -> None:
    written = payloads(3, size)
    writer = client.create(ALL)
    writer.append(written)
    writer.close()
    assert client.open(writer.ledger_id, recover=False).read(0, 2) == entries(written)


def test_too_large_entry_does_not_affect_another_client(
    puppet: Puppet, cluster: Cluster, protocol: Protocol
) -> None:
    """Each bookie closes the connection, but serves other clients."""
    greedy = puppet.connect(cluster.metadata, protocol)
    with refused("BKNotEnoughBookiesException"):
        greedy.create(ALL).append([bytes(2 * LARGEST)])
    assert puppet.connect(cluster.metadata, protocol).create(ALL).append([b"small"]) == [0]


def test_entries_sent_in_reverse_order_are_read_in_order(client: Client) -> None:
    written = payloads(30, 100)
    writer = client.create(STRIPED, numbered=True)
    writer.write({entry_id: written[entry_id] for entry_id in reversed(range(30))})
    writer.close()
    found = client.open(writer.ledger_id, recover=False).read(0, 29)
    assert [entry.payload for entry in found] == written


def test_a_reader_without_recovery_follows_a_writer(client: Client) -> None:
    written = payloads(10, 100)
    writer = client.create(STRIPED)
    writer.append(written[:1])
    writer.append(written[1:5])
    reader = client.open(writer.ledger_id, recover=False)
    # Each entry carries the LAC at its sending, so the last of the batch confirms entries 0 to 3.
    assert 0 <= reader.last_confirmed < 4
    for payload in written[5:]:
        writer.append([payload])
    assert reader.read_last_confirmed() == 8
    assert reader.read(0, 8) == entries(written)[:9]
    with refused("BKReadException"):
        reader.read(9, 9)
    assert reader.read_unconfirmed(9, 9) == entries(written)[9:]
    writer.append([b"more"])  # None of the reads fenced the writer.


# In a striped ledger no bookie has all entries, so a single poll may wait in vain.
@pytest.mark.parametrize(
    ("shape", "parallel"), [(ALL, False), (ALL, True), (STRIPED, True)], ids=str
)
@pytest.mark.parametrize("digest", Digest, ids=lambda digest: str(digest.value))
def test_long_poll_ends_with_the_awaited_entry(
    v3: Client, digest: Digest, shape: Shape, parallel: bool
) -> None:
    written = payloads(12, 100)
    writer = v3.create(shape, digest)
    writer.append(written[:1])
    reader = v3.open(writer.ledger_id, digest, recover=False)
    for entry_id in range(10):  # Each entry confirms the one before it.
        poll = reader.start_await_entry(entry_id, LONG_MS, parallel=parallel)
        writer.append(written[entry_id + 1 : entry_id + 2])
        confirmed, found = awaited(poll)
        assert confirmed >= entry_id
        if found or shape is ALL:  # Of other shapes, the first bookie to answer may lack it.
            assert found == entries(written)[entry_id : entry_id + 1]


def test_long_poll_times_out(v3: Client) -> None:
    writer = v3.create(ALL)
    writer.append([b"one"])
    reader = v3.open(writer.ledger_id, recover=False)
    assert awaited(reader.start_await_entry(0, SOON_MS, parallel=False)) == (-1, [])


def test_a_long_poll_over_the_older_protocol_does_not_wait(v2: Client) -> None:
    writer = v2.create(ALL)
    for payload in (b"one", b"two"):
        writer.append([payload])
    reader = v2.open(writer.ledger_id, recover=False)
    assert awaited(reader.start_await_entry(0, LONG_MS, parallel=False)) == (0, entries([b"one"]))
    assert awaited(reader.start_await_entry(5, LONG_MS, parallel=False)) == (0, [])


def test_an_explicit_lac_confirms_the_last_entry(cluster: Cluster, puppet: Puppet) -> None:
    for protocol in Protocol:
        eager = puppet.connect(cluster.metadata, protocol, {"explicitLacInterval": 20})
        writer = eager.create(ALL)
        writer.append(payloads(3, 100))
        reader = eager.open(writer.ledger_id, recover=False)
        cluster.wait_until(lambda: reader.read_explicit_last_confirmed() == 2, "an explicit LAC")  # noqa: B023
        assert reader.read(0, 2) == entries(payloads(3, 100))


def test_an_explicit_lac_ends_a_long_poll(cluster: Cluster, puppet: Puppet) -> None:
    eager = puppet.connect(cluster.metadata, Protocol.V3, {"explicitLacInterval": 1000})
    writer = eager.create(ALL)
    writer.append([b"one"])
    reader = eager.open(writer.ledger_id, recover=False)
    confirmed, _ = awaited(reader.start_await_entry(0, LONG_MS, parallel=False))
    assert confirmed == 0


def test_entries_with_deferred_sync_are_confirmed_by_force(v3: Client) -> None:
    written = payloads(30, 100)
    writer = v3.create(ALL, deferred_sync=True)
    assert writer.append(written) == list(range(30))
    assert writer.read_unconfirmed(0, 29) == entries(written)
    with refused("BKReadException"):
        writer.read(0, 0)
    writer.force()
    assert writer.read(0, 29) == entries(written)
    writer.close()
    assert v3.open(writer.ledger_id, recover=False).last_confirmed == 29


def test_batch_reads_return_entries_within_the_byte_limit(v2: Client) -> None:
    written = payloads(100, 1000)
    writer = v2.create(Shape(3, 3, 3))  # Every bookie has all entries.
    writer.append(written)
    writer.close()
    reader = v2.open(writer.ledger_id, recover=False)
    assert reader.read_batch(0, 99, 5_000_000) == entries(written)
    found = reader.read_batch(40, 99, 10_000)
    assert 1 <= len(found) <= 10
    assert found == entries(written)[40 : 40 + len(found)]
    assert reader.read_batch(99, 99, 1) == entries(written)[99:]


def test_wrong_password_is_refused(client: Client, cluster: Cluster) -> None:
    writer = client.create(Shape(3, 3, 3))
    writer.append([b"one"])
    with refused("BKUnauthorizedAccessException"):
        client.open(writer.ledger_id, password="guessed", recover=True)
    for bookie in cluster.bookies:
        with refused("BKUnauthorizedAccessException"):
            client.fence_one(bookie.bookie_id, writer.ledger_id, entry=0, password="guessed")
    writer.append([b"two"])


def test_single_fenced_bookie_refuses_the_writer(client: Client, cluster: Cluster) -> None:
    writer = client.create(Shape(3, 3, 3))
    writer.append([b"one"])
    bookie = cluster.bookies[1].bookie_id
    assert client.fence_one(bookie, writer.ledger_id, entry=0, password=PASSWORD) > 0
    with refused("BKLedgerFencedException"):
        writer.append([b"two"])
    with refused("BKNoSuchEntryException"):
        client.fence_one(bookie, writer.ledger_id, entry=7, password=PASSWORD)


def test_fence_holds_on_a_bookie_without_entries(client: Client, cluster: Cluster) -> None:
    writer = client.create(Shape(3, 3, 3))
    for entry_id in (0, -1):
        with refused("BKNoSuchEntryException"):
            client.fence_one(
                cluster.bookies[0].bookie_id, writer.ledger_id, entry=entry_id, password=PASSWORD
            )
    with refused("BKLedgerFencedException"):
        writer.append([b"late"])


def test_a_deleted_ledger_is_gone(client: Client) -> None:
    writer = client.create(ALL)
    writer.append([b"one"])
    writer.close()
    assert writer.ledger_id in client.ledgers()
    client.delete(writer.ledger_id)
    assert writer.ledger_id not in client.ledgers()
    with refused("BKNoSuchLedgerExistsOnMetadataServerException"):
        client.open(writer.ledger_id, recover=False)


def test_a_bookie_lists_its_entries(v3: Client) -> None:
    writer = v3.create(STRIPED)
    writer.append(payloads(31, 10))
    (fragment,) = v3.metadata(writer.ledger_id)["fragments"]
    for index, bookie in enumerate(fragment["ensemble"]):
        held = [entry for entry in range(31) if index in (entry % 3, (entry + 1) % 3)]
        assert v3.entries_on(bookie, writer.ledger_id, last=31) == held
    with refused("BKNoSuchLedgerExistsException"):
        v3.entries_on(bookie, 1 << 40, last=3)


def test_bookies_tell_of_their_disks(client: Client, cluster: Cluster) -> None:
    found = client.disk_bytes()
    for bookie in cluster.bookies:
        (name,) = [name for name in found if bookie.bookie_id in name]
        assert 0 < found[name]["free"] <= found[name]["total"]


def test_administrators_see_the_bookies(client: Client, cluster: Cluster) -> None:
    everybody = sorted(bookie.bookie_id for bookie in cluster.bookies)
    found = client.bookies()
    assert sorted(found["all"]) == everybody
    assert sorted(found["writable"]) == everybody
    assert found["read_only"] == []
