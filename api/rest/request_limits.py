"""Bounds what the clients of an HTTP server can use, and refuses requests before the application sees them.

a request      its body is bounded in size and time, and so are the bodies of all requests together
a response     all large responses together are bounded (`fairness/response_memory.py`)
a path         contains no escapes but `%3A`: no name needs one, and `%2F` would make two names of one
a refusal      reaches a client that is still sending: for a moment its input is read and discarded
on loopback    a server without a token answers only under a loopback name: otherwise a page in a browser on this
               machine could reach the server under a name of the page's own (DNS rebinding)
duplicates     of headers and query fields that decide something are refused: either value may be the wrong one
pages          of other origins change nothing, unless an operator has named the origin: browsers send forms to
               any server (`cross_origin.py`)
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollbook.api.access.authenticator import CALLER, AuthenticatedCaller, Authenticator, anybody
from rollbook.api.rest.cross_origin import CrossOrigin
from rollbook.api.rest.fairness.response_memory import ResponseBackpressure
from rollbook.api.rest.problems import response_of
from rollbook.proto.errors import (
    EntryTooLarge,
    InvalidRequest,
    Missing,
    Overloaded,
    RollbookError,
    Unauthorized,
)

_CONNECTIONS_MAX: Final = 64
_BODY_BYTES_MAX: Final = 64 * 1024
_BODY_S: Final = 10.0
LINGER_S: Final = 1.0  # Seconds from a refusal until the connection is closed.
_BACKLOG: Final = 32
_RETRY_MS: Final = 1000
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
CERTIFICATE_NAMES: Final = "certificate_names"


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
        send = self._cross_origin.with_cors_headers(scope["method"], headers, send)
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
        names = scope.get("state", {}).get(CERTIFICATE_NAMES, ())
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
    `HttpConnection._linger`.

    `waits`: the client waits for `100 Continue`, so the rest does not come unless a part of it has arrived already.
    """

    async def send_but_the_end(message: Message) -> None:
        await send({**message, "more_body": True} if "body" in message else message)

    await response(scope, receive, send_but_the_end)
    with suppress(TimeoutError):
        async with asyncio.timeout(0 if waits else LINGER_S) as lingering:
            while unheard >= 0:
                message = await receive()
                if not message.get("more_body", False):
                    break
                if waits:
                    lingering.reschedule(asyncio.get_running_loop().time() + LINGER_S)
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
