"""Serves one HTTP connection with uvicorn's protocol and h11, within bounds.

connections    their number is bounded. A new connection replaces the one that has been idle for longest; if no
               connection is idle, the new one is closed
a request      its head and the time until the end of its response are bounded
a response     is sent as fast as its client reads
the loop       the numbers of headers, trailers, query fields and small chunks of a body (`chunked_body.py`) are
               bounded: the parser looks at each of them, and thousands would delay all other clients. A
               connection is read one slice per turn of the loop. Requests that arrive together begin one at a
               time (`fairness/loop_yield_queue.py`)
a refusal      reaches a client that is still sending, as in `request_limits.py`
a stream       continues as long as its client reads; a client that reads nothing is disconnected
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any, Final, NoReturn

import h11
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from rollbook.api.access.certificate_names import names_in
from rollbook.api.rest.chunked_body import BadChunks, Chunks
from rollbook.api.rest.fairness.loop_yield_queue import AdmissionQueue
from rollbook.api.rest.problems import response_of
from rollbook.api.rest.request_limits import CERTIFICATE_NAMES, LINGER_S, Bounds
from rollbook.proto.errors import InvalidRequest

_HEAD_BYTES_MAX: Final = 16 * 1024
_HEADERS_MAX: Final = 100
_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")
_QUERY_FIELDS_MAX: Final = 1024  # A query may name this many owners.
SLICE_BYTES: Final = 16 * 1024  # Bytes that are read per turn, and parsed at a time.
_PLAIN_BYTES: Final = 128 * 1024  # Bytes that are discarded per turn: turns cost more than bytes.
_EXCHANGE_S: Final = (
    30.0  # From a connection's start, or its last response, to the end of the next response.
)
_ROUNDS_OF_REQUEST: Final = 16  # About the time that an append takes, without its waits.
# The longest wait of a first request, however many connections come.
_FIRST_WAITS_S_MAX: Final = 0.25
_FORGOTTEN_EVERY_S: Final = 0.01  # The pause between two reads of discarded input.
_IDLE_LOOKED_AT: Final = 8  # Idle connections that are checked when one must make room.


class Crowd:
    """The server's connections, first the one whose last response is the oldest."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.line = AdmissionQueue(_ROUNDS_OF_REQUEST)
        self._connections: dict[HttpConnection, None] = {}

    def enter(self, connection: "HttpConnection") -> bool:
        """Takes in a connection; returns whether there was room for it."""
        if len(self._connections) >= self.bounds.connections and not self._make_room():
            return False
        self._connections[connection] = None
        return True

    def on_answered(self, connection: "HttpConnection") -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._connections[connection] = None

    def leave(self, connection: "HttpConnection") -> None:
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
            super().receive_data(bytes(self._unparsed[:SLICE_BYTES]))
            del self._unparsed[:SLICE_BYTES]
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


class HttpConnection(H11Protocol):
    """A uvicorn connection that is counted, with a limit on the time of one exchange."""

    _watchdog: asyncio.TimerHandle | None = None
    _unsent = -1  # Unsent bytes at the watchdog's last check.
    _is_answered = False  # True: a response has just been completed.
    _next: asyncio.Task[None] | None = None  # The task of a request that waits in the queue.
    # The remaining wait of a first request, however many pieces it arrives in.
    _first_may_wait_s = _FIRST_WAITS_S_MAX
    _unheard: int | None = None  # Bytes that may still be discarded; None: input is parsed.

    def __init__(self, crowd: Crowd, *uvicorns: Any) -> None:
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
        self.app_state[CERTIFICATE_NAMES] = names_in(transport.get_extra_info("peercert"))
        self._read_at_once(SLICE_BYTES)
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
            self._read_at_once(_PLAIN_BYTES if self._parser.is_in_plain_body else SLICE_BYTES)

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
        self._watchdog = self.loop.call_later(LINGER_S, self.transport.abort)

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
