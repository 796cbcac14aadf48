"""Start and drain of a server, and limits on misbehaving clients."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from rollbook.bookie.config import ServerConfig, StorageConfig
from rollbook.bookie.socket_server import BookieServer
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import BadConfig, ConnectionLost, Unavailable
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.ports import Address
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.network import SocketTransport
from rollbook.proto.runtime.system_disk import SystemDisk
from rollbook.proto.runtime.tls import TlsFiles, client_context, server_context
from rollbook.proto.wire import v2
from rollbook.proto.wire.messages import EntryRead, ReadReply
from tests.golden.bookkeeper import V2_FRAMES, V3_FRAMES
from tests.support.bookie_client import BookieClient
from tests.unit.bookie.serving import PORT, STORAGE, Scene, add_entries, entry, tell
from tests.unit.bookie.test_connection import Tally, pack, poll, until
from tests.unit.proto.runtime.test_tls import golden

L7 = LedgerId(7)


def test_drain_answers_pending_requests_and_refuses_connections() -> None:
    async def story(scene: Scene) -> None:
        writer, poller, idle = [await scene.connect() for _ in range(3)]
        tally = Tally(writer)
        await add_entries(scene.storage, 7, [0])
        waiting = poller.ask(poll(0, 50_000))
        await asyncio.sleep(0.5)
        scene.node.disk.hang()
        writer.send(pack(writer, 8, range(20)))
        await asyncio.sleep(0.5)
        draining = asyncio.ensure_future(scene.server.drain(5.0))
        await asyncio.wait_for(idle.lost, 1)
        reply = await asyncio.wait_for(waiting, 1)
        assert reply == ReadReply(None, L7, NO_ENTRY, None, NO_ENTRY)
        with pytest.raises(Unavailable):
            await scene.connect()
        assert not draining.done()
        assert not writer.lost.done()
        scene.node.disk.unhang()
        await asyncio.wait_for(draining, 1)
        await asyncio.wait_for(writer.lost, 1)
        assert tally.acked == 20
        assert not scene.storage.lac_watchers

    tell(story)


def test_draining_ends_at_its_deadline() -> None:
    async def story(scene: Scene) -> None:
        writer, reader = await scene.connect(), await scene.connect()
        await add_entries(scene.storage, 7, [0], bytes(100_000))
        reader.pause()
        for _ in range(20):
            reader.ask(EntryRead(L7, EntryId(0)))
        scene.node.disk.hang()
        writer.send(pack(writer, 8, range(20)))
        await asyncio.sleep(0.5)
        loop = asyncio.get_running_loop()
        started = loop.time()
        await scene.server.drain(3.0)
        assert 3.0 <= loop.time() - started < 3.5
        await asyncio.wait_for(writer.lost, 1)
        scene.node.disk.unhang()

    tell(story)


def test_failed_storage_acknowledges_nothing_and_closes_every_connection() -> None:
    """B6."""

    async def story(scene: Scene) -> None:
        writer, reader = await scene.connect(2), await scene.connect(3)
        tally = Tally(writer)
        scene.node.disk.sync_error_odds = 1.0
        writer.send(pack(writer, 7, range(20)))
        await asyncio.wait_for(writer.lost, 10)
        await asyncio.wait_for(reader.lost, 10)
        assert tally.acked == 0
        with pytest.raises(Unavailable):
            await scene.connect()

    tell(story, may_fail=True)


def test_an_address_that_is_taken_is_refused() -> None:
    async def story(scene: Scene) -> None:
        with pytest.raises(BadConfig):
            await scene.server.listen(Address("b1", PORT))

    tell(story)


def test_server_listens_on_several_ports() -> None:
    async def story(scene: Scene) -> None:
        listener = await scene.server.listen(Address("b1", 0))
        assert listener.address.port not in (0, PORT)
        for port in (PORT, listener.address.port):
            client = await scene.connect(port=port)
            reply = await client.call(EntryRead(L7, EntryId(0)))
            assert isinstance(reply, ReadReply)

    tell(story)


# --- Misbehaving clients ----------------------------------------------------------------------

GARBAGE = {
    "zeros": bytes(100),
    "an endless frame": b"\xff\xff\xff\xff",
    "a frame that is too large": (5 * 1024 * 1024).to_bytes(4, "big") + b"\x02\x02",
    "HTTP": b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "an unknown operation in version 2": b"\x00\x00\x00\x14\x02\x63" + bytes(18),
    "an add that is cut short": b"\x00\x00\x00\x14\x02\x01" + bytes(18),
    "no protobuf": b"\x00\x00\x00\x10\x0a" + b"\xff" * 15,
    "protobuf without what is required": b"\x00\x00\x00\x04\x0a\x02\x08\x03",
    "an empty frame": bytes(4),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_invalid_message_closes_the_connection(what: str) -> None:
    async def story(scene: Scene) -> None:
        other = await scene.connect()
        raw = await scene.raw()
        raw.send(GARBAGE[what])
        await raw.closed()
        assert raw.received == b""
        assert scene.storage.stats.connections_closed == {"bad_frame": 1}
        assert scene.storage.stats.buffered_bytes() == 0
        reply = await other.call(EntryRead(L7, EntryId(0)))
        assert isinstance(reply, ReadReply)

    tell(story)


def test_tls_hello_after_a_refused_start_tls_closes_connection() -> None:
    """The TLS hello may come with the request or after the refusal; it is not read as a request."""

    async def story(scene: Scene) -> None:
        hello = GARBAGE["a TLS hello"]
        refusal = V3_FRAMES["START_TLS refused (EBADREQ)"]
        patient = await scene.raw()
        patient.send(V3_FRAMES["START_TLS request"])
        assert await patient.receive(len(refusal)) == refusal
        patient.send(hello)
        await patient.closed()
        hasty = await scene.raw()
        hasty.send(V3_FRAMES["START_TLS request"] + hello)
        await hasty.closed()
        assert hasty.received in (b"", refusal)
        modest = await scene.raw()
        modest.send(V3_FRAMES["START_TLS request"] + V3_FRAMES["READ request, entry 0"])
        assert await modest.receive(len(refusal)) == refusal
        assert await modest.receive(4)
        assert not modest.is_closed

    tell(story)


@pytest.mark.parametrize("version", [2, 3])
def test_unfinished_request_is_closed_after_its_timeout(version: int) -> None:
    """This holds for one byte a second and for a stalled request, but not for idle connections."""

    async def story(scene: Scene) -> None:
        frame = (V2_FRAMES if version == 2 else V3_FRAMES)["ADD request"]
        idle, trickle, half, whole = [await scene.raw() for _ in range(4)]
        half.send(frame[:-1])
        for at in range(len(frame)):
            if trickle.is_closed:
                break
            trickle.send(frame[at : at + 1])
            whole.send(frame)
            await asyncio.sleep(1)
        await trickle.closed()
        await half.closed()
        assert not idle.is_closed
        assert not whole.is_closed
        assert scene.storage.stats.connections_closed == {"unfinished_request": 2}
        assert scene.storage.stats.buffered_bytes() == 0

    tell(story)


def test_large_request_over_a_slow_link_is_completed() -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect()
        tally = Tally(client)
        frame = pack(client, 7, [0], size=2_000_000)
        for at in range(0, len(frame), 50_000):
            client.send(frame[at : at + 50_000])
            await asyncio.sleep(1)
        await until(lambda: tally.acked == 1)

    tell(story)


def test_abandoned_partial_requests_make_room_for_others() -> None:
    """B7: they use all memory, each continues a little, and then they stall."""

    async def story(scene: Scene) -> None:
        rude = [await scene.raw() for _ in range(40)]
        head = (60_000).to_bytes(4, "big") + V2_FRAMES["ADD request"][4:]
        for each in rude:
            each.send(head + bytes(6_000))
        await asyncio.sleep(0.5)
        for each in rude:
            each.send(bytes(100))
        await asyncio.sleep(0.5)
        assert scene.storage.stats.buffered_bytes() < 40 * 4096 + 65536 + 40 * 4096
        client = await scene.connect()
        tally = Tally(client)
        client.send(pack(client, 7, [0], size=50_000))
        await until(lambda: tally.acked == 1, 60)
        for each in rude:
            await each.closed()
        assert scene.storage.stats.buffered_bytes() == 0

    config = ServerConfig(
        frame_bytes_max=64 * 1024,
        held_bytes_max=64 * 1024,
        connection_bytes_max=64 * 1024,
        connection_bytes_floor=4 * 1024,
    )
    tell(story, config=config)


def test_larger_partial_request_is_closed_sooner() -> None:
    """B7: a stalled request may hold at most one mebibyte for ten seconds, or more for less time."""

    async def story(scene: Scene) -> None:
        small, large = await scene.raw(), await scene.raw()
        head = (5_000_000).to_bytes(4, "big") + V2_FRAMES["ADD request"][4:]
        small.send(head + bytes(900_000))
        large.send(head + bytes(4_500_000))
        await asyncio.sleep(5)
        assert large.is_closed
        assert not small.is_closed
        await small.closed()
        assert scene.storage.stats.connections_closed == {"unfinished_request": 2}

    tell(story)


def test_slow_partial_requests_yield_memory_to_a_fast_one() -> None:
    """B7: each is just fast enough not to time out, and together they hold all memory."""

    async def story(scene: Scene) -> None:
        rude = [await scene.raw() for _ in range(8)]
        head = (1_000_000).to_bytes(4, "big") + V2_FRAMES["ADD request"][4:]
        for each in rude:
            each.send(head + bytes(300_000))

        async def dawdle() -> None:
            while True:
                for each in rude:
                    each.send(bytes(8_000))
                await asyncio.sleep(1)

        dawdling = asyncio.create_task(dawdle())
        try:
            await asyncio.sleep(3)
            client = await scene.connect()
            tally = Tally(client)
            client.send(pack(client, 7, [0], size=600_000))
            await until(lambda: tally.acked == 1, 20)
        finally:
            dawdling.cancel()
            await asyncio.gather(dawdling, return_exceptions=True)

    config = ServerConfig(
        frame_bytes_max=1024 * 1024,
        held_bytes_max=1024 * 1024,
        connection_bytes_max=1024 * 1024,
    )
    tell(story, config=config, storage_config=replace(STORAGE, journal_file_bytes=16 * 1024 * 1024))


def test_half_closed_client_still_gets_its_responses() -> None:
    async def story(scene: Scene) -> None:
        await add_entries(scene.storage, 7, [0])
        raw = await scene.raw()
        raw.send(V2_FRAMES["ADD request"] * 3)
        raw.transport.write_eof()
        expected = V2_FRAMES["ADD response EOK"] * 3
        assert await raw.receive(len(expected)) == expected
        await raw.closed()
        assert scene.storage.peek(7, 0) == entry(7, 0)

    tell(story)


def test_half_closed_client_that_reads_nothing_is_closed() -> None:
    """The unread responses are too few to count as a blocked connection."""

    async def story(scene: Scene) -> None:
        await add_entries(scene.storage, 7, [0], bytes(20_200))
        raw = await scene.raw()
        raw.transport.pause_reading()
        raw.send(v2.pack_request(EntryRead(L7, EntryId(0))) * 13)
        await asyncio.sleep(1)
        raw.transport.write_eof()
        await asyncio.sleep(1)
        assert scene.storage.stats.connections() == 1
        await asyncio.sleep(100)
        assert scene.storage.stats.connections() == 0

    tell(story)


def test_disconnected_client_leaves_no_connection_or_buffer() -> None:
    async def story(scene: Scene) -> None:
        await add_entries(scene.storage, 7, [0], bytes(50_000))
        for number in range(20):
            client = await scene.connect(2 + number % 2)
            client.pause()
            client.send(pack(client, 100 + number, range(50), size=500))
            asked = [client.ask(EntryRead(L7, EntryId(e))) for e in (0, -1, 5) * 20]
            client.send(b"\x00\x00\x04\x00\x02\x01")
            await asyncio.sleep(0.01 * number)
            client.abort()
            lost = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(each, ConnectionLost) for each in lost)
        await asyncio.sleep(5)
        assert scene.storage.stats.connections() == 0
        assert scene.storage.stats.buffered_bytes() == 0

    tell(story)


# --- On a real machine ------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
async def test_tls_port_serves_only_clients_with_a_valid_certificate(
    tmp_path: Path, version: int
) -> None:
    """Entries are larger than a TLS record; clients without TLS are closed."""
    tls = TlsFiles(golden("server-a"), authorities=golden("authority-a"))
    authority, certificate = golden("authority-a"), golden("client-a")
    trusted = client_context(authority, certificate=certificate)
    config = StorageConfig(str(tmp_path / "journal"), (str(tmp_path / "ledgers"),))
    disk, clock, randomness = SystemDisk(), SystemClock(), random.SystemRandom()
    await Storage.make(disk, config, randomness)
    storage = await Storage.open(disk, config, clock, randomness)
    storage.start()
    server = BookieServer(storage, ServerConfig(), SocketTransport(), clock, storage.stats)
    secret = SocketTransport(server_tls=server_context(tls))
    listener = await server.listen(Address("127.0.0.1", 0), secret)
    client = BookieClient(version)
    network = SocketTransport(client_tls=trusted)
    await network.connect(lambda: client, listener.address, timeout_s=60)
    tally = Tally(client)
    client.send(pack(client, 7, range(20), size=100_000))
    async with asyncio.timeout(60):
        while tally.acked < 20:
            await asyncio.sleep(0.01)
        replies = await asyncio.gather(*(client.ask(EntryRead(L7, EntryId(n))) for n in range(20)))
    for number, reply in enumerate(replies):
        assert isinstance(reply, ReadReply)
        assert reply.body == entry(7, number, bytes(100_000))
    stranger, plain = BookieClient(version), BookieClient(version)
    network = SocketTransport(client_tls=client_context(authority))
    try:
        await network.connect(lambda: stranger, listener.address, timeout_s=60)
    except Unavailable:
        pass
    else:
        with pytest.raises(ConnectionLost):
            await stranger.call(EntryRead(L7, EntryId(0)))
    await SocketTransport().connect(lambda: plain, listener.address, timeout_s=60)
    with pytest.raises(ConnectionLost):
        await plain.call(EntryRead(L7, EntryId(0)))
    await server.drain(30.0)
    await asyncio.wait_for(client.lost, 60)
    await storage.close()
    disk.close()
