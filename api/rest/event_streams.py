"""Responses that do not end: a reader's events as server-sent events, or as lines of JSON.

    text/event-stream      id: NEXT@UID · event: KIND · data: {…}     `Last-Event-ID` resumes at NEXT, but only in the
                           log that has this uid;
                           id: NEXT..END@UID                          for a reader that stops at the tail: when its
                           client reconnects, the range still ends at END
    application/x-ndjson   {"event": KIND, "next_offset": NEXT, …}

The cost of clients that do not read their events is bounded, however many clients there are:

    unsent     an event carries a piece of the log, of 16 KiB or one record (`record_json_slices.py`). It is written
               `_SLICE_BYTES` at a time, each slice after the earlier ones have left
    untaken    for a client that reads nothing for `_PATIENCE_S`, neither the event nor a reader is kept. When the
               client reads again, records are read again, from the first unsent record on
    begun      when a client has read a part of a large record, the rest is kept; if all such rests together exceed
               `_RESTS_BYTES_MAX`, the client is disconnected, and resumes later
    reading    followers that are behind read in turns, a few at a time (`owner_routing.py`)
    newcomers  until a client has shown that it reads, others are served before each piece of a large event
               (`fairness/new_reader_pacing.py`)

Connections that read nothing at all are closed (`http_connection.py`). An error that occurs after the response has
begun is sent as its last event.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rollbook.api.rest.fairness.new_reader_pacing import Newcomer
from rollbook.api.rest.fairness.response_memory import send_within
from rollbook.api.rest.message_json import to_json
from rollbook.api.rest.owner_routing import OwnerRouting
from rollbook.api.rest.problems import problem_of, surprise
from rollbook.api.rest.record_json import Encoding, dumped
from rollbook.api.rest.record_json_slices import PIECE_BYTES, pieces
from rollbook.logservice.ids import FIRST_OFFSET, Offset
from rollbook.logservice.messages import (
    CaughtUp,
    FellBehind,
    Gap,
    LogTail,
    Moving,
    Progress,
    Records,
    Sealed,
    Stopped,
    Tails,
)
from rollbook.proto.errors import RollbookError

logger = structlog.get_logger()

SSE: Final = "text/event-stream"

_SLICE_BYTES: Final = 32 * 1024
_RESTS_BYTES_MAX: Final = 32 * 1024 * 1024
_PATIENCE_S: Final = 0.25
_RESUME_MS: Final = 250
_HEADERS: Final = {
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class StreamEvent:
    kind: str
    start: Offset  # Where to continue if this is not sent.
    next_offset: Offset  # Where to continue if this is sent.
    facts: bytes  # A JSON object.


class _TooSlow(Exception):
    """Raised for a slow client if the unsent rests of all clients exceed `_RESTS_BYTES_MAX`."""


class Follow(Response):
    """A stream of events, whose first event has arrived."""

    def __init__(
        self,
        routing: OwnerRouting,
        kind: str,
        first: Any,
        events: AsyncGenerator[Any, None],
        again: Callable[[Offset], AsyncGenerator[Any, None]],
        encoding: Encoding = Encoding.AUTO,
        end: Offset | None = None,
        uid: str = "",
    ) -> None:
        """`again`: opens the events from an offset on. `end`: the tail at which the stream stops, if it stops at one.
        `uid`: the log's uid; empty for a stream that is not resumed.
        """
        super().__init__(media_type=kind, headers=_HEADERS)
        if uid:
            self.headers["log-uid"] = uid
        del self.headers["content-length"]
        self._routing = routing
        self._first = first
        self._events: AsyncGenerator[Any, None] | None = events
        self._again = again
        self._encoding = encoding
        self._newcomer = Newcomer(routing.newcomers)
        self._is_sse = kind == SSE
        # The part of event ids after the offset.
        self._suffix = b"" if end is None else b"..%d" % end
        if uid:
            self._suffix += b"@" + uid.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        responding = asyncio.ensure_future(self._respond(send, scope["path"]))
        gone = asyncio.ensure_future(until_gone(receive))
        self._routing.followers[responding] = None
        try:
            await asyncio.wait((responding, gone), return_when=asyncio.FIRST_COMPLETED)
            if responding.done() and not responding.cancelled():
                responding.result()
        finally:
            for task in (responding, gone):
                task.cancel()
            await asyncio.gather(responding, gone, return_exceptions=True)
            del self._routing.followers[responding]
            await self._let_go()

    async def _respond(self, send: Send, path: str) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if self._is_sse:
            await send(_body(b"retry: %d\n\n" % _RESUME_MS))
        try:
            await self._send_events(send)
        except _TooSlow:
            return  # The server closes the connection of an unfinished response.
        except RollbookError as error:
            await send(_body(self._write("error", None, dumped(problem_of(error)))))
        except Exception as error:  # A request ends here: any error is logged.
            logger.error("http_request_failed", path=path, exc_info=error)
            problem = problem_of(surprise("GET"))
            await send(_body(self._write("error", None, dumped(problem))))
        await send(_body(b"", more=False))

    def _write(self, kind: str, next_offset: Offset | None, facts: bytes) -> bytes:
        if self._is_sse:
            return _sse(kind, next_offset, self._suffix, facts)
        return _line(kind, next_offset, facts)

    async def _send_events(self, send: Send) -> None:
        event, self._first = self._first, None
        stands = FIRST_OFFSET  # Replaced by the position of the first event.
        while event is not None:
            is_last = isinstance(event, Sealed | Moving | Stopped) or is_end(event)
            pieces = split_event(event, self._encoding, stands)
            is_much = _is_much(event)
            event = None
            while (piece := next(pieces, None)) is not None:
                if is_much:  # Updates of a growing log are sent at once.
                    await self._newcomer.wait()
                resumes_at = await self._send_piece(piece, send)
                stands = piece.next_offset if resumes_at is None else resumes_at
                if resumes_at is None or is_last:
                    continue
                self._newcomer.on_nothing_taken()
                del piece
                pieces.close()
                await self._let_go()
                await send(_body(b""))  # Returns when the client has read all unsent bytes.
                self._events = self._again(resumes_at)
                break
            if is_last:
                return
            del pieces
            assert self._events is not None
            event = await anext(self._events, None)

    async def _send_piece(self, piece: StreamEvent, send: Send) -> Offset | None:
        """Sends a piece. Returns None if the client has read it, otherwise where to continue when the slow client reads
        again. Raises `_TooSlow`.
        """
        # A watch of tails cannot be resumed; it starts again.
        next_offset = None if piece.kind == "tails" else piece.next_offset
        text = self._write(piece.kind, next_offset, piece.facts)
        if not await _send_text(text[:_SLICE_BYTES], send):
            if piece.kind == "records":
                return piece.start
            await self._let_go()
            await send(_body(text))
            return piece.next_offset
        self._newcomer.on_sent(len(text))
        if len(text) <= _SLICE_BYTES:
            return None
        is_slow = False
        with self._routing.rests.hold(len(text)) as rests:
            for begin in range(_SLICE_BYTES, len(text), _SLICE_BYTES):
                slice_ = text[begin : begin + _SLICE_BYTES]
                if await _send_text(slice_, send):
                    continue
                if rests.bytes > _RESTS_BYTES_MAX:
                    raise _TooSlow
                is_slow = True
                await self._let_go()
                await send(_body(slice_))
        return piece.next_offset if is_slow else None

    async def _let_go(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            await events.aclose()


def is_end(event: Any) -> bool:
    """Whether the event reports that the log is sealed, so that its tail no longer moves."""
    return isinstance(event, LogTail) and event.is_sealed


def _is_much(event: Any) -> bool:
    return isinstance(event, Records) and sum(map(len, event.blocks)) > PIECE_BYTES


def split_event(
    event: Any, encoding: Encoding, stands: Offset
) -> Generator[StreamEvent, None, None]:
    """Splits an event into pieces. `stands`: the end of what was sent before."""
    if isinstance(event, Records):
        return _pieces(event.blocks, event.base_offset, event.next_offset, encoding)
    return _alone(event, stands)


def _alone(event: Any, stands: Offset) -> Generator[StreamEvent, None, None]:
    facts = dumped(to_json(event))
    match event:
        case CaughtUp(tail):
            yield StreamEvent("caught_up", tail, tail, facts)
        case FellBehind():  # The event has the log's tail, which the reader has not reached yet.
            yield StreamEvent("fell_behind", stands, stands, facts)
        case Progress(position=position):
            yield StreamEvent("progress", position, position, facts)
        case Gap(end=end):
            yield StreamEvent("gap", end, end, facts)
        case Sealed(tail):
            yield StreamEvent("sealed", tail, tail, facts)
        case Moving(resume_offset=offset):
            yield StreamEvent("moving", offset, offset, facts)
        case Stopped(offset):
            yield StreamEvent("stopped", offset, offset, facts)
        case Tails():
            yield StreamEvent("tails", stands, stands, facts)
        case LogTail(tail=tail, is_sealed=is_sealed):
            yield StreamEvent("tail", tail, tail, facts)
            if is_sealed:
                yield StreamEvent("sealed", tail, tail, dumped(to_json(Sealed(tail))))


def _pieces(
    blocks: tuple[bytes, ...], start: Offset, end: Offset, encoding: Encoding
) -> Generator[StreamEvent, None, None]:
    for piece in pieces(blocks, start, end, encoding):
        next_piece = StreamEvent(
            "records", piece.start, piece.next_offset, b'{"records":%s}' % piece.records
        )
        del piece  # Drops one of two references, so that the piece is in memory once.
        yield next_piece
        del next_piece


def _sse(kind: str, next_offset: Offset | None, suffix: bytes, facts: bytes) -> bytes:
    number = b"" if next_offset is None else b"id: %d%s\n" % (next_offset, suffix)
    return b"%sevent: %s\ndata: %s\n\n" % (number, kind.encode(), facts)


def _line(kind: str, next_offset: Offset | None, facts: bytes) -> bytes:
    more = {} if next_offset is None else {"next_offset": next_offset}
    return b"%s,%s\n" % (dumped({"event": kind, **more})[:-1], facts[1:])


def _body(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _send_text(text: bytes, send: Send) -> bool:
    return await send_within(_body(text), send, _PATIENCE_S)


async def until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
