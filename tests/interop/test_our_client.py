"""Our client and Java's client on the same ledgers.

Every test runs on three clusters: of our bookies, of Java's, and of both makes. A ledger that one
client writes is read, fenced, recovered and followed by the other.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from rollbook.ledger import ClientConfig, DigestType, Entry, Ledgers, LedgerWriter, connect
from rollbook.proto.errors import NoSuchLedger
from rollbook.proto.ids import BookieId, EntryId
from rollbook.proto.quorum import Quorum
from tests.interop import shell
from tests.interop.cluster import Cluster, Make, empty
from tests.interop.expectations import (
    ALL,
    PAIR,
    STRIPED,
    entries,
    java_is_fenced_off,
    payloads,
    we_are_fenced_off,
)
from tests.interop.puppet import PASSWORD, Client, Digest, Protocol, Puppet, Shape
from tests.interop.puppet import Entry as JavaEntry
from tests.support.zookeeper import ZooKeeperServer, tree

SECRET = PASSWORD.encode()
DIGESTS = {
    Digest.CRC32: DigestType.CRC32,
    Digest.CRC32C: DigestType.CRC32C,
    Digest.MAC: DigestType.HMAC,
    Digest.DUMMY: DigestType.DUMMY,
}
EVERYWHERE = Shape(3, 3, 3)
SHAPES = [ALL, STRIPED, PAIR]
OVER_V3_ONLY = pytest.mark.parametrize(
    "protocol", [Protocol.V3], ids=lambda protocol: str(protocol.value), indirect=True
)
STRIPED_QUORUM = Quorum(STRIPED.ensemble, STRIPED.write, STRIPED.ack)


@pytest.fixture(scope="session")
def javas(
    java: None, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A cluster initialised by Java, with three Java bookies."""
    folder = tmp_path_factory.mktemp("javas")
    with tree(zookeeper_server) as own, empty(own, folder) as cluster:
        for _ in range(3):
            cluster.add_bookie(Make.JAVA)
        shell.run(cluster.bookies[0].config_path, "initnewcluster")
        cluster.start()
        yield cluster


@pytest.fixture(scope="module", params=["cluster", "mixed", "javas"])
def place(request: pytest.FixtureRequest) -> Cluster:
    found: Cluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def place_puppet(place: Cluster) -> Puppet:
    return place.puppet()


@pytest.fixture
def client(place: Cluster, place_puppet: Puppet, protocol: Protocol) -> Client:
    """A new client for each test: an old one may not have noticed yet that a bookie is back."""
    return place_puppet.connect(place.metadata, protocol)


@pytest.fixture
async def ledgers(place: Cluster, protocol: Protocol) -> AsyncIterator[Ledgers]:
    """Our client, with the same protocol version as Java's."""
    version = 2 if protocol is Protocol.V2 else 3
    async with connect(place.metadata, ClientConfig(protocol_version=version)) as found:
        yield found


async def create(
    ledgers: Ledgers, shape: Shape, digest: DigestType = DigestType.CRC32C
) -> LedgerWriter:
    return await ledgers.create(
        ensemble=shape.ensemble, write=shape.write, ack=shape.ack, digest=digest, password=SECRET
    )


async def read_all(ledgers: Ledgers, ledger_id: int) -> list[JavaEntry]:
    async with await ledgers.open(ledger_id, SECRET) as reader:
        return [as_java_has_it(entry) async for entry in reader.read()]


def as_java_has_it(entry: Entry) -> JavaEntry:
    return JavaEntry(entry.entry_id, entry.ledger_length, bytes(entry.payload))


@pytest.mark.parametrize("digest", Digest, ids=lambda digest: str(digest.value))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_java_reads_what_we_wrote(
    ledgers: Ledgers, client: Client, digest: Digest, shape: Shape
) -> None:
    written = payloads(50, 300)
    async with await create(ledgers, shape, DIGESTS[digest]) as writer:
        assert await writer.append_many(written) == range(50)
    reader = client.open(writer.ledger_id, digest, recover=False)
    assert (reader.last_confirmed, reader.length) == (49, 50 * 300)
    assert reader.read(0, 49) == entries(written)


