"""Serves requests that read or follow a log, or look for its tail or an offset.

A read needs no owner, since any server can read the segments. Only the tail is requested from the log's owner
(`tail_lookup.py`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from rollbook.logservice import messages
from rollbook.logservice.core.bounded_read_end import Until, cut_to_size
from rollbook.logservice.core.log_end_source import (
    TailWatch,
    unowned_end,
)
from rollbook.logservice.core.log_incarnations import check_life, text_of
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.log_ownership import LogServer
from rollbook.logservice.messages import (
    AtTail,
    CaughtUp,
    Consistency,
    Gap,
    LogTail,
    Moving,
    OnTruncated,
    Progress,
    ReadEvent,
    Records,
    Sealed,
    Stopped,
    WaitsFor,
)
from rollbook.logservice.offset_lookup import (
    NOT_OWNED,
    find_offset_at,
)
from rollbook.logservice.peer_tails import OwnerTails
from rollbook.logservice.position_syntax import (
    Ago,
    AtCursor,
    AtOffset,
    AtTime,
    BeforeTail,
    Earliest,
    Latest,
    Position,
)
from rollbook.logservice.reader import LogReader, OwnerLookup, ReaderOptions
from rollbook.logservice.stats import LogStats, largest
from rollbook.logservice.tail_lookup import TailLookup
from rollbook.logservice.watched_log_tails import TailDirectory
from rollbook.proto.errors import (
    InvalidRequest,
    Overloaded,
    OwnerChanging,
    QuorumTimeout,
    Truncated,
)
from rollbook.proto.ports import Clock
from rollbook.proto.tasks import stop_tasks

T = TypeVar("T")

_LOOK_S: Final = 1.0  # The least interval of tail look-ups at a server that does not own the log.


class LogReads:
    """Serves one server's requests for records, tails and offsets, and keeps its open readers."""

    def __init__(
        self,
        server: LogServer,
        ends: TailLookup,
        owner_tails: OwnerTails,
        stats: LogStats,
        clock: Clock,
    ) -> None:
        self._server = server
        self._ends = ends
        self._owner_tails = owner_tails
        self._stats = stats
        self._clock = clock
        self._nodes, self._ledgers = server.nodes, server.ledgers
        self._loop = asyncio.get_running_loop()
        self._readers: dict[int, LogReader] = {}  # The open readers by number.
        self._readers_ever = 0
        self._tails = TailDirectory(server, server.nodes, server.ledgers)
        stats.readers = lambda: len(self._readers)
        stats.reader_lags = self._reader_lags

    async def read(self, request: messages.Read, due: float) -> messages.ReadAnswer:
        if request.records_max < 1 or request.bytes_max < 1:
            raise InvalidRequest("records_max and bytes_max have to be at least 1")
        start, uid = await self._start_of(request, due)
        wait_until = min(self._loop.time() + request.wait_ms / 1000, due)
        found, is_waiting = Records((), start, start), False
        async with self._reader(request, start, uid) as reader:
            while not found.blocks:
                match await reader.next(wait_until if is_waiting else due):
                    case Records() as records:
                        found = cut_to_size(records, request.records_max, request.bytes_max)
                        self._count_sent(found)
                    case Gap(_, _, end):
                        found = Records((), end, end)
                    case CaughtUp() | Progress(waits_for=WaitsFor.OWNER) if (
                        self._loop.time() < wait_until
                    ):
                        is_waiting = True
                    case CaughtUp() | Progress() | Sealed() | Moving():
                        break
        tail, doubt = await self._ends.look_for_tail(request.log)
        await self.require_life(request.log, tail.uid, uid)
        if doubt is not None and not found.blocks:
            raise doubt  # Without a certain tail, "no records" could be wrong (RL6).
        return messages.ReadAnswer(
            found.blocks,
            found.base_offset,
            found.next_offset,
            tail.head,
            max(tail.tail, found.next_offset),
            tail.is_sealed,
            is_tail_uncertain=doubt is not None,
            uid=uid,
        )

    async def read_stream(self, request: messages.ReadStream) -> AsyncIterator[ReadEvent]:
        due = self._loop.time() + request.heartbeat_ms / 1000
        start, uid = await self._start_of(request, due)
        until = Until(request.until_offset, request.until_timestamp_us)
        is_before = until.offset is not None and until.offset < start
        # The range ends before it begins.
        if is_before and not isinstance(request.start, Earliest):
            raise InvalidRequest(
                f"the read would begin at {start} and end before that, at {until.offset}"
            )
        position = start
        if request.at_tail is not AtTail.FOLLOW:
            head, tail = await self._stop_at(request, uid, due)
            yield Progress(position, head, tail, max(tail - start, 0), 0, 0, WaitsFor.FETCHING)
            offset = tail if until.offset is None else min(until.offset, tail)
            until = replace(until, offset=offset)
        heartbeat_s = min(max(request.heartbeat_ms, 100) / 1000, self._server.config.heartbeat_s)
        async with self._reader(request, start, uid, heartbeat_s) as reader:
            is_over = until.is_reached(position)
            while not is_over:
                event: ReadEvent | None = await reader.next()
                if isinstance(event, Records):
                    event, is_over = until.cut(event)
                    if event is not None:
                        position = event.next_offset
                        self._count_sent(event)
                elif isinstance(event, Gap):
                    position = event.end
                    is_over = until.is_reached(position)
                if event is not None:
                    yield event
                if isinstance(event, Sealed | Moving):
                    return
                del event  # Free the event's memory now, since the next event may take some time.
            yield Stopped(position)

    async def _stop_at(
        self, request: messages.ReadStream, uid: str, due: float
    ) -> tuple[Offset, Offset]:
        """The log's head, and the tail at which the read stops."""
        if request.at_tail is AtTail.STOP_AT_BARRIER:
            if (closed := await self._ends.closed_tail(request.log)) is not None:
                await self.require_life(request.log, closed.uid, uid)
                return closed.head, closed.tail
            owner = await self._server.owner_of(request.log, due, uid=uid)
            tail = await in_time(due, owner.barrier())
            return owner.head, tail
        if request.at_tail is AtTail.STOP_AT_READ_BARRIER:
            asked = messages.GetTail(request.log, Consistency.READ_BARRIER, uid)
            known = await self._read_barrier(asked, due)
            return known.head, known.tail
        known, doubt = await self._ends.look_for_tail(request.log)
        await self.require_life(request.log, known.uid, uid)
        if doubt is not None:
            raise doubt  # The read could stop before acknowledged records (RL6).
        return known.head, known.tail

    async def _start_of(
        self, request: messages.Read | messages.ReadStream, due: float
    ) -> tuple[Offset, str]:
        """Return the first offset to read, and the uid of its log, since the log may be replaced before the
        first record is read.

        Raises `LogReplaced`, `Truncated`, and `BeyondTail`.
        """
        log = request.log
        tail = await self._ends.settled_tail(request) or await self._ends.tail_of(log)
        uid = request.uid or tail.uid
        await self.require_life(log, tail.uid, uid)
        start = await self.resolve(log, request.start, tail, due)
        tail = await self._ends.tail_from(log, start, tail, due)
        await self.require_life(log, tail.uid, uid)
        if start < tail.head and request.on_truncated is OnTruncated.FAIL:
            raise Truncated(offset=start, head=tail.head)
        return start, uid

    @asynccontextmanager
    async def _reader(
        self,
        request: messages.Read | messages.ReadStream,
        start: Offset,
        uid: str,
        heartbeat_s: float | None = None,
    ) -> AsyncIterator[LogReader]:
        """Open a reader, and close it when the context ends. `uid` is the uid of the log that `start` belongs
        to.
        """
        log = request.log
        if len(self._readers) >= self._server.config.readers_max:
            raise Overloaded("this server has as many readers as it may have", retry_after_ms=1000)
        self._readers_ever += 1
        number = self._readers_ever
        reader = self._readers[number] = LogReader(
            log,
            start,
            ReaderOptions(
                uid,
                heartbeat_s or self._server.config.heartbeat_s,
                skips_truncated=request.on_truncated is OnTruncated.SKIP,
            ),
            nodes=self._nodes,
            ledgers=self._ledgers,
            owner=OwnerLookup(
                partial(self._server.find, log, uid),
                partial(self._server.find_proven, log, uid),
                partial(self._ends.revive, log),
                _TailsOf(log, self._ends.ask_tail, self._owner_tails),
            ),
            clock=self._clock,
        )
        try:
            yield reader
        finally:
            del self._readers[number]
            await reader.close()

    def _count_sent(self, records: Records) -> None:
        self._stats.sent_records += records.next_offset - records.base_offset
        self._stats.sent_bytes += sum(map(len, records.blocks))

    def _reader_lags(self) -> Mapping[str, float]:
        """The largest reader lag of each log. Single readers are not reported: a metric needs a stable name
        for each, and readers come and go.
        """
        lags: dict[str, int] = {}
        for each in self._readers.values():
            log = str(each.name)
            lags[log] = max(each.lag, lags.get(log, 0))
        return largest(lags.items())

    # --- Tail and positions -----------------------------------------------------------------

    async def get_tail(self, request: messages.GetTail, due: float) -> LogTail:
        if request.consistency is Consistency.CACHED:
            tail = await self._ends.tail_of(request.log)
            await self.require_life(request.log, tail.uid, request.uid)
            return await self._ends.dated(request.log, tail, due)
        if request.consistency is Consistency.READ_BARRIER:
            return await self._ends.dated(request.log, await self._read_barrier(request, due), due)
        if (closed := await self._ends.closed_tail(request.log)) is not None:
            await self.require_life(request.log, closed.uid, request.uid)
            return await self._ends.dated(request.log, closed, due)
        owner = await self._server.owner_of(request.log, due, uid=request.uid)
        if request.consistency is Consistency.BARRIER:
            await in_time(due, owner.barrier())
        elif request.beyond is not None and not owner.is_sealed:
            wait_s = min(request.wait_ms / 1000, due - self._loop.time())
            await owner.tail_cache.grown(request.beyond, wait_s)
            if owner.failure is not None:
                raise OwnerChanging(owner.failure.message, **owner.failure.ids)
            return self._ends.tail_at(owner)
        return await self._ends.dated(request.log, self._ends.tail_at(owner), due)

    async def _read_barrier(self, request: messages.GetTail, due: float) -> LogTail:
        """Find a tail that covers every append acknowledged before this call, without a write (LS14). If the
        log has no owner and its last segment is closed, the list has that tail; otherwise the owner reports it.
        """
        listed = (await in_time(due, self._nodes.read_living(request.log))).list
        check_life(request.log, text_of(listed.uid), request.uid)
        if (end := unowned_end(listed)) is not None:
            return end
        owner = await self._server.owner_of(request.log, due, uid=text_of(listed.uid))
        await in_time(due, owner.read_barrier())
        return self._ends.tail_at(owner)

    async def watch_tail(self, request: messages.WatchTail) -> AsyncIterator[LogTail]:
        """Yield the tail, and then each change of it. The time of the last record follows when it is found.
        If nothing changes, or a look-up takes long, yield the last tail again with each heartbeat.
        """
        interval_s = max(request.interval_ms, 10) / 1000
        heartbeat_s = max(request.heartbeat_ms / 1000, interval_s)
        watch = TailWatch(heartbeat_s, max(heartbeat_s, _LOOK_S))
        looking: asyncio.Task[LogTail] | None = None
        dating: asyncio.Task[None] | None = None
        try:
            while True:
                owner = self._server.find(request.log)
                if looking is None and owner is not None and owner.is_proven:
                    tail = self._ends.tail_at(owner)
                else:
                    looking = looking or self._loop.create_task(self._ends.tail_of(request.log))
                    with suppress(TimeoutError):
                        async with asyncio.timeout_at(watch.heartbeat_due_s):
                            tail = await asyncio.shield(looking)
                            looking = None
                await self.require_life(request.log, tail.uid, request.uid)
                tail = watch.with_time(tail)
                is_dating = dating is not None and not dating.done()
                if not is_dating and watch.wants_time(tail, self._loop.time()):
                    dating = self._loop.create_task(self._date(request.log, tail, watch))
                if watch.is_due(tail, self._loop.time()):
                    yield tail
                    watch.on_sent(tail, self._loop.time())
                if looking is None:
                    await asyncio.sleep(
                        interval_s if owner is not None else max(interval_s, _LOOK_S)
                    )
        finally:
            await stop_tasks(looking, dating)

    async def _date(self, log: LogName, tail: LogTail, watch: TailWatch) -> None:
        watch.on_looked(await self._ends.dated(log, tail), self._loop.time())

    async def watch_tails(self, request: messages.WatchTails) -> AsyncIterator[messages.Tails]:
        if self._tails.watchers >= self._server.config.readers_max:
            raise Overloaded(
                "too many clients watch tails at this server",
                retry_after_ms=1000,
            )
        async with aclosing(self._tails.watch(request)) as watched:
            async for message in watched:
                yield message

    async def find_offset(self, request: messages.FindOffset, due: float) -> messages.FoundOffset:
        tail = await self._ends.tail_of(request.log)
        await self.require_life(request.log, tail.uid, request.uid)
        offset = await self.resolve(request.log, request.position, tail, due)
        # A requested offset, or the offset of a cursor, may be beyond the tail.
        if isinstance(request.position, AtOffset | AtCursor):
            tail = await self._ends.tail_from(request.log, offset, tail, due)
        return messages.FoundOffset(offset, tail.head, max(tail.tail, offset), tail.uid)

    async def resolve(self, log: LogName, position: Position, tail: LogTail, due: float) -> Offset:
        match position:
            case AtOffset(offset, uid):
                await self.require_life(log, tail.uid, uid)
                return offset
            case Earliest():
                return tail.head
            case Latest():
                return tail.tail
            case BeforeTail(records):
                return Offset(max(tail.tail - records, tail.head))
            case AtCursor(name):
                return (await self._nodes.read_cursor(log, name, tail.uid)).offset
            case AtTime(timestamp_us):
                pass
            case Ago(age_us):
                timestamp_us = self._clock.wall_us() - age_us
        owner = self._server.find(log)
        confirmed = owner.confirmed if owner is not None else NOT_OWNED
        listed = await self._ends.list_of(log)
        return await in_time(due, find_offset_at(listed, timestamp_us, self._ledgers, confirmed))

    async def require_life(self, log: LogName, uid: str, wanted: str) -> None:
        """Check that the log's `uid` is the `wanted` one; an empty `wanted` allows every uid. Raises
        `LogReplaced`, `OwnerChanging`.
        """
        if wanted and wanted != uid:
            await self._server.refuse_other_life(log, wanted)


class _TailsOf:
    """The owner's reports about one log, for readers at this server."""

    def __init__(
        self,
        log: LogName,
        ask: Callable[[LogName], Awaitable[LogTail | None]],
        elsewhere: OwnerTails,
    ) -> None:
        self._log, self._ask, self._elsewhere = log, ask, elsewhere

    async def ask(self) -> LogTail | None:
        return await self._ask(self._log)

    def listen(self, listener: Callable[[LogTail], None]) -> None:
        self._elsewhere.listen(self._log, listener)

    def ignore(self, listener: Callable[[LogTail], None]) -> None:
        self._elsewhere.ignore(self._log, listener)


async def in_time(due: float, work: Awaitable[T]) -> T:
    """Return the result of `work`. At `due`, cancel `work`, and raise `QuorumTimeout`: the outcome is unknown."""
    try:
        async with asyncio.timeout_at(due):
            return await work
    except TimeoutError:
        raise QuorumTimeout("the request was not finished in time") from None
