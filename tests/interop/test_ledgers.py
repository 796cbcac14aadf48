"""What the Java client does with ledgers whose bookies are all well."""

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

LARGEST = 5 * 1024 * 1024 - 256  # A frame is 5 MiB with its length, its headers and the entry's.
SOON_MS = 500
LONG_MS = 30_000


@pytest.mark.parametrize("digest", Digest, ids=lambda digest: str(digest.value))
@pytest.mark.parametrize("shape", [ALL, STRIPED, Shape(1, 1, 1)], ids=str)
def test_what_was_written_is_read(client: Client, digest: Digest, shape: Shape) -> None:
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
def test_recovery_keeps_what_was_acknowledged_and_fences_the_writer(
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
    """Every entry that was acknowledged is there after recovery."""
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


def test_many_entries_of_many_ledgers_at_once(client: Client) -> None:
    written = payloads(2500, 100)
    writers = [client.create(STRIPED) for _ in range(4)]
    for sent in [writer.start_append(written) for writer in writers]:
        assert sent.result() == list(range(2500))
    for writer in writers:
        assert writer.read(0, 2499) == entries(written)


@pytest.mark.parametrize("size", [0, LARGEST])
def test_entries_of_any_size(client: Client, size: int) -> None:
    written = payloads(3, size)
    writer = client.create(ALL)
    writer.append(written)
    writer.close()
    assert client.open(writer.ledger_id, recover=False).read(0, 2) == entries(written)


def test_an_entry_that_is_too_large_harms_nobody_else(
    puppet: Puppet, cluster: Cluster, protocol: Protocol
) -> None:
    """Each bookie closes the connection, and serves on."""
    greedy = puppet.connect(cluster.metadata, protocol)
    with refused("BKNotEnoughBookiesException"):
        greedy.create(ALL).append([bytes(2 * LARGEST)])
    assert puppet.connect(cluster.metadata, protocol).create(ALL).append([b"small"]) == [0]


def test_entries_are_sent_in_any_order(client: Client) -> None:
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
    # An entry tells of those that were confirmed before it: of one, or of some that were sent with it.
    assert 0 <= reader.last_confirmed < 4
    for payload in written[5:]:
        writer.append([payload])
    assert reader.read_last_confirmed() == 8
    assert reader.read(0, 8) == entries(written)[:9]
    with refused("BKReadException"):
        reader.read(9, 9)
    assert reader.read_unconfirmed(9, 9) == entries(written)[9:]
    writer.append([b"more"])  # It was not fenced by any of that.


# In a striped ledger not every bookie hears of every entry: one poll alone may wait in vain there.
@pytest.mark.parametrize(
    ("shape", "parallel"), [(ALL, False), (ALL, True), (STRIPED, True)], ids=str
)
@pytest.mark.parametrize("digest", Digest, ids=lambda digest: str(digest.value))
def test_a_long_poll_ends_with_the_entry_it_waits_for(
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
        if found or shape is ALL:  # Else who answers first may not have it.
            assert found == entries(written)[entry_id : entry_id + 1]


def test_a_long_poll_runs_out(v3: Client) -> None:
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


def test_deferred_syncs_confirm_when_they_are_forced(v3: Client) -> None:
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


def test_batches_are_read(v2: Client) -> None:
    written = payloads(100, 1000)
    writer = v2.create(Shape(3, 3, 3))  # Every bookie has them all.
    writer.append(written)
    writer.close()
    reader = v2.open(writer.ledger_id, recover=False)
    assert reader.read_batch(0, 99, 5_000_000) == entries(written)
    found = reader.read_batch(40, 99, 10_000)
    assert 1 <= len(found) <= 10
    assert found == entries(written)[40 : 40 + len(found)]
    assert reader.read_batch(99, 99, 1) == entries(written)[99:]


def test_the_wrong_password_opens_nothing(client: Client, cluster: Cluster) -> None:
    writer = client.create(Shape(3, 3, 3))
    writer.append([b"one"])
    with refused("BKUnauthorizedAccessException"):
        client.open(writer.ledger_id, password="guessed", recover=True)
    for bookie in cluster.bookies:
        with refused("BKUnauthorizedAccessException"):
            client.fence_one(bookie.bookie_id, writer.ledger_id, entry=0, password="guessed")
    writer.append([b"two"])


def test_one_bookie_that_is_fenced_refuses_the_writer(client: Client, cluster: Cluster) -> None:
    writer = client.create(Shape(3, 3, 3))
    writer.append([b"one"])
    bookie = cluster.bookies[1].bookie_id
    assert client.fence_one(bookie, writer.ledger_id, entry=0, password=PASSWORD) > 0
    with refused("BKLedgerFencedException"):
        writer.append([b"two"])
    with refused("BKNoSuchEntryException"):
        client.fence_one(bookie, writer.ledger_id, entry=7, password=PASSWORD)


def test_a_fence_holds_where_nothing_was_written_yet(client: Client, cluster: Cluster) -> None:
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