@pytest.mark.parametrize("digest", Digest, ids=lambda digest: str(digest.value))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_we_read_what_java_wrote(
    ledgers: Ledgers, client: Client, digest: Digest, shape: Shape
) -> None:
    written = payloads(50, 300)
    writer = client.create(shape, digest)
    writer.append(written)
    writer.close()
    assert await read_all(ledgers, writer.ledger_id) == entries(written)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_we_fence_and_recover_a_java_writer(
    ledgers: Ledgers, client: Client, shape: Shape
) -> None:
    written = payloads(60, 200)
    writer = client.create(shape)
    writer.append(written)
    async with await ledgers.open_recover(writer.ledger_id, SECRET) as reader:
        assert reader.is_closed
        found = [as_java_has_it(entry) async for entry in reader.read()]
    assert found == entries(written)
    with java_is_fenced_off():
        writer.append([b"late"])
    metadata = client.metadata(writer.ledger_id)
    assert (metadata["state"], metadata["last_entry"]) == ("CLOSED", 59)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_java_fences_and_recovers_our_writer(
    ledgers: Ledgers, client: Client, shape: Shape
) -> None:
    written = payloads(60, 200)
    writer = await create(ledgers, shape)
    await writer.append_many(written)
    reader = await asyncio.to_thread(client.open, writer.ledger_id, recover=True)
    assert (reader.last_confirmed, reader.length) == (59, 60 * 200)
    assert reader.read(0, 59) == entries(written)
    with we_are_fenced_off():
        await writer.append(b"late")
    await writer.stop()


async def test_a_writer_at_full_speed_is_recovered_by_the_other_client(
    ledgers: Ledgers, client: Client
) -> None:
    """No acknowledged entry is lost, whichever client writes and whichever recovers."""
    written = payloads(3000, 100)
    ours = await create(ledgers, ALL)
    await ours.append_many(written[:500])
    rest = [ours.append(payload) for payload in written[500:]]
    recovered = await asyncio.to_thread(client.open, ours.ledger_id, recover=True)
    told = await asyncio.gather(*rest, return_exceptions=True)
    confirmed = [entry for entry in told if isinstance(entry, int)]
    assert recovered.last_confirmed >= max(confirmed, default=499)
    await ours.stop()
    last = recovered.last_confirmed
    assert await read_all(ledgers, ours.ledger_id) == entries(written)[: last + 1]

    theirs = client.create(ALL)
    theirs.append(written[:500])
    waiting = theirs.start_append(written[500:])
    async with await ledgers.open_recover(theirs.ledger_id, SECRET) as reader:
        last = reader.last_add_confirmed
    assert last >= 499
    assert await read_all(ledgers, theirs.ledger_id) == entries(written)[: last + 1]
    if last < 2999:
        with java_is_fenced_off():
            waiting.result()


async def test_recoveries_by_both_clients_at_once_agree(ledgers: Ledgers, client: Client) -> None:
    writer = await create(ledgers, ALL)
    await writer.append_many(payloads(200, 100))
    java = client.start_open(writer.ledger_id, recover=True)
    async with await ledgers.open_recover(writer.ledger_id, SECRET) as reader:
        assert reader.last_add_confirmed == 199
    assert java.result()["last_confirmed"] == 199
    await writer.stop()


async def test_we_follow_a_java_writer(ledgers: Ledgers, client: Client) -> None:
    written = payloads(30, 100)
    writer = client.create(ALL)
    writer.append(written[:1])
    async with await ledgers.open_tailing(writer.ledger_id, SECRET) as reader:

        async def follow() -> list[JavaEntry]:
            return [as_java_has_it(entry) async for entry in reader.tail()]

        following = asyncio.create_task(follow())
        for payload in written[1:]:
            await asyncio.to_thread(writer.append, [payload])
        await asyncio.to_thread(writer.close)
        assert await asyncio.wait_for(following, 60) == entries(written)


@OVER_V3_ONLY
async def test_java_follows_our_writer(ledgers: Ledgers, client: Client) -> None:
    """The reader also sees the last entry, because our idle writer sends an explicit LAC. Java's
    client asks for explicit LACs over V3 only.
    """
    written = payloads(5, 100)
    writer = await create(ledgers, ALL)
    await writer.append_many(written)
    reader = await asyncio.to_thread(client.open, writer.ledger_id, recover=False)
    async with asyncio.timeout(60):
        while await asyncio.to_thread(reader.read_last_confirmed) < 4:
            await asyncio.sleep(0.02)
    assert reader.read(0, 4) == entries(written)
    await writer.close()


