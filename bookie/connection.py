"""One connection: it receives chunks of requests and sends replies.

A chunk is parsed at once. The adds of a chunk are passed to the journal together, and are answered
together when they are durable. Reads from memory are answered in the same pass and written
together; all other requests wait in a queue for a lane. No task, future or log line is made for a
single frame.

A response is kept in pieces until the client reads it. The pieces are written one by one, as fast
as the system accepts them; the response is never copied as a whole.

The memory that is held for the client is counted (`core/connection_memory.py`). While a connection is
at its limit, it is not read from, and no answers are made for it. Invalid bytes close the
connection without an answer.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

import structlog

from rollbook.bookie.core.connection_memory import ConnectionMemory, Making, ReadGate, ReadSize
from rollbook.bookie.core.partial_request_timeout import PartialRequestProgress
from rollbook.bookie.long_polls import Parked
from rollbook.bookie.request_lanes import Queue, QueuedRequest
from rollbook.bookie.server_context import ServerContext, kind_of
from rollbook.proto.errors import BadFrame, BookieFailed, Overloaded
from rollbook.proto.ports import Buffer
from rollbook.proto.wire.add_columns import AddGroup, Adds
from rollbook.proto.wire.messages import (
    AuthReply,
    BatchRead,
    EntryRead,
    ReceivedRequest,
    Reply,
)
from rollbook.proto.wire.request_decoder import Refused, RequestDecoder

logger = structlog.get_logger()

_FLUSH_BYTES: Final = 32 * 1024  # Gathered answers are written when they reach this size.
_WRITE_BYTES: Final = 128 * 1024  # The approximate size of one write.
_CALLS_WAITING: Final = 64  # A connection with more waiting calls than this is not read from.
_CALL_BYTES: Final = 256  # The approximate memory of a waiting call.
_READ_BYTES: Final = 64 * 1024  # The memory counted for a call that is being answered from disk.


class _Accepted(NamedTuple):
    """Adds of one chunk that are on their way to the disk."""

    groups: Sequence[AddGroup]
    entries: int
    size: int
    heard_ns: int


class Connection(asyncio.BufferedProtocol):
    def __init__(self, shared: ServerContext) -> None:
        self._shared = shared
        config = shared.config
        self._decoder = RequestDecoder(config.frame_bytes_max)
        self._account = ConnectionMemory(shared.pool, self._balance)
        self._gate = ReadGate(self._account, _CALLS_WAITING)
        self._adds: deque[_Accepted] = deque()
        queue = (self._serve, self._balance, self._may_make, config.connection_reads_max)
        self._ordinary, self._urgent = Queue(*queue), Queue(*queue)
        self._parked: dict[Parked, QueuedRequest] = {}
        # Responses to write; while `_out` is empty, `_later` is empty, too.
        self._out: deque[Buffer] = deque()
        # Large responses are kept apart, so that acks do not wait for them.
        self._later: deque[Sequence[Buffer]] = deque()
        self._out_bytes = 0  # Bytes in `_out` and `_later`.
        self._is_writing = False  # Whether the rest will be written in a later turn.
        self._write_queue = shared.writers  # The queue in which the next write waits.
        self._read_size = ReadSize(self._account)
        self._is_clogged = False  # The client does not read its responses.
        # The connection answers the requests that it has received, then closes.
        self._is_leaving = False
        self._is_gone = False
        self._progress = PartialRequestProgress()
        self._written_bytes = 0
        # The number of bytes that the client had read when its deadline last restarted.
        self._taken_when_timed = 0
        self._transport: asyncio.Transport  # Set by `connection_made`.

    # --- Opening and closing ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        shared = self._shared
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=shared.config.connection_bytes_floor)
        shared.stats.connections_accepted += 1
        shared.connections[self] = None
        if len(shared.connections) > shared.config.connections_max:
            self.hang_up("too_many")

    def connection_lost(self, exc: Exception | None) -> None:
        """Adds in the journal and reads in progress end by themselves, and their replies are
        dropped."""
        shared, account = self._shared, self._account
        self._is_gone = True
        for parked in list(self._parked):
            shared.polls.forget(parked)
        self._parked.clear()
        shared.storage.on_adder_gone(self._on_added)
        for queue in (self._ordinary, self._urgent):
            account.give(_CALL_BYTES * len(queue.asked))
            queue.asked.clear()
        self._drop_answers()
        # These are freed now, because this object is part of a reference cycle and may be freed
        # much later.
        self._decoder.drop()
        account.set_begun(0)
        account.set_unread(0)
        shared.pool.waiting.pop(account, None)
        for deadlines in (shared.unfinished, shared.kept_waiting, shared.clogged):
            deadlines.stop(self)
        del shared.connections[self]
        shared.on_gone()
        if shared.pool.has_news:
            shared.look_after()

    def eof_received(self) -> bool:
        """Handles a client that sends no more requests but may still wait for responses."""
        self.leave()
        return not self._is_gone and self._transport.can_write_eof()

    def leave(self) -> None:
        """Closes the connection when all received requests have been answered."""
        if not self._is_leaving:
            self._is_leaving = True
            for parked in list(self._parked):
                self._shared.polls.forget(parked)
                parked.wake(None)
            self._balance()

    def hang_up(self, reason: str, **details: object) -> None:
        if self._is_gone:
            return
        if self._transport.is_closing():
            self._transport.abort()  # The client had time to read its last responses.
            return
        closed = self._shared.stats.connections_closed
        closed[reason] = closed.get(reason, 0) + 1
        peer = self._transport.get_extra_info("peername")
        logger.info("connection_closed", reason=reason, peer=peer, **details)
        self._is_leaving = True
        if self._is_clogged:
            self._transport.abort()
        else:
            self._close()

    def _close(self) -> None:
        # This is the last write: the transport gets everything, even bytes that it has to copy.
        while self._out and not self._transport.is_closing():
            self._write_some()
        self._count_unread()
        self._give_time_to_take()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    @property
    def held_bytes(self) -> int:
        return self._account.held

    @property
    def begun_bytes(self) -> int:
        return self._account.begun

    # --- Receiving ----------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.buffer[: self._read_size.next_bytes()]

    def buffer_updated(self, nbytes: int) -> None:
        shared = self._shared
        chunk = bytes(shared.buffer[:nbytes])
        shared.stats.received_bytes += nbytes
        if self._is_leaving:
            return
        try:
            heard = self._decoder.feed(chunk)
        except BadFrame as error:
            self.hang_up("bad_frame", detail=str(error))
            return
        now_ns = shared.clock.monotonic_ns()
        answered = 0
        asks = False
        try:
            for item in heard:
                if isinstance(item, Adds):
                    self._on_adds(item, now_ns)
                elif isinstance(item, Refused):
                    self._send(item.reply)
                else:
                    asks = True
                    answered += self._on_call(item, now_ns)
            if self._adds:
                shared.polls.answer_first()
            if answered:
                elapsed_ns = shared.clock.monotonic_ns() - now_ns
                shared.stats.requests["read"].observe(elapsed_ns, answered)
        # The journal is woken even after an error, because nothing else wakes it for these adds.
        finally:
            if self._adds:
                shared.storage.go_on()
        self._read_size.on_chunk(nbytes, has_calls=asks, calls_waiting=self._calls_waiting)
        self._on_begun(self._decoder.begun_bytes, is_new=bool(heard), now_ns=now_ns)
        self._flush()
        self._balance()

    def _on_begun(self, size: int, *, is_new: bool, now_ns: int) -> None:
        """Notes that the chunk ends with `size` bytes of a partial request; 0: with none."""
        account, unfinished = self._account, self._shared.unfinished
        if not size:
            if account.begun:
                account.set_begun(0)
                unfinished.stop(self)
            return
        if self._progress.try_restart(size, is_new=is_new or not account.begun):
            unfinished.start(self, now_ns)
            self._shared.look_after()
        account.set_begun(size)

    def _on_adds(self, adds: Adds, now_ns: int) -> None:
        shared = self._shared
        refusals = shared.storage.add(adds, self._on_added).refusals
        groups = adds.groups
        if any(refusals):
            groups = [g for g, r in zip(groups, refusals, strict=True) if not r]
        if groups:  # Accepted adds come first: the storage will report on them.
            size, count = adds.end - adds.start, sum([len(group.entry_ids) for group in groups])
            self._adds.append(_Accepted(groups, count, size, now_ns))
            self._account.take(size)
            shared.loop_budget.on_adds(now_ns)
            shared.stats.chunk_entries.observe(count)
        if len(groups) < len(adds.groups):
            for group, refusal in zip(adds.groups, refusals, strict=True):
                if refusal:
                    shared.stats.on_refusals(refusal.code.reason, len(group.entry_ids))
                    self._send(group.pack_replies(refusal))

    def _on_added(self, chunks: int, failure: BookieFailed | None) -> None:
        """Answers this many chunks, the oldest first, because the journal keeps their order. One
        sync may make many chunks durable."""
        shared = self._shared
        error = BookieFailed if failure else None
        done = [self._adds.popleft() for _ in range(chunks)]
        for accepted in done:
            for group in accepted.groups:
                self._send(group.pack_replies(error))
        self._flush()
        if self._out:
            self._hurry()
        now_ns = shared.clock.monotonic_ns()
        for accepted in done:
            self._account.give(accepted.size)
            if error:
                shared.stats.on_refusals(error.code.reason, accepted.entries)
            shared.stats.requests["add"].observe(now_ns - accepted.heard_ns, accepted.entries)
        self._balance()

    def _on_call(self, call: ReceivedRequest, now_ns: int) -> int:
        """Answers or queues the call; returns how many reads were answered now."""
        shared, request, asked = self._shared, call.request, QueuedRequest(call, now_ns)
        if not self._is_behind and not shared.loop_budget.is_over:
            reply = shared.answers.at_once(request)
            if reply is not None:
                shared.loop_budget.spend(self._answer(call, reply))
                if type(request) is EntryRead and request.previous_lac is None:
                    return 1
                self._count(asked, reply)
                return 0
        if (
            isinstance(request, EntryRead)
            and request.previous_lac is not None
            and not request.fence
        ):
            try:
                parked = shared.polls.park(request, self._on_woken)
            except Overloaded:
                shared.stats.on_refusals(Overloaded.code.reason)
                self._send(call.refuse(Overloaded))
                return 0
            if parked is not None:
                self._parked[parked] = asked
                return 0
        self._enqueue(asked)
        return 0

    def _on_woken(self, parked: Parked, news_ms: int | None, at_once: bool) -> None:
        asked = self._parked.pop(parked, None)
        if asked is None:
            return
        try:
            self._end_poll(asked, news_ms, at_once)
        except Exception:  # A bug in one poll must not stop other polls and adds.
            self.hang_up("crashed")
            logger.error("request_crashed", exc_info=True)

    def _end_poll(self, asked: QueuedRequest, news_ms: int | None, at_once: bool) -> None:
        loop_budget, reply = self._shared.loop_budget, None
        if not self._is_behind and (
            loop_budget.check_time() or (at_once and not loop_budget.is_over)
        ):
            reply = self._shared.answers.at_once(asked.call.request, news_ms)
        if reply is None:
            self._enqueue(asked._replace(news_ms=news_ms))
        else:
            self._count(asked, reply)
            loop_budget.spend(self._answer(asked.call, reply))
            self._flush()

    # --- Requests that have to wait -------------------------------------------------------------

    def _enqueue(self, asked: QueuedRequest) -> None:
        request = asked.call.request
        is_urgent = asked.call.is_high_priority or (
            isinstance(request, EntryRead | BatchRead) and request.fence
        )
        queue = self._urgent if is_urgent else self._ordinary
        queue.asked.append(asked)
        self._account.take(_CALL_BYTES)
        (self._shared.urgent if is_urgent else self._shared.ordinary).offer(queue)

    @property
    def _calls_waiting(self) -> int:
        return len(self._ordinary.asked) + len(self._urgent.asked)

    def _may_make(self, is_first: bool) -> bool:
        """Returns whether another answer may be made. One answer at a time is always made, because
        otherwise no memory would ever be released."""
        if self._is_behind:
            return False
        return is_first or not self._shared.pool.is_exhausted

    async def _serve(self, asked: QueuedRequest) -> None:
        self._account.give(_CALL_BYTES)
        try:
            reply = await self._reply_to(asked)
            self._count(asked, reply)
            size = self._answer(asked.call, reply)
            self._shared.loop_budget.spend(min(size, self._shared.loop_budget.step_bytes))
            self._flush()
        except Exception:  # A bug: the connection closes, because a request has no answer.
            self.hang_up("crashed")
            raise

    async def _reply_to(self, asked: QueuedRequest) -> Reply:
        answers, request = self._shared.answers, asked.call.request
        reply = answers.at_once(request, asked.news_ms)
        if reply is None:
            making = Making(self._shared.pool, _READ_BYTES)
            try:
                reply = await answers.in_time(request, making, asked.news_ms)
            finally:
                making.end()
        return reply

    def _count(self, asked: QueuedRequest, reply: Reply) -> None:
        stats = self._shared.stats
        elapsed_ns = self._shared.clock.monotonic_ns() - asked.heard_ns
        stats.requests[kind_of(asked.call.request)].observe(elapsed_ns)
        if not isinstance(reply, AuthReply) and reply.error:
            stats.on_refusals(reply.error.code.reason)

    # --- Responding -----------------------------------------------------------------------------

    def _answer(self, call: ReceivedRequest, reply: Reply) -> int:
        """Sends the reply; returns its size in bytes."""
        pieces = call.answer_in_pieces(reply)
        if len(pieces) == 1:
            self._send(pieces[0])
            return len(pieces[0])
        size = sum(map(len, pieces))
        if not self._is_gone:
            if self._out and size > _WRITE_BYTES:
                self._later.append(pieces)
            else:
                self._out += pieces
            self._out_bytes += size
        return size

    def _send(self, frame: Buffer) -> None:
        if self._is_gone:
            return
        if not frame:
            self.hang_up("no_words")  # The protocol version has no code for this reply.
            return
        self._out.append(frame)
        self._out_bytes += len(frame)
        if self._out_bytes >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Writes some responses now, and the rest in a later turn or when the client reads."""
        if not self._out:
            return
        if self._transport.is_closing():
            self._drop_answers()
        elif not (self._is_writing or self._is_clogged):
            size = self._write_some()
            if self._out:
                self._write_more(self._shared.loop_budget.step_bytes - size)
        self._count_unread()

    def _write_more(self, room: int) -> None:
        while self._out and room > 0 and not self._is_clogged:
            room -= self._write_some()
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        if self._out and not self._is_clogged and not self._is_writing:
            self._is_writing = True
            self._write_queue.join(self._go_on)

    def _go_on(self) -> None:
        self._is_writing = False
        if not self._is_gone:
            size = self._out_bytes
            self._flush()
            self._shared.loop_budget.spend(size - self._out_bytes)
            self._balance()

    def _hurry(self) -> None:
        """Moves the current write to the hurried queue, because acks wait for its end."""
        hurried = self._shared.hurried
        if self._write_queue is not hurried:
            if self._is_writing:
                self._write_queue.leave(self._go_on)
                hurried.join(self._go_on)
            self._write_queue = hurried

    def _drop_answers(self) -> None:
        self._out.clear()
        self._later.clear()
        self._out_bytes = 0

    def _write_some(self) -> int:
        """Writes one large piece, or several small ones; returns the number of bytes. The transport
        copies the bytes that the system does not accept."""
        taken: list[Buffer] = []
        size = 0
        while self._out and size < _FLUSH_BYTES:
            data = self._out.popleft()
            if len(data) > _WRITE_BYTES:
                view = memoryview(data)
                data = view[:_WRITE_BYTES]
                self._out.appendleft(view[_WRITE_BYTES:])
            taken.append(data)
            size += len(data)
        if not self._out:
            self._write_queue = self._shared.writers
            if self._later:
                self._out += self._later.popleft()
        self._out_bytes -= size
        self._written_bytes += size
        self._shared.stats.sent_bytes += size
        # This is a view, because asyncio would copy a `bytes` object once more.
        self._transport.write(memoryview(taken[0] if len(taken) == 1 else b"".join(taken)))
        return size

    def _count_unread(self) -> None:
        unread = self._out_bytes + self._transport.get_write_buffer_size()
        if unread != self._account.unread:
            self._account.set_unread(unread)

    @property
    def _is_behind(self) -> bool:
        """Returns whether the bytes that wait to be written exceed the limit for further requests."""
        return self._is_clogged or self._out_bytes > _WRITE_BYTES

    def pause_writing(self) -> None:
        self._is_clogged = True
        self._give_time_to_take()

    def note_taken_answers(self) -> bool:
        """Returns whether the client has read responses since its deadline started; if so, the
        deadline restarts."""
        if self._is_gone or self._taken_bytes() <= self._taken_when_timed:
            return False
        self._give_time_to_take()
        return True

    def _give_time_to_take(self) -> None:
        self._taken_when_timed = self._taken_bytes()
        self._shared.clogged.start(self, self._shared.clock.monotonic_ns())
        self._shared.look_after()

    def _taken_bytes(self) -> int:
        """Returns how many of all written bytes the kernel has accepted; unlike the queue's size,
        this number only grows."""
        return self._written_bytes - self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        self._is_clogged = False
        self._shared.clogged.stop(self)
        if not self._is_gone:
            self._go_on_soon()
            self._count_unread()
            self._balance()

    @property
    def _is_idle(self) -> bool:
        queues = (self._ordinary, self._urgent)
        is_done = not self._adds and not self._parked and not self._out
        return is_done and all(queue.is_idle for queue in queues)

    # --- Flow control ---------------------------------------------------------------------------

    def _balance(self) -> None:
        """Pauses or resumes reading, depending on the memory that is held."""
        shared, calls_waiting = self._shared, self._calls_waiting
        if shared.pool.has_news:  # Even a closed connection returns memory to the pool.
            shared.look_after()
        if self._is_gone:
            return
        is_blocked = self._is_clogged or self._is_leaving
        if not self._gate.is_closed:
            if self._gate.try_close(calls_waiting, is_blocked=is_blocked):
                self._pause_reading()
        elif self._gate.try_open(calls_waiting, is_blocked=is_blocked):
            self._resume_reading()
        if calls_waiting:
            shared.ordinary.offer(self._ordinary)
            shared.urgent.offer(self._urgent)
        if self._is_leaving and self._is_idle and not self._transport.is_closing():
            self._close()

    def _pause_reading(self) -> None:
        shared = self._shared
        # We paused reading, so it is not the client's fault that the partial request is late.
        shared.unfinished.stop(self)
        if self._account.is_half_a_request:
            shared.kept_waiting.start(self, shared.clock.monotonic_ns())
            shared.look_after()
        self._transport.pause_reading()

    def _resume_reading(self) -> None:
        shared = self._shared
        if self._account.begun:
            shared.kept_waiting.stop(self)
            shared.unfinished.start(self, shared.clock.monotonic_ns())
        self._transport.resume_reading()
