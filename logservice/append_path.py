"""The owner's hot path. It decides which blocks are appended to a log and in which order, and when appends
are acknowledged.

    append ──► Sequencer: place, or refusal ──► stamped ──► the ledger that is written
                  │                                              │ confirmed, in order
                  │ answers that depend on pending appends       ▼
                  └──────────────────────────────────► PendingCommits ──► acks ──► tail cache, futures
                                                                 ▲
                       roll: N is closed, N+1 counts ────────────┘

Decisions are made immediately and in the order of the calls. Each answer waits until everything that it depends
on is settled (LS4). A refusal such as "the tail is 17", which would be wrong if another server owned the log by
now, waits for a barrier, too. No append has a task or a future, and blocks are confirmed in batches: the loop
turn that reads the bookies' acknowledgements also acknowledges the appends.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, Final

from rollbook.ledger.writer import LedgerWriter
from rollbook.logservice.core.control_blocks import Barrier, Control, pack_control
from rollbook.logservice.core.pending_commits import PendingCommits
from rollbook.logservice.core.producers import AppendedBatch
from rollbook.logservice.core.record_block import BlockInfo, stamped
from rollbook.logservice.core.replayed_state import LogMemory
from rollbook.logservice.core.roll_rules import SegmentLength, SegmentLimits
from rollbook.logservice.core.sequencer import Sequencer, is_passing
from rollbook.logservice.core.tail_barrier import Barriers
from rollbook.logservice.ids import LogName, Offset, OwnerEpoch, SegmentId
from rollbook.logservice.log_config import LogConfig, WriterMode
from rollbook.logservice.messages import AppendAck, Condition
from rollbook.logservice.server_context import OwnerContext
from rollbook.logservice.tail_cache import TailCache
from rollbook.proto.errors import (
    AppendUnsettled,
    Invalid,
    OutcomeUnknown,
    Overloaded,
    OwnerChanging,
    OwnerLost,
    RollbookError,
    Unavailable,
)
from rollbook.proto.ids import FIRST_ENTRY, EntryId, LedgerId

# The most pending appends, answers and barriers. Each ledger also limits its pending entries.
_UNCERTAIN_MAX: Final = 20_000
_AGAIN_S: Final = 0.01  # The pause before a retry if the ledger had no room for a barrier entry.

Loss = type[OutcomeUnknown]
"""The type of the error that pending appends get when the ownership ends."""

Tell = Callable[[Any], None]
"""A waiter's callback. It is called once, with the result or a `RollbookError`, and must not raise."""

_Kept = tuple[Offset, Offset, bytes]
_Item = tuple[Tell | None, object, _Kept | None]
"""A waiter's callback, the result to pass to it, and a block for readers."""

_TAIL: Final = object()  # Stands for the tail at the time when the item is settled.
_BARRIER: Final = object()  # Marks an entry that was written for barriers, and has no caller.


class SegmentWriter:
    """The ledger of one segment, written by its log's owner."""

    def __init__(
        self,
        writer: LedgerWriter,
        segment_id: SegmentId,
        *,
        number: int,
        base_offset: Offset,
        limits: SegmentLimits,
        on_confirmed: Callable[[int, EntryId], None],
        on_failed: Callable[[RollbookError], None],
    ) -> None:
        self.writer: Final = writer
        self.segment_id: Final = segment_id
        self.ledger_id: Final[LedgerId] = writer.ledger_id
        self.number: Final = number  # The owner numbers its ledgers from 0.
        self.base_offset: Final = base_offset
        self.length: Final = SegmentLength(limits)
        self.began_s: Final = asyncio.get_running_loop().time()
        self._put = writer.put
        writer.watch(partial(on_confirmed, number), on_failed)

    def append(self, block: bytes) -> EntryId:
        """Append a block. Raises `Overloaded`, `EntryTooLarge`, or the error that stopped the ledger's writer."""
        entry_id = self._put(block)
        length = self.length
        length.bytes += len(block)
        length.entries = entry_id + 1
        return entry_id

    @property
    def is_begun(self) -> bool:
        """Return whether the first entry, which stores the log's state, is confirmed (LS5)."""
        return self.writer.last_add_confirmed >= FIRST_ENTRY

    def reason_to_roll(self, now_s: float) -> str | None:
        return self.length.reason_to_roll(now_s - self.began_s)

    @property
    def oldest_s(self) -> float:
        """The loop time at which the segment reaches its maximum age."""
        return self.began_s + self.length.limits.age_s


