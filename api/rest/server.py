"""Serves HTTP on the event loop of its process, with uvicorn's protocol, within bounds.

uvicorn's own server is not used: it takes over the signals of the process, and ends the process if it
cannot listen. `close` ends everything that was started here: the listener, the connections and the
requests.

What a client can use without a valid token is bounded:

    connections    their number and their handshakes are bounded. A new connection replaces the one that has been
                   idle for longest; if no connection is idle, the new one is closed
    a request      its head, its body and the time until the end of its response are bounded, and so are the bodies
                   of all requests together
    a response     is sent as fast as its client reads; all large responses together are bounded
                   (`fairness/response_memory.py`)
    the loop       the numbers of headers, trailers, query fields and small chunks of a body (`chunked_body.py`) are
                   bounded: the parser looks at each of them, and thousands would delay all other clients. A
                   connection is read one slice per turn of the loop. Requests that arrive together begin one at a
                   time (`fairness/loop_yield_queue.py`)
    a path         contains no escapes but `%3A`: no name needs one, and `%2F` would make two names of one
    a refusal      reaches a client that is still sending: for a moment its input is read and discarded
    a stream       continues as long as its client reads; a client that reads nothing is disconnected
    off loopback   the server listens only with TLS and a token, unless `--insecure` is given (G1)
    on loopback    a server without a token answers only under a loopback name: otherwise a page in a browser on this
                   machine could reach the server under a name of the page's own (DNS rebinding)
    duplicates     of headers and query fields that decide something are refused: either value may be the wrong one
    pages          of other origins change nothing, unless an operator has named the origin: browsers send forms to
                   any server (`cross_origin.py`)
"""

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl

import h11
import uvicorn
from fastapi import FastAPI
from h11._receivebuffer import ReceiveBuffer
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from rollbook.api.access.authenticator import CALLER, AuthenticatedCaller, Authenticator, anybody
from rollbook.api.access.certificate_names import names_in
from rollbook.api.rest.chunked_body import BadChunks, Chunks
from rollbook.api.rest.cross_origin import CrossOrigin
from rollbook.api.rest.fairness.loop_yield_queue import AdmissionQueue
from rollbook.api.rest.fairness.response_memory import ResponseBackpressure
from rollbook.api.rest.problems import response_of
from rollbook.proto.errors import (
    BadConfig,
    EntryTooLarge,
    InvalidRequest,
    Missing,
    Overloaded,
    RollbookError,
    Unauthorized,
)
from rollbook.proto.loopback import is_loopback
from rollbook.proto.ports import Address
from rollbook.proto.runtime.network import ACCEPTED_AT_ONCE, cannot_listen, widen_backlog
from rollbook.proto.runtime.tls import TlsFiles, server_context
from rollbook.proto.runtime.tls_handshakes import Handshakes
from rollbook.proto.tasks import stop_tasks

