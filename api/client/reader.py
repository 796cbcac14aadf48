"""Reads the events of a log from a position on, and continues when the log's servers change.

- It resumes at the next offset wherever and whenever a stream broke, up to the end with which it
  began.
- Offsets are dense: each event has to begin where the last one ended, unless a gap was reported.
- A reader never waits without a limit. A server reports its position at least every heartbeat. If
  it misses two heartbeats, the reader asks another server. After `silences_max` heartbeats without
  any response, or with a lag that does not shrink, the reader raises `ReaderStalled` and says what
  it waits for.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Protocol, Self

import grpc
from google.protobuf.message import DecodeError

from rollbook.api.client.channels import Channels
from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.core.retries_and_outcomes import may_retry
from rollbook.api.client.outage_diagnosis import Outages
from rollbook.api.client.retry_pauses import Pauses
from rollbook.api.grpc.protobuf_conversion import event_kinds, pack, unpack_event
from rollbook.api.grpc.status import error_of_call, hung_up
from rollbook.api.rpc_methods import READ_STREAM
from rollbook.logservice import messages
from rollbook.logservice.core.record_block import Block, Record, opened_together, span_of
from rollbook.logservice.ids import LogName, Offset
from rollbook.proto.errors import (
    BadFrame,
    ConnectionLost,
    DataLost,
    InvalidRequest,
    QuorumTimeout,
    ReaderStalled,
    RollbookError,
)
from rollbook.proto.v1 import log_pb2

_logger: Final = logging.getLogger("rollbook.client")  # Only servers depend on structlog.
_MISSED_MAX: Final = 2  # The number of heartbeats that a server may miss.
_KINDS: Final = event_kinds(messages.ReadEvent)


class RecordBatch:
    """Records from `base_offset` up to `next_offset`, in the blocks in which they arrived.

    The blocks unpack to at most 4 MiB together, unless there is only one (LB3).
    """

    __slots__ = ("base_offset", "blocks", "next_offset")

    def __init__(self, blocks: Sequence[bytes], base_offset: Offset, next_offset: Offset) -> None:
        self.blocks = tuple(map(Block, blocks))
        self.base_offset = base_offset
        self.next_offset = next_offset

    def __len__(self) -> int:
        return self.next_offset - self.base_offset

    def __repr__(self) -> str:
        return f"<RecordBatch of {len(self)} records: offsets {self.base_offset} to {self.next_offset - 1}>"

    def values(self) -> list[bytes]:
        """Returns the values of all records; this is the fastest access to them."""
        found: list[bytes] = []
        for block in self.blocks:
            found += block.values()
        return self._trimmed(found)

    def records(self) -> list[Record]:
        """Returns the records as objects with offset, value, key, headers and times."""
        found: list[Record] = []
        for block in self.blocks:
            found += block.records()
        return self._trimmed(found)

    def _trimmed(self, found: list[Any]) -> list[Any]:
        if len(found) == len(self):
            return found
        first = self.base_offset - self.blocks[0].base_offset
        return found[first : first + len(self)]


Event = (
    RecordBatch
    | messages.CaughtUp
    | messages.FellBehind
    | messages.Progress
    | messages.Gap
    | messages.Sealed
    | messages.Stopped
)


class Whom(Protocol):
    """Selects the server to ask for a log, like `OwnerCache`."""

    @property
    def outages(self) -> Outages: ...

    def address_of(self, log: LogName | None) -> str: ...

    def on_error(self, log: LogName | None, address: str, error: RollbookError) -> bool: ...


class EventReader:
    """Yields the events of a log from a position on, by `async for event in …` or `next`."""

    def __init__(
        self,
        request: messages.ReadStream,
        channels: Channels,
        owners: Whom,
        config: LogClientConfig,
    ) -> None:
        self.position: Offset | None = None  # The next offset to return; None if unknown.
        self.is_over = False
        self._request = request
        self._channels = channels
        self._owners = owners
        self._silence_s = config.heartbeat_s * config.silences_max
        self._patience_s = config.heartbeat_s * _MISSED_MAX  # The longest silence of one server.
        self._stuck_max = config.silences_max
        self._pauses = Pauses(config)
        self._loop = asyncio.get_running_loop()
        self._call: Any = None
        self._address = ""
        self._is_new = True  # Whether the stream has had no event yet.
        self._tail: Offset | None = None  # For bounded reads: the tail in the stream's first event.
        self._moving_to = ""  # The server that the previous one named as its successor.
        self._heard_at = self._loop.time()  # When the last event arrived, from any server.
        self._due = 0.0  # When this server counts as silent.
        self._stuck = 0
        self._last_progress: messages.Progress | None = None
        self._trouble: RollbookError | None = None  # The last error since a server responded.
        self._batches: deque[RecordBatch] = (
            deque()
        )  # Batches of the last event, to be returned before more is read.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if (event := await self.next()) is None:
            raise StopAsyncIteration
        return event

    async def next(self) -> Event | None:
        """Returns the next event; None at the end of the range. A cancelled call loses no event:
        call again."""
        while not self.is_over:
            if self._batches:
                return self._next_batch()
            event = await self._next_answered()
            if event is not None and (result := self._on_event(event)) is not None:
                return result
        return None

    async def aclose(self) -> None:
        """Closes the stream at once, even if the call is cancelled; the server stops sending."""
        self.let_go()

    def let_go(self) -> None:
        """Closes the stream like `aclose`; to be called on the client's loop."""
        self.is_over = True
        self._hang_up()

    # --- Events -------------------------------------------------------------------------------

    def _on_event(self, event: messages.ReadEvent) -> Event | None:
        if isinstance(event, messages.Records):
            return self._on_records(event)
        if isinstance(event, messages.Progress):
            self._on_progress(event)
        elif isinstance(event, messages.Gap):
            self._expect(event.start)
            self.position = event.end
        elif isinstance(event, messages.Moving):
            if self.position is None or event.resume_offset > self.position:
                self._expect(
                    event.resume_offset
                )  # A server that names an earlier offset has lost no record.
            self._hang_up()
            self._moving_to = event.server
            return None
        elif isinstance(event, messages.CaughtUp):
            self._expect(event.tail)
        elif isinstance(event, messages.Sealed | messages.Stopped):
            self.is_over = True
            self._hang_up()
        return event

    def _on_records(self, event: messages.Records) -> RecordBatch:
        self._expect(event.base_offset)
        spans = [span_of(block) for block in event.blocks]
        tiles = all(end == start for (_, end), (start, _) in pairwise(spans))
        start, end = event.base_offset, event.next_offset
        # The first and the last block must contain records of the event: otherwise readers by block
        # would get a block twice, or miss one.
        covers = spans and spans[0][0] <= start < spans[0][1] and spans[-1][0] < end <= spans[-1][1]
        if not tiles or not covers or start >= end:
            raise BadFrame(
                "the server sent blocks that do not fit the offset range of their event",
                log=self._request.log,
            )
        self._stuck = 0
        self._batches += _in_batches(event.blocks, start, end)
        return self._next_batch()

    def _next_batch(self) -> RecordBatch:
        batch = self._batches.popleft()
        self.position = batch.next_offset
        return batch

    def _expect(self, offset: Offset) -> None:
        if self.position is not None and offset != self.position:
            raise BadFrame(
                "the server left out records, or sent them twice",
                log=self._request.log,
                expected=self.position,
                told=offset,
            )
        self.position = offset

    def _on_progress(self, event: messages.Progress) -> None:
        self._expect(event.position)
        if self._tail is None and event.waits_for is not messages.WaitsFor.THROTTLE:
            # The tail is ignored while the reader waits for its quota, because its stream has not
            # begun.
            self._tail = event.tail
        before, self._last_progress = self._last_progress, event
        if before and event.lag_records and before.position == event.position:
            self._stuck += 1
        else:
            self._stuck = 0
        if self._stuck >= self._stuck_max:
            raise self._stalled(None)

    # --- The stream ---------------------------------------------------------------------------

    async def _next_answered(self) -> messages.ReadEvent | None:
        """Returns the next event of the stream; None if the caller has to try again."""
        try:
            if self._call is None:
                self._open()
            stalled_at = self._heard_at + self._silence_s
            async with asyncio.timeout_at(min(self._due, stalled_at)):
                event = await self._first() if self._is_new else await self._read()
        except TimeoutError:
            self._hang_up()
            silence = QuorumTimeout("the server was silent for too long")
            if self._loop.time() >= stalled_at:
                cause = self._trouble or silence
                raise self._stalled(cause) from cause
            await self._recover(silence)
            return None
        except asyncio.CancelledError:
            self._hang_up()
            raise
        except RollbookError as error:
            self._hang_up()
            self._trouble = error
            await self._recover(error)
            return None
        self._heard_at = self._loop.time()
        self._due = self._heard_at + self._patience_s
        self._trouble = None
        self._pauses.reset()
        return event

    async def _first(self) -> messages.ReadEvent | None:
        """Returns the stream's first event. The event arrives at once, unless a part of the cluster
        is unavailable."""
        with self._owners.outages.waiting():
            event = await self._read()
        self._is_new = False
        self._channels.on_answered(self._address)
        return event

    def _open(self) -> None:
        request = self._request
        if self.position is not None:
            request = request.resumed_at(self.position, self._tail)
        self._address = self._moving_to or self._owners.address_of(request.log)
        self._moving_to = ""
        self._due = self._loop.time() + self._patience_s
        self._is_new = True
        ask = self._channels.to(self._address, waits=True).unary_stream(READ_STREAM.path)
        shown = self._channels.shown_to(self._address)
        self._call = ask(pack(request).SerializeToString(), metadata=shown)

    async def _read(self) -> messages.ReadEvent | None:
        try:
            data = await self._call.read()
        except asyncio.CancelledError:
            raise hung_up() from None
        except grpc.aio.AioRpcError as error:
            trailers = error.trailing_metadata()
            raise error_of_call(error.code(), error.details() or "", trailers) from None
        if data is grpc.aio.EOF:
            raise await self._end()
        try:
            event: messages.ReadEvent | None = unpack_event(
                log_pb2.ReadEvent.FromString(data), _KINDS
            )
        except (DecodeError, InvalidRequest) as error:
            raise BadFrame(f"the server sent an invalid event: {error}") from None
        return event

    async def _end(self) -> RollbookError:
        """Returns the error of a stream that ended without a last event, which no server does on
        purpose."""
        status = await self._call.code()
        if status is grpc.StatusCode.OK:
            return ConnectionLost("the server ended the stream without a word")
        trailers = await self._call.trailing_metadata()
        return error_of_call(status, await self._call.details() or "", trailers)

    def _hang_up(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    async def _recover(self, error: RollbookError) -> None:
        if not may_retry(error):
            self.is_over = True
            raise error
        is_known = self._owners.on_error(self._request.log, self._address, error)
        pause_s = self._pauses.next_s(error, is_known=is_known)
        if self._loop.time() + pause_s >= self._heard_at + self._silence_s:
            raise self._stalled(error)
        await asyncio.sleep(pause_s)

    def _stalled(self, error: RollbookError | None) -> ReaderStalled:
        progress = self._last_progress
        stalled = ReaderStalled(
            str(error) if error else "",
            log=self._request.log,
            position=self.position,
            waits_for=progress.waits_for.value if progress else "",
        )
        stalled.__cause__ = error
        self._heard_at = self._loop.time()  # Gives the next call the full time-out again.
        self._stuck = 0
        self._owners.outages.explained(stalled)
        return stalled


def _in_batches(blocks: Sequence[bytes], start: Offset, end: Offset) -> Iterator[RecordBatch]:
    """Splits large events, because servers of earlier releases bound only the stored size of an
    event (LB3)."""
    for run in opened_together(blocks):
        run_end = min(span_of(run[-1])[1], end)
        yield RecordBatch(run, start, run_end)
        start = run_end


async def batches_of(
    reader: EventReader, on_skipped: Callable[[messages.Gap], None] | None = None
) -> AsyncGenerator[RecordBatch]:
    """Yields the records of the events, and no other events. Raises `DataLost` at records without a
    readable copy.

    It calls `on_skipped` for records that were truncated; by default it logs a warning.
    """
    try:
        while (event := await reader.next()) is not None:
            if isinstance(event, RecordBatch):
                yield event
            elif isinstance(event, messages.Gap):
                require_truncated(event)
                (on_skipped or warn_of_skipped)(event)
    finally:
        await reader.aclose()


async def records_of(reader: EventReader) -> AsyncIterator[Record]:
    batches = batches_of(reader)
    try:
        async for batch in batches:
            for record in batch.records():
                yield record
    finally:
        await reader.aclose()


class Tail:
    """Yields records as they arrive, by `async for record in tail` or `await tail.poll(timeout)`.
    Close the tail with `aclose`.

    While the log's server is unavailable, the tail waits, and logs the reason. If tasks share a
    tail, each record is returned to only one of them.
    """

    def __init__(self, reader: EventReader, timeout: float | None = None) -> None:
        self._reader = reader
        self._timeout = timeout
        # Records of the last batch that were not returned yet.
        self._records: Iterator[Record] = iter(())
        self._taking = asyncio.Lock()  # Held while a task waits for the next batch.
        self._ahead: asyncio.Task[Event | None] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def is_over(self) -> bool:
        """Whether the log is sealed and was read to its end, or the tail was closed."""
        return self._reader.is_over and self._ahead is None

    async def poll(self, timeout: float | None = None) -> Record | None:  # noqa: ASYNC109  # A poll has a time-out.
        """Returns the next record; None if no record arrived within `timeout` seconds, or
        `is_over`.

        Raises `Truncated`, `DataLost`. A cancelled call misses no record: call it again.
        """
        while (record := next(records := self._records, None)) is None:
            if not await self._take(records, timeout):
                return None
        return record

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Yields records, until the log is sealed or no record has arrived for `timeout`."""
        while True:
            for record in (records := self._records):
                yield record
            if not await self._take(records, self._timeout):
                return

    async def __anext__(self) -> Record:
        if (record := await self.poll(self._timeout)) is None:
            raise StopAsyncIteration
        return record

    async def aclose(self) -> None:
        """Closes the stream at once, even if this call is cancelled, so that the server sends no
        more. Loops and polls in other tasks end. Idempotent."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
        deque(self._records, maxlen=0)  # Exhausts the iterator, so that a loop over it ends, too.
        self._reader.let_go()

    def __del__(self) -> None:
        """Closes a tail that the program left open, for example in a cancelled task."""
        if not self._loop.is_closed() and not self._reader.is_over:
            if self._ahead is not None:
                self._loop.call_soon_threadsafe(self._ahead.cancel)
            self._loop.call_soon_threadsafe(self._reader.let_go)

    async def _take(self, used_up: Iterator[Record], timeout: float | None) -> bool:  # noqa: ASYNC109  # The parameter of `poll`.
        """Waits for the records after the used ones. Returns False if none arrived in that time, or
        there are no more."""
        due = None if timeout is None else self._loop.time() + timeout
        try:
            async with asyncio.timeout_at(due):
                await self._taking.acquire()
        except TimeoutError:
            return False
        try:
            if self._records is not used_up:
                return True  # Another task has already taken the records.
            while (event := await self._next_event(due)) is not None:
                if (records := records_in(event)) is not None:
                    self._records = records
                    return True
            return False
        finally:
            self._taking.release()

    async def _next_event(self, due: float | None) -> Event | None:
        while not self.is_over:
            ahead = self._ahead = self._ahead or self._loop.create_task(self._reader.next())
            left = None if due is None else max(due - self._loop.time(), 0)
            # If this wait is cancelled, the task continues for the next call.
            await asyncio.wait((ahead,), timeout=left)
            if not ahead.done():
                return None
            if self._ahead is not ahead:
                continue  # The tail was closed while this waited.
            self._ahead = None
            try:
                return ahead.result()
            except ReaderStalled as stalled:
                warn_of_waiting(stalled)
        return None


def records_in(event: Event) -> Iterator[Record] | None:
    """Returns the event's records; None if it has none. Raises `DataLost`, and logs truncated
    records that were skipped."""
    if isinstance(event, RecordBatch):
        return iter(event.records())
    if isinstance(event, messages.Gap):
        require_truncated(event)
        warn_of_skipped(event)
    return None


def warn_of_waiting(stalled: ReaderStalled) -> None:
    _logger.warning("tail_waits: %s", stalled)


def require_truncated(gap: messages.Gap) -> None:
    """Raises `DataLost` if no copy of the records can be read."""
    if gap.kind is messages.GapKind.LOST:
        raise DataLost("no copy of these records can be read", start=gap.start, end=gap.end)


def warn_of_skipped(gap: messages.Gap) -> None:
    _logger.warning(
        "records_skipped: %d records from %d to %d were truncated",
        gap.end - gap.start,
        gap.start,
        gap.end - 1,
    )
