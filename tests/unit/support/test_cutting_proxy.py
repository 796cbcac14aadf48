"""The proxy breaks a connection reliably before a request arrives or after it was served."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.cutting_proxy import ZOOKEEPER, CuttingProxy, Dialect, Direction

DEADLINE_S = 10
HEARTBEAT = 0


class Server(asyncio.Protocol):
    """Echoes each number and remembers it."""

    def __init__(self, heard: list[int], connections: set["Server"]) -> None:
        self._heard = heard
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)

    def data_received(self, data: bytes) -> None:
        self._heard += _unpack(data)
        self._transport.write(data)


class Client(asyncio.Protocol):
    def __init__(self) -> None:
        self._heard: asyncio.Queue[int | None] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for number in _unpack(data):
            self._heard.put_nowait(number)

    def connection_lost(self, exc: Exception | None) -> None:
        self._heard.put_nowait(None)

    async def ask(self, number: int) -> int | None:
        """Returns None if the connection broke."""
        self.say(number)
        return await self.hear()

    def say(self, number: int) -> None:
        self.transport.write(struct.pack("!ii", 4, number))

    async def hear(self) -> int | None:
        async with asyncio.timeout(DEADLINE_S):
            return await self._heard.get()


def _unpack(data: bytes) -> list[int]:
    """Unpacks frames, which are so short that they arrive whole."""
    frames = list(struct.iter_unpack("!ii", data))
    assert all(length == 4 for length, _ in frames)
    return [number for _, number in frames]


def _number(frame: bytes) -> int | None:
    return int.from_bytes(frame) or None  # The heartbeat is not a request.


@pytest.fixture
def heard() -> list[int]:
    """The numbers that the server received."""
    return []


@pytest.fixture(params=["tcp", "unix"])
async def proxy(
    request: pytest.FixtureRequest, heard: list[int], tmp_path: Path
) -> AsyncIterator[CuttingProxy]:
    loop = asyncio.get_running_loop()
    connections: set[Server] = set()
    if request.param == "unix":
        address = str(tmp_path / "socket")
        listening = await loop.create_unix_server(lambda: Server(heard, connections), address)
    else:
        listening = await loop.create_server(lambda: Server(heard, connections), "127.0.0.1", 0)
        address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    with CuttingProxy(address, Dialect(_number, _number)) as proxy:
        yield proxy
    listening.close()
    async with asyncio.timeout(DEADLINE_S):
        while connections:  # Connections that the proxy still closes.
            await asyncio.sleep(0.001)


Connect = Callable[[CuttingProxy], Awaitable[Client]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    clients: list[Client] = []

    async def connect(proxy: CuttingProxy) -> Client:
        loop = asyncio.get_running_loop()
        if proxy.address.startswith("/"):
            _, client = await loop.create_unix_connection(Client, proxy.address)
        else:
            host, _, port = proxy.address.rpartition(":")
            _, client = await loop.create_connection(Client, host, int(port))
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.transport.abort()


async def test_proxy_forwards_requests_and_replies_by_default(
    proxy: CuttingProxy, connect: Connect, heard: list[int]
) -> None:
    client = await connect(proxy)
    assert [await client.ask(number) for number in (1, HEARTBEAT, 2)] == [1, HEARTBEAT, 2]
    assert heard == [1, HEARTBEAT, 2]


async def test_request_with_lost_reply_reached_the_server_once(
    proxy: CuttingProxy, connect: Connect, heard: list[int]
) -> None:
    client = await connect(proxy)
    proxy.lose_reply()
    assert await client.ask(HEARTBEAT) == HEARTBEAT
    assert await client.ask(1) is None
    assert heard == [HEARTBEAT, 1]
    again = await connect(proxy)
    assert await again.ask(2) == 2  # Only one reply is lost.


async def test_lost_request_does_not_reach_the_server(
    proxy: CuttingProxy, connect: Connect, heard: list[int]
) -> None:
    client = await connect(proxy)
    proxy.lose_request()
    assert await client.ask(HEARTBEAT) == HEARTBEAT
    assert await client.ask(1) is None
    again = await connect(proxy)
    assert await again.ask(2) == 2
    assert heard == [HEARTBEAT, 2]


async def test_forgive_cancels_a_planned_loss(proxy: CuttingProxy, connect: Connect) -> None:
    client = await connect(proxy)
    proxy.lose_request()
    proxy.forgive()
    assert await client.ask(1) == 1


async def test_cut_breaks_every_connection(proxy: CuttingProxy, connect: Connect) -> None:
    one, other = await connect(proxy), await connect(proxy)
    assert await one.ask(1) == 1
    assert await other.ask(2) == 2
    proxy.cut()
    assert await one.hear() is None
    assert await other.hear() is None
    again = await connect(proxy)
    assert await again.ask(3) == 3


async def test_refuse_rejects_connections_until_accept(
    proxy: CuttingProxy, connect: Connect, heard: list[int]
) -> None:
    proxy.refuse()
    assert await (await connect(proxy)).ask(1) is None
    assert heard == []
    proxy.accept()
    assert await (await connect(proxy)).ask(2) == 2


async def test_held_and_paused_data_arrives_after_resume(
    proxy: CuttingProxy, connect: Connect, heard: list[int]
) -> None:
    client = await connect(proxy)
    assert await client.ask(1) == 1
    proxy.hold(Direction.TO_CLIENT)
    client.say(2)
    while heard != [1, 2]:
        await asyncio.sleep(0.001)
    proxy.pause()
    client.say(3)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.hear()
    assert heard == [1, 2]
    proxy.resume()
    assert [await client.hear(), await client.hear()] == [2, 3]


async def test_connection_to_an_absent_server_is_closed(connect: Connect) -> None:
    with CuttingProxy("127.0.0.1:1", ZOOKEEPER) as to_nobody:
        assert await (await connect(to_nobody)).ask(1) is None


def test_only_data_requests_to_zookeeper_have_a_request_id() -> None:
    """A frame begins with its request number and its kind."""
    frames = {
        "hello": (0, 0),
        "ping": (-2, 11),
        "auth": (-4, 100),
        "get": (7, 4),
        "add watch": (8, 106),
        "remove watches": (9, 18),
        "close": (10, -11),
    }
    numbers = {
        name: ZOOKEEPER.request_id(struct.pack("!ii", *frame)) for name, frame in frames.items()
    }
    assert {name: number for name, number in numbers.items() if number} == {"get": 7}
    assert ZOOKEEPER.answer_id(struct.pack("!iqi", 7, 1, 0)) == 7
    assert ZOOKEEPER.answer_id(struct.pack("!iqi", -1, -1, 0)) is None  # An event.
