"""Decides which pages of other origins may use this server from a browser (CORS), and adds the headers that tell the
browser.

    a named origin    its pages may do what any client may: they show a token if the server requires one
    `*`               pages of every origin may read, if no token is required; they change nothing
    any other         the browser hides responses from its pages, and requests that change something are refused

Origins are compared as whole strings. Before some requests a browser sends a preflight (OPTIONS, without a
token), which is answered here and does not reach the application. Responses never allow credentials, so a
browser sends neither cookies nor certificates of its user.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import Message, Send

from rollbook.proto.errors import BadConfig

EVERY_ORIGIN: Final = "*"

_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:]+\]|[a-z0-9_.-]+)(:[0-9]{1,5})?")
_USUAL_PORTS: Final = {"http": ":80", "https": ":443"}  # Browsers omit the default ports.
_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"
_READING: Final = "GET, HEAD"
_LOOKING: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_ASKED_METHOD: Final = "access-control-request-method"
_ASKED_HEADERS: Final = "access-control-request-headers"
_PREFLIGHT_AGE_S: Final = 600  # Longer: fewer preflights, and a changed setting takes effect later.
# Headers that a page may send, and may see, besides `Log-…` and `Producer-…`.
_SENT: Final = frozenset(
    (
        "accept",
        "authorization",
        "content-encoding",
        "content-type",
        "idempotency-key",
        "if-match",
        "if-none-match",
        "last-event-id",
    )
)
_SEEN: Final = frozenset(
    ("content-encoding", "etag", "location", "retry-after", "www-authenticate")
)
_PREFIXES: Final = ("log-", "producer-")


def check_origins(origins: Iterable[str], setting: str, *, asks_for_tokens: bool) -> None:
    """Raises `BadConfig`."""
    for origin in origins:
        if origin == EVERY_ORIGIN:
            if asks_for_tokens:
                raise BadConfig(
                    f"{setting} * is allowed only on servers that require no token",
                    next_step="name the origins whose pages may use this server",
                    settings=(setting,),
                )
        elif not _ORIGIN.fullmatch(_written_by_browsers(origin)):
            raise BadConfig(
                f"{origin[:80]!r} is not an origin",
                next_step="use SCHEME://HOST or SCHEME://HOST:PORT without a path, as in http://localhost:3000",
                settings=(setting,),
            )


class CrossOrigin:
    """Decides what pages of other origins may do."""

    def __init__(self, origins: Sequence[str]) -> None:
        """`origins`: checked by `check_origins`. If empty, pages of other origins may do nothing."""
        self._every = EVERY_ORIGIN in origins
        self._named = frozenset(map(_written_by_browsers, origins)) - {EVERY_ORIGIN}

    def may_change(self, origin: str) -> bool:
        return origin in self._named

    def preflight(self, method: str, headers: Headers) -> Response | None:
        """The response to a preflight request; None: the request is not one, or its origin is not allowed."""
        origin, wanted = headers.get("origin", ""), headers.get(_ASKED_METHOD, "")
        if method != "OPTIONS" or not wanted or not self._may_read(origin):
            return None
        names = (each.strip().lower() for each in headers.get(_ASKED_HEADERS, "").split(","))
        sent = [name for name in names if name in _SENT or name.startswith(_PREFIXES)]
        methods = _METHODS if origin in self._named else _READING
        found = {"access-control-allow-methods": methods}
        if sent:
            found["access-control-allow-headers"] = ", ".join(sent)
        found["access-control-max-age"] = str(_PREFLIGHT_AGE_S)
        return Response(status_code=204, headers=found)

    def with_cors_headers(self, method: str, headers: Headers, send: Send) -> Send:
        """Wraps `send` so that it adds the headers that say whether the page may read the response."""
        if not (self._named or self._every):
            return send
        origin = headers.get("origin", "")
        is_allowed = origin in self._named or (self._may_read(origin) and method in _LOOKING)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(raw=list(message.get("headers", ())))
                found.add_vary_header("Origin")
                if is_allowed:
                    seen = dict.fromkeys(n for n in found if n in _SEEN or n.startswith(_PREFIXES))
                    found["access-control-allow-origin"] = origin
                    if seen:
                        found["access-control-expose-headers"] = ", ".join(seen)
                message = {**message, "headers": found.raw}
            await send(message)

        return send_with_headers

    def _may_read(self, origin: str) -> bool:
        return bool(origin) and (self._every or origin in self._named)


def _written_by_browsers(origin: str) -> str:
    origin = origin.lower()
    return origin.removesuffix(_USUAL_PORTS.get(origin.partition("://")[0], "\n"))
