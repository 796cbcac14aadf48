"""Simulated TCP: its contract and its faults, and that asyncio's streams run on it unchanged."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rollbook.proto.errors import BadConfig, Unavailable
from rollbook.proto.ports import Address, Transport
from rollbook.proto.runtime.network import SocketTransport
from tests.simulation.kernel import Node, World
from tests.simulation.kernel.connection import HIGH_WATER_BYTES, WINDOW_BYTES

PORT = 3181


class Peer(asyncio.Protocol):
    """Records all its callbacks."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.pieces: list[int] = []
        self.events: list[str] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert data
        self.received += data
        self.pieces.append(len(data))

    def eof_received(self) -> bool | None:
        self.events.append("eof")
        return None

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.lost.set_result(exc)


class Pair:
    """A server process on `b`, a client process on `a`, and one connection between them."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.a, self.b = self.world.node("a"), self.world.node("b")
        self.network = self.world.network
        self.servers: list[Peer] = []
        self.client: Peer

    @property
    def server(self) -> Peer:
        return self.servers[-1]

    def accept(self) -> Peer:
        self.servers.append(Peer())
        return self.servers[-1]

    async def serve(self, node: Node) -> None:
        self.listener = await node.transport.listen(self.accept, Address("", PORT))
        await asyncio.get_running_loop().create_future()

    async def connect(self, node: Node) -> None:
        _, client = await node.transport.connect(Peer, Address("b", PORT), timeout_s=5)
        assert isinstance(client, Peer)
        self.client = client
        await asyncio.get_running_loop().create_future()

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        async def scenario() -> None:
            self.b.start(self.serve)
            await asyncio.sleep(0.01)
            self.a.start(self.connect)
            await asyncio.sleep(0.01)
            assert self.servers
            assert self.client.transport.is_reading()
            await story()

        self.world.run(scenario())


# --- The contract, real and simulated -------------------------------------------------------------


def run_simulated(story: Callable[[Transport], Awaitable[None]]) -> None:
    async def main(node: Node) -> None:
        await story(node.transport)

    async def scenario() -> None:
        await world.node("a").start(main).result

    world = World(1)
    world.run(scenario())


def run_real(story: Callable[[Transport], Awaitable[None]]) -> None:
    async def main() -> None:
        await story(SocketTransport())

    asyncio.run(main())


@pytest.mark.parametrize("run", [run_real, run_simulated])
class TestContract:
    """The same stories on real sockets and on simulated ones."""

    def test_bytes_and_end_of_stream_are_delivered(self, run: Any) -> None:
        async def story(transport: Transport) -> None:
            server: list[Peer] = []

            def accept() -> Peer:
                server.append(Peer())
                return server[-1]

            listener = await transport.listen(accept, Address("127.0.0.1", 0))
            assert listener.address.port > 0
            near, client = await transport.connect(Peer, listener.address, timeout_s=5)
            assert isinstance(client, Peer)
            assert client.transport is near
            near.write(b"pi")
            near.writelines([b"n", bytearray(b"g"), memoryview(b"!")])
            near.write_eof()
            with pytest.raises(RuntimeError):
                near.write(b"more")
            assert await client.lost is None
            assert bytes(server[0].received) == b"ping!"
            assert server[0].events == ["eof", "lost"]
            await listener.close()
            with pytest.raises(Unavailable, match="cannot reach"):
                await transport.connect(Peer, listener.address, timeout_s=5)

        run(story)

    def test_close_delivers_written_bytes(self, run: Any) -> None:
        async def story(transport: Transport) -> None:
            server = Peer()
            listener = await transport.listen(lambda: server, Address("127.0.0.1", 0))
            near, client = await transport.connect(Peer, listener.address, timeout_s=5)
            assert isinstance(client, Peer)
            blob = bytes(3_000_000)
            near.write(blob)
            near.close()
            near.close()
            assert near.is_closing()
            near.write(b"too late or not, no error")
            assert await asyncio.wait_for(client.lost, 10) is None
            assert await asyncio.wait_for(server.lost, 10) is None
            assert len(server.received) >= len(blob)
            await listener.close()

        run(story)

    def test_back_pressure_pauses_and_resumes_writing(self, run: Any) -> None:
        async def story(transport: Transport) -> None:
            server = Peer()
            listener = await transport.listen(lambda: server, Address("127.0.0.1", 0))
            near, client = await transport.connect(Peer, listener.address, timeout_s=5)
            assert isinstance(client, Peer)
            await asyncio.sleep(0.05)
            server.transport.pause_reading()
            assert not server.transport.is_reading()
            near.set_write_buffer_limits(high=1000)
            near.write(bytes(20_000_000))
            assert client.events == ["pause"]
            assert near.get_write_buffer_size() > 0
            server.transport.resume_reading()
            async with asyncio.timeout(20):
                while client.events != ["pause", "resume"]:
                    await asyncio.sleep(0.001)
                while len(server.received) < 20_000_000:
                    await asyncio.sleep(0.001)
            near.abort()
            assert await asyncio.wait_for(client.lost, 10) is None
            await asyncio.wait_for(server.lost, 10)
            await listener.close()

        run(story)

    def test_abort_discards_bytes_that_were_not_sent(self, run: Any) -> None:
        async def story(transport: Transport) -> None:
            server = Peer()
            listener = await transport.listen(lambda: server, Address("127.0.0.1", 0))
            near, client = await transport.connect(Peer, listener.address, timeout_s=5)
            assert isinstance(client, Peer)
            await asyncio.sleep(0.05)
            server.transport.pause_reading()
            near.write(bytes(20_000_000))
            near.abort()
            near.abort()
            assert near.is_closing()
            assert near.get_write_buffer_size() == 0
            assert await asyncio.wait_for(client.lost, 10) is None
            server.transport.resume_reading()
            await asyncio.wait_for(server.lost, 10)
            assert len(server.received) < 20_000_000
            await listener.close()

        run(story)

    def test_taken_port_is_refused(self, run: Any) -> None:
        async def story(transport: Transport) -> None:
            listener = await transport.listen(Peer, Address("127.0.0.1", 0))
            with pytest.raises(BadConfig, match="choose another"):
                await transport.listen(Peer, listener.address)
            await listener.close()

        run(story)

    def test_buffered_protocols_receive_bytes(self, run: Any) -> None:
        class Buffered(asyncio.BufferedProtocol):
            def __init__(self) -> None:
                self.buffer = bytearray(7)
                self.received = bytearray()

            def get_buffer(self, sizehint: int) -> bytearray:
                return self.buffer

            def buffer_updated(self, nbytes: int) -> None:
                self.received += self.buffer[:nbytes]

        async def story(transport: Transport) -> None:
            server = Buffered()
            listener = await transport.listen(lambda: server, Address("127.0.0.1", 0))
            near, _ = await transport.connect(Peer, listener.address, timeout_s=5)
            blob = random.Random(1).randbytes(1000)
            near.write(blob)
            async with asyncio.timeout(5):
                while len(server.received) < len(blob):
                    await asyncio.sleep(0.001)
            assert bytes(server.received) == blob
            near.close()
            await listener.close()

        run(story)


# --- Order and boundaries -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_bytes_arrive_once_and_in_order_despite_faults_of_the_link(seed: int) -> None:
    pair = Pair(seed)
    chance = random.Random(seed)
    sent = bytearray()

    async def story() -> None:
        link = pair.network.link("a", "b")
        link.delay_s, link.tail_odds, link.tail_s = (0.0, 0.1), 0.2, (0.1, 1.0)
        for _ in range(100):
            match chance.randrange(8):
                case 0:
                    pair.network.cut("a", "b")
                case 1:
                    pair.network.heal("a", "b")
                case 2:
                    link.bytes_per_s = chance.choice((None, 10_000.0))
                case 3:
                    pair.network.stall("a", "b")
                case 4:
                    pair.network.unstall("a", "b")
                case _:
                    piece = chance.randbytes(chance.randrange(1, 5000))
                    sent.extend(piece)
                    pair.client.transport.write(piece)
            await asyncio.sleep(chance.choice((0, 0.001, 0.05)))
        pair.network.heal_all()
        await asyncio.sleep(120)
        assert pair.server.received == sent

    pair.run(story)


def test_pieces_are_split_and_merged_at_any_boundary() -> None:
    lengths: set[int] = set()
    for seed in range(40):
        pair = Pair(seed)

        async def story(pair: Pair = pair) -> None:
            for _ in range(20):
                pair.client.transport.write(b"x" * 10)
                if pair.world.random("test").random() < 0.5:
                    await asyncio.sleep(0.0003)
            await asyncio.sleep(1)
            assert len(pair.server.received) == 200
            lengths.update(pair.server.pieces)

        pair.run(story)
    assert lengths >= {*range(1, 12), 20, 30}, "each boundary is hit, and pieces are merged"


# --- Faults ---------------------------------------------------------------------------------------


def test_cut_delays_bytes_and_loses_none() -> None:
    pair = Pair()

    async def story() -> None:
        pair.network.cut("a", "b")
        pair.client.transport.write(b"later")
        await asyncio.sleep(5)
        assert not pair.server.received
        pair.network.heal("a", "b")
        await asyncio.sleep(1)
        assert pair.server.received == b"later"
        assert pair.server.events == pair.client.events == []

    pair.run(story)


def test_one_way_cut_delivers_requests_and_holds_back_replies() -> None:
    pair = Pair()

    async def story() -> None:
        pair.network.cut_one_way("b", "a")
        pair.client.transport.write(b"request")
        await asyncio.sleep(1)
        assert pair.server.received == b"request"
        pair.server.transport.write(b"answer")
        await asyncio.sleep(5)
        assert not pair.client.received
        pair.network.heal("a", "b")
        await asyncio.sleep(1)
        assert pair.client.received == b"answer"

    pair.run(story)


def test_reset_loses_bytes_in_flight_both_ways() -> None:
    pair = Pair()

    async def story() -> None:
        pair.network.slow("a", "b", (0.1, 0.1))
        pair.client.transport.write(b"request")
        pair.server.transport.write(b"answer")
        await asyncio.sleep(0.05)
        assert pair.network.reset("a", "b") == 2
        await asyncio.sleep(1)
        for peer in (pair.client, pair.server):
            assert not peer.received
            assert isinstance(peer.lost.result(), ConnectionResetError)
        assert pair.network.reset("a", "b") == 0

    pair.run(story)


def test_killed_process_resets_or_closes_its_connections() -> None:
    endings = set()
    for unread in (b"", b"unread"):
        pair = Pair()

        async def story(pair: Pair = pair, unread: bytes = unread) -> None:
            pair.b.pause()  # Keeps the server from reading.
            pair.client.transport.write(unread)
            await asyncio.sleep(1)
            pair.b.kill()
            await asyncio.sleep(1)
            error = pair.client.lost.result()
            endings.add(type(error))
            assert pair.server.events == [], "a dead process gets no callbacks"
            with pytest.raises(Unavailable, match="refused"):
                await pair.a.transport.connect(Peer, Address("b", PORT), timeout_s=5)

        pair.run(story)
    assert endings == {type(None), ConnectionResetError}


def test_half_open_connection_is_detected_by_keep_alive_or_write() -> None:
    pair = Pair()

    async def silent() -> None:
        pair.b.power_cut()
        await asyncio.sleep(9)
        assert not pair.client.lost.done()
        await asyncio.sleep(12)
        assert isinstance(pair.client.lost.result(), TimeoutError)

    pair.run(silent)
    pair = Pair()

    async def writes_after_reboot() -> None:
        pair.b.power_cut()
        await asyncio.sleep(1)
        pair.b.start(pair.serve)
        await asyncio.sleep(1)
        assert not pair.client.lost.done()
        pair.client.transport.write(b"are you there")
        await asyncio.sleep(1)
        assert isinstance(pair.client.lost.result(), ConnectionResetError)

    pair.run(writes_after_reboot)
    pair = Pair()

    async def writes_before_reboot() -> None:
        pair.b.power_cut()
        pair.client.transport.write(b"are you there")
        await asyncio.sleep(100)
        assert not pair.client.lost.done(), "unacknowledged bytes are retransmitted for a long time"
        pair.b.start(pair.serve)
        await asyncio.sleep(1)
        assert isinstance(pair.client.lost.result(), ConnectionResetError)

    pair.run(writes_before_reboot)


def test_peer_that_does_not_read_fills_its_window() -> None:
    pair = Pair()

    async def story() -> None:
        pair.network.stall("a", "b")
        for _ in range(12):
            pair.client.transport.write(bytes(WINDOW_BYTES // 8))
            await asyncio.sleep(0.01)
        assert pair.client.events == ["pause"]
        assert pair.client.transport.get_write_buffer_size() == WINDOW_BYTES // 2 > HIGH_WATER_BYTES
        await asyncio.sleep(100)
        assert not pair.server.received
        assert not pair.client.lost.done()
        pair.network.unstall("a", "b")
        await asyncio.sleep(1)
        assert len(pair.server.received) == 12 * WINDOW_BYTES // 8
        assert pair.client.events == ["pause", "resume"]

    pair.run(story)


def test_window_update_does_not_pass_a_cut() -> None:
    pair = Pair()

    async def story() -> None:
        pair.server.transport.pause_reading()
        pair.client.transport.write(bytes(3 * WINDOW_BYTES))
        await asyncio.sleep(1)
        pair.network.cut_one_way("b", "a")
        pair.server.transport.resume_reading()
        await asyncio.sleep(5)
        assert len(pair.server.received) == WINDOW_BYTES
        assert pair.client.events == ["pause"]
        pair.network.heal("a", "b")
        await asyncio.sleep(1)
        assert len(pair.server.received) == 3 * WINDOW_BYTES
        assert pair.client.events == ["pause", "resume"]

    pair.run(story)


def test_end_of_stream_is_reported_once_and_other_way_stays_open() -> None:
    class HalfOpen(Peer):
        def eof_received(self) -> bool:
            self.events.append("eof")
            return True

    world = World(1)

    async def main(node: Node) -> None:
        server = HalfOpen()
        listener = await node.transport.listen(lambda: server, Address("", PORT))
        transport, client = await node.transport.connect(Peer, listener.address, timeout_s=1)
        assert isinstance(client, Peer)
        transport.write(b"question")
        transport.write_eof()
        await asyncio.sleep(1)
        assert server.events == ["eof"]
        server.transport.write(b"answer")
        await asyncio.sleep(1)
        assert client.received == b"answer"
        transport.close()
        await asyncio.sleep(1)
        assert server.events == ["eof"]
        server.transport.write(b"more")
        await asyncio.sleep(1)
        assert server.events == ["eof", "lost"]
        assert isinstance(server.lost.result(), ConnectionResetError)

    async def scenario() -> None:
        await world.node("a").start(main).result

    world.run(scenario())


def test_slow_link_delays_bytes_by_its_rate() -> None:
    pair = Pair()

    async def story() -> None:
        pair.network.link("a", "b").bytes_per_s = 10_000
        pair.client.transport.write(bytes(50_000))
        pair.client.transport.write(bytes(50_000))
        await asyncio.sleep(4.9)
        assert not pair.server.received
        await asyncio.sleep(4.9)
        assert len(pair.server.received) == 50_000
        await asyncio.sleep(0.3)
        assert len(pair.server.received) == 100_000

    pair.run(story)


def test_stopped_process_accepts_connections_after_resume() -> None:
    pair = Pair()

    async def story() -> None:
        pair.b.pause()
        transport, peer = await pair.a.transport.connect(Peer, Address("b", PORT), timeout_s=1)
        transport.write(b"hello")
        await asyncio.sleep(1)
        assert len(pair.servers) == 1
        pair.b.resume()
        await asyncio.sleep(1)
        assert len(pair.servers) == 2
        assert pair.server.received == b"hello"
        assert isinstance(peer, Peer)
        assert not peer.lost.done()

    pair.run(story)


def test_connecting_without_a_listener_fails() -> None:
    pair = Pair()

    async def story() -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        with pytest.raises(Unavailable, match="refused"):
            await pair.a.transport.connect(Peer, Address("b", 1), timeout_s=5)
        assert loop.time() - before < 0.01
        pair.network.refuse("b")
        with pytest.raises(Unavailable, match="refused"):
            await pair.a.transport.connect(Peer, Address("b", PORT), timeout_s=5)
        pair.network.accept("b")
        pair.network.cut("a", "b")
        before = loop.time()
        with pytest.raises(Unavailable, match="no answer within 5 s"):
            await pair.a.transport.connect(Peer, Address("b", PORT), timeout_s=5)
        assert loop.time() - before == pytest.approx(5)
        pair.world.at(loop.time() + 2, pair.network.heal, "a", "b")
        await pair.a.transport.connect(Peer, Address("b", PORT), timeout_s=5)
        pair.b.power_cut()
        with pytest.raises(Unavailable, match="no answer within 5 s"):
            await pair.a.transport.connect(Peer, Address("b", PORT), timeout_s=5)
        with pytest.raises(Unavailable, match="no answer within 5 s"):
            await pair.a.transport.connect(Peer, Address("nobody", PORT), timeout_s=5)

    pair.run(story)


def test_abandoned_connection_is_not_accepted_by_server() -> None:
    pair = Pair()

    async def story() -> None:
        pair.network.cut_one_way("b", "a")
        with pytest.raises(Unavailable, match="no answer"):
            await pair.a.transport.connect(Peer, Address("b", PORT), timeout_s=1)
        await asyncio.sleep(1)
        assert len(pair.servers) == 1
        assert len(pair.network._endpoints) == 2, "only the first connection has endpoints"

    pair.run(story)


def test_client_may_be_connected_before_server_accepts() -> None:
    pair = Pair()

    async def story() -> None:
        loop = asyncio.get_running_loop()
        pair.network.slow("a", "b", (0.1, 0.1))
        pair.world.at(loop.time() + 0.15, pair.network.cut_one_way, "a", "b")
        transport, _ = await pair.a.transport.connect(Peer, Address("b", PORT), timeout_s=1)
        transport.write(b"hello")
        await asyncio.sleep(5)
        assert len(pair.servers) == 1
        pair.network.heal("a", "b")
        await asyncio.sleep(1)
        assert len(pair.servers) == 2
        assert pair.server.received == b"hello"

    pair.run(story)


def test_unaccepted_connection_is_reset_when_listener_closes() -> None:
    pair = Pair()

    async def story() -> None:
        pair.b.pause()
        _, peer = await pair.a.transport.connect(Peer, Address("b", PORT), timeout_s=1)
        await asyncio.sleep(1)
        await pair.listener.close()
        pair.b.resume()
        await asyncio.sleep(1)
        assert len(pair.servers) == 1
        assert isinstance(peer, Peer)
        assert isinstance(peer.lost.result(), ConnectionResetError)

    pair.run(story)


def test_end_of_stream_follows_bytes_that_waited_for_the_window() -> None:
    pair = Pair()

    async def story() -> None:
        pair.server.transport.pause_reading()
        pair.client.transport.write(bytes(3 * WINDOW_BYTES))
        pair.client.transport.write_eof()
        await asyncio.sleep(1)
        for _ in range(3):
            pair.network.cut("a", "b")
            pair.server.transport.resume_reading()
            pair.network.heal("a", "b")
        await asyncio.sleep(2)
        assert len(pair.server.received) == 3 * WINDOW_BYTES
        assert pair.server.events == ["eof", "lost"]

    pair.run(story)


def test_bytes_written_in_connection_made_are_received() -> None:
    class Eager(Peer):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.write(b"hello")

    for seed in range(10):
        pair = Pair(seed)

        async def story(pair: Pair = pair) -> None:
            await pair.a.transport.connect(Eager, Address("b", PORT), timeout_s=1)
            await asyncio.sleep(1)
            assert len(pair.servers) == 2
            assert pair.server.received == b"hello"

        pair.run(story)


def test_write_after_close_by_peer_ends_connection() -> None:
    pair = Pair()

    async def story() -> None:
        pair.a.pause()
        pair.server.transport.write(b"x" * 10)
        pair.server.transport.close()
        await asyncio.sleep(1)
        assert pair.server.lost.done()
        pair.a.resume()
        pair.client.transport.write(b"too late")  # The client has not read the FIN yet.
        await asyncio.sleep(1)
        assert pair.client.lost.done()

    pair.run(story)


@pytest.mark.parametrize("seed", range(5))
def test_swizzled_hosts_are_cut_and_healed_one_by_one(seed: int) -> None:
    world = World(seed)
    hosts = [f"b{number}" for number in range(5)]
    network = world.network
    for host in hosts:
        network.link("client", host)

    async def scenario() -> None:
        seen: list[int] = []

        async def watch() -> None:
            while True:
                seen.append(sum(network.link("client", host).is_cut for host in hosts))
                await asyncio.sleep(0.01)

        watcher = asyncio.get_running_loop().create_task(watch())
        await network.swizzle(hosts, (0.1, 0.2))
        watcher.cancel()
        steps = [n for n, before in zip(seen[1:], seen, strict=False) if n != before]
        most = max(steps)
        assert steps == [*range(steps[0], most + 1), *range(most - 1, -1, -1)]

    world.run(scenario())


def test_isolated_host_is_cut_off_from_new_hosts() -> None:
    pair = Pair()

    async def story() -> None:
        pair.network.isolate("b")
        with pytest.raises(Unavailable, match="no answer"):
            await pair.world.node("c").transport.connect(Peer, Address("b", PORT), timeout_s=1)
        pair.network.isolate("c")
        pair.network.rejoin("b")
        with pytest.raises(Unavailable, match="no answer"):
            await pair.world.node("c").transport.connect(Peer, Address("b", PORT), timeout_s=1)
        assert not pair.network.link("a", "b").is_cut
        pair.network.rejoin("c")
        await pair.world.node("c").transport.connect(Peer, Address("b", PORT), timeout_s=1)

    pair.run(story)


def test_unix_sockets_are_local_to_a_node() -> None:
    world = World(1)

    async def main(node: Node) -> None:
        address = Address("/run/rollbook.sock", 0)
        server = Peer()
        await node.transport.listen(lambda: server, address)
        transport, _ = await node.transport.connect(Peer, address, timeout_s=1)
        transport.write(b"hello")
        await asyncio.sleep(1)
        assert server.received == b"hello"

    async def other(node: Node) -> None:
        with pytest.raises(Unavailable, match="refused"):
            await node.transport.connect(Peer, Address("/run/rollbook.sock", 0), timeout_s=1)

    async def scenario() -> None:
        first = world.node("a").start(main)
        await asyncio.sleep(0.5)
        await world.node("b").start(other).result
        await first.result

    world.run(scenario())


# --- Streams of asyncio ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_asyncio_streams_run_unchanged(seed: int) -> None:
    world = World(seed)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def serve(node: Node) -> None:
        server = await asyncio.start_server(echo, "0.0.0.0", 7)
        async with server:
            assert server.is_serving()
            assert server.sockets[0].getsockname() == ("server", 7)
            await server.serve_forever()

    async def ask(node: Node) -> int:
        reader, writer = await asyncio.open_connection("server", 7)
        assert writer.get_extra_info("peername") == ("server", 7)
        for number in range(100):
            line = f"{number} {'x' * number}\n".encode()
            writer.write(line)
            assert await reader.readline() == line
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        return 100

    async def scenario() -> None:
        server = world.node("server").start(serve)
        await asyncio.sleep(0.1)
        clients = [world.node(f"client{number}").start(ask) for number in range(3)]
        for client in clients:
            assert await client.result == 100
        world.node("server").terminate()
        await asyncio.sleep(1)
        assert server.result.cancelled()

    world.run(scenario())
