"""Writes a ledger: the shell around `core/add_pipeline.py`. It uses `bookie_replacement.py`, which
replaces failed bookies, `metadata_writer.py`, which writes the ledger's metadata, and
`explicit_lac.py`, which reports the LAC.

    append ──► Pipeline ──► one write per bookie and turn of the loop ──► bookies
    futures ◄── LAC moved ◄── Pipeline ◄── batches of acks ◄───────────────┘

The appends of one turn of the loop are sent to each bookie in one write. To a bookie with
unanswered adds they are sent a little later, together with later appends (WR10). Responses arrive,
and are counted, in batches. No entry has a task, a timer or a lock. While a writer has entries in
flight, or a LAC that it may have to report, it gets ticks from `shared_writer_timer.py`, like all other
writers. A bookie that is busy or lags has a timer of its own.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import structlog

from rollbook.ledger.bookie_pool import AddChannel
from rollbook.ledger.bookie_replacement import BookieReplacement
from rollbook.ledger.client_context import ClientContext
from rollbook.ledger.core.add_pipeline import LAGGARD_TICKS, LOOK_AGAIN_S, AddPipeline
from rollbook.ledger.core.ensemble_change import OpenEnsemble, RefusalAction, judge
from rollbook.ledger.explicit_lac import ExplicitLac
from rollbook.ledger.metadata_writer import MetadataWriter
from rollbook.ledger.send_queue import CHUNK_BYTES_MAX
from rollbook.proto.cluster.ledger_nodes import StoredLedger
from rollbook.proto.errors import (
    AppendUnsettled,
    BookieTimeout,
    LedgerClosed,
    Outcome,
    OutcomeUnknown,
    RollbookError,
    Unavailable,
)
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.tasks import joined, stop_tasks
from rollbook.proto.wire import v2_layout
from rollbook.proto.wire.add_columns import AddPacker, AddReplies
from rollbook.proto.wire.digest import LedgerDigest, ledger_key
from rollbook.proto.wire.messages import WriteLac
from rollbook.proto.wire.v2_adds import V2AddPacker
from rollbook.proto.wire.v3_adds import V3AddPacker

logger = structlog.get_logger()

# This many appended bytes are sent before the turn ends, so that bookies can begin.
_EARLY_BYTES: Final = CHUNK_BYTES_MAX

_Waiting = tuple[EntryId, "asyncio.Future[Any]", Any]


class LedgerWriter:
    """Appends to one ledger, which this client has created. Use it from one event loop only.

    A writer that has failed stays failed: `failure` is the error, `append` raises it, and pending
    appends raise `AppendUnsettled`. Confirmed entries are not lost. Used as a context manager, the
    writer closes the ledger at the end.
    """

    def __init__(
        self,
        stored: StoredLedger,
        digest: LedgerDigest,
        password: bytes,
        context: ClientContext,
        *,
        is_urgent: bool = False,
    ) -> None:
        """With `is_urgent`, bookies with full disks accept the entries, and store them in their
        reserve."""
        metadata = stored.metadata
        assert len(metadata.fragments) == 1, "this ledger has been written before"
        self._digest = digest
        self._key = ledger_key(password)
        config, bookies, clock = context.config, context.bookies, context.clock
        self._bookies, self._placement, self._health = bookies, context.placement, context.health
        self._clock, self._randomness, self._config = clock, context.randomness, config
        self._quorum = metadata.quorum
        self._is_urgent = is_urgent
        self._loop = asyncio.get_running_loop()
        self._new_future = self._loop.create_future
        self._log = logger.bind(ledger_id=metadata.ledger_id)
        self._pipeline = AddPipeline(
            metadata.quorum,
            self._make_packer(),
            config.writer_window_bytes,
            config.writer_window_entries,
        )
        self._open_ensemble = OpenEnsemble(metadata.quorum, metadata.fragments[-1])
        self._metadata_writer = MetadataWriter(
            stored, self._open_ensemble, context.nodes, clock, self._log
        )
        self._tick_s = bookies.tick_s
        self._replacement = self._make_replacement(context)
        self._explicit_lac = self._make_explicit_lac()
        self._waiting: deque[_Waiting] = deque()  # In the order of the entries they wait for.
        self._last_put = NO_ENTRY
        self._on_lac: Callable[[EntryId], None] = _nobody
        self._on_stopped: Callable[[RollbookError], None] = _nobody
        self._on_vacant: Callable[[], None] = _nobody_at_all
        self._wants_room: deque[asyncio.Future[None]] = deque()
        self._failure: RollbookError | None = None
        self._was_unsettled = False  # Whether a caller got `AppendUnsettled`.
        self._is_closing = False
        self._is_over = False  # Whether the writer has stopped using bookies.
        self._closing: asyncio.Task[None] | None = None
        self._flush_is_due = self._offer_is_due = False
        self._act_at_bytes = 0  # Entries are sent at once when `appended_bytes` reaches this.
        self._is_ticking = False
        # Timers by slot; each fires when more entries may be sent.
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._reading_back: asyncio.Task[None] | None = None
        self._slots: dict[AddChannel, int] = {}
        self._channels: list[AddChannel] = []
        for slot, bookie in enumerate(self._open_ensemble.ensemble):
            self._channels.append(self._open_channel(slot, bookie))
        self._tell_racks()

    def _make_replacement(self, context: ClientContext) -> BookieReplacement:
        return BookieReplacement(
            self._quorum,
            self._open_ensemble,
            self._pipeline,
            self._metadata_writer,
            context,
            question_s=LAGGARD_TICKS * self._tick_s,
            on_moved=self._on_moved,
            on_refused=self._stop,
        )

    def _make_explicit_lac(self) -> ExplicitLac:
        return ExplicitLac(
            self._pipeline,
            self._open_ensemble,
            self._bookies,
            self._make_write_lac,
            self._verify_when_stale,
            ack_quorum=self._quorum.ack,
            is_wanted=self._config.explicit_lac_idle_ms > 0,
            deadline_s=self._config.add_deadline_s,
        )

    # --- Public methods -----------------------------------------------------------------------

    @property
    def ledger_id(self) -> LedgerId:
        return self._metadata_writer.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata that this writer last wrote or read."""
        return self._metadata_writer.stored.metadata

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._pipeline.acks.last_add_confirmed

    @property
    def last_appended(self) -> EntryId:
        return EntryId(self._pipeline.next_entry - 1)

    @property
    def failure(self) -> RollbookError | None:
        """The error that stopped the writer permanently."""
        return self._failure

    @property
    def vacant_seats(self) -> Mapping[BookieId, str]:
        """Members of the ensemble that are not expected to get a copy of the next entry, and why (WR12)."""
        return self._open_ensemble.vacant

    @property
    def kept_bytes(self) -> int:
        """The number of bytes that are kept for bookies that have not acknowledged them; at most
        the window."""
        return self._pipeline.kept_bytes

    def append(self, payload: bytes) -> "asyncio.Future[EntryId]":
        """Appends the next entry, which is sent with the others of this turn of the loop. Does not
        wait.

        The future returns the entry's id once the entry and all entries before it are confirmed, that
        is, on disk with an ack quorum. The future need not be awaited: `flush` and `close` report
        failures. A cancelled future does not cancel the append.

        If the call raises, nothing was appended: it raises `Overloaded` while the window is full
        (wait for `ready`), `EntryTooLarge`, `LedgerClosed` after `close`, or the error that stopped
        the writer. The future raises `AppendUnsettled` if the writer is stopped before the entry is
        confirmed.
        """
        if self._is_closing or self._failure is not None:
            raise self._refusal()
        entry_id = self._pipeline.append(payload)
        future: asyncio.Future[EntryId] = self._new_future()
        self._waiting.append((entry_id, future, entry_id))
        if self._pipeline.appended_bytes >= self._act_at_bytes:
            self._send_soon()
        return future

    def put(self, payload: bytes) -> EntryId:
        """Appends an entry like `append`, for users of `watch`: there is no future, and
        confirmations are reported together."""
        if self._is_closing or self._failure is not None:
            raise self._refusal()
        entry_id = self._last_put = self._pipeline.append(payload)
        if self._pipeline.appended_bytes >= self._act_at_bytes:
            self._send_soon()
        return entry_id

    def watch(
        self,
        on_confirmed: Callable[[EntryId], None],
        on_stopped: Callable[[RollbookError], None],
    ) -> None:
        """Calls `on_confirmed` with the LAC whenever it rises, and `on_stopped` with the error that
        a future would raise if the writer is stopped before all `put` entries are confirmed. The
        callbacks run while acks are read: neither may raise, or use this writer.
        """
        self._on_lac, self._on_stopped = on_confirmed, on_stopped

    def watch_seats(self, on_vacant: Callable[[], None]) -> None:
        """Calls `on_vacant` when a slot has become vacant; another bookie may take the slot again
        at once. Like the callbacks of `watch`, `on_vacant` may not raise or use this writer."""
        self._on_vacant = on_vacant

    def append_many(self, payloads: Sequence[bytes]) -> "asyncio.Future[range]":
        """Appends all payloads or none, at less cost than `append`: a single future returns the
        range of their ids.

        All payloads have to fit into the window at once: it raises `InvalidRequest` if they never
        could. A cancelled future does not cancel the appends.
        """
        if self._is_closing or self._failure is not None:
            raise self._refusal()
        result = self._pipeline.append_all(payloads)
        future: asyncio.Future[range] = self._new_future()
        if not result:
            future.set_result(result)
            return future
        self._waiting.append((EntryId(result[-1]), future, result))
        self._send_soon()
        return future

    async def ready(self, entries: int = 1, payload_bytes: int = 0) -> None:
        """Waits until the window has room, and returns at once if it has room now. Append before
        you await anything else.

        Raises `EntryTooLarge`, `LedgerClosed`, or the error that stopped the writer. A cancelled
        call leaves nothing behind.
        """
        has_waited = False
        while not self._has_room(entries, payload_bytes):
            waiter = self._new_future()
            self._wants_room.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                self._pass_room_on()
                raise
            has_waited = True
        if has_waited:
            self._pass_room_on()

    async def flush(self) -> None:
        """Waits until all entries that were appended before are confirmed.

        If the writer has stopped, raises `AppendUnsettled` if entries were left unconfirmed, and
        otherwise the error that stopped the writer. A cancelled call leaves nothing behind.
        """
        if self._failure is not None:
            raise self._ending()
        if self.last_add_confirmed < self.last_appended:
            future: asyncio.Future[None] = self._new_future()
            self._waiting.append((self.last_appended, future, None))
            await future

    async def force(self) -> None:
        """Waits until all entries that were appended before are on disk with an ack quorum.

        Confirmed entries are durable already, because a bookie acknowledges what it has synced.
        Therefore this method does the same as `flush`, also if it is cancelled. Its name is the one
        that ledgers with deferred syncs use.
        """
        await self.flush()

    async def close(self) -> None:
        """Refuses further appends, waits for pending ones, and closes the ledger at its last entry.

        A writer that has failed because bookies were missing closes the ledger at its LAC, and then
        raises: the ledger then certainly lacks the pending appends. A fenced writer changes nothing
        and raises. `LedgerClosed` says that another client has closed the ledger. Raises
        `MetadataUnavailable` or `ConnectionLost` if the metadata store does not answer; the ledger
        may then still be open, for recovery to close.

        If `close` is cancelled, it completes first, within its deadlines, and then raises. A second
        call has the outcome of the first one. If the writer is stopped in the meantime, `close`
        raises the error that `flush` would raise.
        """
        if self._closing is None:
            self._is_closing = True
            self._closing = self._loop.create_task(self._close())
        try:
            await joined(self._closing, self._ending)
        except asyncio.CancelledError:
            await asyncio.gather(self._closing, return_exceptions=True)
            raise

    async def stop(self) -> None:
        """Stops the writer at once and leaves the ledger open, for recovery to close. Idempotent.
        If the call is cancelled, the writer has stopped nevertheless; its tasks may end a little
        later.
        """
        if not self.is_stopped:
            self._stop(LedgerClosed("its writer was stopped", ledger_id=self.ledger_id))
        await stop_tasks(self._closing)
        await self._end_tasks()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop`, `close` or a failure has ended the writer, which then uses no bookie any
        more."""
        return self._failure is not None or (self._closing is not None and self._closing.done())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except RollbookError:
            if error is None:  # An error from the block explains more than the one from `close`.
                raise

    def _make_packer(self) -> AddPacker:
        limit = self._config.frame_bytes_max
        if self._bookies.protocol_version == v2_layout.VERSION:
            return V2AddPacker(
                self._key,
                self._digest,
                is_high_priority=self._is_urgent,
                frame_bytes_max=limit,
            )
        return V3AddPacker(
            self._key,
            self._digest,
            self._bookies.txn_ids,
            is_high_priority=self._is_urgent,
            frame_bytes_max=limit,
        )

    def _make_write_lac(self, lac: EntryId) -> WriteLac:
        return WriteLac(self.ledger_id, lac, self._key, self._digest.pack_lac(lac))

    def leave(self, reason: RollbookError, bookie: BookieId) -> bool:
        """Begins to replace a bookie that has no outstanding adds, if another one can take its slot
        (WR11). Returns whether it began."""
        if self._is_closing or self._is_over or bookie not in self._open_ensemble.ensemble:
            return False
        slot = self._open_ensemble.ensemble.index(bookie)
        is_down = slot in self._open_ensemble.down
        if is_down or not self._replacement.has_successor(slot):
            return False
        self._open_ensemble.on_failure(slot, reason)
        self._on_down(slot)
        return True

    def on_gone(self, gone: dict[BookieId, str]) -> None:
        """Stores which members `leave` could not replace, and why."""
        if self._open_ensemble.on_gone(gone) and gone and not self._is_over:
            self._on_vacant()

    # --- Called by channels -------------------------------------------------------------------

    def on_add_replies(self, channel: AddChannel, replies: AddReplies) -> None:
        slot = self._slots.get(channel)
        if slot is None:
            return  # The bookie has left the ensemble.
        pipeline = self._pipeline
        if replies.error is not None:
            self._on_refused(slot, replies.error, replies.entry_ids)
            return
        if self._open_ensemble.awaits_answer:
            self._open_ensemble.on_answer(slot)
        if pipeline.on_acks(slot, replies.entry_ids):
            self._on_confirmed()
        if pipeline.release() and self._wants_room:
            self._offer_room()
        if pipeline.has_more(slot):
            self._send(slot)

    def on_channel_open(self, channel: AddChannel) -> None:
        slot = self._slots.get(channel)
        if slot is None:
            return
        if self._open_ensemble.on_open(slot):
            self._rejoin(slot)
        self._pipeline.restart(slot)
        self._send(slot)

    def on_channel_lost(self, channel: AddChannel, error: RollbookError) -> None:
        slot = self._slots.get(channel)
        is_missed = slot is not None and self._pipeline.owes(slot)
        if slot is not None and is_missed and self._open_ensemble.on_lost(slot, error):
            self._on_down(slot)

    # --- Sending ------------------------------------------------------------------------------

    def _send_soon(self) -> None:
        """Sends the appended entries at the end of this turn of the loop, or now if they are large."""
        appended_bytes = self._pipeline.appended_bytes
        if not self._flush_is_due:
            self._flush_is_due = True
            self._bookies.tick_flush.hand_out(self._on_flush)
            self._act_at_bytes = appended_bytes + _EARLY_BYTES
        elif appended_bytes >= self._act_at_bytes:
            self._act_at_bytes = appended_bytes + _EARLY_BYTES
            self._hand_out()

    def _on_flush(self) -> None:
        self._flush_is_due = False
        self._act_at_bytes = 0
        if self._is_over:
            return
        self._keep_ticking()
        self._hand_out()

    def _hand_out(self) -> None:
        if self._verify_when_stale():
            for slot in range(len(self._channels)):
                self._hand_to(slot)

    def _send(self, slot: int) -> None:
        if self._channels[slot].is_open and self._verify_when_stale():
            self._hand_to(slot)

    def _hand_to(self, slot: int, *, is_overdue: bool = False) -> None:
        channel, pipeline = self._channels[slot], self._pipeline
        if not channel.is_open:
            return
        frames, count, delay_s = pipeline.next_frames(
            slot, channel.queued_bytes, channel.unanswered, is_overdue=is_overdue
        )
        if count:
            channel.write(frames, count)
        if pipeline.has_more(slot) and slot not in self._timers:
            # Acks usually do this sooner, unless another ledger fills the socket.
            self._timers[slot] = self._loop.call_later(delay_s, self._look_again, slot)

    def _look_again(self, slot: int) -> None:
        del self._timers[slot]
        if self._verify_when_stale():
            self._hand_to(slot, is_overdue=True)

    def _on_refused(
        self, slot: int, refusal: type[RollbookError], entry_ids: Sequence[EntryId]
    ) -> None:
        bookie = self._open_ensemble.ensemble[slot]
        error = refusal("it refuses adds", ledger_id=self.ledger_id, bookie=bookie)
        match judge(refusal):
            case RefusalAction.RETRY:
                if self._pipeline.on_busy(slot, entry_ids):
                    self._pause(slot)
            case RefusalAction.STOP:
                self._stop(error)
            case RefusalAction.REPLACE:
                if self._open_ensemble.on_refusal(slot, error):
                    self._on_failed_down(slot)
            case RefusalAction.RELIEVE:
                if self._open_ensemble.on_refusal(slot, error):
                    self._on_down(slot)

    def _pause(self, slot: int) -> None:
        """Pauses sending to a busy bookie (WR8)."""
        if timer := self._timers.pop(slot, None):
            timer.cancel()
        delay_s = self._pipeline.next_pause_s(slot, self._randomness.random())
        self._timers[slot] = self._loop.call_later(delay_s, self._retry, slot)

    def _retry(self, slot: int) -> None:
        del self._timers[slot]
        channel = self._channels[slot]
        if not channel.is_open or not self._verify_when_stale():
            # All missing entries are sent later.
            self._pipeline.restart(slot)
            return
        frames, count = self._pipeline.retry(slot)
        if count:
            channel.write(frames, count)
        if self._pipeline.is_paused(slot):
            self._timers[slot] = self._loop.call_later(LOOK_AGAIN_S, self._retry, slot)
        else:
            self._hand_to(slot)

    # --- Confirming ---------------------------------------------------------------------------

    def _on_confirmed(self) -> None:
        lac, waiting = self._pipeline.acks.last_add_confirmed, self._waiting
        while waiting:
            last_entry, future, result = waiting.popleft()
            if last_entry > lac:
                waiting.appendleft((last_entry, future, result))
                break
            if not future.done():  # A future that is done was cancelled by its caller.
                future.set_result(result)
        self._explicit_lac.on_confirmed()
        self._on_lac(lac)

    def _has_room(self, entries: int, payload_bytes: int) -> bool:
        if self._is_closing or self._failure is not None:
            raise self._refusal()
        return self._pipeline.has_room(entries, payload_bytes)

    def _offer_room(self) -> None:
        """Wakes as many waiters as there may be room for. A waiter that finds too little room waits
        again."""
        self._offer_is_due = False
        is_over = self._is_closing or self._failure is not None
        count = len(self._wants_room) if is_over else self._pipeline.free_entries
        for _ in range(min(count, len(self._wants_room))):
            waiter = self._wants_room.popleft()
            if not waiter.done():  # A waiter that is done was cancelled.
                waiter.set_result(None)

    def _pass_room_on(self) -> None:
        """Offers the room that a cancelled waiter may have left."""
        if self._wants_room and not self._offer_is_due:
            self._offer_is_due = True
            self._loop.call_soon(self._offer_room)

    # --- Time ---------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        self._is_ticking = False
        if self._is_over:
            return
        pipeline = self._pipeline
        for slot in pipeline.on_tick():
            timeout = BookieTimeout(
                bookie=self._open_ensemble.ensemble[slot], ledger_id=self.ledger_id
            )
            self._channels[slot].complain(self._config.add_deadline_s)
            self._on_failure(slot, timeout)
        if self._wants_room:
            self._offer_room()
        is_down = bool(self._open_ensemble.down)
        if pipeline.has_all_replies and not is_down:
            return
        is_changing = self._replacement.is_changing
        if error := pipeline.find_hopeless(self._open_ensemble.standing, is_changing=is_changing):
            self._stop(self._open_ensemble.explain(error))
            return
        if is_down:
            self._seek_remedy()
        self._keep_ticking()

    def _keep_ticking(self) -> None:
        if not self._is_ticking and not self._is_over:
            self._is_ticking = True
            self._bookies.ticker.call_next(self._on_tick)

    # --- Failed bookies -------------------------------------------------------------------------

    def _open_channel(self, slot: int, bookie: BookieId) -> AddChannel:
        channel = self._bookies.add_channel(
            bookie, self.ledger_id, self, is_high_priority=self._is_urgent
        )
        self._slots[channel] = slot
        return channel

    def _on_failure(self, slot: int, error: RollbookError) -> None:
        if self._open_ensemble.on_failure(slot, error):
            self._on_failed_down(slot)

    def _on_failed_down(self, slot: int) -> None:
        self._health.on_failure(self._open_ensemble.ensemble[slot], self._clock.monotonic_ns())
        self._on_down(slot)

    def _on_down(self, slot: int) -> None:
        self._log.warning(
            "ledger_bookie_failed",
            bookie=self._open_ensemble.ensemble[slot],
            reason=self._open_ensemble.error_of(slot).code.reason,
        )
        self._pipeline.suspend(slot)
        self._replacement.start()
        self._keep_ticking()
        self._on_vacant()

    def _seek_remedy(self) -> None:
        """Brings slots back that are down, or finds successors for them."""
        for slot in self._replacement.find_rested():
            if self._channels[slot].is_open:
                self._open_ensemble.on_rested(slot)
                self._rejoin(slot)
                self._send(slot)
        if self._open_ensemble.down:
            self._replacement.ask_resting()
            self._replacement.start()

    def _rejoin(self, slot: int) -> None:
        start, end = self._pipeline.resume(slot)
        self._log.info("ledger_bookie_back", bookie=self._open_ensemble.ensemble[slot])
        self._tell_gap(slot, start, end)

    def _tell_gap(self, slot: int, start: EntryId, end: EntryId) -> None:
        if start < end:
            self._log.warning(
                "ledger_copies_lacking",
                bookie=self._open_ensemble.ensemble[slot],
                first_entry=start,
                last_entry=end - 1,
            )

    def _on_moved(self, tail: Fragment) -> None:
        old = self._open_ensemble.ensemble
        for slot in self._open_ensemble.on_moved(tail):
            self._drop_channel(slot)
            start, end = self._pipeline.admit(slot, tail.first_entry)
            self._tell_gap(slot, start, end)
            self._channels[slot] = self._open_channel(slot, tail.ensemble[slot])
            self._log.info(
                "ledger_bookie_replaced",
                bookie=old[slot],
                successor=tail.ensemble[slot],
                first_entry=tail.first_entry,
            )
        self._tell_racks()
        if self._pipeline.release() and self._wants_room:
            self._offer_room()

    def _tell_racks(self) -> None:
        if self._placement.lacks_racks(self._quorum, self._open_ensemble.ensemble):
            self._log.warning("ledger_racks_lacking", ensemble=self._open_ensemble.ensemble)

    def _drop_channel(self, slot: int) -> None:
        channel = self._channels[slot]
        del self._slots[channel]
        channel.close()
        if timer := self._timers.pop(slot, None):
            timer.cancel()

    # --- Checking the metadata (WR5) ------------------------------------------------------------

    def _verify_when_stale(self) -> bool:
        """Starts to read the metadata again if it was last verified too long ago. Returns whether
        adds may be sent now; if not, `_read_back` sends them later.
        """
        if self._reading_back is None and self._metadata_writer.is_stale:
            self._reading_back = self._loop.create_task(self._read_back())
        return self._reading_back is None

    async def _read_back(self) -> None:
        try:
            # An ensemble change would move the end that is being verified.
            self._replacement.freeze()
            await self._replacement.until_unchanging()
            await self._metadata_writer.verify()
        except RollbookError as error:
            self._stop(error)
            return
        self._reading_back = None
        self._replacement.thaw()
        for slot in range(len(self._channels)):
            self._send(slot)

    # --- Stopping -----------------------------------------------------------------------------

    def _stop(self, error: RollbookError) -> None:
        """Stops the writer permanently."""
        if self._failure is not None:
            return
        self._failure = error
        is_wanted = isinstance(error, LedgerClosed)
        say = self._log.info if is_wanted else self._log.warning
        say(
            "ledger_writer_stopped",
            reason=error.code.reason,
            detail=error.message,
            last_add_confirmed=self.last_add_confirmed,
            last_appended=self.last_appended,
        )
        self._release_all()
        waiting, self._waiting = self._waiting, deque()
        for last_entry, future, result in waiting:
            self._fail(future, EntryId(result[0]) if isinstance(result, range) else last_entry)
        if self.last_add_confirmed < self._last_put:
            self._on_stopped(self._end_of(EntryId(self.last_add_confirmed + 1)))
        self._offer_room()

    def _fail(self, future: "asyncio.Future[Any]", first_entry: EntryId) -> None:
        error = self._end_of(first_entry)
        if not future.done():
            future.set_exception(error)
            future.exception()  # Marks the exception as seen: `flush` and `close` report it.

    def _end_of(self, first_entry: EntryId) -> RollbookError:
        """Returns the error for an append that waits for entries from this one on."""
        assert self._failure is not None
        was_sent = first_entry < self._pipeline.handed_end
        if was_sent or self._failure.outcome is not Outcome.NOT_APPLIED:
            self._was_unsettled = True
        return self._ending()

    def _ending(self) -> RollbookError:
        """Returns the error of a stopped writer for all entries that were appended."""
        return self._loss() if self._was_unsettled else self._refusal()

    def _release_all(self) -> None:
        """Closes connections and timers at once, and cancels tasks."""
        self._is_over = True
        for channel in self._channels:
            channel.close()
        self._slots.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._explicit_lac.stop()
        for task in self._tasks():
            task.cancel()

    def _tasks(self) -> list["asyncio.Task[Any]"]:
        tasks = (*self._replacement.tasks, self._reading_back, *self._explicit_lac.tasks)
        return [each for each in tasks if each and each is not asyncio.current_task()]

    async def _end_tasks(self) -> None:
        await asyncio.gather(*self._tasks(), return_exceptions=True)

    def _refusal(self) -> RollbookError:
        """Returns the error for a new append. Each append gets a new error object, because errors
        collect tracebacks."""
        failure = self._failure
        if failure is None:
            return LedgerClosed("its writer was closed", ledger_id=self.ledger_id)
        return type(failure)(failure.message, next_step=failure.next_step, **failure.ids)

    def _loss(self) -> AppendUnsettled:
        error = AppendUnsettled(f"the writer stopped: {self._failure}", ledger_id=self.ledger_id)
        error.__cause__ = self._failure
        return error

    async def _close(self) -> None:
        self._offer_room()  # Callers that wait for room wake and find the writer closing.
        loss: RollbookError | None = None
        try:
            try:
                await self.flush()
            except RollbookError as error:
                if not isinstance(self._failure, Unavailable | OutcomeUnknown):
                    raise
                loss = error  # Bookies were missing, but the ledger can be closed.
            self._replacement.freeze()
            await self._await_change()
            await self._hand_over()
        finally:
            self._release_all()
            await self._end_tasks()
        await self._metadata_writer.close(
            self.last_add_confirmed,
            self._pipeline.confirmed_length,
            patience_s=2 * self._config.add_deadline_s,
        )
        if loss is not None:
            raise loss

    async def _await_change(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.add_deadline_s):
                await self._replacement.until_unchanging()

    async def _hand_over(self) -> None:
        """Waits a little until the connections have taken the last third copies, which they deliver
        even after the writer has ended.
        """
        slots = range(len(self._channels))
        for _ in range(round(LAGGARD_TICKS * self._tick_s / LOOK_AGAIN_S)):
            if not any(map(self._pipeline.has_more, slots)):
                break
            await asyncio.sleep(LOOK_AGAIN_S)


def _nobody(_: object) -> None:
    """The default callback."""


def _nobody_at_all() -> None:
    """The default callback."""