_CONNECTIONS_MAX: Final = 64
_HEAD_BYTES_MAX: Final = 16 * 1024
_HEADERS_MAX: Final = 100
_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")
_QUERY_FIELDS_MAX: Final = 1024  # A query may name this many owners.
_SLICE_BYTES: Final = 16 * 1024  # Bytes that are read per turn, and parsed at a time.
_PLAIN_BYTES: Final = 128 * 1024  # Bytes that are discarded per turn: turns cost more than bytes.
_BODY_BYTES_MAX: Final = 64 * 1024
_EXCHANGE_S: Final = (
    30.0  # From a connection's start, or its last response, to the end of the next response.
)
_BODY_S: Final = 10.0
_HANDSHAKE_S: Final = 5.0
_ROUNDS_OF_REQUEST: Final = 16  # About the time that an append takes, without its waits.
# The longest wait of a first request, however many connections come.
_FIRST_WAITS_S_MAX: Final = 0.25
_LINGER_S: Final = 1.0  # Seconds from a refusal until the connection is closed.
_FORGOTTEN_EVERY_S: Final = 0.01  # The pause between two reads of discarded input.
_KEEP_ALIVE_S: Final = 5
_BACKLOG: Final = 32
_IDLE_LOOKED_AT: Final = 8  # Idle connections that are checked when one must make room.
_RETRY_MS: Final = 1000
# Unsent bytes that the system holds for a connection. By default it takes megabytes, so that a large
# part of a log would be read for a client that reads nothing.
_UNSENT_BY_SYSTEM: Final = 64 * 1024
_LOOKING: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_ONCE: Final = frozenset(
    (
        "authorization",
        "content-encoding",
        "content-type",
        "idempotency-key",
        "if-match",
        "last-event-id",
        "origin",
    )
)
_ONCE_IN_CHANGES: Final = _ONCE | {"if-none-match"}  # A client may know several ETags.
_ONCE_PREFIXES: Final = ("log-", "producer-")
# The query parameters that may be repeated, by path.
_REPEATABLE: Final = {
    "/v1/owners": frozenset(("log",)),
    "/v1/tails": frozenset(("log", "prefix")),
}
# The key of the certificate's names in the state that requests get.
_NAMES: Final = "certificate_names"
_LOOPBACK_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1"))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of all a server's connections together. The defaults suit a server for its operators."""

    # Connections. Larger: more clients, more memory. Smaller: the reverse.
    connections: int = _CONNECTIONS_MAX
    # Connections that the system keeps until they are accepted. Larger: clients of a burst wait.
    # Smaller: more of them are refused.
    backlog: int = _BACKLOG
    # Bytes of one request's body. Larger: larger requests, more memory. Smaller: large ones are
    # refused.
    body_bytes: int = _BODY_BYTES_MAX
    # Bytes of the bodies of all requests in service. Larger: more large requests at a time, more
    # memory. Smaller: the reverse.
    bodies_bytes: int = _CONNECTIONS_MAX * _BODY_BYTES_MAX
    # Bytes of large responses that are being read. Larger: more slow readers at a time, more
    # memory. Smaller: they wait for each other.
    answers_bytes: int = 16 * 1024 * 1024
    # Bytes that a connection may hold before the sender of its response has to wait. Larger: fewer,
    # longer writes. Smaller: less memory.
    unsent_bytes: int = 64 * 1024
    may_stream: bool = False  # True: an exchange has no deadline while it makes progress.


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
            http=_HttpConnection,
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
        loop, state, crowd = asyncio.get_running_loop(), ServerState(), _Crowd(bounds)

        def factory() -> asyncio.Protocol:
            return _HttpConnection(crowd, settings, state, {}, loop)

        if tls:
            factory = Handshakes(factory, tls, bounds.connections, _HANDSHAKE_S, _SLICE_BYTES)
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


