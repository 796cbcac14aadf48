"""One connection to a bookie: it sends requests and receives replies until it breaks.

    calls      one request, one reply, matched by transaction id; in version 2 by the reply's ids
    channels   the adds of a ledger, as bytes; their replies are passed on in batches

All requests of one turn of the loop are sent in one write, or in one write for each 32 requests:
the bookie then works on the first requests while the later ones are packed. When the socket is
stuck, at most two chunks are queued in front of it, and the rest waits in the outbox.

A response is passed only to its caller (CN1), and a reply to an add only to the channel that
wrote it (CN2). A response that is unexpected or malformed, or has other ids, ends the connection:
the peer is broken, or we are wrong about its state.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Final, Protocol, TypeAlias, cast

from rollbook.ledger.config import ClientConfig
from rollbook.ledger.inflight_limit import Capacity
from rollbook.ledger.send_queue import CHUNK_BYTES_MAX, SendQueue, in_pieces
from rollbook.ledger.tick_flush import TickFlush
from rollbook.proto.errors import (
    BadFrame,
    BookieTimeout,
    BookieUnreachable,
    ConnectionLost,
    OutcomeUnknown,
    RollbookError,
)
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.wire import v2, v2_layout, v3
from rollbook.proto.wire.add_columns import AddReplies
from rollbook.proto.wire.messages import (
    IDENTITY_PLUGIN,
    Auth,
    AuthReply,
    BatchRead,
    BatchReadReply,
    BookieInfoReply,
    EntryRead,
    ForceLedger,
    ForceLedgerReply,
    GetBookieInfo,
    ListEntries,
    ListEntriesReply,
    ReadLac,
    ReadLacReply,
    ReadReply,
    ReceivedReply,
    Refusal,
    Reply,
    Request,
    WriteLac,
    WriteLacReply,
)
from rollbook.proto.wire.reply_decoder import ReplyDecoder

RECEIVE_BYTES: Final = 256 * 1024
_ALONE_BYTES: Final = 64 * 1024  # Adds of this size or more get a system call of their own.
# Requests per write: a bookie works on them while later requests of the same turn are packed.
_ASKED_TOGETHER: Final = 32
_TICK_S: Final = 0.02  # How late a missed deadline may be noticed.
_LAST_CHANCE_S: Final = 5.0  # How long to wait for any response after a caller has given up.

_ledger_id_of: Final = attrgetter("ledger_id")
# The reply class for each request class, and the fields of the request that the reply repeats.
_ECHOED: Final[dict[type[Request], tuple[type[Reply], Callable[[object], object]]]] = {
    EntryRead: (ReadReply, attrgetter("ledger_id", "entry_id")),
    BatchRead: (BatchReadReply, attrgetter("ledger_id", "first_entry")),
    WriteLac: (WriteLacReply, _ledger_id_of),
    ReadLac: (ReadLacReply, _ledger_id_of),
    ForceLedger: (ForceLedgerReply, _ledger_id_of),
    ListEntries: (ListEntriesReply, _ledger_id_of),
    GetBookieInfo: (BookieInfoReply, lambda _: None),
    Auth: (AuthReply, attrgetter("plugin")),
}


_Key: TypeAlias = int | tuple[type, int, int]
"""The key of a request: its transaction id, or, in version 2, the ids that the reply repeats."""


class _PendingRequest:
    """A request that waits for its reply."""

    __slots__ = ("due", "frame", "future", "is_given_up", "request", "sent_at")

    def __init__(
        self, request: Request, frame: bytes, due: float, future: asyncio.Future[Reply]
    ) -> None:
        self.request = request
        self.frame = frame
        self.due = due
        self.future = future
        self.sent_at = -1.0
        self.is_given_up = False  # Whether `_given_up` counts it.

    @property
    def is_sent(self) -> bool:
        return self.sent_at >= 0

    def take(self, now: float) -> bytes:
        """Returns the frame to send now; empty if the caller has given up."""
        if self.future.done():
            return b""
        self.sent_at = now
        return self.frame


class AddSink(Protocol):
    """The writer that adds to a ledger. The channel calls these methods only while the writer is
    not in a call of the channel."""

    def on_add_replies(self, channel: "AddChannel", replies: AddReplies) -> None:
        """Handles a batch of replies as soon as they are received. A faulty bookie may name
        entries twice, or entries that were never sent."""

    def on_channel_open(self, channel: "AddChannel") -> None:
        """Notifies the sink that the channel was connected or reconnected: adds without a reply
        have to be sent again."""

    def on_channel_lost(self, channel: "AddChannel", error: RollbookError) -> None:
        """Notifies the sink that the connection was lost or could not be made. The channel tries to
        reconnect, with growing pauses, until it is closed."""


class AddChannel:
    """The adds of one ledger to one bookie, in the client's protocol version.

    Frames are sent in the order in which they are written, as long as the connection lasts. No
    other channel gets their replies, not even a later channel of the same ledger.
    """

    __slots__ = (
        "_client",
        "_on_close",
        "bookie",
        "is_closed",
        "is_high_priority",
        "ledger_id",
        "sink",
        "unanswered",
        "waiting_bytes",
    )

    def __init__(
        self,
        bookie: BookieId,
        ledger_id: LedgerId,
        sink: AddSink,
        on_close: "Callable[[AddChannel], None]",
        *,
        is_high_priority: bool,
    ) -> None:
        self.bookie = bookie
        self.ledger_id = ledger_id
        self.sink = sink
        self.is_high_priority = is_high_priority
        self.is_closed = False
        self.unanswered = 0  # Adds written on the present connection that have no reply yet.
        self.waiting_bytes = 0  # Bytes of this channel in the connection's queue.
        self._client: BookieClient | None = None
        self._on_close = on_close

    @property
    def is_open(self) -> bool:
        """Whether the channel is connected: from `on_channel_open` until `on_channel_lost`."""
        return self._client is not None

    @property
    def queued_bytes(self) -> int:
        """The number of bytes that were handed over and that the kernel has not taken yet.

        Bytes that wait in front of the socket count for each of its ledgers: at most 512 KiB, and
        the rest of one frame.
        """
        client = self._client
        return 0 if client is None else self.waiting_bytes + client.unsent_bytes

    def write(self, frames: bytes | list[bytes], count: int) -> None:
        """Writes `count` adds. The channel must be open. The caller bounds their number."""
        assert self._client is not None
        self.unanswered += count
        self._client.write_adds(self, frames, count)

    def complain(self, waited_s: float) -> None:
        """Reports that an add has waited this long for its reply, longer than the caller's
        deadline.

        If the bookie has sent nothing in all that time, its connection is closed for all channels
        and made again, and `on_channel_lost` is called.
        """
        if self._client is not None:
            self._client.complain(waited_s)

    def close(self) -> None:
        """Closes the channel, which passes on no more replies. Adds that were written are still
        sent while the connection lasts, unless 16 MiB of such adds wait already. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            self._on_close(self)

    # --- Used by the connection ---------------------------------------------------------------

    def on_open(self, client: "BookieClient") -> None:
        self._client = client
        self.unanswered = self.waiting_bytes = 0

    def on_lost(self) -> None:
        self._client = None


