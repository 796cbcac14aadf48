"""TLS for a server that limits its concurrent handshakes and closes connections beyond the limit.

asyncio's own servers do not report a connection before its handshake is over. A client that
connects and sends nothing would then use a file that is not counted, and other parts of the server
could run out of files.
"""

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from typing import Any, Final, cast

from rollbook.proto.ports import ProtocolFactory

_HANDSHAKE_S_MAX: Final = 10.0  # A peer whose handshake takes longer is disconnected.
_SHUTDOWN_S_MAX: Final = 5.0  # How long to wait until the peer ends its side of a TLS session.
_READ_BYTES_MAX: Final = 256 * 1024  # This is asyncio's own value, too.


class Handshakes:
    """A protocol factory that adds TLS to the factory that it wraps."""

    def __init__(
        self,
        factory: ProtocolFactory,
        context: ssl.SSLContext,
        at_once_max: int,
        timeout_s: float = _HANDSHAKE_S_MAX,
        read_bytes_max: int = _READ_BYTES_MAX,
    ) -> None:
        """`read_bytes_max` is how many encrypted bytes of a connection are read in one turn of the loop."""
        self._read_bytes_max = read_bytes_max
        self._factory = factory
        self._context = context
        self._at_once_max = at_once_max
        self._timeout_s = timeout_s
        self._under_way = 0

    def __call__(self) -> asyncio.Protocol:
        return _Arriving(self)

    def begin(self, transport: asyncio.Transport) -> None:
        if self._under_way >= self._at_once_max:
            transport.abort()
            return
        self._under_way += 1
        loop = asyncio.get_running_loop()
        is_over: asyncio.Future[None] = loop.create_future()
        is_over.add_done_callback(self._on_over)
        # Bytes that the socket does not accept stay in the TLS layer, where they are counted.
        transport.set_write_buffer_limits(0)
        tls = _Tls(
            self._read_bytes_max,
            loop,
            self._factory(),
            self._context,
            is_over,
            server_side=True,
            ssl_handshake_timeout=self._timeout_s,
            ssl_shutdown_timeout=_SHUTDOWN_S_MAX,
        )
        transport.set_protocol(tls)
        tls.connection_made(transport)

    def _on_over(self, handshake: asyncio.Future[None]) -> None:
        """Handles the end of a handshake. If the handshake failed, the connection is already closed."""
        self._under_way -= 1
        handshake.exception()  # This retrieves the error; no other code does.


class _Tls(SSLProtocol):
    """A TLS protocol that counts bytes that the socket has not accepted as unsent. asyncio's class
    does not count bytes that it has encrypted, so a peer that reads nothing would seem to read
    everything.
    """

    _transport: asyncio.Transport | None  # None once the connection is closed.

    def __init__(self, read_bytes_max: int, *arguments: Any, **more: Any) -> None:
        self.max_size = read_bytes_max  # type: ignore[misc]  # Set on each instance, not on the class.
        super().__init__(*arguments, **more)

    def _get_write_buffer_size(self) -> int:
        below = self._transport.get_write_buffer_size() if self._transport is not None else 0
        above: int = super()._get_write_buffer_size()  # type: ignore[misc]  # No stub has it.
        return above + below


class _Arriving(asyncio.Protocol):
    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handshakes.begin(cast(asyncio.Transport, transport))