class _Crowd:
    """The server's connections, first the one whose last response is the oldest."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.line = AdmissionQueue(_ROUNDS_OF_REQUEST)
        self._connections: dict[_HttpConnection, None] = {}

    def enter(self, connection: "_HttpConnection") -> bool:
        """Takes in a connection; returns whether there was room for it."""
        if len(self._connections) >= self.bounds.connections and not self._make_room():
            return False
        self._connections[connection] = None
        return True

    def on_answered(self, connection: "_HttpConnection") -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._connections[connection] = None

    def leave(self, connection: "_HttpConnection") -> None:
        self._connections.pop(connection, None)

    def _make_room(self) -> bool:
        for connection in list(islice(self._connections, _IDLE_LOOKED_AT)):
            if self.bounds.may_stream and not connection.is_wanted:
                self.leave(connection)
                connection.transport.abort()
                return True
            # Moves it to the end, so that the next call checks other connections.
            self.on_answered(connection)
        return False


class _Parser(h11.Connection):
    """An h11 parser that refuses input which would block the loop while it is parsed."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, _HEAD_BYTES_MAX)
        self.refusal = ""  # The reason, if this class refused the input.
        self._unparsed = bytearray()
        self._is_chunked = False

    @property
    def has_more(self) -> bool:
        """Whether some received bytes are not parsed yet."""
        return bool(self._unparsed or self.trailing_data[0])

    @property
    def has_head(self) -> bool:
        """Whether a whole head was received, valid or not."""
        return _END_OF_HEAD.search(self.trailing_data[0] + self._unparsed) is not None

    @property
    def is_in_plain_body(self) -> bool:
        """Whether the received bytes belong to a body that needs no parsing."""
        return self.their_state is h11.SEND_BODY and not self._is_chunked

    def receive_data(self, data: bytes) -> None:
        self._unparsed += data

    def next_event(self) -> Any:
        """Parses a slice at a time, so that the next bytes can be checked before each event."""
        while (event := self._next_of_slice()) is h11.NEED_DATA and self._unparsed:
            super().receive_data(bytes(self._unparsed[:_SLICE_BYTES]))
            del self._unparsed[:_SLICE_BYTES]
        return event

    def _next_of_slice(self) -> Any:
        if self.their_state is h11.IDLE:
            self._check_head(self.trailing_data[0])
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._is_chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
            if self._is_chunked:
                self._reader = _ChunkReader(self._refuse)  # Replaces h11's own reader.
        return event

    def _check_head(self, data: bytes) -> None:
        self._check_lines(data)
        if data.count(b"&", 0, data.find(b"\n") + 1) > _QUERY_FIELDS_MAX:
            self._refuse(f"a query may have at most {_QUERY_FIELDS_MAX} fields")

    def _check_lines(self, data: bytes) -> None:
        found = _END_OF_HEAD.search(data)
        if data.count(b"\n", 0, found.start() if found else len(data)) > _HEADERS_MAX:
            self._refuse(f"a request may have at most {_HEADERS_MAX} headers")

    def _refuse(self, why: str) -> NoReturn:
        self.refusal = why
        raise h11.RemoteProtocolError(why)


class _ChunkReader:
    """The reader of chunked bodies that h11 uses."""

    def __init__(self, refuse: Callable[[str], NoReturn]) -> None:
        self._chunks = Chunks()
        self._refuse = refuse

    def __call__(self, unread: ReceiveBuffer) -> h11.Data | h11.EndOfMessage | None:
        if not self._chunks.is_over:
            taken = unread.maybe_extract_at_most(len(unread))
            if taken is None:
                return None
            try:
                data = self._chunks.take(bytes(taken))
            except BadChunks as error:
                self._refuse(str(error))
            unread += self._chunks.rest
            if data:
                return h11.Data(data=data)
            if not self._chunks.is_over:
                return None
        trailers = [line.partition(b":")[::2] for line in self._chunks.trailers]
        return h11.EndOfMessage(headers=[(name, text.strip()) for name, text in trailers])

    def read_eof(self) -> NoReturn:
        raise h11.RemoteProtocolError("the connection ends within a body")


