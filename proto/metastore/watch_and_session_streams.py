"""Watches and session events as asynchronous streams; all stores use them."""

import asyncio
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from rollbook.proto.metastore.core.watches import EventQueue
from rollbook.proto.ports import NO_SESSION, SessionEvent, SessionId, SessionState, WatchEvent

_SESSION_EVENTS_WAITING_MAX: Final = 64


class _Bell:
    """Wakes the only reader of a stream."""

    def __init__(self) -> None:
        self._reader: asyncio.Future[None] | None = None

    def ring(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def heard(self) -> None:
        assert self._reader is None, "a stream can have only one reader at a time"
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None


class WatchStream:
    """Implements the `Watch` port with an `EventQueue`. Cancelling a read loses no event."""

    def __init__(self, path: str, on_close: Callable[[], Awaitable[None]]) -> None:
        self._queue = EventQueue(path)
        self._bell = _Bell()
        self._ended = False
        self._on_close = on_close

    def offer(self, event: WatchEvent) -> None:
        self._queue.offer(event)
        self._bell.ring()

    def end(self) -> None:
        self._ended = True
        self._bell.ring()

    def __aiter__(self) -> "WatchStream":
        return self

    async def __anext__(self) -> WatchEvent:
        while not self._ended:
            if (event := self._queue.take()) is not None:
                return event
            await self._bell.heard()
        raise StopAsyncIteration

    async def close(self) -> None:
        if not self._ended:
            self.end()
            await self._on_close()


class SessionStream:
    """A stream of session events that begins with the current state. A reader that falls far behind
    misses the oldest events.
    """

    def __init__(self, first: SessionEvent) -> None:
        self._waiting = deque((first,), maxlen=_SESSION_EVENTS_WAITING_MAX)
        self._bell = _Bell()
        self._ended = False

    def offer(self, event: SessionEvent) -> None:
        self._waiting.append(event)
        self._bell.ring()

    def end(self) -> None:
        self._ended = True
        self._bell.ring()

    def __aiter__(self) -> "SessionStream":
        return self

    async def __anext__(self) -> SessionEvent:
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            await self._bell.heard()
        return self._waiting.popleft()


class SessionWatchers:
    """The state of the session, and all streams that follow it."""

    def __init__(self) -> None:
        self.now = SessionEvent(SessionState.SUSPENDED, NO_SESSION)
        # The references are weak, so that a stream that nobody uses goes away.
        self._streams: list[weakref.ref[SessionStream]] = []
        self._ended = False

    def become(self, state: SessionState, session: SessionId) -> None:
        self.now = SessionEvent(state, session)
        for stream in self._alive():
            stream.offer(self.now)

    def follow(self) -> SessionStream:
        stream = SessionStream(self.now)
        self._streams = [*map(weakref.ref, self._alive()), weakref.ref(stream)]
        if self._ended:
            stream.end()
        return stream

    def end(self) -> None:
        self._ended = True
        for stream in self._alive():
            stream.end()

    def _alive(self) -> list[SessionStream]:
        return [stream for known in self._streams if (stream := known()) is not None]
