"""One log, as long as this server owns it.

    append ──► Sequencer: place, or refusal ──► stamped ──► the ledger that is written
                  │                                              │ confirmed, in order
                  │ answers that rest on what is not certain     ▼
                  └────────────────────────────────────────► Settling ──► acks ──► tail cache, futures
                                                                 ▲
                       roll: N is closed, N+1 counts ────────────┘

Decisions are made at once and in the order of the calls; whatever is answered waits until all that it
rests on is settled. No append has a task. How an owner comes to its log is in `opening.py`, how it gets
from one ledger to the next in `succession.py`.

Once it has failed it stays so: `failure` says why, `until_lost` tells of it, and what was pending gets
`OwnerLost` (somebody else owns the log, or may) or `AppendUnsettled` (bookies were missing).
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

import structlog

from rollbook.ledger.writer import LedgerWriter
from rollbook.logservice.core.barrier import Barriers
from rollbook.logservice.core.block import BlockInfo, stamped
from rollbook.logservice.core.control import (
    Barrier,
    Control,
    Follows,
    Opened,
    Sealed,
    Snapshot,
    WriterReleased,
    pack_control,
)
from rollbook.logservice.core.ledger_list import LedgerList, LogEvent, LogState
from rollbook.logservice.core.producers import Batch
from rollbook.logservice.core.rolling import DEMAND, TRUNCATION, SegmentLimits
from rollbook.logservice.core.sequencer import Sequencer
from rollbook.logservice.core.settling import Settling
from rollbook.logservice.ground import Ground
from rollbook.logservice.ids import LogName, Offset, OwnerEpoch, SegmentId, WriterEpoch
from rollbook.logservice.list_keeper import ListKeeper
from rollbook.logservice.log_config import LogConfig, WriterMode
from rollbook.logservice.log_nodes import StoredLog
from rollbook.logservice.opening import Opening, open_log
from rollbook.logservice.segment_writer import SegmentWriter
from rollbook.logservice.tail_cache import Subscription, TailCache
from rollbook.logservice.truncation import delete_discarded, truncate
from rollbook.logservice.words import (
    AcquireMode,
    AppendAck,
    Condition,
    TruncateAnswer,
    WriterGrant,
)
from rollbook.proto.errors import (
    AppendUnsettled,
    Invalid,
    LogSealed,
    Missing,
    OutcomeUnknown,
    Overloaded,
    OwnerChanging,
    OwnerFenced,
    OwnerLost,
    RollbookError,
    Superseded,
    Unavailable,
    WriterHeld,
)
from rollbook.proto.ids import FIRST_ENTRY, EntryId, LedgerId
from rollbook.proto.tasks import to_its_end

logger = structlog.get_logger()

_UNCERTAIN_MAX: Final = 20_000  # Appends and answers that wait; of appends the ledgers take fewer.
_AGAIN_S: Final = 0.01  # For what found no room.
_ROLL_AGAIN_S: Final = 1.0  # After a roll that could not even begin.

_Kept = tuple[Offset, Offset, bytes]
_Item = tuple["asyncio.Future[Any] | None", object, _Kept | None]
"""Who waits, what he gets, and a block for readers. An error is raised there."""

_TAIL: Final = object()  # He gets the tail of the moment at which it is settled.
_BARRIER: Final = object()  # Nobody waits: it is the entry that was written for barriers.


class Pending(NamedTuple):
    """An append that is decided."""

    answer: "asyncio.Future[AppendAck]"
    is_refused: bool = False  # It is known already, though the answer has to wait.


class Owner:
    """Use it from one event loop only; `close` it, or `lose` it and wait for `ended`."""

    @classmethod
    async def open(cls, name: LogName, ground: Ground, *, reason: str) -> Self:
        """Fences whoever owned the log, settles what he left, and takes over.

        Raises `NotOwner` if somebody else was quicker, `NoSuchLog`, `LogDeleted`, what keeps ledgers
        from being recovered or made, and what the metadata store raises. Cancelled, the log may have
        been fenced; nothing is lost by that.
        """
        stalls = ground.pulse.stalls()
        opening = await open_log(name, ground, reason)
        owner = cls(ground, opening, stalls)
        try:
            await owner._begin(opening, reason)
        except BaseException as error:
            owner.lose("it could not be opened")
            await owner.ended()
            if isinstance(error, OwnerLost | AppendUnsettled):  # Fenced before it began.
                raise OwnerChanging("it was fenced while it was opened", log=str(name)) from error
            raise
        return owner

    def __init__(self, ground: Ground, opening: Opening, stalls: int) -> None:
        stored = opening.stored
        self.name: Final[LogName] = stored.name
        self.owner_epoch: Final[OwnerEpoch] = stored.list.owner_epoch
        self.failure: RollbookError | None = None
        self._loop = asyncio.get_running_loop()
        self.until_lost: Final[asyncio.Future[RollbookError]] = self._loop.create_future()
        self._log = logger.bind(log=str(self.name), owner_epoch=self.owner_epoch)
        self._ground = ground
        self._wall_us = ground.clock.wall_us
        self._stalled_since = ground.pulse.stalls
        self._stalls = stalls
        self._keeper = ListKeeper(ground, stored, self._log)
        self._memory = opening.memory
        self._sequencer = Sequencer(opening.memory, is_exclusive=_is_exclusive(self.config))
        self._sequencer.on_renewed(ground.clock.monotonic_ns())
        self._settling: Settling[_Item] = Settling()
        self._barriers: Barriers[asyncio.Future[Any]] = Barriers()
        self.tail_cache: Final = TailCache(
            self._memory.tail, self.config.tail_cache_bytes, ground.tail_memory
        )
        self._segments: list[SegmentWriter] = []  # Two at most: those that may not be closed yet.
        self._writing: SegmentWriter | None = None
        if opening.writer is not None:
            self._writing = self._take(opening.writer, stored.list.segments[-1].segment_id, 0)
        self._rolling: asyncio.Task[SegmentId] | None = None
        self._sealing: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._roll_again_s = 0.0
        self._ending: asyncio.Task[None] | None = None
        self._is_closing = False
        self._writer_changed = asyncio.Event()
        self._turn: asyncio.Handle | None = None
        self._age_timer: asyncio.TimerHandle | None = None
        self._used_ns = ground.clock.monotonic_ns()

    # --- What it knows ------------------------------------------------------------------------

    @property
    def list(self) -> LedgerList:
        """As this owner last wrote or read it."""
        return self._keeper.list

    @property
    def config(self) -> LogConfig:
        return self._keeper.list.config

    @property
    def head(self) -> Offset:
        return self._keeper.list.head

    @property
    def tail(self) -> Offset:
        """What is below it is confirmed, and will be there for ever."""
        return self.tail_cache.tail

    @property
    def timestamp_us(self) -> int:
        """Of the newest block, confirmed or not."""
        return self._memory.timestamp_us

    @property
    def writer_epoch(self) -> WriterEpoch:
        return self._memory.writer_epoch

    @property
    def writer_holder(self) -> str:
        return self._memory.holder

    @property
    def is_sealed(self) -> bool:
        return self._memory.is_sealed and self._settling.is_certain

    @property
    def idle_since_ns(self) -> int:
        """When it was last asked to do something, by the monotonic clock."""
        return self._used_ns

    # --- Appending ----------------------------------------------------------------------------

    def append(self, block: bytes, info: BlockInfo, condition: Condition | None = None) -> Pending:
        """Decided at once; answered when all that the answer rests on is settled, yes or no.

        Raises `Overloaded`, and `OwnerChanging` if this is no owner any more: nothing was done. The
        answer raises what refuses it, or `OwnerLost` or `AppendUnsettled`: it may be in the log.
        Cancelling it cancels nothing but the news.
        """
        self._use()
        future: asyncio.Future[AppendAck] = self._loop.create_future()
        try:
            place = self._sequencer.decide(info, condition, self._wall_us())
        except RollbookError as refusal:
            self._answer(future, refusal)
            return Pending(future, is_refused=True)
        writer_epoch, writing = self._memory.writer_epoch, self._writing
        if isinstance(place, Batch):
            self._answer(
                future,
                AppendAck(
                    *place[:3],
                    is_duplicate=True,
                    owner_epoch=self.owner_epoch,
                    writer_epoch=writer_epoch,
                    ledger_id=place.ledger_id,
                    entry_id=place.entry_id,
                ),
            )
            return Pending(future)
        assert writing is not None  # Else it is sealed, and takes nothing.
        base_offset, next_offset, timestamp_us = place[:3]
        data = stamped(
            block,
            base_offset=base_offset,
            base_timestamp_us=timestamp_us,
            owner_epoch=self.owner_epoch,
            writer_epoch=writer_epoch,
        )
        entry_id = self._write(writing, data)
        ledger_id = writing.ledger_id
        self._sequencer.on_placed(place, info, ledger_id, entry_id)
        writing.has_records = True
        ack = AppendAck(
            *(base_offset, next_offset, timestamp_us, False),
            *(self.owner_epoch, writer_epoch, ledger_id, entry_id),
        )
        self._settling.on_appended(entry_id, (future, ack, (base_offset, next_offset, data)))
        self._on_written(writing)
        return Pending(future)

    async def ready(self, block_bytes: int = 0) -> None:
        """Returns when there is room for such a block, at once if there is: then append before you
        await again. Raises `OwnerChanging`.
        """
        if len(self._settling) >= _UNCERTAIN_MAX:
            await self._until_settled()
        await self._room_for(1, block_bytes)

    def _use(self) -> None:
        """Raises unless this is the owner, and takes more."""
        if self._stalled_since() != self._stalls:
            self.lose("its process stood still for longer than its lease")
        if self.failure is not None or self._is_closing:
            raise self._refusal()
        if len(self._settling) >= _UNCERTAIN_MAX:
            raise Overloaded("too many appends wait to be confirmed", log=str(self.name))
        self._used_ns = self._ground.clock.monotonic_ns()

    def _write(self, writing: SegmentWriter, data: bytes) -> "EntryId":
        try:
            return writing.append(data)
        except (Overloaded, Invalid):
            raise
        except RollbookError as error:
            self._on_failed(error)
            raise self._refusal() from error

    def _on_written(self, writing: SegmentWriter) -> None:
        """An entry is on its way, and its item among those that wait."""
        if self._barriers.is_asked:
            for asker in self._barriers.on_sent():
                self._settling.on_answered((asker, _TAIL, None))
        if writing.bytes >= writing.limits.bytes or writing.entries >= writing.limits.entries:
            self._roll_if_due()
        if writing.is_snapshot_due(self._memory.packed_bytes):
            with suppress(Overloaded):  # Then with one of the next.
                self._write_control(Snapshot(self._memory.pack()), None, None)
                writing.on_snapshot()

    def _write_control(
        self, said: Control, waiter: "asyncio.Future[Any] | None", result: object
    ) -> None:
        """Raises as `LedgerWriter.append`; then nothing has happened."""
        writing = self._writing
        assert writing is not None
        memory = self._memory
        timestamp_us = self._sequencer.time(self._wall_us())
        data = stamped(
            pack_control(said),
            base_offset=memory.tail,
            base_timestamp_us=timestamp_us,
            owner_epoch=self.owner_epoch,
            writer_epoch=memory.writer_epoch,
        )
        entry_id = self._write(writing, data)
        memory.timestamp_us = timestamp_us
        self._settling.on_appended(entry_id, (waiter, result, None))
        if self._barriers.is_asked:
            is_ours = type(said) is Barrier
            for asker in self._barriers.on_sent(is_ours=is_ours):
                self._settling.on_answered((asker, _TAIL, None))

    # --- Settling -----------------------------------------------------------------------------

    def _answer(self, waiter: "asyncio.Future[Any]", result: object) -> None:
        """Now, if nothing that it rests on is uncertain."""
        for item in self._settling.on_answered((waiter, result, None)):
            self._tell(item)

    def _on_confirmed(self, number: int, last_entry: EntryId) -> None:
        if self._is_owner_still():
            self._settle(self._settling.on_confirmed(number, last_entry))

    def _is_owner_still(self) -> bool:
        """To be asked before anything is confirmed (LS9)."""
        if self.failure is None and self._stalled_since() != self._stalls:
            self.lose("its process stood still for longer than its lease")
        return self.failure is None

    def _settle(self, items: Collection[_Item]) -> None:
        """Readers first: who hears that his append is in the log finds it there."""
        self.tail_cache.add([kept for _, _, kept in items if kept is not None])
        for item in items:
            self._tell(item)

    def _tell(self, item: _Item) -> None:
        waiter, result, _ = item
        if result is _BARRIER:
            self._barriers.on_settled()
            self._take_turn()
        if waiter is None or waiter.done():  # Its caller has cancelled it.
            return
        if isinstance(result, RollbookError):
            _fail(waiter, result)
        else:
            waiter.set_result(self.tail if result is _TAIL else result)

    async def _until_settled(self) -> None:
        """All that was decided so far."""
        waiter: asyncio.Future[Any] = self._loop.create_future()
        self._answer(waiter, None)
        await waiter

    async def _written(self, said: Control, result: object) -> Any:
        """What it comes to when it is settled. Waits for room, and `said` has to be right then, too."""
        waiter: asyncio.Future[Any] = self._loop.create_future()
        self._write_control(said, waiter, result)
        return await waiter

    # --- Barriers -----------------------------------------------------------------------------

    async def barrier(self) -> Offset:
        """A tail below which lies whatever anybody was told to be appended before the call.

        Raises `OwnerLost`, `AppendUnsettled`, `OwnerChanging`: ask whoever owns the log then.
        """
        self._use()
        if self._memory.is_sealed:
            return await self.seal()
        waiter: asyncio.Future[Offset] = self._loop.create_future()
        self._barriers.on_asked(waiter)
        self._take_turn()
        return await waiter

    def _take_turn(self) -> None:
        if self._turn is None:
            self._turn = self._loop.call_soon(self._on_turn)

    def _on_turn(self) -> None:
        self._turn = None
        if self.failure is None and self._barriers.needs_entry:
            try:
                self._write_control(Barrier(), None, _BARRIER)
            except Overloaded:
                self._turn = self._loop.call_later(_AGAIN_S, self._on_turn)
            except RollbookError:
                pass  # It is lost, and has told who asked.

    # --- The exclusive writer -----------------------------------------------------------------

    async def acquire_writer(self, holder: str, mode: AcquireMode, ttl_ms: int = 0) -> WriterGrant:
        """A new writer epoch. Answered when all that came under older ones is settled (LS8).

        `WAIT` waits for as long as the caller does. Raises `WriterHeld`, `LogSealed`, and what
        `barrier` raises.
        """
        while True:
            self._use()
            now_ns = self._ground.clock.monotonic_ns()
            try:
                acquired = self._sequencer.acquire(holder, mode, ttl_ms, now_ns)
            except WriterHeld:
                await self._until_settled()
                if mode is AcquireMode.FAIL:
                    raise
                await self._writer_change(self._sequencer.held_for_ns(now_ns))
                continue
            except RollbookError:
                await self._until_settled()
                raise
            fence_offset = self._memory.tail
            grant = WriterGrant(acquired.epoch, fence_offset, holder, ttl_ms)
            waiter: asyncio.Future[WriterGrant] = self._loop.create_future()
            self._write_control(acquired, waiter, grant)
            self._sequencer.on_acquired(acquired, now_ns)
            self._tell_writer_change()
            return await waiter

    async def renew_writer(self, epoch: WriterEpoch) -> WriterGrant:
        """Raises `StaleEpoch`, and what `barrier` raises."""
        await self.barrier()  # Else this could be the word of one who is no owner any more.
        self._sequencer.check_epoch(epoch)
        self._sequencer.on_renewed(self._ground.clock.monotonic_ns())
        memory = self._memory
        return WriterGrant(epoch, memory.fence_offset, memory.holder, memory.ttl_ms)

    async def release_writer(self, epoch: WriterEpoch) -> None:
        """Raises `StaleEpoch`, and what `barrier` raises."""
        self._use()
        if self._memory.is_sealed:
            await self._until_settled()
            return
        try:
            self._sequencer.check_epoch(epoch)
        except RollbookError:
            await self._until_settled()
            raise
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._write_control(WriterReleased(epoch), waiter, None)
        self._memory.on_released(epoch)
        self._tell_writer_change()
        await waiter

    def _tell_writer_change(self) -> None:
        self._writer_changed.set()
        self._writer_changed = asyncio.Event()

    async def _writer_change(self, at_most_ns: int | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None if at_most_ns is None else at_most_ns / 1e9):
                await self._writer_changed.wait()

    # --- Segments -----------------------------------------------------------------------------

    async def roll(self, reason: str = DEMAND) -> SegmentId:
        """The segment that is written then: a new one, unless the present one has no record.

        Returns when the one before is closed and listed so. Raises what keeps it from being made,
        and what `barrier` raises. Cancelled, the roll goes on.
        """
        self._use()
        if self._rolling is None:
            if self._memory.is_sealed or self._writing is None:
                await self._until_settled()
                raise LogSealed(tail=self.tail)
            if not self._writing.has_records:
                return self._writing.segment_id
            self._start_roll(reason)
        assert self._rolling is not None
        return await asyncio.shield(self._rolling)

    def _roll_if_due(self) -> None:
        writing = self._writing
        is_last = self._memory.is_sealed or self._is_closing
        if writing is None or self._rolling is not None or is_last:
            return
        now_s = self._loop.time()
        if now_s >= self._roll_again_s and (reason := writing.reason_to_roll(now_s)):
            self._start_roll(reason)

    def _start_roll(self, reason: str) -> None:
        self._rolling = self._loop.create_task(self._roll(reason))
        self._rolling.add_done_callback(self._on_rolled)

    def _on_rolled(self, rolling: "asyncio.Task[SegmentId]") -> None:
        self._rolling = None
        if rolling.cancelled():
            return
        error = rolling.exception()
        if error is not None and self.failure is None:  # Nothing was begun: the segment goes on.
            self._log.warning("segment_not_rolled", reason=_reason_of(error))
            self._roll_again_s = self._loop.time() + _ROLL_AGAIN_S
        self._watch_age()

    def _watch_age(self) -> None:
        """Idle logs roll, too."""
        if self._age_timer is not None:
            self._age_timer.cancel()
        if self._writing is not None and self.failure is None:
            wait_s = max(self._writing.oldest_s - self._loop.time(), _ROLL_AGAIN_S)
            self._age_timer = self._loop.call_later(wait_s, self._on_old)

    def _on_old(self) -> None:
        self._age_timer = None
        self._roll_if_due()
        if self._rolling is None:
            self._watch_age()

    async def _roll(self, reason: str) -> SegmentId:
        """From N to N+1 (LS1, LS2, LS3): list it, write on there, close N, and only then ack."""
        old = self._writing
        assert old is not None

        def with_successor(listed: LedgerList, ledger_id: LedgerId) -> LedgerList:
            return listed.with_successor(ledger_id, reason, self._memory.timestamp_us)

        try:
            writer, segment = await self._keeper.list_ledger(with_successor)
        except (Superseded, Missing) as error:
            self.lose(f"the list says so: {error}")
            raise
        if self.failure is not None:
            await writer.stop()
            raise self._refusal()
        number = self._settling.on_successor()
        end = (old.ledger_id, old.writer.last_appended)
        self._writing = self._take(writer, segment.segment_id, number)
        self._write_control(Follows(*end, self._memory.pack()), None, None)
        closed_at = (self._memory.tail, self._memory.timestamp_us)
        await self._close_ledger(old)
        if self._is_owner_still():
            self._settle(self._settling.on_closed())
        await self._list_closed(old, *closed_at)
        self._log.info(
            "segment_rolled",
            ledger_id=old.ledger_id,
            successor=writer.ledger_id,
            reason=reason,
            next_offset=closed_at[0],
        )
        return segment.segment_id

    async def _close_ledger(self, writing: SegmentWriter) -> None:
        """At exactly the entry that was appended last; else this is no owner any more (LS2)."""
        end = writing.writer.last_appended
        try:
            await writing.writer.close()
        except RollbookError as error:
            self._on_failed(error)
            raise self._refusal() from error
        assert writing.writer.metadata.last_entry == end

    async def _list_closed(
        self, writing: SegmentWriter, next_offset: Offset, timestamp_us: int
    ) -> None:
        length = writing.writer.metadata.length
        assert length is not None
        await self._change_list(
            lambda listed: listed.with_closed(
                writing.segment_id,
                next_offset=next_offset,
                last_timestamp_us=timestamp_us,
                bytes=length,
            )
        )

    async def _change_list(self, make: Callable[[LedgerList], LedgerList]) -> None:
        try:
            await self._keeper.change(make)
        except (Superseded, Missing) as error:
            self.lose(f"the list says so: {error}")
            raise self._refusal() from error

    async def refresh(self) -> None:
        """Reads the list again: somebody has changed the log's configuration, or its marks."""
        self._use()
        try:
            await self._keeper.refresh()
        except (Superseded, Missing) as error:
            self.lose(f"the list says so: {error}")
            raise self._refusal() from error
        self._configure()

    def _configure(self) -> None:
        config = self.config
        self._sequencer.is_exclusive = _is_exclusive(config)
        self._memory.producers.configure(config)
        self.tail_cache.bytes_max = config.tail_cache_bytes
        if self._writing is not None:
            self._writing.limits.configure(config)
            self._watch_age()

    # --- Truncation ---------------------------------------------------------------------------

    async def truncate(
        self,
        before: Offset,
        *,
        dry_run: bool = False,
        force_roll: bool = False,
        reason: str = TRUNCATION,
    ) -> TruncateAnswer:
        """The log starts at `before` from here on; whole ledgers are deleted afterwards.

        `force_roll` ends the segment that is written if it holds records below `before`. Raises
        `Guarded`, `InvalidRequest` beyond the tail, and after `ConnectionLost` it may have been done.
        """
        self._use()
        if force_roll and not dry_run and self._may_free_by_roll(before):
            await self.roll(TRUNCATION)
        await self._until_settled()

        async def work(stored: StoredLog) -> tuple[StoredLog, TruncateAnswer]:
            return await truncate(
                *(self._ground.nodes, stored, before),
                confirmed=self.tail,
                is_begun=self._is_begun,
                event=self._event("log_truncated", reason, before),
                dry_run=dry_run,
            )

        try:
            answer = await self._keeper.attempt(work, until_known=False)
        except (OwnerFenced, Missing) as error:
            self.lose(f"the list says so: {error}")
            raise self._refusal() from error
        self._tidy()
        return answer

    def _may_free_by_roll(self, before: Offset) -> bool:
        writing = self._writing
        return writing is not None and writing.has_records and before > writing.base_offset

    @property
    def _is_begun(self) -> bool:
        """Of the first segment that the list does not call closed the first entry is confirmed: it holds
        the log's memory, so what is before it may go.
        """
        writing = self._writing
        is_written = writing is not None and writing.writer.last_add_confirmed >= FIRST_ENTRY
        return is_written or self._settling.is_closing

    def _tidy(self) -> None:
        """Deletes the ledgers that have left the list, in the background; what fails is done later."""
        if self.list.discarded and self._tidying is None and self.failure is None:
            self._tidying = self._loop.create_task(self._delete_discarded())
            self._tidying.add_done_callback(self._on_tidied)

    async def _delete_discarded(self) -> None:
        ground = self._ground
        with suppress(RollbookError):
            await delete_discarded(ground.ledgers, ground.nodes, self._keeper.stored)

    def _on_tidied(self, _: "asyncio.Task[None]") -> None:
        self._tidying = None

    def _event(self, kind: str, reason: str, offset: Offset) -> LogEvent:
        server_id = self._ground.server.server_id
        return LogEvent(kind, self._wall_us(), self.owner_epoch, server_id, reason, offset)

    # --- Seal ---------------------------------------------------------------------------------

    async def seal(
        self,
        block: bytes | None = None,
        info: BlockInfo | None = None,
        condition: Condition | None = None,
    ) -> Offset:
        """The final tail: nothing is appended any more, after the block, if there is one.

        If the block or the condition is refused nothing is sealed. Again: the same answer. Raises
        what `append` and its future raise. Cancelled, the seal goes on.
        """
        await self._room_for(2, len(block or b""))
        self._use()
        if block is not None and info is not None:
            tail = self._memory.tail
            appended = self.append(block, info, condition)
            if self._memory.tail == tail:
                await appended.answer  # Refused; or it was appended before.
        elif condition is not None and not self._memory.is_sealed:
            try:
                self._sequencer.check(condition)
            except RollbookError:
                await self._until_settled()
                raise
        if not self._memory.is_sealed:
            self._write_control(Sealed(), None, None)
            self._memory.is_sealed = True
            self._sealing = self._loop.create_task(self._finish_seal())
        if self._sealing is not None:
            await asyncio.shield(self._sealing)
        return self.tail

    async def _finish_seal(self) -> None:
        await self._until_settled()
        if self._rolling is not None:
            await asyncio.gather(self._rolling, return_exceptions=True)
        if not self._is_owner_still():
            raise self._refusal()
        await self._close_last()
        event = self._event("log_sealed", "", self.tail)

        def with_sealed(listed: LedgerList) -> LedgerList:
            if listed.state is LogState.SEALED:
                return listed
            return listed.with_sealed(self.tail).with_event(event)

        await self._change_list(with_sealed)
        self.tail_cache.wake()
        self._log.info("log_sealed", tail=self.tail)

    async def _close_last(self) -> None:
        """Nobody writes after it."""
        writing = self._writing
        assert writing is not None
        await self._close_ledger(writing)
        await self._list_closed(writing, self._memory.tail, self._memory.timestamp_us)
        self._writing = None

    async def _room_for(self, entries: int, block_bytes: int) -> None:
        """Returns when the ledger that is written has room: use it before you await again."""
        while True:
            self._use()
            writing = self._writing
            if writing is None:
                return
            with suppress(RollbookError):  # Then `append` will say so.
                await writing.writer.ready(entries, block_bytes)
            if writing is self._writing:
                return

    # --- The end ------------------------------------------------------------------------------

    async def close(self, reason: str) -> None:
        """Hands the log over: takes no more, settles what is pending, closes the ledger.

        Whoever comes next has nothing to recover, and little to replay. What keeps it from doing so
        is no error: then the next owner does it. Cancelled, it goes on to its end, which is bounded
        by deadlines, before it raises.
        """
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(reason))
        await to_its_end(_joined(self._closing))

    async def _close(self, reason: str) -> None:
        self._is_closing = True
        try:
            if self.failure is None:
                await self._hand_over(reason)
                self._log.info("log_released", reason=reason)
        except RollbookError as error:
            self._log.warning("log_not_released", reason=_reason_of(error))
        self._end(f"it was given up: {reason}", OwnerLost)
        await self.ended()

    async def _hand_over(self, reason: str) -> None:
        for task in (self._rolling, self._sealing):
            if task is not None:
                await asyncio.gather(task, return_exceptions=True)
        writing = self._writing
        if writing is not None:
            if writing.entries > writing.entries_at_snapshot:
                await writing.writer.ready()
                self._write_control(Snapshot(self._memory.pack()), None, None)
            await self._close_last()
        event = self._event("log_released", reason, self.tail)
        await self._change_list(lambda listed: listed.with_released().with_event(event))

    def lose(self, reason: str) -> None:
        """At once: nothing is confirmed any more, and what is pending will not be answered.

        Wait for `ended` then. The log can be opened again, here or elsewhere.
        """
        if self.failure is None:
            self._log.warning("log_lost", reason=reason)
            self._end(reason, OwnerLost)

    async def ended(self) -> None:
        """Nothing is left of it."""
        if self._ending is not None:
            await to_its_end(_joined(self._ending))

    def _on_failed(self, error: BaseException) -> None:
        """The ledger cannot be written any more."""
        if self.failure is not None:
            return
        cause = error.__cause__ if isinstance(error, AppendUnsettled) else error
        were_bookies_missing = isinstance(cause, Unavailable | OutcomeUnknown)
        self._log.warning("log_lost", reason=_reason_of(cause or error))
        self._end(str(cause or error), AppendUnsettled if were_bookies_missing else OwnerLost)

    def _end(self, why: str, loss: type[OutcomeUnknown]) -> None:
        if self.failure is not None:
            return
        self.failure = OwnerChanging(why, log=str(self.name), owner_epoch=self.owner_epoch)
        waiting = [waiter for waiter, _, _ in self._settling.give_up()]
        for waiter in (*waiting, *self._barriers.on_sent()):
            if waiter is not None and not waiter.done():
                _fail(waiter, loss(why, log=str(self.name), owner_epoch=self.owner_epoch))
        self.tail_cache.close(self.failure)
        self._tell_writer_change()
        for timer in (self._turn, self._age_timer):
            if timer is not None:
                timer.cancel()
        if not self.until_lost.done():
            self.until_lost.set_result(self.failure)
        self._ending = self._loop.create_task(self._stop())

    async def _stop(self) -> None:
        works = (self._rolling, self._sealing, self._tidying)
        tasks = [task for task in works if task is not None]
        for task in tasks:
            task.cancel()
        for segment in self._segments:
            await segment.writer.stop()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _refusal(self) -> OwnerChanging:
        """A new one each time, since it gathers a traceback."""
        failure = self.failure
        if failure is None:
            return OwnerChanging("it is being handed over", log=str(self.name))
        return OwnerChanging(str(failure.message), **failure.ids)

    # --- Beginning ----------------------------------------------------------------------------

    async def _begin(self, opening: Opening, reason: str) -> None:
        """Confirmed, these two prove that nobody has fenced us before we began."""
        if self._writing is None:
            return
        self._write_control(Follows(*opening.end, self._memory.pack()), None, None)
        server_id = self._ground.server.server_id
        self._write_control(Opened(self.owner_epoch, server_id, reason), None, None)
        await self._until_settled()
        self._watch_age()
        self._tidy()

    def _take(self, writer: LedgerWriter, segment_id: SegmentId, number: int) -> SegmentWriter:
        writing = SegmentWriter(
            writer,
            segment_id,
            number=number,
            base_offset=self._memory.tail,
            limits=SegmentLimits(self.config, self._ground.randomness),
            on_confirmed=self._on_confirmed,
            on_failed=self._on_failed,
        )
        self._segments = [*self._segments[-1:], writing]
        return writing

    def tail_from(self, offset: Offset) -> Subscription | None:
        """For a reader that has come so far. None if that is in memory no more, or not there yet."""
        cache = self.tail_cache
        return Subscription(cache, offset) if cache.start <= offset <= cache.tail else None


def _is_exclusive(config: LogConfig) -> bool:
    return config.writer_mode is WriterMode.EXCLUSIVE


def _fail(waiter: "asyncio.Future[Any]", error: RollbookError) -> None:
    waiter.set_exception(error)
    waiter.exception()  # Nobody need look.


def _reason_of(error: BaseException) -> str:
    return error.code.reason if isinstance(error, RollbookError) else type(error).__name__


async def _joined(task: "asyncio.Task[None]") -> None:
    await asyncio.shield(task)