async def test_entries_are_stored_where_java_looks_for_them(
    ledgers: Ledgers, place: Cluster, place_puppet: Puppet
) -> None:
    """Q1."""
    client = place_puppet.connect(place.metadata, Protocol.V3)  # V2 has no such request.
    writer = await create(ledgers, STRIPED)
    await writer.append_many(payloads(30, 100))
    await writer.close()
    ensemble = writer.metadata.fragments[0].ensemble
    for slot, bookie in enumerate(ensemble):
        held = [each for each in range(30) if STRIPED_QUORUM.holds(slot, EntryId(each))]
        assert client.entries_on(bookie, writer.ledger_id, 29) == held


async def test_ledgers_that_we_delete_are_gone_for_java(ledgers: Ledgers, client: Client) -> None:
    writer = await create(ledgers, ALL)
    await writer.append(b"one")
    await ledgers.delete(writer.ledger_id, SECRET)
    assert writer.ledger_id not in client.ledgers()
    with we_are_fenced_off():
        await writer.append(b"two")
    await writer.stop()
    theirs = client.create(ALL)
    theirs.close()
    client.delete(theirs.ledger_id)
    with pytest.raises(NoSuchLedger):
        await ledgers.open(theirs.ledger_id)


async def test_bookie_that_dies_is_replaced_and_all_entries_are_read(
    ledgers: Ledgers, client: Client, place: Cluster
) -> None:
    written = payloads(60, 200)
    ours, theirs = await create(ledgers, PAIR), client.create(PAIR)
    await ours.append_many(written[:30])
    theirs.append(written[:30])
    lost = place.bookie(ours.metadata.fragments[0].ensemble[0])
    lost.kill()
    try:
        await ours.append_many(written[30:])
        await asyncio.to_thread(theirs.append, written[30:])
        await ours.close()
        await asyncio.to_thread(theirs.close)
        assert lost.bookie_id not in ours.metadata.fragments[-1].ensemble
        reader = await asyncio.to_thread(client.open, ours.ledger_id, recover=False)
        assert await asyncio.to_thread(reader.read, 0, 59) == entries(written)
        assert await read_all(ledgers, theirs.ledger_id) == entries(written)
    finally:
        lost.start()  # Here: a child dies with the thread that made it.


async def test_recovery_without_a_bookie_that_died(
    ledgers: Ledgers, client: Client, place: Cluster
) -> None:
    """Java's recovery needs a spare bookie; ours continues with an ack quorum."""
    written = payloads(60, 200)
    ours, theirs = await create(ledgers, PAIR), client.create(ALL)
    await ours.append_many(written)
    theirs.append(written)
    lost = place.bookie(ours.metadata.fragments[0].ensemble[0])
    lost.kill()
    try:
        reader = await asyncio.to_thread(client.open, ours.ledger_id, recover=True)
        assert reader.last_confirmed == 59
        async with await ledgers.open_recover(theirs.ledger_id, SECRET) as recovered:
            assert recovered.last_add_confirmed == 59
        assert await read_all(ledgers, theirs.ledger_id) == entries(written)
    finally:
        lost.start()  # Here: a child dies with the thread that made it.
    await ours.stop()


@OVER_V3_ONLY
async def test_bookkeeper_shell_recovers_a_bookie_that_died(
    ledgers: Ledgers, client: Client, place: Cluster
) -> None:
    """The shell copies a closed ledger's entries, and its metadata no longer name the dead bookie. The
    shell chooses its protocol itself, so one run is enough.
    """
    for ledger_id in client.ledgers():  # The shell cannot recover ledgers of three bookies.
        client.delete(ledger_id)
    written = payloads(40, 200)
    closed = await create(ledgers, PAIR)
    await closed.append_many(written)
    await closed.close()
    lost = place.bookie(closed.metadata.fragments[0].ensemble[0])
    lost.kill()
    try:
        await asyncio.to_thread(
            shell.run, place.bookies[0].config_path, "recover", "-f", lost.bookie_id
        )
        stored = await ledgers.metadata(closed.ledger_id, fresh=True)
        assert not stored.metadata.names(BookieId(lost.bookie_id))
        assert await read_all(ledgers, closed.ledger_id) == entries(written)
        verdict = await ledgers.verify(closed.ledger_id, SECRET)
        assert verdict.is_sound
    finally:
        lost.start()
