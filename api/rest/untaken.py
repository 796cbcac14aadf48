"""Large answers, and those who take them slowly: in slices, and so many bytes for all of them together.

a slice    is written when the one before it has left, so that an answer goes on for as long as somebody
           takes it, and its connection is not idle meanwhile
stalled    while half of the room is taken, whoever takes nothing for a moment is hung up on
full       whoever asks then hears so (`Overloaded`); those who take theirs make room within moments
"""

import asyncio
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from rollbook.api.rest.problems import response_of
from rollbook.proto.errors import Overloaded

_SLICE_BYTES: Final = 64 * 1024  # What is not more than that is not counted.
_PATIENCE_S: Final = 0.25
_RETRY_MS: Final = 1000


class Untaken:
    """Of one server."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max

    def sending(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """`send`, within these bounds."""
        is_over = False

        async def send_some(message: Message) -> None:
            nonlocal is_over
            if is_over:
                return
            if message["type"] == "http.response.start":
                size = int(Headers(raw=message["headers"]).get("content-length", "0"))
                if size > _SLICE_BYTES and self.bytes + size > self._bytes_max:
                    is_over = True
                    busy = Overloaded("too many answers are not taken", retry_after_ms=_RETRY_MS)
                    await response_of(busy)(scope, receive, send)
                    return
            if len(message.get("body", b"")) <= _SLICE_BYTES:
                await send(message)
            else:  # Of an answer that stays unfinished the connection is closed.
                is_over = not await self._is_sent(message, send)

        return send_some

    async def _is_sent(self, message: Message, send: Send) -> bool:
        body: bytes = message["body"]
        self.bytes += len(body)
        try:
            for begin in range(0, len(body), _SLICE_BYTES):
                end = begin + _SLICE_BYTES
                more = end < len(body) or message.get("more_body", False)
                slice_ = {**message, "body": body[begin:end], "more_body": more}
                while not await is_taken(slice_, send, _PATIENCE_S):
                    if 2 * self.bytes > self._bytes_max:
                        return False
            return True
        finally:
            self.bytes -= len(body)


async def is_taken(message: Message, send: Send, patience_s: float) -> bool:
    """Else nothing of it was sent: who sends waits first, then writes."""
    try:
        async with asyncio.timeout(patience_s):
            await send(message)
    except TimeoutError:
        return False
    return True