class WaitingAdds:
    """Frames of a channel that wait to be sent."""

    __slots__ = ("_frames", "channel", "count")

    def __init__(self, channel: AddChannel, frames: bytes, count: int) -> None:
        self.channel = channel
        self.count = count
        self._frames = frames

    @property
    def size(self) -> int:
        return len(self._frames)

    def take(self, _now: float) -> bytes:
        """Returns the frames to send now."""
        self.channel.waiting_bytes -= len(self._frames)
        return self._frames


class BookieClient(asyncio.BufferedProtocol):
    """One connection to a bookie. When it ends, `on_lost` is called once, before its channels are
    notified."""

    def __init__(
        self,
        bookie: BookieId,
        version: int,
        config: ClientConfig,
        txn_ids: Iterator[int],
        tick_flush: TickFlush,
        buffer: memoryview,
        on_lost: Callable[["BookieClient", RollbookError], None],
    ) -> None:
        self.bookie = bookie
        self.version = version
        self.is_over = False
        self.has_answered = False  # A first reply shows that the peer speaks our protocol.
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._silence_s_max = config.silence_s_max
        self._calls_max = config.calls_max
        self._left_bytes_max = config.call_bytes_max
        self._txn_ids = txn_ids
        self._tick_flush = tick_flush
        self._buffer = buffer
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport  # Set by `connection_made`.
        self._decoder = ReplyDecoder(config.frame_bytes_max)
        self._heard_at = self._made_at = 0.0
        self._given_up_at = 0.0  # When a caller first gave up after `_heard_at`.
        # In version 2 a call that was given up keeps its key until its response has come.
        self._waiting: dict[_Key, _PendingRequest] = {}
        self._given_up = 0
        self._rooms = tuple(Capacity(config.calls_max, config.call_bytes_max) for _ in range(2))
        self._timer: asyncio.TimerHandle | None = None
        # The open channels by ledger, and how many replies the closed channels still expect.
        self._channels: dict[LedgerId, AddChannel] = {}
        self._owed: dict[LedgerId, int] = {}
        # `drained` waits for this future, which is done when closed channels have all their replies.
        self._draining: asyncio.Future[None] | None = None
        # Frames that wait to be sent.
        self._outbox = SendQueue()
        # Small adds of this turn of the loop; they are sent before the frames of the outbox.
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._is_clogged = False
        self._will_flush = False
        self._asked_in_turn = 0

    @property
    def age_s(self) -> float:
        return self._loop.time() - self._made_at

    # --- Calls --------------------------------------------------------------------------------

    def can_tell_apart(self, request: Request) -> bool:
        """Whether no response to another request could be mistaken for the response to this one.

        Version 2 matches responses by ids alone. Therefore two requests for the same entry use
        different connections: the late response to a plain read must not count as the response to a
        fence.
        """
        if self.version != v2_layout.VERSION or isinstance(request, BatchRead):
            return True
        return _v2_key(request) not in self._waiting

    async def identify(self, due: float) -> None:
        """Raises `BookieUnreachable` if the peer is another bookie (CN4)."""
        try:
            reply = await self.call(Auth(IDENTITY_PLUGIN, b""), due, is_high_priority=True)
        except OutcomeUnknown as error:
            raise self._unreachable(f"the bookie did not report its id: {error}") from None
        if not isinstance(reply, AuthReply) or reply.payload != self.bookie.encode():
            name = reply.payload[:80] if isinstance(reply, AuthReply) else b""
            raise self._unreachable(
                f"another bookie has this address: {name.decode(errors='replace')!r}"
            )

    async def call(self, request: Request, due: float, *, is_high_priority: bool) -> Reply:
        """Calls the bookie and waits for its reply until the loop's time `due`. Raises
        `BookieUnreachable` if nothing was sent, otherwise `ConnectionLost` or `BookieTimeout`."""
        key, frame = self._pack(request, is_high_priority)
        size = len(frame)
        room = self._rooms[is_high_priority]
        if not room.take(size):
            try:
                await room.wait(size, due)
            except TimeoutError:
                raise self._unreachable("too many requests wait for this bookie") from None
        if self.is_over:
            room.give(size)
            raise self._unreachable("the connection was lost")
        if not self.can_tell_apart(request):
            room.give(size)
            raise self._unreachable("the same request already waits for an answer")
        return await self._ask(
            key, _PendingRequest(request, frame, due, self._loop.create_future()), room
        )

    def start(
        self, request: Request, due: float, *, is_high_priority: bool
    ) -> asyncio.Future[Reply] | None:
        """Like `call`, but without a task that waits: it returns a future of the result. Cancel the
        future to drop the answer.

        Returns None if the call would have to wait first, or cannot be sent now.
        """
        if self.is_over or not self.can_tell_apart(request):
            return None
        key, frame = self._pack(request, is_high_priority)
        room = self._rooms[is_high_priority]
        if not room.take(len(frame)):
            return None
        return self._ask(
            key, _PendingRequest(request, frame, due, self._loop.create_future()), room
        )

    def _ask(self, key: _Key, call: _PendingRequest, room: Capacity) -> asyncio.Future[Reply]:
        """Sends a call for which room was already taken."""
        self._waiting[key] = call
        self._outbox.put(call, room is self._rooms[True])
        self._flush_soon()
        self._asked_in_turn += 1
        if self._asked_in_turn % _ASKED_TOGETHER == 0:
            self._write_out()
        self._look_by(call.due)
        call.future.add_done_callback(partial(self._on_done, key, call, room))
        return call.future

    def _on_done(
        self, key: _Key, call: _PendingRequest, room: Capacity, _: asyncio.Future[Reply]
    ) -> None:
        room.give(len(call.frame))
        if self._waiting.get(key) is call:
            self._give_up(key, call)

    def _give_up(self, key: _Key, call: _PendingRequest) -> None:
        """Gives up a call; a late response is dropped."""
        if not call.is_sent:
            del self._waiting[key]
            self._outbox.remove(call)
            return
        if not isinstance(call.request, EntryRead) or call.request.previous_lac is None:
            self._on_given_up()  # The answer to a long poll may come much later.
        if self.version != v2_layout.VERSION:
            del self._waiting[key]
            return
        call.is_given_up = True
        self._given_up += 1
        if self._given_up > self._calls_max:
            self._end(BookieTimeout("many requests were never answered", bookie=self.bookie))

    def _pack(self, request: Request, is_high_priority: bool) -> tuple[_Key, bytes]:
        if self.version == v2_layout.VERSION:
            if isinstance(request, BatchRead):
                request = replace(request, request_id=next(self._txn_ids))
            return _v2_key(request), v2.pack_request(request, is_high_priority=is_high_priority)
        txn_id = next(self._txn_ids)
        return txn_id, v3.pack_request(txn_id, request, is_high_priority=is_high_priority)

    # --- Channels -----------------------------------------------------------------------------

    def serves(self, ledger_id: LedgerId) -> bool:
        """Whether a new channel to this ledger could get replies that belong to another channel."""
        return ledger_id in self._channels or ledger_id in self._owed

    def attach(self, channel: AddChannel) -> None:
        assert not self.serves(channel.ledger_id)
        self._channels[channel.ledger_id] = channel
        channel.on_open(self)

    def detach(self, channel: AddChannel) -> None:
        if self._channels.get(channel.ledger_id) is not channel:
            return
        del self._channels[channel.ledger_id]
        if self._left_behind() > self._left_bytes_max:
            self._drop(channel)
        if channel.unanswered:
            self._owed[channel.ledger_id] = channel.unanswered
            self._on_given_up()
        channel.on_lost()

    @property
    def is_only_owed(self) -> bool:
        """Whether the connection has no users any more, but adds of closed channels are in flight."""
        is_asked = not all(call.future.done() for call in self._waiting.values())
        return bool(self._owed) and not self._channels and not is_asked

    async def drained(self) -> None:
        """Waits until closed channels have all their replies, or the connection has ended."""
        while self._owed and not self.is_over:
            self._draining = self._draining or self._loop.create_future()
            await asyncio.shield(self._draining)

    def _tell_drained(self) -> None:
        if self._draining is not None and (self.is_over or not self._owed):
            self._draining.set_result(None)
            self._draining = None

    def _left_behind(self) -> int:
        """Returns how many bytes of closed channels wait to be sent."""
        waiting = [each for each in self._outbox if isinstance(each, WaitingAdds)]
        return sum(each.size for each in waiting if each.channel.is_closed)

    def _drop(self, channel: AddChannel) -> None:
        for each in list(self._outbox):
            if isinstance(each, WaitingAdds) and each.channel is channel:
                self._outbox.remove(each)
                channel.unanswered -= each.count

    def write_adds(self, channel: AddChannel, frames: bytes | list[bytes], count: int) -> None:
        """Writes adds. If only one writer adds in this turn, its adds are sent at once, and so are
        large pieces. Adds of several ledgers in one turn are sent together, or after each 32nd
        request."""
        data = frames if isinstance(frames, bytes) else b"".join(frames)
        is_alone = not (self._will_flush or self._tick_flush.is_shared)
        self._flush_soon()
        is_free = not self._is_clogged and self._outbox.is_empty
        if is_free and len(data) <= CHUNK_BYTES_MAX - self._gathered_bytes:
            if is_alone or len(data) >= _ALONE_BYTES:
                if self._gathered:
                    self._write_gathered()
                self._transport.write(data)
            else:
                self._gathered.append(data)
                self._gathered_bytes += len(data)
            return
        channel.waiting_bytes += len(data)
        if len(data) <= CHUNK_BYTES_MAX:
            self._outbox.put(WaitingAdds(channel, data, count), channel.is_high_priority)
            return
        for piece, adds in in_pieces(data, count):
            self._outbox.put(WaitingAdds(channel, piece, adds), channel.is_high_priority)

    def complain(self, waited_s: float) -> None:
        silence_s = min(waited_s, self._loop.time() - self._heard_at)
        if silence_s >= self._silence_s_max:
            self._loop.call_soon(self._end, self._silent(silence_s))

    # --- Sending ------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that wait in front of the socket, without those in the queues."""
        begun_bytes = self._gathered_bytes + self._outbox.begun_bytes
        return self._transport.get_write_buffer_size() + begun_bytes

    def _flush_soon(self) -> None:
        if not self._will_flush:
            self._will_flush = True
            self._tick_flush.write_out(self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        self._asked_in_turn = 0
        self._write_out()

    def _write_out(self) -> None:
        if self.is_over:
            return
        if self._gathered:
            self._write_gathered()
        if self._outbox.is_empty:
            return
        now = self._loop.time()
        while not self._is_clogged and (chunk := self._outbox.next_chunk(now)):
            self._transport.write(chunk)

    def _write_gathered(self) -> None:
        self._transport.write(b"".join(self._gathered))
        self._gathered.clear()
        self._gathered_bytes = 0

    # --- Receiving ----------------------------------------------------------------------------

    def _on_add_replies(self, replies: AddReplies) -> None:
        ledger_id, count = replies.ledger_id, len(replies.entry_ids)
        channel = self._channels.get(ledger_id)
        if channel is not None and count <= channel.unanswered:
            channel.unanswered -= count
            channel.sink.on_add_replies(channel, replies)
        elif channel is None and count <= self._owed.get(ledger_id, 0):
            self._owed[ledger_id] -= count
            if not self._owed[ledger_id]:
                del self._owed[ledger_id]
                self._tell_drained()
        else:
            raise BadFrame(f"a reply to adds to ledger {ledger_id} that were not sent")

    def _on_answer(self, answer: ReceivedReply) -> None:
        reply = answer.reply
        key = _v2_key_of_reply(reply) if answer.txn_id is None else answer.txn_id
        call = self._waiting.pop(key, None)
        if call is None:
            awaited = self._owed or any(c.unanswered for c in self._channels.values())
            if isinstance(reply, Refusal) and awaited:
                self._end(reply.error("it refuses adds", bookie=self.bookie))
            elif answer.txn_id is None:
                raise BadFrame(f"an unexpected {type(reply).__name__}")
            # The caller of a known request has given up.
        elif call.future.done():
            self._given_up -= call.is_given_up
        elif not _is_reply_to(call.request, reply):
            self._waiting[key] = call  # The call fails when the connection ends.
            raise BadFrame(f"a {type(reply).__name__} that does not match its request")
        else:
            call.future.set_result(reply)

    # --- Deadlines ----------------------------------------------------------------------------

    def _look_by(self, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        """Checks all deadlines. One timer is enough for all calls, because rarely more than `calls_max`
        wait."""
        self._timer = None
        now = self._loop.time()
        silence_s = 0.0
        dues: list[float] = []
        for call in self._waiting.values():
            if call.future.done():
                continue
            if call.due > now:
                dues.append(call.due)
            elif call.is_sent:
                silence_s = max(silence_s, now - max(call.sent_at, self._heard_at))
                _fail(call.future, BookieTimeout(bookie=self.bookie))
            else:
                _fail(call.future, self._unreachable("the connection accepts no data"))
        if self._given_up_at > self._heard_at:
            dues.append(self._given_up_at + _LAST_CHANCE_S)
            if now >= dues[-1]:
                silence_s = max(silence_s, now - self._heard_at)
        if silence_s >= self._silence_s_max:
            self._end(self._silent(silence_s))
        elif dues:
            self._look_by(max(min(dues), now + _TICK_S))

    def _on_given_up(self) -> None:
        """Sets a last deadline, so that a hanging bookie is noticed even if no caller waits."""
        if self._given_up_at <= self._heard_at:
            self._given_up_at = self._loop.time()
            self._look_by(self._given_up_at + _LAST_CHANCE_S)

    def _silent(self, silence_s: float) -> BookieTimeout:
        return BookieTimeout(f"no answer of any kind for {silence_s:.1f} s", bookie=self.bookie)

    def _unreachable(self, detail: str) -> BookieUnreachable:
        return BookieUnreachable(f"not sent: {detail}", bookie=self.bookie)

    # --- Ends ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the connection at once; `gone` is set when it is closed."""
        self._end(BookieUnreachable("the client was closed", bookie=self.bookie))

    def _end(self, error: RollbookError) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._tell_drained()
        self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        self._gathered.clear()
        self._gathered_bytes = 0
        self._outbox.clear()
        calls, self._waiting = self._waiting, {}
        for call in calls.values():
            if not call.future.done():
                _fail(call.future, self._lost(error) if call.is_sent else self._unsent(error))
        for room in self._rooms:
            room.fail(self._unsent(error))
        self._on_lost(self, error)

    def _lost(self, error: RollbookError) -> ConnectionLost:
        return ConnectionLost(error.message, bookie=self.bookie)

    def _unsent(self, error: RollbookError) -> BookieUnreachable:
        return self._unreachable(f"the connection was lost: {error.message}")

    # --- Called by the loop -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=CHUNK_BYTES_MAX)
        self._heard_at = self._made_at = self._loop.time()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_over:
            return
        self._heard_at = self._loop.time()
        try:
            for heard in self._decoder.feed(bytes(self._buffer[:nbytes])):
                if isinstance(heard, AddReplies):
                    self._on_add_replies(heard)
                else:
                    self._on_answer(heard)
                if self.is_over:
                    return
                self.has_answered = True
        except BadFrame as error:
            self._end(error)

    def pause_writing(self) -> None:
        self._is_clogged = True

    def resume_writing(self) -> None:
        self._is_clogged = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        detail = str(exc or "") or "the bookie hung up"
        self._end(ConnectionLost(detail, bookie=self.bookie))
        self.gone.set_result(None)


def _fail(future: "asyncio.Future[Reply]", error: RollbookError) -> None:
    future.set_exception(error)
    future.exception()  # Marks the exception as seen: the caller may have been cancelled just now.


def _v2_key(request: Request) -> _Key:
    if isinstance(request, BatchRead):
        return BatchRead, request.request_id, 0
    if isinstance(request, Auth):
        return Auth, 0, 0
    assert isinstance(request, EntryRead), f"{type(request).__name__} has no form in version 2"
    return EntryRead, request.ledger_id, request.entry_id


def _v2_key_of_reply(reply: Reply) -> _Key:
    match reply:
        case ReadReply(_, ledger_id, entry_id):
            return EntryRead, ledger_id, entry_id
        case BatchReadReply():
            return BatchRead, reply.request_id, 0
        case AuthReply():
            return Auth, 0, 0
    raise BadFrame(f"an unexpected {type(reply).__name__}")


def _is_reply_to(request: Request, reply: Reply) -> bool:
    """Returns whether the reply answers this request. The ids are compared as well as the
    transaction id, because a negative reply has no digest that would show a mistake."""
    if isinstance(reply, Refusal):
        return True
    shape, echoed = _ECHOED[type(request)]
    if isinstance(request, EntryRead) and request.previous_lac is not None:
        echoed = _ledger_id_of  # A long poll may return any entry of the ledger.
    return type(reply) is shape and bool(echoed(reply) == echoed(request))
