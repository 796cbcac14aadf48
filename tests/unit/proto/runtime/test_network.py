"""The Transport port over real sockets."""

import asyncio
import os
import socket
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from rollbook.proto.errors import BadConfig, Unavailable
from rollbook.proto.ports import Address
from rollbook.proto.runtime.network import SocketTransport


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Collector(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = asyncio.Queue[bytes]()

    def data_received(self, data: bytes) -> None:
        self.received.put_nowait(data)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_echo_over_tcp_and_unix_sockets(kind: str, tmp_path: Path) -> None:
    network = SocketTransport()
    wanted = Address("127.0.0.1", 0) if kind == "tcp" else Address(str(tmp_path / "s"), 0)
    listener = await network.listen(Echo, wanted)
    if kind == "unix":
        assert os.stat(wanted.host).st_mode & 0o777 == 0o600
    else:
        assert listener.address.port > 0
    transport, protocol = await network.connect(Collector, listener.address, timeout_s=5)
    transport.write(b"ping")
    assert isinstance(protocol, Collector)
    assert await protocol.received.get() == b"ping"
    transport.close()
    await listener.close()
    with pytest.raises(Unavailable, match="cannot reach"):
        await network.connect(Collector, listener.address, timeout_s=5)


async def test_keep_alive_is_enabled_on_both_ends() -> None:
    network = SocketTransport()
    accepted: list[Echo] = []

    def accept() -> Echo:
        accepted.append(Echo())
        return accepted[-1]

    listener = await network.listen(accept, Address("127.0.0.1", 0))
    transport, protocol = await network.connect(Collector, listener.address, timeout_s=5)
    transport.write(b"ping")
    assert isinstance(protocol, Collector)
    await protocol.received.get()
    for end in (transport, accepted[0].transport):
        connection = end.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
    transport.close()
    await listener.close()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_accepting_many_connections_yields_to_other_tasks(kind: str, tmp_path: Path) -> None:
    network = SocketTransport()
    accepted: list[Echo] = []

    def accept() -> Echo:
        accepted.append(Echo())
        return accepted[-1]

    wanted = Address("127.0.0.1", 0) if kind == "tcp" else Address(str(tmp_path / "s"), 0)
    listener = await network.listen(accept, wanted)
    address = listener.address
    with ExitStack() as stack:
        for _ in range(200):  # The kernel queues these connections until they are accepted.
            family = socket.AF_INET if kind == "tcp" else socket.AF_UNIX
            client = stack.enter_context(socket.socket(family))
            client.settimeout(30)
            client.connect((address.host, address.port) if kind == "tcp" else address.host)
        counts = [0]
        async with asyncio.timeout(30):
            while counts[-1] < 200:
                await asyncio.sleep(0)
                counts.append(len(accepted))
            while not all(hasattr(each, "transport") for each in accepted):
                await asyncio.sleep(0)
        assert max(after - before for before, after in pairwise(counts)) <= 32
        for each in accepted:
            each.transport.abort()
    await listener.close()


async def test_socket_buffer_of_slow_peer_stays_small() -> None:
    """The protocol buffers the rest."""
    network = SocketTransport()
    accepted: list[Echo] = []

    def accept() -> Echo:
        accepted.append(Echo())
        return accepted[-1]

    listener = await network.listen(accept, Address("127.0.0.1", 0))
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        client.connect((listener.address.host, listener.address.port))
        async with asyncio.timeout(30):
            while not (accepted and hasattr(accepted[0], "transport")):
                await asyncio.sleep(0.001)
        server = accepted[0]
        server.transport.write(bytes(8 * 1024 * 1024))
        assert server.transport.get_write_buffer_size() > 6 * 1024 * 1024
        server.transport.abort()
    await listener.close()


async def test_taken_port_is_reported_as_bad_config() -> None:
    network = SocketTransport()
    listener = await network.listen(Echo, Address("127.0.0.1", 0))
    with pytest.raises(BadConfig, match="choose another"):
        await network.listen(Echo, listener.address)
    await listener.close()
