"""Serves HTTP on the event loop of its process, with uvicorn's protocol, within bounds.

uvicorn's own server is not used: it takes over the signals of the process, and ends the process if it
cannot listen. `close` ends everything that was started here: the listener, the connections and the
requests.

What a client can use without a valid token is bounded: here, in its connection (`http_connection.py`) and in each
request (`request_limits.py`).

    connections    their handshakes are bounded
    off loopback   the server listens only with TLS and a token, unless `--insecure` is given (G1)
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from starlette.responses import Response
from uvicorn.server import ServerState

from rollbook.api.access.authenticator import Authenticator
from rollbook.api.rest.cross_origin import CrossOrigin
from rollbook.api.rest.http_connection import SLICE_BYTES, Crowd, HttpConnection
from rollbook.api.rest.request_limits import Bounds, Guard
from rollbook.proto.errors import BadConfig, RollbookError
from rollbook.proto.loopback_addresses import is_loopback
from rollbook.proto.ports import Address
from rollbook.proto.runtime.network import ACCEPTED_AT_ONCE, cannot_listen, widen_backlog
from rollbook.proto.runtime.tls import TlsFiles, server_context
from rollbook.proto.runtime.tls_handshakes import Handshakes
from rollbook.proto.tasks import stop_tasks

_HANDSHAKE_S: Final = 5.0
_KEEP_ALIVE_S: Final = 5
# Unsent bytes that the system holds for a connection. By default it takes megabytes, so that a large
# part of a log would be read for a client that reads nothing.
_UNSENT_BY_SYSTEM: Final = 64 * 1024
_LOOPBACK_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_FOR_OPERATORS: Final = Bounds()


@dataclass(frozen=True, slots=True)
class HttpConfig:
    address: Address
    token_file: str | None = None  # The file's first line is the token of clients.
    tls: TlsFiles | None = None
    # Allows addresses off loopback without TLS and a token: for trusted networks.
    insecure: bool = False
    knows_callers: bool = False  # True: an authenticator will exist, with or without that token.
    # Origins of pages that may use the API, checked by `check_origins`.
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.insecure or is_loopback(self.address.host):
            return
        if not self.tls or not (self.token_file or self.knows_callers):
            raise BadConfig(
                f"HTTP on {self.address} would be open to the network",
                next_step="give it TLS and a token, listen on 127.0.0.1, or pass --insecure",
            )


class HttpServer:
    """A listening server; use `start` to create one."""

    def __init__(self, server: asyncio.Server, state: ServerState, address: Address) -> None:
        self.address = address  # The real port, even if port 0 was requested.
        self._server = server
        self._state = state

    @classmethod
    async def start(
        cls,
        app: FastAPI,
        config: HttpConfig,
        open_paths: Collection[str],
        authenticator: Authenticator | None,
        bounds: Bounds = _FOR_OPERATORS,
        own_door: str = "",
        own_refusal: Callable[[RollbookError, int], Response] | None = None,
    ) -> "HttpServer":
        """Starts to listen. Raises `BadConfig`.

        `open_paths` are served without a token. `authenticator`: None if callers are not authenticated. `own_door`: at
        and below this path the application authenticates its callers itself. `own_refusal`: returns the response to a
        request there that is refused, by the error and the status.
        """
        assert authenticator or not (config.token_file or config.knows_callers), "it would be open"
        hosts = _LOOPBACK_NAMES if authenticator is None and not config.insecure else None
        tls = server_context(config.tls) if config.tls else None
        settings = uvicorn.Config(
            Guard(
                app,
                authenticator,
                hosts,
                frozenset(open_paths),
                bounds,
                own_door,
                own_refusal,
                cross_origin=CrossOrigin(config.origins),
            ),
            interface="asgi3",
            http=HttpConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        settings.load()
        # Failures of requests are logged as our own events; invalid input of unknown clients is not
        # logged.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        loop, state, crowd = asyncio.get_running_loop(), ServerState(), Crowd(bounds)

        def factory() -> asyncio.Protocol:
            return HttpConnection(crowd, settings, state, {}, loop)

        if tls:
            factory = Handshakes(factory, tls, bounds.connections, _HANDSHAKE_S, SLICE_BYTES)
        listening = _listen(config.address)
        try:
            server = await loop.create_server(factory, sock=listening, backlog=ACCEPTED_AT_ONCE)
        except BaseException:
            listening.close()
            raise
        widen_backlog(server, bounds.backlog)
        host, port = listening.getsockname()[:2]
        return cls(server, state, Address(host, port))

    async def close(self, deadline_s: float = 2.0) -> None:
        """Requests in progress may end within the deadline."""
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        tasks = list(self._state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=deadline_s)
        await stop_tasks(*tasks)
        for connection in list(self._state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # Lets the connections handle the change.


def _listen(address: Address) -> socket.socket:
    try:
        found: list[Any] = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # IPPROTO_TCP makes asyncio set TCP_NODELAY: responses do not wait for each other.
        listening = socket.socket(found[0][0], socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BY_SYSTEM)
            listening.bind(found[0][4])
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise cannot_listen(address, error) from error
    return listening
