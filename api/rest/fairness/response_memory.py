"""Sends large responses in slices, and bounds the bytes that all of them hold together.

slices     a slice is written when the one before it has left, so that a response continues for as long as its
           client reads, and its connection is not idle in the meantime
counted    a response counts from its head on, which may have to wait for earlier responses of the connection
in pieces  a response that is made in pieces reports how many bytes it holds (`HOLD`), at first and at each change
stalled    while half of the room is taken, a client that reads nothing for a moment is disconnected
full       further requests are refused (`Overloaded`); clients that read make room within moments
"""

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollbook.api.rest.problems import response_of
from rollbook.proto.errors import Overloaded

Hold = Callable[[int], bool]
"""Reports how many bytes a response holds now. Returns False if there is no room for them, or if the client does not
read."""

HOLD: Final = "rollbook.hold"  # The key in a request's scope of its `Hold`.
_SLICE_BYTES: Final = 64 * 1024  # Smaller amounts are not counted.
_PATIENCE_S: Final = 0.25
_RETRY_MS: Final = 1000


class ResponseBackpressure:
    """Bounds the bytes that all responses of one server hold."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max

    @property
    def is_half_full(self) -> bool:
        return 2 * self.bytes > self._bytes_max

    def has_room_for(self, size: int) -> bool:
        return self.bytes + size <= self._bytes_max

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response of `app` within these bounds."""
        answer = _Answer(self, send)
        try:
            await app({**scope, HOLD: answer.hold}, receive, answer.send)
        finally:
            self.bytes -= answer.held_bytes
        if answer.is_refused:  # Sent only now, when nothing is held: this may have to wait, too.
            busy = Overloaded("too many responses are unread", retry_after_ms=_RETRY_MS)
            await response_of(busy)(scope, receive, send)


class _Answer:
    """One response. The application sends a whole body with `Content-Length`, or reports the bytes it holds."""

    def __init__(self, room: ResponseBackpressure, send: Send) -> None:
        self.held_bytes = 0
        self.is_refused = False  # True: refused before any of it was sent.
        self._is_cut = False  # True: the connection is closed in the middle of the response.
        self._has_begun = False
        self._room = room
        self._send = send

    def hold(self, size: int) -> bool:
        """Reports held bytes. A response that has begun, and may hold no more, is cut off."""
        if self.is_refused or self._is_cut:
            return False
        more = size - self.held_bytes
        if more > 0 and not self._room.has_room_for(more):
            self._is_cut, self.is_refused = self._has_begun, not self._has_begun
            return False
        self.held_bytes = size
        self._room.bytes += more
        return True

    async def send(self, message: Message) -> None:
        if self.is_refused or self._is_cut:
            return
        if message["type"] == "http.response.start":
            self.is_refused = not await self._send_head(message)
            self._has_begun = not self.is_refused
        elif not self.held_bytes and len(message.get("body", b"")) <= _SLICE_BYTES:
            await self._send(message)
        else:
            self._is_cut = not await self._send_body(message)

    async def _send_head(self, head: Message) -> bool:
        size = int(Headers(raw=head["headers"]).get("content-length", "0"))
        if size > _SLICE_BYTES and not self.hold(max(size, self.held_bytes)):
            return False
        if self.held_bytes:
            return await self._send_slice(head)
        await self._send(head)
        return True

    async def _send_body(self, message: Message) -> bool:
        body: bytes = message["body"]
        for begin in range(0, max(len(body), 1), _SLICE_BYTES):
            end = begin + _SLICE_BYTES
            more = end < len(body) or message.get("more_body", False)
            slice_ = {**message, "body": body[begin:end], "more_body": more}
            if not await self._send_slice(slice_):
                return False
        return True

    async def _send_slice(self, message: Message) -> bool:
        """Sends a slice, and waits for a slow client while there is room."""
        while not await send_within(message, self._send, _PATIENCE_S):
            if self._room.is_half_full:
                return False
        return True


async def send_within(message: Message, send: Send, patience_s: float) -> bool:
    """Returns whether the message was sent in time. If not, no part of it was: the sender waits before it writes."""
    try:
        async with asyncio.timeout(patience_s):
            await send(message)
    except TimeoutError:
        return False
    return True