class _HttpConnection(H11Protocol):
    """A uvicorn connection that is counted, with a limit on the time of one exchange."""

    _watchdog: asyncio.TimerHandle | None = None
    _unsent = -1  # Unsent bytes at the watchdog's last check.
    _is_answered = False  # True: a response has just been completed.
    _next: asyncio.Task[None] | None = None  # The task of a request that waits in the queue.
    # The remaining wait of a first request, however many pieces it arrives in.
    _first_may_wait_s = _FIRST_WAITS_S_MAX
    _unheard: int | None = None  # Bytes that may still be discarded; None: input is parsed.

    def __init__(self, crowd: _Crowd, *uvicorns: Any) -> None:
        super().__init__(*uvicorns)
        self.conn = self._parser = _Parser()
        self._crowd = crowd

    @property
    def is_serving(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request.
        return cycle is not None and not cycle.response_complete

    @property
    def is_wanted(self) -> bool:
        """Whether a request is being served, or waits in the queue with its whole head. A part of a head does not
        count, not even if further bytes arrive now and then."""
        return self.is_serving or (self._next is not None and self._parser.has_head)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's signature.
        super().connection_made(transport)
        self.app_state[_NAMES] = names_in(transport.get_extra_info("peercert"))
        self._read_at_once(_SLICE_BYTES)
        transport.set_write_buffer_limits(self._crowd.bounds.unsent_bytes)
        if self._crowd.enter(self):
            self._watch()
        else:
            transport.abort()

    def on_response_complete(self) -> None:
        self._crowd.on_answered(self)
        self._is_answered = True
        super().on_response_complete()
        self._is_answered = False
        # While the connection closes, the earlier deadline stays: the client must read the response by then.
        if not self.transport.is_closing():
            self._watch()

    def handle_events(self) -> None:
        """Begins a request at once if it arrived after the connection's earlier responses. A connection's first
        request, and requests that arrived before an earlier response was complete, wait in one queue: many can arrive
        at the same time, and the loop serves others in between.
        """
        if self._next is not None:  # A request waits already; this call is about later bytes.
            return
        if self._is_answered and self._parser.has_more:
            self._wait_in_line(self._serve_next())
        elif self.cycle is None and self._parser.has_more and self._first_may_wait_s > 0:
            self._wait_in_line(self._serve_first())
        else:
            self._look_at_more()

    def _wait_in_line(self, serve: Coroutine[None, None, None]) -> None:
        self.flow.pause_reading()
        self._unset_keepalive_if_required()  # The connection is not idle; `_watch` still bounds it.
        self._next = self.loop.create_task(serve)

    async def _serve_first(self) -> None:
        began_s = self.loop.time()
        patience_s = self._first_may_wait_s
        await self._crowd.line.wait(patience_s)
        self._first_may_wait_s = patience_s - (self.loop.time() - began_s)
        self._go_on()

    async def _serve_next(self) -> None:
        await self._crowd.line.wait()
        self._go_on()

    def _go_on(self) -> None:
        self._next = None
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._look_at_more()

    def _look_at_more(self) -> None:
        super().handle_events()
        if self._unheard is None:
            self._read_at_once(_PLAIN_BYTES if self._parser.is_in_plain_body else _SLICE_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.leave(self)
        if self._next is not None:
            self._next.cancel()
        if self._watchdog:
            self._watchdog.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Sends a 400 response in the form of all other refusals."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # The response has begun.
            self.transport.abort()
            return
        error = InvalidRequest(self._parser.refusal or msg)
        refusal = response_of(error, headers={"connection": "close"})
        head = h11.Response(status_code=400, headers=refusal.raw_headers, reason=b"Bad Request")
        for event in (head, h11.Data(data=bytes(refusal.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self._linger()

    def _linger(self) -> None:
        """Delays the close: the system discards the response if it closes a connection with unread bytes."""
        self._unheard = self._crowd.bounds.body_bytes
        self._unset_keepalive_if_required()
        if self.is_serving:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._read_at_once(_PLAIN_BYTES)
        self.flow.resume_reading()
        if self._watchdog:
            self._watchdog.cancel()
        self._watchdog = self.loop.call_later(_LINGER_S, self.transport.abort)

    def _read_at_once(self, bytes_max: int) -> None:
        self.transport.max_size = bytes_max  # type: ignore[attr-defined]  # asyncio's attribute, without TLS only.

    def data_received(self, data: bytes) -> None:
        if self._unheard is None:
            super().data_received(data)
            return
        self._unheard -= len(data)
        if self._unheard < 0:
            self.transport.abort()
        else:  # Refused clients are read slowly: twenty that sent a megabyte each delayed others.
            self.flow.pause_reading()
            self.loop.call_later(_FORGOTTEN_EVERY_S, self.flow.resume_reading)

    def _watch(self) -> None:
        if self._watchdog:
            self._watchdog.cancel()
        self._unsent = -1
        self._watchdog = self.loop.call_later(_EXCHANGE_S, self._look)

    def _look(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        gets_on = not unsent or unsent != self._unsent
        if self._crowd.bounds.may_stream and self.is_serving and gets_on:
            self._unsent = unsent
            self._watchdog = self.loop.call_later(_EXCHANGE_S, self._look)
        else:
            self.transport.abort()


class Guard:
    """Passes allowed requests, with their whole bodies, on to the application."""

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator | None,
        hosts: frozenset[str] | None,
        open_paths: frozenset[str],
        bounds: Bounds,
        own_door: str = "",
        own_refusal: Callable[[RollbookError, int], Response] | None = None,
        cross_origin: CrossOrigin | None = None,
    ) -> None:
        self._app = app
        self._cross_origin = cross_origin or CrossOrigin(())
        self._own_door = own_door
        self._own_refusal = own_refusal
        self._bounds = bounds
        self._bodies_bytes = 0
        self._backpressure = ResponseBackpressure(bounds.answers_bytes)
        self._authenticator = authenticator
        self._hosts = hosts
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        headers = Headers(scope=scope)
        held = _Held()
        send = self._cross_origin.telling(scope["method"], headers, send)
        preflight = self._cross_origin.preflight(scope["method"], headers)
        try:
            try:
                self._check_host(headers)
                if preflight is None and not self._is_open(scope["path"]):
                    CALLER.set(self._admitted(scope, headers))
                _check_path(scope)
                _check_said_once(scope, headers)
                self._check_origin(scope, headers)
                body = await self._read_body(headers, receive, held)
            except _Refused as refused:
                waits = "100-continue" in headers.get("expect", "").lower() and not held.is_read
                response = self._response_of(refused, scope["path"])
                await _refuse(response, scope, receive, send, self._bounds.body_bytes, waits=waits)
            except _Gone:
                pass  # The client left before its whole body had arrived.
            else:
                receive_body = _receive_at_once(body, receive)
                if preflight is not None:
                    await preflight(scope, receive_body, send)
                elif scope["method"] == "GET":
                    await self._backpressure.serve(self._app, scope, receive_body, send)
                else:  # Responses to writes are never dropped.
                    await self._app(scope, receive_body, send)
        finally:
            self._bodies_bytes -= held.bytes

    def _response_of(self, refused: "_Refused", path: str) -> Response:
        headers = {"connection": "close"}
        error = refused.error
        if self._own_refusal and self._is_behind_own_door(path):
            response = self._own_refusal(error, refused.status)
            response.headers.update(headers)
            return response
        if refused.status == 401:
            headers["www-authenticate"] = 'Bearer realm="rollbook"'
        return response_of(error, status=refused.status, headers=headers)

    def _is_open(self, path: str) -> bool:
        return path in self._open_paths or self._is_behind_own_door(path)

    def _is_behind_own_door(self, path: str) -> bool:
        door = self._own_door
        return bool(door and f"{path}/".startswith(f"{door}/"))

    async def _read_body(self, headers: Headers, receive: Receive, held: "_Held") -> bytes:
        # h11 checked that the header is a number.
        self._hold(held, int(headers.get("content-length", "0")))
        held.is_read = True
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Gone
                    body += message.get("body", b"")
                    self._hold(held, len(body))
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            late = InvalidRequest(f"the body did not arrive within {_BODY_S:g} s")
            raise _Refused(408, late) from None

    def _hold(self, held: "_Held", wanted: int) -> None:
        if wanted > self._bounds.body_bytes:
            limit = self._bounds.body_bytes
            raise _Refused(413, EntryTooLarge(f"a body has at most {limit} bytes", limit=limit))
        more = max(wanted - held.bytes, 0)
        if self._bodies_bytes + more > self._bounds.bodies_bytes:
            busy = Overloaded("too many bodies are being read", retry_after_ms=_RETRY_MS)
            raise _Refused(busy.code.http, busy)
        self._bodies_bytes += more
        held.bytes += more

    def _check_host(self, headers: Headers) -> None:
        if self._hosts is None:
            return
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if name.strip("[]").lower() not in self._hosts:
            advice = "use http://127.0.0.1, or give the server a token"
            raise _Refused(
                421, InvalidRequest("only loopback names are accepted here", next_step=advice)
            )

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is None or scope["method"] in _LOOKING:
            return
        if origin.partition("://")[2] == headers.get("host", ""):
            return
        if not self._cross_origin.may_change(origin):
            raise _Refused(403, Unauthorized("pages of other origins may not change anything"))

    def _admitted(self, scope: Scope, headers: Headers) -> AuthenticatedCaller:
        client = scope.get("client")
        peer = f"{client[0]}:{client[1]}" if client else ""
        if self._authenticator is None:
            return anybody(peer)
        names = scope.get("state", {}).get(_NAMES, ())
        try:
            return self._authenticator.admit(headers.get("authorization", ""), names, peer)
        except Unauthorized as error:
            raise _Refused(401, error) from None


@dataclass(slots=True)
class _Held:
    """A request's share of the bytes of all bodies."""

    bytes: int = 0
    is_read: bool = False  # True: a client that waits for `100 Continue` gets it.


class _Gone(Exception):
    """The client left before its request ended."""


class _Refused(Exception):
    """The request was refused before the application saw it."""

    def __init__(self, status: int, error: RollbookError) -> None:
        super().__init__(status)
        self.status = status
        self.error = error


async def _refuse(
    response: Response, scope: Scope, receive: Receive, send: Send, unheard: int, *, waits: bool
) -> None:
    """Sends a refusal. The rest of the request, up to `unheard` bytes, is read for a moment and discarded: see
    `_HttpConnection._linger`.

    `waits`: the client waits for `100 Continue`, so the rest does not come unless a part of it has arrived already.
    """

    async def send_but_the_end(message: Message) -> None:
        await send({**message, "more_body": True} if "body" in message else message)

    await response(scope, receive, send_but_the_end)
    with suppress(TimeoutError):
        async with asyncio.timeout(0 if waits else _LINGER_S) as lingering:
            while unheard >= 0:
                message = await receive()
                if not message.get("more_body", False):
                    break
                if waits:
                    lingering.reschedule(asyncio.get_running_loop().time() + _LINGER_S)
                    waits = False
                unheard -= len(message["body"])
    await send({"type": "http.response.body", "body": b""})


def _receive_at_once(body: bytes, receive: Receive) -> Receive:
    is_received = False

    async def receive_at_once() -> Message:
        nonlocal is_received
        if is_received:
            return await receive()
        is_received = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_at_once


def _check_path(scope: Scope) -> None:
    raw: bytes = scope.get("raw_path", b"")
    if b"%" in raw.replace(b"%3A", b":").replace(b"%3a", b":"):
        raise _Refused(404, Missing("paths have no escapes other than %3A"))


def _check_said_once(scope: Scope, headers: Headers) -> None:
    """Refuses repeated headers and parameters: a proxy in between may have used the other value."""
    once = _ONCE if scope["method"] in _LOOKING else _ONCE_IN_CHANGES
    _check_no_two(name for name in headers if name in once or name.startswith(_ONCE_PREFIXES))
    # Names are decoded as routes decode them, so escapes cannot hide a second one.
    if query := scope["query_string"]:
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        repeatable = _REPEATABLE.get(scope["path"], frozenset[str]())
        _check_no_two(name for name, _ in fields if name not in repeatable)
    if "content-length" in headers and "transfer-encoding" in headers:
        raise _Refused(400, InvalidRequest("a body may have a length or be chunked, not both"))


def _check_no_two(names: Iterable[str]) -> None:
    said = set[str]()
    for name in names:
        if name in said:
            raise _Refused(400, InvalidRequest(f"{name[:80]!r} occurs more than once"))
        said.add(name)


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
