"""Streams of bytes over TCP and Unix sockets, plain or under TLS."""

import asyncio
import errno
import os
import socket
import ssl
from asyncio.trsock import TransportSocket
from typing import Final

from rollbook.proto.errors import BadConfig, Unavailable
from rollbook.proto.ports import Address, ProtocolFactory
from rollbook.proto.runtime.system_error_text import describe_error
from rollbook.proto.runtime.tls import ClientTls
from rollbook.proto.runtime.tls_handshakes import Handshakes

# With these settings, a peer that vanished silently (power cut, dropped NAT entry) is noticed
# within about 20 s, even on an idle connection.
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3))
# The unsent bytes that the system holds for a peer that does not read. The default is megabytes for
# each connection: for 100 slow readers it was 250 MiB that were not counted.
_UNSENT_BYTES_MAX: Final = 512 * 1024
# The number of connections that may wait in the system until they are accepted.
_BACKLOG: Final = 1024
# The connections that are accepted at once; each takes a tenth of a millisecond.
ACCEPTED_AT_ONCE: Final = 16
_HANDSHAKES_MAX: Final = 256  # The number of concurrent TLS handshakes.


class SocketListener:
    def __init__(self, server: asyncio.Server, address: Address) -> None:
        self._server = server
        self._address = address

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        self._server.close()
        # This lets connections that were being accepted reach their protocol.
        await asyncio.sleep(0)


class SocketTransport:
    """Implements the `Transport` port. There is one instance for each set of TLS settings."""

    def __init__(
        self,
        *,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | ClientTls | None = None,
    ) -> None:
        self._server_tls = server_tls
        self._client_tls = client_tls

    async def listen(self, factory: ProtocolFactory, address: Address) -> SocketListener:
        loop = asyncio.get_running_loop()
        if self._server_tls is not None:
            factory = Handshakes(factory, self._server_tls, _HANDSHAKES_MAX)
        try:
            if address.is_unix:
                server = await loop.create_unix_server(
                    factory, address.host, backlog=ACCEPTED_AT_ONCE
                )
                os.chmod(address.host, 0o600)
                widen_backlog(server, _BACKLOG)
                return SocketListener(server, address)
            server = await loop.create_server(
                factory, address.host, address.port, backlog=ACCEPTED_AT_ONCE
            )
        except OSError as error:
            raise cannot_listen(address, error) from error
        widen_backlog(server, _BACKLOG)
        for listening in server.sockets:
            _keep_alive(listening)  # Accepted connections inherit these options.
            _limit_unsent(listening)  # Accepted connections inherit this limit.
        host, port = server.sockets[0].getsockname()[:2]
        return SocketListener(server, Address(host, port))

    async def connect(
        self, factory: ProtocolFactory, address: Address, timeout_s: float
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        loop = asyncio.get_running_loop()
        tls = self._client_tls
        if isinstance(tls, ClientTls):
            tls = tls.context()
        try:
            async with asyncio.timeout(timeout_s):
                if address.is_unix:
                    return await loop.create_unix_connection(factory, address.host, ssl=tls)
                transport, protocol = await loop.create_connection(
                    factory, address.host, address.port, ssl=tls
                )
        except (OSError, TimeoutError) as error:
            is_late = isinstance(error, TimeoutError) and not error.errno
            detail = f"no answer within {timeout_s:g} s" if is_late else describe_error(error)
            raise Unavailable(f"cannot reach {address}: {detail}") from error
        _keep_alive(transport.get_extra_info("socket"))
        return transport, protocol


def widen_backlog(server: asyncio.Server, backlog: int) -> None:
    """Widens the backlog of the sockets. If this number were passed to asyncio instead, asyncio would also
    accept that many connections in one turn of the loop.
    """
    for listening in server.sockets:
        with listening.dup() as same:
            same.listen(backlog)


def _keep_alive(connection: socket.socket | TransportSocket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        # Some systems lack some of these options.
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _limit_unsent(connection: socket.socket | TransportSocket) -> None:
    if (option := getattr(socket, "TCP_NOTSENT_LOWAT", None)) is not None:
        connection.setsockopt(socket.IPPROTO_TCP, option, _UNSENT_BYTES_MAX)


def cannot_listen(address: Address, error: OSError) -> BadConfig:
    return BadConfig(
        f"cannot listen on {address}: {describe_error(error)}", next_step=_advice(error)
    )


def _advice(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "stop the process that has this port, or choose another one"
        case errno.EACCES:
            return "choose a port above 1023 or a folder that this user may write to"
        case errno.EADDRNOTAVAIL:
            return "choose an address of this host, or 0.0.0.0 for all of them"
        case _:
            return "choose another address"