class AppendPath:
    """Handles the appends to one owner's log. `failure` is None while this server believes that it owns the log."""

    def __init__(
        self,
        name: LogName,
        context: OwnerContext,
        owner_epoch: OwnerEpoch,
        memory: LogMemory,
        config: LogConfig,
        *,
        stalls: int,
        on_lost: Callable[[str, Loss], None],
    ) -> None:
        """`stalls`: the count of the stall detector when the log's state was read. `on_lost` must call
        `end`."""
        # Called when the written segment is full.
        self.on_full: Callable[[], None] = _nobody
        self.failure: OwnerChanging | None = None
        self.takes_more = True
        self.memory: Final = memory
        self.sequencer: Final = Sequencer(memory, is_exclusive=False)
        # The segment that gets appends. None: the log accepts no appends.
        self.writing: SegmentWriter | None = None
        self.tail_cache: Final = TailCache(
            memory.tail, config.tail_cache_bytes, context.tail_memory
        )
        context.producer_memory.add(memory.producers)
        self.used_ns = context.clock.monotonic_ns()
        self._name, self._owner_epoch, self._context = name, owner_epoch, context
        self._wall_us, self._now_ns = context.clock.wall_us, context.clock.monotonic_ns
        self._stalls_now, self._stalls = context.stall_detector.stalls, stalls
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        # The time at which this server was last known to be the owner.
        self.proven_s = self._loop.time()
        self._new_future = self._loop.create_future
        self._settling: PendingCommits[_Item] = PendingCommits()
        self._barriers: Barriers[tuple[Tell, object]] = Barriers()
        self._turn: asyncio.Handle | None = None
        self.configure(config)

    def configure(self, config: LogConfig) -> None:
        self.sequencer.is_exclusive = config.writer_mode is WriterMode.EXCLUSIVE
        self.memory.producers.configure(config)
        self.tail_cache.bytes_max = config.tail_cache_bytes
        if self.writing is not None:
            self.writing.length.limits.configure(config)

    # --- Appending ----------------------------------------------------------------------------

    def append(
        self, block: bytes, info: BlockInfo, condition: Condition | None, tell: Tell
    ) -> bool:
        """Decide an append immediately; returns False if it is refused. In both cases `tell` gets the result
        when everything that the result depends on is settled. The result is the ack, the refusal, or
        `OwnerLost` or `AppendUnsettled`: with these two the block may be in the log. `tell` may be called
        before this method returns.

        Raises `Overloaded`, and `OwnerChanging` if this server is no longer the owner; then nothing was
        done.
        """
        self.use()
        try:
            place = self.sequencer.decide(info, condition, self._wall_us())
        except RollbookError as refusal:
            self.refuse(tell, refusal)
            return False
        owner_epoch, writer_epoch = self._owner_epoch, self.memory.writer_epoch
        if isinstance(place, AppendedBatch):
            base_offset, next_offset, timestamp_us, ledger_id, entry_id = place
            ack = AppendAck(
                base_offset,
                next_offset,
                timestamp_us,
                True,
                owner_epoch,
                writer_epoch,
                ledger_id,
                entry_id,
            )
            self.answer(tell, ack)
            return True
        writing = self.writing
        assert writing is not None  # None only in a sealed log, which accepts no append.
        base_offset, next_offset, timestamp_us = place
        data = stamped(
            block,
            base_offset=base_offset,
            base_timestamp_us=timestamp_us,
            owner_epoch=owner_epoch,
            writer_epoch=writer_epoch,
        )
        entry_id, ledger_id = self._write(writing, data), writing.ledger_id
        self.sequencer.on_placed(place, info, ledger_id, entry_id)
        writing.length.has_records = True
        ack = AppendAck(
            base_offset,
            next_offset,
            timestamp_us,
            False,
            owner_epoch,
            writer_epoch,
            ledger_id,
            entry_id,
        )
        self._on_written(entry_id, (tell, ack, (base_offset, next_offset, data)))
        if writing.length.is_look_due:
            self.keep_short()
        return True

    def keep_short(self) -> None:
        """End the segment if it is full, and write a snapshot if one is due. Call this after each entry,
        also after one without records, once the log's state includes the entry.
        """
        assert self.writing is not None
        length = self.writing.length
        if not length.is_look_due:
            return
        if length.is_full:
            self.on_full()
        if length.is_snapshot_due(self.memory.packed_bytes):
            length.on_snapshot()
            with suppress(RollbookError):  # Without this snapshot a take-over replays more entries.
                self.say(self.memory.snapshot())

    def say(self, said: Control, tell: Tell | None = None, result: object = None) -> None:
        """Write a control block. `tell` gets `result` when the block is settled. The caller updates the
        log's state, and then calls `keep_short`.

        Raises `Overloaded`, `EntryTooLarge`, `OwnerChanging`; then nothing was written.
        """
        writing, memory = self.writing, self.memory
        assert writing is not None
        timestamp_us = self.sequencer.time(self._wall_us())
        data = stamped(
            pack_control(said),
            base_offset=memory.tail,
            base_timestamp_us=timestamp_us,
            owner_epoch=self._owner_epoch,
            writer_epoch=memory.writer_epoch,
        )
        entry_id = self._write(writing, data)
        memory.on_time(timestamp_us, self._owner_epoch)
        self._on_written(entry_id, (tell, result, None), is_barrier=type(said) is Barrier)

    def use(self) -> None:
        """Check as `require` does, and count this as use of the log, so that the log is not released as
        idle. Raises `OwnerChanging`, `Overloaded`.
        """
        self.require()
        self.used_ns = self._now_ns()

    def require(self) -> None:
        """Raise `OwnerChanging` unless this owner accepts appends, and `Overloaded` if too many are pending."""
        if not self.check_owner() or not self.takes_more:
            raise self.refusal()
        if len(self._settling) + len(self._barriers) >= _UNCERTAIN_MAX:
            raise Overloaded("too many appends are not confirmed yet", log=str(self._name))

    def _write(self, writing: SegmentWriter, data: bytes) -> EntryId:
        try:
            return writing.append(data)
        except (Overloaded, Invalid):
            raise
        except RollbookError as error:
            self.on_ledger_failed(error)
            raise self.refusal() from error

    def _on_written(self, entry_id: EntryId, item: _Item, *, is_barrier: bool = False) -> None:
        self._settling.on_appended(entry_id, item)
        if self._barriers.is_asked:
            for tell, result in self._barriers.on_sent(is_ours=is_barrier):
                self._settling.on_answered((tell, result, None))

    async def room_for(self, entries: int, block_bytes: int) -> None:
        """Wait until the written ledger has room. The caller must append before its next await.

        Raises `OwnerChanging` unless this owner accepts appends, and `Overloaded` if too many are pending.
        """
        if len(self._settling) + len(self._barriers) >= _UNCERTAIN_MAX:
            await self.until_settled()
        self.use()
        while (writing := self.writing) is not None:
            with suppress(RollbookError):  # An append after this raises the same error.
                await writing.writer.ready(entries, block_bytes)
            self.use()  # The ownership may have ended during the wait.
            if writing is self.writing:
                return

    # --- Segments -----------------------------------------------------------------------------

    def take(self, writer: LedgerWriter, segment_id: SegmentId, limits: SegmentLimits) -> None:
        """Write later blocks into this ledger. All earlier ledgers but the last one must be closed."""
        self.writing = SegmentWriter(
            writer,
            segment_id,
            number=0 if self.writing is None else self._settling.on_successor(),
            base_offset=self.memory.tail,
            limits=limits,
            on_confirmed=self._on_confirmed,
            on_failed=self.on_ledger_failed,
        )

    def on_closed(self) -> None:
        """Take note that the previous ledger was closed at its last entry (LS1)."""
        if self.check_owner():
            self._settle(self._settling.on_closed())

    @property
    def is_certain(self) -> bool:
        return self._settling.is_certain

    # --- Answers ------------------------------------------------------------------------------

    def answer(self, tell: Tell, result: object) -> None:
        """Call `tell` with the result when all earlier appends are settled; immediately if they already are."""
        for item in self._settling.on_answered((tell, result, None)):
            self._tell(item)

    def refuse(self, tell: Tell, refusal: RollbookError) -> None:
        if is_passing(refusal) and not self.memory.is_sealed:
            self._ask(tell, refusal)
        else:
            self.answer(tell, refusal)

    async def refused(self, refusal: RollbookError) -> None:
        """Raise the refusal once everything that it depends on is settled."""
        waiter = self._new_future()
        self.refuse(resolver_of(waiter), refusal)
        await waiter

    async def until_settled(self) -> None:
        """Return when all earlier decisions are settled. Raises `OwnerChanging`, or the error that pending
        appends get: `OwnerLost`, `AppendUnsettled`.
        """
        # When the ownership ended, all waiters got an error. A new waiter would never be called.
        if self.failure is not None:
            raise self.refusal()
        waiter = self._new_future()
        self.answer(resolver_of(waiter), None)
        await waiter

    async def barrier(self) -> Offset:
        """Return a tail that covers every append acknowledged before this call (LS10)."""
        waiter = self._new_future()
        self._ask(resolver_of(waiter), _TAIL)
        tail: Offset = await waiter
        return tail

    def _ask(self, tell: Tell, result: object) -> None:
        assert self.failure is None
        self._barriers.on_asked((tell, result))
        self._take_turn()

    def _take_turn(self) -> None:
        if self._turn is None and self.failure is None:
            self._turn = self._loop.call_soon(self._on_turn)

    def _on_turn(self) -> None:
        """Write an entry for the waiting barriers, unless an append in this loop turn serves them already."""
        self._turn = None
        if self._barriers.needs_entry:
            try:
                self.say(Barrier(), None, _BARRIER)
                self.keep_short()
            except Overloaded:
                self._turn = self._loop.call_later(_AGAIN_S, self._on_turn)
            except OwnerChanging:
                pass  # The waiting barriers got an error when the ownership ended.

    # --- Settling -----------------------------------------------------------------------------

    def check_owner(self) -> bool:
        """Return whether this process still owns the log. Call it before confirming or answering an append
        (LS9).

        If the process stood still for longer than its lease, this call ends the ownership.
        """
        if self.failure is None and self._stalls_now() != self._stalls:
            self._on_lost("the owner's process stood still for longer than its lease", OwnerLost)
        return self.failure is None

    def _on_confirmed(self, number: int, last_entry: EntryId) -> None:
        if self.check_owner():
            self.proven_s = self._loop.time()
            self._settle(self._settling.on_confirmed(number, last_entry))

    def _settle(self, items: Collection[_Item]) -> None:
        """Give blocks to readers before callers get their acks, so that a client finds what it appended."""
        self.tail_cache.add([kept for _, _, kept in items if kept is not None])
        for item in items:
            self._tell(item)

    def _tell(self, item: _Item) -> None:
        tell, result, _ = item
        if tell is not None:
            tell(self.tail_cache.tail if result is _TAIL else result)
        elif result is _BARRIER:
            self._barriers.on_settled()
            self._take_turn()

    # --- The end ------------------------------------------------------------------------------

    def on_ledger_failed(self, error: BaseException) -> None:
        """End the ownership after a failed write: the ledger was fenced, or bookies were missing."""
        if self.failure is None:
            cause = error.__cause__ if isinstance(error, AppendUnsettled) else error
            were_bookies_missing = isinstance(cause, Unavailable | OutcomeUnknown)
            self._on_lost(
                str(cause or error), AppendUnsettled if were_bookies_missing else OwnerLost
            )

    def end(self, why: str, loss: Loss) -> None:
        """End the ownership. Waiters get an error that says that the outcome is unknown."""
        assert self.failure is None
        self.failure = OwnerChanging(why, log=str(self._name), owner_epoch=self._owner_epoch)
        waiting = [tell for tell, _, _ in self._settling.give_up()]
        waiting += [tell for tell, _ in self._barriers.on_sent()]
        for tell in waiting:
            if tell is not None:
                tell(loss(why, log=str(self._name), owner_epoch=self._owner_epoch))
        self.tail_cache.close(self.failure)
        self._context.producer_memory.remove(self.memory.producers)
        if self._turn is not None:
            self._turn.cancel()

    def refusal(self) -> OwnerChanging:
        """Return a new error for each refused request, since raising an error adds a traceback to the error."""
        if self.failure is None:
            return OwnerChanging("the log is being handed over", log=str(self._name))
        return OwnerChanging(self.failure.message, **self.failure.ids)

    def loss(self) -> OwnerLost:
        """The error for pending appends: they may be in the log, or the next owner may add them."""
        failure = self.refusal()
        return OwnerLost(failure.message, **failure.ids)


def _nobody() -> None:
    """Do nothing: the default of `on_full`."""


def resolver_of(waiter: "asyncio.Future[Any]") -> Tell:
    return partial(_tell_waiter, waiter)


def _tell_waiter(waiter: "asyncio.Future[Any]", result: object) -> None:
    if waiter.done():
        return  # The caller has cancelled its wait.
    if isinstance(result, RollbookError):
        waiter.set_exception(result)
        waiter.exception()  # Marks the error as retrieved: otherwise asyncio would log it.
    else:
        waiter.set_result(result)
