"""Limits for peers that connect and do not finish their TLS handshake."""

import asyncio
import socket
import ssl
from contextlib import ExitStack

from rollbook.proto.ports import Address
from rollbook.proto.runtime.tls import TlsFiles, server_context
from rollbook.proto.runtime.tls_handshakes import Handshakes
from tests.unit.proto.runtime.test_tls import PATIENCE_S, Echo, golden, is_served

FLOOD_BYTES = 32 * 1024 * 1024  # More than the socket buffers of both ends hold.


async def serve(at_once_max: int, timeout_s: float = PATIENCE_S) -> asyncio.Server:
    context = server_context(TlsFiles(golden("server-a")))
    factory = Handshakes(Echo, context, at_once_max, timeout_s)
    return await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)


def address_of(server: asyncio.Server) -> Address:
    return Address(*server.sockets[0].getsockname()[:2])


async def hung_up_on(connection: socket.socket) -> None:
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.get_running_loop().sock_recv(connection, 1) == b""


async def until_served(address: Address) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_served(address, "authority-a"):
            await asyncio.sleep(0.01)


def silent(stack: ExitStack, address: Address) -> socket.socket:
    connection = stack.enter_context(socket.create_connection((address.host, address.port)))
    connection.setblocking(False)
    return connection


async def test_number_of_handshakes_under_way_is_limited() -> None:
    server = await serve(3)
    address = address_of(server)
    with ExitStack() as stack:
        waiting = [silent(stack, address) for _ in range(3)]
        late = silent(stack, address)
        try:
            await hung_up_on(late)
        except ConnectionResetError:
            pass
        assert not await is_served(address, "authority-a")
        waiting[0].close()  # Room for one.
        await until_served(address)
        waiting[1].send(b"GET / HTTP/1.1\r\n\r\n")  # A failed handshake makes room for another one.
        await until_served(address)
    server.close()


async def test_completed_handshake_makes_room_for_the_next() -> None:
    server = await serve(1)
    for _ in range(5):
        assert await is_served(address_of(server), "authority-a")
    server.close()


async def test_silent_peer_is_disconnected_after_timeout() -> None:
    server = await serve(1, 0.2)
    with ExitStack() as stack:
        await hung_up_on(silent(stack, address_of(server)))
        await until_served(address_of(server))
    server.close()


class Flood(asyncio.Protocol):
    """Writes much, and more only after that is sent."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.has_begun, self.may_go_on = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(1)
        self.may_go_on.set()
        transport.write(bytes(FLOOD_BYTES))
        self.has_begun.set()

    def pause_writing(self) -> None:
        self.may_go_on.clear()

    def resume_writing(self) -> None:
        self.may_go_on.set()


async def test_bytes_not_read_by_peer_count_as_write_buffer() -> None:
    """Encrypted bytes that the socket's transport still holds must not count as sent."""
    flood = Flood()
    context = server_context(TlsFiles(golden("server-a")))
    factory = Handshakes(lambda: flood, context, 1)
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
    address = address_of(server)
    trusting = ssl.create_default_context(cafile=golden("authority-a"))
    trusting.check_hostname = False
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(
            address.host, address.port, ssl=trusting, limit=1024
        )
        await flood.has_begun.wait()
        assert not flood.may_go_on.is_set()
        assert flood.transport.get_write_buffer_size() > FLOOD_BYTES // 2
        await reader.readexactly(FLOOD_BYTES)
        await flood.may_go_on.wait()
        assert flood.transport.get_write_buffer_size() == 0
    writer.close()
    server.close()


async def test_data_sent_with_end_of_handshake_is_received() -> None:
    """A client of TLS 1.3 may send data in the same segment."""
    server = await serve(1)
    address = address_of(server)
    context = ssl.create_default_context(cafile=golden("authority-a"))
    context.check_hostname = False
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    writer.write(b"at once")
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.readexactly(7) == b"at once"
    writer.close()
    server.close()
