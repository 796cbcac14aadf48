"""One log, while this server owns it.

    Owner ──► AppendPath         places appends and acknowledges them              append_path.py
          ──► SegmentRoll        begins the next segment, and closes the last      segment_roll.py
          ──► WriterEpochs       grants and ends the epochs of exclusive writers   writer_epochs.py
          ──► LedgerListStore    changes the ledger list by compare-and-set        ledger_list_store.py
    open_log                     makes a server the owner                          log_takeover.py

After a failure the owner stays failed: `failure` has the reason, `until_lost` reports it, and pending
appends get `OwnerLost` (another server owns or may own the log) or `AppendUnsettled` (bookies were missing).
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, Self

import structlog

from rollbook.logservice.append_path import AppendPath, Loss, resolver_of
from rollbook.logservice.core.control_blocks import Opened, SealBlock
from rollbook.logservice.core.ledger_list import LedgerList, ListedLogState, LogEvent, Sizes
from rollbook.logservice.core.log_incarnations import text_of
from rollbook.logservice.core.record_block import BlockInfo, Limits
from rollbook.logservice.core.roll_rules import DEMAND, TRUNCATION, SegmentLimits
from rollbook.logservice.ids import LogName, Offset, OwnerEpoch, SegmentId, WriterEpoch
from rollbook.logservice.ledger_list_store import LedgerListStore
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.log_metadata import StoredLog
from rollbook.logservice.log_takeover import Opening, open_log
from rollbook.logservice.messages import (
    AcquireMode,
    AppendAck,
    Condition,
    ProducerProgress,
    TruncateAnswer,
    WriterGrant,
)
from rollbook.logservice.segment_roll import SegmentRoll
from rollbook.logservice.server_context import OwnerContext
from rollbook.logservice.tail_cache import Subscription, TailCache
from rollbook.logservice.truncation import delete_discarded, truncate
from rollbook.logservice.writer_epochs import WriterEpochs
from rollbook.proto.errors import (
    AppendUnsettled,
    InvalidRequest,
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
)
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.tasks import joined, to_its_end

logger = structlog.get_logger()

# The time limit of a hand-over. If it is exceeded, the next owner recovers the log.
_HAND_OVER_S: Final = 15.0
# The time limit for the list, and then for the bookies, to show whether this is still the owner.
_PROOF_S: Final = 0.5


class PendingAppend(NamedTuple):
    """An append that was accepted or refused."""

    answer: "asyncio.Future[AppendAck]"
    is_refused: bool  # True: the append is refused. The refusal may become certain only later.


class Owner:
    """Owns one log. Use it from one event loop only; `close` it, or `lose` it and wait for `ended`."""

    @classmethod
    async def open(
        cls,
        name: LogName,
        context: OwnerContext,
        *,
        reason: str,
        seen: StoredLog | None = None,
        on_listed: Callable[[], None] | None = None,
        makes_ahead: bool = True,
    ) -> Self:
        """Fence the earlier owner, settle its last appends, and take over. `seen` is the log's list, if it
        was read just now. `on_listed` is called when the list names this owner, which may still lose the
        log before this returns. For `makes_ahead` see `open_log`.

        Raises `NotOwner` if another server was quicker, `NoSuchLog`, `LogDeleted`, `RecoveryIncomplete`,
        `NotEnoughBookies`, `MetadataUnavailable`. After a cancelled call, the log may have been fenced;
        nothing is lost.
        """
        stalls = context.stall_detector.stalls()
        opening = await open_log(name, context, reason, seen, makes_ahead=makes_ahead)
        if on_listed is not None:
            on_listed()
        owner = cls(context, opening, stalls)
        try:
            await owner._begin(opening, reason)
        except BaseException as error:
            owner.lose("it could not be opened")
            await owner.ended()
            # Another owner fenced this one before it began.
            if isinstance(error, OwnerLost | AppendUnsettled):
                raise OwnerChanging("it was fenced while it was opened", log=str(name)) from error
            raise
        return owner

    def __init__(self, context: OwnerContext, opening: Opening, stalls: int) -> None:
        stored = opening.stored
        self.name: Final[LogName] = stored.name
        self.uid: Final = text_of(stored.list.uid)
        self.owner_epoch: Final[OwnerEpoch] = stored.list.owner_epoch
        self._loop = asyncio.get_running_loop()
        self.until_lost: Final[asyncio.Future[RollbookError]] = self._loop.create_future()
        self._log = logger.bind(log=str(self.name), owner_epoch=self.owner_epoch)
        self._context = context
        self._list_store = LedgerListStore(context, stored, self._log, self._on_configured)
        self.limits = Limits.of(self.config)  # Limits of appended blocks.
        self._append_path = AppendPath(
            self.name,
            context,
            self.owner_epoch,
            opening.memory,
            self.config,
            stalls=stalls,
            on_lost=self._end,
        )
        # Callers use the hot path directly, without a further call in this class.
        self.submit: Final = self._append_path.append
        self._segment_roll = SegmentRoll(
            context,
            self._append_path,
            self._list_store,
            self._log,
            on_disowned=self._on_disowned,
        )
        self._writer_epochs = WriterEpochs(self._append_path, context.clock)
        self._memory = opening.memory
        # How long each step of the opening took.
        self.opening_ms: Final[Mapping[str, float]] = opening.laps.ms
        self._sealing: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._proving: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    async def _begin(self, opening: Opening, reason: str) -> None:
        """Append two control entries: if confirmed, they prove that this owner was not fenced
        before it began.
        """
        append_path, writer, memory = self._append_path, opening.writer, self._memory
        if writer is None:
            now_us = append_path.sequencer.time(self._context.clock.wall_us())
            memory.producers.on_unlived(memory.timestamp_us, now_us)
            return
        segment_id = opening.stored.list.segments[-1].segment_id
        append_path.take(writer, segment_id, SegmentLimits(self.config, self._context.randomness))
        self._segment_roll.watch()
        append_path.say(memory.follows(*opening.end))
        append_path.say(Opened(self.owner_epoch, self._context.server.server_id, reason))
        await append_path.until_settled()
        opening.laps.on_done("begin_ms")
        self._tidy()

    # --- State --------------------------------------------------------------------------------

    @property
    def failure(self) -> RollbookError | None:
        """The reason why this is no longer the owner, or None."""
        return self._append_path.failure

    @property
    def list(self) -> LedgerList:
        """The list as this owner last wrote or read it."""
        return self._list_store.list

    @property
    def stored(self) -> StoredLog:
        """The list with its version in the metadata store."""
        return self._list_store.stored

    @property
    def config(self) -> LogConfig:
        return self._list_store.list.config

    @property
    def head(self) -> Offset:
        return self._list_store.list.head

    @property
    def tail(self) -> Offset:
        """The confirmed end of the log. Everything below it is durable."""
        return self._append_path.tail_cache.tail

    @property
    def confirmed(self) -> Mapping[LedgerId, EntryId]:
        """The last confirmed entry of each ledger that this owner writes. Entries after a roll are included
        when the roll is settled.
        """
        return self._segment_roll.confirmed

    @property
    def last_confirmed(self) -> tuple[LedgerId, EntryId] | None:
        """The ledger that holds the tail, and its last confirmed entry. None: no ledger is being written."""
        return self._segment_roll.last_confirmed

    @property
    def written(self) -> Sizes:
        """The sizes of the segments that are unclosed in the list, including unconfirmed entries."""
        return self._segment_roll.written

    @property
    def record_us(self) -> int:
        """The time of the newest record, confirmed or not, or 0 if it is older than the snapshot with which
        this owner began.
        """
        return self._memory.record_us

    def on_dated(self, record_us: int) -> None:
        """Take note of the newest record's time after a search for it."""
        self._memory.record_us = max(self._memory.record_us, record_us)

    @property
    def writer_epoch(self) -> WriterEpoch:
        return self._memory.writer_epoch

    @property
    def writer_holder(self) -> str:
        return self._memory.holder

    @property
    def is_sealed(self) -> bool:
        return self._memory.is_sealed and self._append_path.is_certain

    @property
    def is_proven(self) -> bool:
        """Return whether this server was certainly the owner less than a lease ago, so that no request is
        needed to check it.
        """
        proven_until_s = self._append_path.proven_s + self._context.stall_detector.lease_s
        return self._append_path.check_owner() and self._loop.time() < proven_until_s

    @property
    def idle_since_ns(self) -> int:
        """When the owner was last used, by the monotonic clock."""
        return self._append_path.used_ns

    @property
    def roll_due_us(self) -> int:
        """The time at which the present segment ends because of its age, or 0 if it has no record."""
        writing = self._append_path.writing
        if writing is None or not writing.length.has_records or self._memory.is_sealed:
            return 0
        left_s = max(0.0, writing.oldest_s - self._loop.time())
        return self._context.clock.wall_us() + round(left_s * 1_000_000)

    @property
    def degraded_to(self) -> int:
        """The number of bookies of the present segment, if the log wants more; otherwise 0."""
        return self._segment_roll.degraded_to

    @property
    def vacant_slots(self) -> Mapping[BookieId, str]:
        """The bookies of the present segment that are not expected to get its next entry, and why."""
        return self._segment_roll.vacant_slots

    @property
    def lacking_slots(self) -> int:
        """How many bookies are missing for the next entry, compared with what the log wants."""
        return self._segment_roll.lacking_slots

    @property
    def tail_cache(self) -> TailCache:
        return self._append_path.tail_cache

    def tail_from(self, offset: Offset) -> Subscription | None:
        """A reader's position in the tail cache, or None if the offset is no longer in memory, or is beyond the
        tail.
        """
        cache = self._append_path.tail_cache
        return Subscription(cache, offset) if cache.start <= offset <= cache.tail else None

    # --- Appending ----------------------------------------------------------------------------

    def append(
        self, block: bytes, info: BlockInfo, condition: Condition | None = None
    ) -> PendingAppend:
        """Call `submit`, and return a future for its ack or its failure. Cancelling the future does not
        cancel the append.
        """
        answer: asyncio.Future[AppendAck] = self._loop.create_future()
        is_taken = self.submit(block, info, condition, resolver_of(answer))
        return PendingAppend(answer, not is_taken)

    async def ready(self, block_bytes: int = 0) -> None:
        """Wait until there is room for a block of `block_bytes`. The caller must append before its next await.
        Raises `OwnerChanging`, `Overloaded`.
        """
        await self._append_path.room_for(1, block_bytes)

    async def barrier(self) -> Offset:
        """A tail that covers every append acknowledged before this call.

        Raises `OwnerLost`, `AppendUnsettled`, `OwnerChanging`: ask the log's new owner then.
        """
        self._append_path.use()
        return await (self.seal() if self._memory.is_sealed else self._append_path.barrier())

    async def read_barrier(self) -> Offset:
        """A barrier without a write (LS14). The list is read for each call. If it still names this owner,
        no later owner has acknowledged an append, since only a listed owner sends acks.

        Raises `OwnerChanging` if this is no longer the owner, `LogDeleted`, `MetadataUnavailable`.
        """
        if not self._append_path.check_owner():
            raise self._append_path.refusal()
        await self._look()
        if not self._append_path.check_owner():
            raise self._append_path.refusal()
        return self.tail

    async def _look(self) -> None:
        try:
            await self._list_store.look()
            self.list.require_living(self.name)
        except (Superseded, Missing) as error:
            raise self._on_disowned(error) from error

    async def prove(self) -> None:
        """Check that this server is still the owner, or was less than a lease ago. Without this check, an
        owner that has nothing to confirm does not notice that it was replaced (SV6).

        Reads the list, or asks the bookies if the list is unavailable. Raises `Unavailable` after a second if
        neither responds, `OwnerChanging` if this is no longer the owner, `OwnerLost`, `AppendUnsettled`.
        """
        if not self._append_path.check_owner():
            raise self._append_path.refusal()
        if self.is_proven:
            return
        if self._proving is None:  # All callers share one check.
            self._proving = self._loop.create_task(self._prove())
            self._proving.add_done_callback(self._on_proven)
        await joined(self._proving, self._append_path.refusal)

    async def _prove(self) -> None:
        began_s = self._loop.time()
        try:
            async with asyncio.timeout(_PROOF_S):
                await self._look()
        except (Unavailable, OutcomeUnknown, TimeoutError):
            await self._ask_bookies()
        self._append_path.proven_s = max(self._append_path.proven_s, began_s)

    async def _ask_bookies(self) -> None:
        """A `barrier` that does not count as use of the log. Raises `Unavailable` if bookies do not respond in
        time, `OwnerLost`, `AppendUnsettled`, `OwnerChanging`.
        """
        self._append_path.require()
        try:
            async with asyncio.timeout(_PROOF_S):
                if (
                    self._memory.is_sealed
                ):  # A sealed log accepts no entry, so no barrier is possible.
                    await self._append_path.until_settled()
                else:
                    await self._append_path.barrier()
        except TimeoutError:
            raise Unavailable(
                "neither the list nor the bookies show whether this is still the owner",
                log=str(self.name),
            ) from None

    def _on_proven(self, proving: "asyncio.Task[None]") -> None:
        self._proving = None
        if not proving.cancelled():
            proving.exception()  # Mark the exception as retrieved: all callers may be cancelled.

    # --- The exclusive writer -----------------------------------------------------------------

    async def acquire_writer(
        self, holder: str, mode: AcquireMode, ttl_ms: int = 0, attempt: str = ""
    ) -> WriterGrant:
        """Grant a new writer epoch. Returns when all appends of older epochs are settled (LS8).

        If the same holder repeats a request with the same `attempt`, it gets the same epoch, unless another
        holder has been granted a newer one. With `WAIT`, the call waits until it is granted or cancelled.
        Raises `WriterHeld`, `LogSealed`, `StaleEpoch` if that attempt's epoch was released, `OwnerLost`,
        `AppendUnsettled`, `OwnerChanging`.
        """
        grant = await self._writer_epochs.acquire(holder, mode, ttl_ms, attempt)
        self._log.info(
            "writer_acquired",
            holder=holder,
            mode=mode.value,
            writer_epoch=grant.writer_epoch,
            fence_offset=grant.fence_offset,
        )
        return grant

    async def renew_writer(self, epoch: WriterEpoch) -> WriterGrant:
        """Extend the epoch. Raises `StaleEpoch`, `OwnerLost`, `AppendUnsettled`, `OwnerChanging`."""
        # Without a barrier this could be the response of an owner that was replaced.
        await self.barrier()
        return self._writer_epochs.renew(epoch)

    async def release_writer(self, epoch: WriterEpoch) -> None:
        """End the epoch. Raises `StaleEpoch`, `OwnerLost`, `AppendUnsettled`, `OwnerChanging`."""
        await self._writer_epochs.release(epoch)

    # --- Named producers ----------------------------------------------------------------------

    async def begin_producer(self, producer_id: bytes) -> ProducerProgress:
        """Begin the producer's next epoch, and return its progress. Returns when all its earlier appends
        are settled (LS15).

        Raises `LogSealed`, `InvalidRequest`, `OwnerLost`, `AppendUnsettled`, `OwnerChanging`. After a
        cancelled call, the epoch may have begun.
        """
        append_path, memory = self._append_path, self._memory
        append_path.use()
        if memory.is_sealed:
            await append_path.refused(LogSealed(tail=memory.tail))
        now_us = append_path.sequencer.time(self._context.clock.wall_us())
        progress = memory.producers.begin(producer_id, now_us)
        answer = ProducerProgress(progress.begun.epoch, progress.records, progress.last_offset)
        waiter: asyncio.Future[ProducerProgress] = self._loop.create_future()
        append_path.say(progress.begun, resolver_of(waiter), answer)
        memory.on_begun(progress.begun)
        append_path.keep_short()
        return await waiter

    # --- Segments -----------------------------------------------------------------------------

    async def roll(self, reason: str = DEMAND) -> SegmentId:
        """End the present segment, unless it has no record. Returns the segment that is written afterwards.

        The call returns when the ended segment is closed, and is listed as closed. Raises `LogSealed`,
        `NotEnoughBookies` if no ledger can be made, `OwnerLost`, `AppendUnsettled`, `OwnerChanging`. After
        a cancelled call, the roll continues.
        """
        append_path, segment_roll = self._append_path, self._segment_roll
        append_path.use()
        if segment_roll.rolling is None:
            if self._memory.is_sealed or append_path.writing is None:
                await append_path.refused(LogSealed(tail=self._memory.tail))
            elif not append_path.writing.length.has_records:
                return append_path.writing.segment_id
        return await joined(segment_roll.start(reason), append_path.loss)

    async def refresh(self) -> None:
        """Read the list again after another client has changed the log's configuration or guards."""
        self._append_path.use()
        try:
            await self._list_store.refresh()
        except (Superseded, Missing) as error:
            raise self._on_disowned(error) from error

    def _on_configured(self, config: LogConfig) -> None:
        self.limits = Limits.of(config)
        self._append_path.configure(config)
        self._segment_roll.watch()

    # --- Truncation ---------------------------------------------------------------------------

    async def truncate(
        self,
        before: Offset,
        *,
        dry_run: bool = False,
        force_roll: bool = False,
        reason: str = TRUNCATION,
    ) -> TruncateAnswer:
        """Make `before` the head of the log. Whole ledgers are deleted afterwards.

        `force_roll` ends the present segment if it holds records below `before`. Raises `Guarded`, and
        `InvalidRequest` if `before` is beyond the tail. After `ConnectionLost` the truncation may have been made.
        """
        self._append_path.use()
        writing = self._append_path.writing
        if force_roll and not dry_run and writing is not None and before > writing.base_offset:
            await self.roll(TRUNCATION)
        await self._append_path.until_settled()

        async def attempt(stored: StoredLog) -> tuple[StoredLog, TruncateAnswer]:
            return await truncate(
                self._context.nodes,
                stored,
                before,
                confirmed=self.tail,
                is_begun=self._segment_roll.has_begun(stored.list),
                event=self._event("log_truncated", reason, before),
                dry_run=dry_run,
                written=self.written,
            )

        try:
            answer = await self._list_store.attempt(attempt, until_known=False)
        except InvalidRequest as refusal:
            # The refusal may be wrong: a later owner's tail may be beyond the offset (LS4).
            self._append_path.use()
            await self._append_path.refused(refusal)
            raise
        except (OwnerFenced, Missing) as error:
            raise self._on_disowned(error) from error
        self._tidy()
        return answer

    def _tidy(self) -> None:
        """Delete the ledgers that have left the list, in the background. Failures are retried later."""
        if self.list.discarded and self._tidying is None and self.failure is None:
            self._tidying = self._loop.create_task(self._delete_discarded())
            self._tidying.add_done_callback(self._on_tidied)

    async def _delete_discarded(self) -> None:
        with suppress(RollbookError):
            context = self._context
            await delete_discarded(context.ledgers, context.nodes, self._list_store.stored)

    def _on_tidied(self, _: "asyncio.Task[None]") -> None:
        self._tidying = None

    # --- Seal ---------------------------------------------------------------------------------

    async def seal(
        self,
        block: bytes | None = None,
        info: BlockInfo | None = None,
        condition: Condition | None = None,
    ) -> Offset:
        """Append the block if there is one, seal the log, and return the final tail. No record is appended
        after the block.

        If the block or the condition is refused, nothing is sealed. A repeated call returns the same
        answer. Raises `Overloaded`, `EntryTooLarge`, the refusal of the block, `OwnerLost`,
        `AppendUnsettled`, `OwnerChanging`. After a cancelled call, the seal continues.
        """
        append_path, memory = self._append_path, self._memory
        await append_path.room_for(2, len(block or b""))
        is_appended = False
        if block is not None and info is not None:
            tail = memory.tail
            last = self.append(block, info, condition)
            is_appended = memory.tail != tail
            if not is_appended:
                await last.answer  # The block was refused, or was appended before.
                await append_path.room_for(1, 0)
        elif condition is not None and not memory.is_sealed:
            try:
                append_path.sequencer.check(condition)
            except RollbookError as refusal:
                await append_path.refused(refusal)
        while not memory.is_sealed:
            try:
                append_path.say(SealBlock())
            except Overloaded:  # A snapshot has taken the room that was left.
                await self._room_to_seal(is_appended)
            else:
                memory.is_sealed = True
                self._sealing = self._loop.create_task(self._finish_seal())
        if self._sealing is not None:
            await joined(self._sealing, append_path.loss)
        return self.tail

    async def _room_to_seal(self, is_appended: bool) -> None:
        """Wait for room to seal. If that fails after the last block was appended, raise `AppendUnsettled`: the
        block may be in the log.
        """
        try:
            await self._append_path.room_for(1, 0)
        except RollbookError as error:
            if not is_appended:
                raise
            raise AppendUnsettled("its last block may be in the log", log=str(self.name)) from error

    async def _finish_seal(self) -> None:
        """Complete a seal that was appended. An error does not undo the seal: it may be in the log, or take
        effect later.
        """
        try:
            await self._append_path.until_settled()
            await self._until_rolled()
            if self.failure is not None:
                raise self._append_path.loss()
            await self._list_sealed()
        except OwnerChanging:
            raise self._append_path.loss() from None
        self.tail_cache.wake()
        self._log.info("log_sealed", tail=self.tail)

    async def _list_sealed(self) -> None:
        await self._segment_roll.close_last()
        event = self._event("log_sealed", "", self.tail)

        def with_sealed(listed: LedgerList) -> LedgerList:
            if listed.state is ListedLogState.SEALED:
                return listed
            return listed.with_sealed(self.tail).with_event(event)

        await self._segment_roll.change(with_sealed)

    async def _until_rolled(self) -> None:
        if self._segment_roll.rolling is not None:
            await asyncio.gather(self._segment_roll.rolling, return_exceptions=True)

    # --- The end ------------------------------------------------------------------------------

    async def close(self, reason: str) -> None:
        """Hand the log over: accept no more appends, settle pending ones, close the ledger.

        The next owner then has nothing to recover, and little to replay. Failures are not raised, since the
        next owner can recover the log. A cancelled call completes the hand-over, within 15 s, before it raises.
        """
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(reason))
        await to_its_end(_joined(self._closing))

    async def _close(self, reason: str) -> None:
        self._append_path.takes_more = False
        try:
            async with asyncio.timeout(_HAND_OVER_S):
                await self._hand_over(reason)
            self._log.info("log_released", reason=reason)
        except RollbookError as error:
            self._log.warning("log_not_released", reason=error.code.reason)
        except TimeoutError:
            self._log.warning("log_not_released", reason="DEADLINE")
        finally:  # The owner accepts no more appends by now, so it must end in any case.
            self._end(f"it was given up: {reason}", OwnerLost)
            await self.ended()

    async def _hand_over(self, reason: str) -> None:
        await self._until_rolled()
        if self._sealing is not None:
            await asyncio.gather(self._sealing, return_exceptions=True)
        append_path, writing = self._append_path, self._append_path.writing
        if self.failure is not None:
            raise append_path.refusal()
        if writing is not None:
            await writing.writer.ready(1, self._memory.packed_bytes)
            append_path.say(self._memory.snapshot())
            await self._segment_roll.close_last()
        event = self._event("log_released", reason, self.tail)
        await self._segment_roll.change(lambda listed: listed.with_released().with_event(event))

    def lose(self, reason: str) -> None:
        """End the ownership immediately. Nothing more is confirmed, and pending appends get `OwnerLost`: their
        outcome is unknown.

        Wait for `ended` afterwards. The log can be opened again, at this server or another one.
        """
        self._end(reason, OwnerLost)

    async def ended(self) -> None:
        """Wait until every task of the owner has ended."""
        if self._ending is not None:
            await to_its_end(_joined(self._ending))

    def _on_disowned(self, error: RollbookError) -> RollbookError:
        self.lose(f"the log's list has changed: {error}")
        return self._append_path.refusal()

    def _end(self, why: str, loss: Loss) -> None:
        if self.failure is not None:
            return
        if self._closing is None:
            self._log.warning("log_lost", reason=why)
        self._append_path.end(why, loss)
        self._writer_epochs.tell()
        if not self.until_lost.done() and self.failure is not None:
            self.until_lost.set_result(self.failure)
        self._ending = self._loop.create_task(self._stop())

    async def _stop(self) -> None:
        works = (self._sealing, self._tidying, self._proving)
        tasks = [task for task in works if task is not None]
        for task in tasks:
            task.cancel()
        await self._segment_roll.stop()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _event(self, kind: str, reason: str, offset: Offset) -> LogEvent:
        now_us, server_id = self._context.clock.wall_us(), self._context.server.server_id
        return LogEvent(kind, now_us, self.owner_epoch, server_id, reason, offset)


async def _joined(task: "asyncio.Task[None]") -> None:
    await asyncio.shield(task)
