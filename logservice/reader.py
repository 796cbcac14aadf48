"""Reads one log from any offset, on any server, and follows it.

    at the owner      The reader takes blocks from the owner's memory, in the loop turn that confirms them.
    at other servers, The reader reads the ledgers, segment by segment (`core/segment_traversal.py`). It follows the
    and further back  ledger that is being written, so that new entries arrive within milliseconds.

The owner knows earlier than the bookies which entries are confirmed. A reader at another server therefore
asks the owner before it reports that it has caught up, and then listens to the owner's reports
(`peer_tails.py`, RL6). `core/reader_catch_up.py` decides what the reader reports.

A reader switches between memory and ledgers by itself. Faults do not end it: if a ledger is gone, or a
segment does not continue the log, it reads the list again; if a bookie or the metadata store does not respond, it waits
and retries. If there is no other event for a heartbeat, it reports its position and what it waits for (RL3).
A reader ends when the log is deleted, replaced, truncated above the reader's position, or sealed and read to
the end. It also ends when no copy of a record is left, and when the client should read from another server,
which owns the log (`Moving`).

It reads only on request. After a second without a request, it closes its ledger reader, and keeps only one run of
the entries that were read ahead (RL4).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from rollbook.ledger.follower import Follower
from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.reader import LedgerReader
from rollbook.logservice.core.log_incarnations import check_life, text_of
from rollbook.logservice.core.reader_catch_up import (
    ReaderPosition,
    ReaderProgress,
    has_read_all,
)
from rollbook.logservice.core.record_block import opened_together, span_of
from rollbook.logservice.core.segment_traversal import (
    AwaitOwner,
    AwaitRoll,
    End,
    Enter,
    Gone,
    Trail,
)
from rollbook.logservice.ids import NO_OWNER_YET, LogName, Offset
from rollbook.logservice.log_metadata import LogMetadataStore, StoredLog
from rollbook.logservice.messages import (
    Gap,
    GapKind,
    LogTail,
    Moving,
    Progress,
    ReadEvent,
    Records,
    Sealed,
)
from rollbook.logservice.offset_lookup import find_entry, read_block
from rollbook.logservice.owner import Owner
from rollbook.logservice.tail_cache import Subscription
from rollbook.proto.errors import (
    Corrupt,
    DataLost,
    LogDeleted,
    LogReplaced,
    LogSealed,
    NoSuchEntry,
    NoSuchLedger,
    NoSuchLog,
    OutcomeUnknown,
    RollbookError,
    SessionExpired,
    Truncated,
    Unavailable,
)
from rollbook.proto.ids import NO_ENTRY, EntryId
from rollbook.proto.ports import Clock
from rollbook.proto.tasks import stop_tasks, to_its_end

logger = structlog.get_logger()

HEARTBEAT_S: Final = 5.0
_IDLE_S: Final = 1.0  # Reading ahead stops if there was no request for this long.
# The interval for reading the list again, in case a change was not reported.
_LOOK_AGAIN_S: Final = 2.0
_PAUSE_S_MIN: Final = 0.02  # The first pause before a retry.
_PAUSE_S_MAX: Final = 1.0  # The pauses double up to this.
# The most bytes of one event, unless a single block is larger. This is the size of two full batches of the
# client's writer. A reader gets records of 1 KiB from memory at 1.7 GB/s with events of two batches, and at
# 1.2 to 1.4 GB/s with events of one or three.
_BYTES_MAX: Final = 512 * 1024
# Records count as lost when their ledger or entry was missing or corrupt this many times in a row.
_LOST_AFTER: Final = 4
_LOOK_S_MAX: Final = 1.0  # The time limit for each of the two look-ups that a heartbeat makes.


class TailSource(Protocol):
    """Reports of a log's tail by its owner, at this server or another one."""

    async def ask(self) -> LogTail | None:
        """Return a tail that covers every append acknowledged before this call, as the owner or a list of
        closed segments reports it. Returns None if neither is available.
        """

    def listen(self, listener: Callable[[LogTail], None]) -> None:
        """Call the listener each time that an owner at another server reports a new tail, until `ignore`."""

    def ignore(self, listener: Callable[[LogTail], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class OwnerLookup:
    """The functions by which a reader finds the owner of its log."""

    # Returns the owner if this process believes that it owns the log.
    find: Callable[[], Owner | None]
    # Returns the owner after checking that it still owns the log.
    find_proven: Callable[[], Awaitable[Owner | None]]
    # Makes sure that a server owns the log. Returns the owner's address if that is another server and its
    # address is known, otherwise an empty string.
    revive: Callable[[], Awaitable[str]]
    tails: TailSource  # The reports of the owner, at this server or another one.


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """The options that the caller of a reader chooses."""

    # The uid of the log that the start belongs to. Empty: the uid in the first list that is read.
    uid: str = ""
    heartbeat_s: float = HEARTBEAT_S
    # True: truncated records are reported as a gap. False: they end the read with `Truncated`.
    skips_truncated: bool = False


class LogReader:
    """Reads one log: call `next()` as often as wanted, then `close()`. Only one caller may use it at a time."""

    def __init__(
        self,
        name: LogName,
        start: Offset,
        options: ReaderOptions,
        *,
        nodes: LogMetadataStore,
        ledgers: Ledgers,
        owner: OwnerLookup,
        clock: Clock,
    ) -> None:
        """Begin at `start`."""
        self.name: Final = name
        self._uid = options.uid
        self._nodes, self._ledgers, self._clock = nodes, ledgers, clock
        self._find_owner, self._find_proven = owner.find, owner.find_proven
        self._revive = owner.revive
        self._tails = owner.tails
        self._heartbeat_s = options.heartbeat_s
        self._skips_truncated = options.skips_truncated
        self._trail = Trail(start)
        self._loop = asyncio.get_running_loop()
        self._ready: deque[ReadEvent] = deque()
        self._end: ReadEvent | RollbookError | None = None
        self._moving_to: str | None = None  # The address of the server to read from instead.
        self._step: asyncio.Task[None] | None = None
        self._resting: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._memory: Subscription | None = None
        self._memory_epoch = NO_OWNER_YET  # The epoch of the owner whose memory was read last.
        self._ledger: LedgerReader | None = None
        self._follower: Follower | None = None
        self._progress = ReaderProgress(start)
        self._is_listening = False  # Whether this reader listens to an owner at another server.
        self._pause_s = _PAUSE_S_MIN
        self._losses = 0  # How many times in a row a ledger or entry was missing or corrupt.

    @property
    def lag(self) -> int:
        """The number of records that were not returned yet, as far as this reader knows."""
        owner = self._find_owner()
        owner_tail = None if owner is None else owner.tail
        return self._progress.lag(self._trail.next_offset, owner_tail)

    async def next(self, due: float | None = None) -> ReadEvent:
        """Return the next event. If there is none until `due`, by default one heartbeat from now, return a
        `Progress`. After the last event, every call returns that event again.

        Raises `Truncated`, `NoSuchLog`, `LogDeleted`, `LogReplaced`, `DataLost`; later calls raise the same
        error again. A cancelled call loses nothing: the next call returns the same event.
        """
        await self._stop_resting()
        if due is None:
            due = self._loop.time() + self._heartbeat_s
        while not self._ready:
            if self._end is None and self._moving_to is not None:
                self._move(self._moving_to)
            if isinstance(self._end, RollbookError):
                raise self._end
            if self._end is not None:
                return self._end
            if self._memory is not None:
                is_over = not await self._take_from_memory(self._memory, due)
            else:
                is_over = not await self._take_from_ledgers(due)
            if is_over and not self._ready:
                heartbeat = await self._make_heartbeat()
                # If the running step has read records or found the log's end by now, the heartbeat is
                # dropped, since it could claim that nothing follows (RL6).
                if not self._ready and self._end is None:
                    return heartbeat
        self._idle = self._loop.call_later(_IDLE_S, self._rest)
        return self._ready.popleft()

    def _move(self, address: str) -> None:
        """End with `Moving` at the end of the records that were returned (RL5). Stop a running step:
        records that it reads would never be returned.
        """
        if self._step is not None:
            self._step.cancel()
        self._end = Moving(address, self._trail.next_offset)

    async def close(self) -> None:
        """Close the reader. Idempotent."""
        await self._stop_resting()
        await stop_tasks(self._step)
        await self._leave_ledger()
        self._memory = None

    # --- From the owner's memory ------------------------------------------------------------

    def _enter_memory(self) -> bool:
        owner = self._find_owner()
        if owner is None or self._trail.next_offset < owner.head:
            return False
        self._memory = owner.tail_from(self._trail.next_offset)
        if self._memory is None:
            return False
        self._memory_epoch = owner.owner_epoch
        self._ready += self._progress.on_memory_entered(self._trail.next_offset, owner.tail)
        return True

    async def _take_from_memory(self, memory: Subscription, due: float) -> bool:
        """Queue blocks from memory, end the read, or leave the memory. Returns False if none of these happens
        before `due`.
        """
        owner = self._find_owner()
        if owner is not None and self._trail.next_offset < owner.head:
            self._memory = None  # The offset is truncated, although the memory may still have it.
            return True
        if self._end_if_sealed():
            return True
        try:
            blocks = await memory.next(max(due - self._loop.time(), 0.0), _BYTES_MAX)
        except LogSealed:
            self._end = Sealed(self._trail.next_offset)
            return True
        except RollbookError as error:  # The ownership has ended: read from the ledgers.
            logger.debug("reader_lost_owner", log=str(self.name), reason=error.code.reason)
            self._memory = None
            return True
        if blocks is None:
            self._memory = None
            owner = self._find_owner()
            self._ready += self._progress.on_memory_lost(None if owner is None else owner.tail)
            return True
        if not blocks:
            return self._end_if_sealed() or self._loop.time() < due
        start = self._trail.next_offset
        self._trail.on_memory(blocks)
        self._tell_records(blocks, start)
        owner = self._find_owner()
        if owner is not None:
            self._ready += self._progress.on_memory_read(self._trail.next_offset, owner.tail)
        return True

    def _end_if_sealed(self) -> bool:
        """End the read if the owner at this server has sealed the log and all of it was read. Returns whether
        the read ended.
        """
        owner = self._find_owner()
        if owner is None or not owner.is_sealed or self._trail.next_offset < owner.tail:
            return False
        self._end = Sealed(self._trail.next_offset)
        return True

    # --- From the ledgers -------------------------------------------------------------------

    async def _take_from_ledgers(self, due: float) -> bool:
        """Make a step; returns whether it ended before `due`. A late step continues, and the next call waits
        for it.
        """
        if self._step is None:
            self._step = self._loop.create_task(self._make_step())
        if not await _ends_by(self._step, due):
            return False
        step, self._step = self._step, None
        step.result()  # An error here is a bug, since errors of the log are handled in the step.
        return True

    async def _make_step(self) -> None:
        try:
            if self._enter_memory():
                await self._leave_ledger()
            elif self._follower is None:
                await self._enter_segment()
            else:
                await self._read_on(self._follower)
        except (NoSuchLedger, NoSuchEntry, Corrupt) as error:
            await self._on_missing(error)
        except (NoSuchLog, LogDeleted, LogReplaced, Truncated) as error:
            self._end = error
        except (Unavailable, OutcomeUnknown, SessionExpired) as error:
            await self._on_failure(error)
        else:
            self._pause_s = _PAUSE_S_MIN

    async def _enter_segment(self) -> None:
        stored = await self._read_list()
        listed = stored.list
        if listed.owner is not None and NO_OWNER_YET < self._memory_epoch < listed.owner_epoch:
            self._moving_to = listed.owner.address
            return
        match self._trail.pick(listed):
            case Enter(segment, first_entry):
                self._progress.on_segment_found()
                ledger = self._ledger = await self._ledgers.open_tailing(segment.ledger_id)
                if first_entry is None:
                    wanted = self._trail.next_offset
                    last_entry = max(ledger.last_add_confirmed, self._confirmed_in(ledger))
                    first_entry = await find_entry(
                        ledger, lambda block: block.next_offset > wanted, last_entry
                    )
                self._trail.enter(segment, first_entry)
                self._follower = ledger.follow(first_entry)
                self._follower.confirm(self._confirmed_in(ledger))
                if has_read_all(first_entry, ledger.last_add_confirmed, is_closed=ledger.is_closed):
                    await self._on_end_of_news()
            case Gone(head):
                if not self._skips_truncated:
                    raise Truncated(head=head, offset=self._trail.next_offset)
                gap = Gap(GapKind.TRUNCATED, self._trail.next_offset, head)
                self._ready.append(gap)
                self._trail.skip_to(head)
            case End():
                self._end = Sealed(self._trail.next_offset)
            case AwaitRoll():
                self._progress.on_roll_awaited()
                await self._list_changed(stored)
            case AwaitOwner():
                self._ready += self._progress.on_owner_awaited(self._trail.next_offset)
                if not self._ready:  # If there is an event, return it first: the next step waits.
                    await self._list_changed(stored)

    async def _read_list(self) -> StoredLog:
        """The log's list. Raises `NoSuchLog`, `LogDeleted`, `LogReplaced`."""
        stored = await self._nodes.read(self.name)
        listed = stored.list
        self._uid = self._uid or text_of(listed.uid)
        check_life(self.name, text_of(listed.uid), self._uid)
        listed.require_living(self.name)
        self._progress.on_list(listed)
        return stored

    async def _read_on(self, follower: Follower) -> None:
        assert self._ledger is not None
        follower.confirm(self._confirmed_in(self._ledger))
        try:
            news = await anext(follower)
        except StopAsyncIteration:
            last_entry = self._ledger.last_add_confirmed
            await self._leave_ledger()
            self._trail.on_end(last_entry)
            return
        start = self._trail.next_offset
        blocks = self._trail.on_entries([entry.payload for entry in news.entries])
        if blocks is None:  # The ledger is not part of the log. The list will show that soon.
            await self._leave_ledger()
            return
        self._losses = 0
        if blocks:
            self._tell_records(blocks, start)
        if has_read_all(self._trail.next_entry, news.last_add_confirmed, is_closed=news.is_closed):
            await self._on_end_of_news()
        else:
            self._progress.on_more_to_read()
        if news.waits_for:
            self._progress.on_replica_awaited()

    async def _on_end_of_news(self) -> None:
        """Ask the owner for the tail when everything that bookies report has been read. Bookies learn only from
        the next block that the last block is confirmed (RL6).
        """
        self._progress.on_all_read()
        if self._find_owner() is not None:
            return  # The next step reads from the owner's memory.
        self._listen()
        if self._progress.is_live:
            return
        answer = await self._tails.ask() if self._progress.may_ask(self._loop.time()) else None
        if answer is not None:
            self._on_owner_tail(answer)
        position = self._position_at(self._trail.next_offset)
        self._ready += self._progress.on_answer(answer, position, self._loop.time())

    def _confirmed_in(self, ledger: LedgerReader) -> EntryId:
        """The last entry of the ledger that the owner has confirmed, as far as this reader knows."""
        owner = self._find_owner()
        if owner is not None:
            return owner.confirmed.get(ledger.ledger_id, NO_ENTRY)
        return self._progress.confirmed_in(ledger.ledger_id)

    def _on_owner_tail(self, answer: LogTail) -> None:
        if not self._progress.on_owner_tail(answer, self._uid):
            return
        ledger = self._ledger
        if (
            self._follower is not None
            and ledger is not None
            and answer.ledger_id == ledger.ledger_id
        ):
            self._follower.confirm(self._progress.confirmed_in(ledger.ledger_id))

    def _listen(self) -> None:
        if not self._is_listening:
            self._is_listening = True
            self._tails.listen(self._on_owner_tail)

    def _stop_listening(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self._tails.ignore(self._on_owner_tail)

    async def _leave_ledger(self) -> None:
        """Close the ledger's reader, and its follower. A cancelled call closes both before it raises."""
        self._stop_listening()
        follower, ledger = self._follower, self._ledger
        self._follower = self._ledger = None
        if ledger is not None:
            await to_its_end(_left(follower, ledger))

    async def _list_changed(self, known: StoredLog) -> None:
        """Wait until the list differs from `known` or its watch reports a change, at most `_LOOK_AGAIN_S`."""
        watch = await self._nodes.watch(self.name)
        try:
            if (await self._nodes.read(self.name)).version == known.version:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AGAIN_S):
                        await anext(watch, None)
        finally:
            await watch.close()

    # --- What goes wrong --------------------------------------------------------------------

    async def _on_missing(self, error: RollbookError) -> None:
        """Handle a ledger or entry that is missing or corrupt. If it was truncated or discarded, the list
        shows that soon; otherwise its copies are lost.
        """
        self._losses += 1
        if self._losses >= _LOST_AFTER or isinstance(error, DataLost):
            self._end = DataLost(
                "no copy can be read", offset=self._trail.next_offset, reason=error.code.reason
            )
            await self._leave_ledger()
        else:
            await self._on_failure(error)

    async def _on_failure(self, error: RollbookError) -> None:
        logger.info(
            "log_not_read",
            log=str(self.name),
            offset=self._trail.next_offset,
            reason=error.code.reason,
        )
        self._progress.on_replica_awaited()
        await self._leave_ledger()
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)

    # --- Reporting --------------------------------------------------------------------------

    def _tell_records(self, blocks: Sequence[bytes], start: Offset) -> None:
        """Queue records as events. The stored and the unpacked size of each event are bounded (LB3)."""
        self._progress.on_records(start, self._trail.next_offset, sum(map(len, blocks)))
        for piece in opened_together(blocks, _BYTES_MAX):
            end = span_of(piece[-1])[1]
            self._ready.append(Records(tuple(piece), start, end))
            start = end

    async def _make_heartbeat(self) -> Progress:
        next_offset, owner = self._trail.next_offset, await self._owner_in_time()
        if owner is not None:
            return self._progress.report_at_owner(
                self._position_at(next_offset), owner_head=owner.head, owner_tail=owner.tail
            )
        is_sure = await self._look_around()
        return self._progress.report_elsewhere(self._position_at(next_offset), is_sure=is_sure)

    def _position_at(self, next_offset: Offset) -> ReaderPosition:
        return ReaderPosition(next_offset, self._trail.last_timestamp_us, self._clock.wall_us())

    async def _owner_in_time(self) -> Owner | None:
        """The owner at this server, if there is one, after a check that it still owns the log. If the check
        fails or times out, the owner is returned unchecked.
        """
        with suppress(RollbookError, TimeoutError):
            async with asyncio.timeout(_LOOK_S_MAX):
                return await self._find_proven()
        return self._find_owner()

    async def _look_around(self) -> bool:
        """Look up whether the log still exists and where it ends. Returns whether that end is certain: from
        the owner, or from a list of closed segments. If neither reports it, make sure that the log has an
        owner, and move to that owner if it is another server. A failure changes nothing.
        """
        with suppress(RollbookError, TimeoutError):
            async with asyncio.timeout(_LOOK_S_MAX):
                try:
                    listed = (await self._read_list()).list
                except (NoSuchLog, LogDeleted, LogReplaced) as error:
                    self._end = error
                    return False
                if not listed.unclosed:
                    return True  # All segments are closed, so the list has the tail.
                if (answer := await self._tails.ask()) is not None:
                    self._on_owner_tail(answer)
                    return answer is self._progress.owner_tail
                address = await self._revive()
                if address and (listed.owner is None or listed.owner.address != address):
                    self._moving_to = address
                ledger = self._ledger
                if ledger is not None and ledger.last_add_confirmed >= self._trail.next_entry:
                    block = await read_block(ledger, ledger.last_add_confirmed)
                    self._progress.on_tail(block.next_offset)
        return False

    # --- Resting ----------------------------------------------------------------------------

    def _rest(self) -> None:
        """Stop reading ahead, since no event was requested for `_IDLE_S`."""
        self._resting = self._loop.create_task(self._drop_what_is_ahead())

    async def _drop_what_is_ahead(self) -> None:
        if self._step is not None:
            await _ends_by(self._step, None)
        await self._leave_ledger()

    async def _stop_resting(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._resting is not None:
            resting, self._resting = self._resting, None
            await stop_tasks(resting)


async def _left(follower: Follower | None, ledger: LedgerReader) -> None:
    if follower is not None:
        await follower.aclose()
    await ledger.close()


async def _ends_by(task: "asyncio.Task[None]", due: float | None) -> bool:
    """Wait for the task until `due`; returns whether it has ended, with a result or an error. The task
    continues if it is late, or if this call is cancelled.
    """
    if not task.done():
        ended = asyncio.get_running_loop().create_future()

        def on_done(_: "asyncio.Task[None]") -> None:
            if not ended.done():
                ended.set_result(None)

        task.add_done_callback(on_done)
        try:
            async with asyncio.timeout_at(due):
                await ended
        except TimeoutError:
            pass
        finally:
            task.remove_done_callback(on_done)
    return task.done()
