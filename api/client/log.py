"""A named log, for programs with an event loop."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import fields
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from rollbook.api.client.caller_arguments import (
    Start,
    checked_producer,
    checked_producer_name,
    condition_of,
    milliseconds_of,
    position_of,
    producer_of_key,
)
from rollbook.api.client.cursor import Cursor
from rollbook.api.client.fork_guard import BelongsToProcess
from rollbook.api.client.log_append import Appender, FramedBatch, PlainBatch
from rollbook.api.client.pipeline import AppendPipeline, Source
from rollbook.api.client.producer_numbering import NOT_RESUMED, Producer, Resumed
from rollbook.api.client.reader import (
    EventReader,
    RecordBatch,
    Tail,
    Whom,
    batches_of,
    records_of,
)
from rollbook.api.client.record_field_encoding import Text, TextHeaders, event_time_us_of
from rollbook.api.client.replay_load_balancing import AnyServer, ReplayRange, runs_of
from rollbook.api.client.sync_writer import SyncWriter
from rollbook.api.client.writer import Writer
from rollbook.api.did_you_mean import did_you_mean
from rollbook.logservice import messages
from rollbook.logservice.core.record_block import Record, producer_of
from rollbook.logservice.ids import (
    LogName,
    Offset,
    ProducerRef,
    SegmentId,
    parse_cursor_name,
    parse_offset,
    parse_writer_epoch,
)
from rollbook.logservice.log_config import ConfigValues, LogConfig
from rollbook.proto.errors import InvalidRequest
from rollbook.proto.runtime.loop_thread import LoopThread

if TYPE_CHECKING:
    from rollbook.api.client.async_client import Client


class Log(BelongsToProcess):
    """A named log, which `Client.open` returns. Offsets start at 0 and have no holes; ends of
    ranges are exclusive.

    The object stands for the log that had the name when it was opened. If that log is deleted, and
    another one is created under its name, every request raises `LogReplaced`: open the new log.
    """

    def __init__(self, client: "Client", state: messages.LogState) -> None:
        self.name: LogName = state.log
        self.uid: str = state.uid  # A later log of this name has another uid.
        self.config: LogConfig = state.config  # The log's config when it was opened.
        self._client = client
        self._appender = Appender(
            self.name,
            client.append_streams,
            client.owners,
            client.config,
            uid=self.uid,
            memory_s=self.config.dedupe_age_s,
        )

    def __repr__(self) -> str:
        return f"<Log {self.name}>"

    # --- Appending ----------------------------------------------------------------------------

    async def append(
        self,
        value: bytes,
        *,
        key: Text | None = None,
        headers: TextHeaders | None = None,
        event_time: datetime | None = None,
        event_time_us: int | None = None,
        idempotency_key: str | None = None,
        expect: int | None = None,
        epoch: int | None = None,
        must_be_empty: bool = False,
        timeout_s: float | None = None,
    ) -> messages.AppendAck:
        """Appends a record. The record is durable when this returns; the append is retried without
        duplicates until the time-out.

        `key` and the values of `headers` are bytes, or text, which is encoded as UTF-8.
        `event_time` has a time zone; `event_time_us` is the same in microseconds since 1970. A
        record with an `idempotency_key` that the log has seen lately (`dedupe_age_s`) is not
        appended again, even after a restart of the program: the ack has `is_duplicate`, and the
        offset of the first record. With `expect`, the record gets exactly this offset or is
        refused. `epoch` is that of an exclusive writer. An error's `outcome` says whether the
        record may have been appended. If the call is cancelled, it may have been appended, too.

        Raises `InvalidRequest`, `EntryTooLarge`, `LogSealed`, `OffsetMismatch`, `DuplicateDiffers`, `QuorumTimeout`.
        """
        event_time_us = event_time_us_of(event_time, event_time_us)
        records = PlainBatch(
            (value,),
            None if key is None else (key,),
            None if headers is None else (headers,),
            None if event_time_us is None else (event_time_us,),
        )
        condition = condition_of(expect, epoch, must_be_empty)
        if idempotency_key is not None:
            once = producer_of_key(idempotency_key)
            return await self._appender.append_as(once, records, condition, timeout_s)
        return await self._appender.append(records, condition, timeout_s)

    async def append_many(
        self,
        values: Sequence[bytes],
        *,
        keys: Sequence[Text | None] | None = None,
        headers: Sequence[TextHeaders | None] | None = None,
        event_times: Sequence[int | datetime | None] | None = None,
        producer: ProducerRef | None = None,
        idempotency_key: str | None = None,
        expect: int | None = None,
        epoch: int | None = None,
        must_be_empty: bool = False,
        timeout_s: float | None = None,
    ) -> messages.AppendAck:
        """Appends one atomic batch: all of its records or none. Otherwise it is like `append`, also
        if it is cancelled.

        `event_times` are datetimes, or microseconds since 1970. `idempotency_key` is that of the
        whole batch. `producer` numbers this batch; the caller chooses the number, and repeats it
        with the batch, also after a crash. A batch that the log already has is not appended again:
        the ack has `is_duplicate`, and the offsets of the first one. Number 0 begins an epoch. Wait
        for each batch of a producer before you append its next one.

        With a `producer` it raises `DuplicateDiffers` for other records under a number that is
        taken: always if they are more or fewer, otherwise only for the producer's newest batch.
        Therefore compare an older batch with the records that `read_batches` returns for the
        offsets of the ack. `DuplicateTooOld` says that the batch is in the log, but the log no
        longer knows its offsets (outcome APPLIED). `ProducerGap` says that an earlier batch is
        missing, or that the log has forgotten the producer. `ProducerFenced` says that a higher
        epoch has begun.
        """
        records = PlainBatch(values, keys, headers, event_times)
        condition = condition_of(expect, epoch, must_be_empty)
        if idempotency_key is not None:
            if producer is not None:
                raise InvalidRequest("a batch has a producer or an idempotency_key, not both")
            producer = producer_of_key(idempotency_key)
        if producer is not None:
            ref = checked_producer(producer)
            return await self._appender.append_as(ref, records, condition, timeout_s)
        return await self._appender.append(records, condition, timeout_s)

    async def append_block(
        self,
        block: bytes,
        *,
        producer: ProducerRef | None = None,
        expect: int | None = None,
        epoch: int | None = None,
        must_be_empty: bool = False,
        timeout_s: float | None = None,
    ) -> messages.AppendAck:
        """Appends a batch that was framed earlier, by `rollbook.pack_block` or by the writer of
        another log (`Block.data`).

        Its records stay as they are, byte for byte; the server checks sizes, layout and checksum.
        `producer` replaces the producer in the block; without it the block keeps its own, if any.
        Otherwise the call is like `append_many`, also if it is cancelled. Raises `InvalidBlock`,
        `BadChecksum`, `EntryTooLarge`.
        """
        condition = condition_of(expect, epoch, must_be_empty)
        if producer is not None:
            ref = checked_producer(producer)
            return await self._appender.append_as(ref, FramedBatch(block), condition, timeout_s)
        if (own := producer_of(block)) is not None:
            return await self._appender.append_framed(block, own.seq, condition, timeout_s)
        return await self._appender.append(FramedBatch(block), condition, timeout_s)

    def writer(self, *, epoch: int | None = None, producer: str | None = None) -> Writer:
        """Returns a writer, which appends records in order, exactly once, and many at a time.
        `epoch` is that of an exclusive writer.

        `producer` is a name under which a program continues after a restart, however it ended. The
        log says how many records the producer has appended (`resumed_at`), and an older program
        that still uses the name gets `ProducerFenced`. No other program may use the name for this
        log.

            async with log.writer(producer="loader") as writer:
                for line in lines[writer.resumed_at:]:
                    await writer.send(line)

        Raises `ClientClosed`, `InvalidRequest`.
        """
        client = self._client
        pipeline, begins = self._pipelines(epoch), None
        if producer is not None:
            begins = producer, partial(self.begin_producer, checked_producer_name(producer))
        writer = Writer(client.config, self.name, self.config, pipeline, client.disown, begins)
        return client.adopt(writer)

    def sync_writer(
        self,
        thread: LoopThread,
        *,
        epoch: int | None = None,
        producer: Producer | None = None,
        resumed: Resumed = NOT_RESUMED,
    ) -> SyncWriter:
        """Makes a writer for other threads; `thread` runs this log's loop. `producer` has already
        begun."""
        client = self._client
        pipeline = self._pipelines(epoch, producer)
        return client.adopt(
            SyncWriter(
                thread, client.config, self.name, self.config, pipeline, client.disown, resumed
            )
        )

    async def begin_producer(self, name: str) -> messages.ProducerProgress:
        """Begins the next epoch of a named producer, for `writer`. Returns the epoch,
        and how many records the producer has appended.

        Raises `LogSealed`, `InvalidRequest`. If the call is cancelled, the epoch may have begun.
        """
        name = checked_producer_name(name)
        self._client.require_open()
        request = messages.BeginProducer(self.name, name.encode(), self.uid)
        progress: messages.ProducerProgress = await self._client.ask(request)
        return progress

    def _pipelines(
        self, epoch: int | None, producer: Producer | None = None
    ) -> Callable[[Source], AppendPipeline]:
        client, condition = self._client, condition_of(None, epoch, False)
        client.require_open()

        def make(source: Source) -> AppendPipeline:
            return AppendPipeline(
                self.name,
                source,
                client.append_streams,
                client.owners,
                client.config,
                memory_s=self.config.dedupe_age_s,
                condition=condition,
                uid=self.uid,
                producer=producer,
            )

        return make

    # --- Reading ------------------------------------------------------------------------------

    def read(self, start: Start = "earliest", end: int | None = None) -> AsyncIterator[Record]:
        """Reads the records from `start`, by default the first kept one, up to `end`, or to the
        present tail."""
        return records_of(self.bounded_events(start, end))

    def read_batches(
        self, start: Start = "earliest", end: int | None = None, *, anywhere: bool = False
    ) -> AsyncIterator[RecordBatch]:
        """Reads like `read`, but many records at a time; `values()` is the fastest access to them.

        With `anywhere`, records of closed segments are read from all servers, and only the rest
        from the log's owner. This is for replays by many readers; a single reader is faster at the
        owner, which has the newest records in memory.
        """
        if anywhere:
            return self._batches_anywhere(start, end)
        return batches_of(self.bounded_events(start, end))

    async def _batches_anywhere(self, start: Start, end: int | None) -> AsyncIterator[RecordBatch]:
        for make in await self.readers_anywhere(start, end):
            batches = batches_of(make())
            try:
                async for batch in batches:
                    yield batch
            finally:
                await batches.aclose()

    async def readers_anywhere(
        self, start: Start, end: int | None
    ) -> list[Callable[[], EventReader]]:
        """Returns readers that, one after the other, return all records of the range."""
        first = await self.find(start)
        behind = await self.tail_offset() if end is None else parse_offset(end)
        if first >= behind:
            # An empty range may be refused, as in `read`.
            return [partial(self.events, first, until=behind)]
        runs = runs_of(await self.segments(), first, behind)
        return [partial(self._reader_of, each) for each in runs]

    def _reader_of(self, run: ReplayRange) -> EventReader:
        owners = self._client.owners
        whom = owners if run.segment is None else AnyServer(owners, self.name, run.segment)
        return self.events(run.start, until=run.end, whom=whom)

    def tail(
        self,
        start: Start = "latest",
        *,
        skip_truncated: bool = False,
        timeout: float | None = None,
    ) -> Tail:
        """Follows the log, and ends when it is sealed. Raises `Truncated`.

        With `timeout`, it also ends when no record has arrived for this many seconds. While the
        log's server is unavailable, it waits, without a limit if there is no `timeout`, and logs
        the reason. With `skip_truncated`, it continues at the head instead of raising, and logs a
        warning that names the skipped records; `events` reports them as a `Gap`.
        """
        return Tail(self.events(start, skip_truncated=skip_truncated), timeout)

    def tail_batches(
        self, start: Start = "latest", *, skip_truncated: bool = False
    ) -> AsyncIterator[RecordBatch]:
        """Follows the log like `tail`, but many records at a time. Raises `ReaderStalled` where
        `tail` keeps waiting."""
        return batches_of(self.events(start, skip_truncated=skip_truncated))

    def events(
        self,
        start: Start = "latest",
        *,
        until: int | None = None,
        at_tail: messages.AtTail = messages.AtTail.FOLLOW,
        skip_truncated: bool = False,
        whom: Whom | None = None,
    ) -> EventReader:
        """Returns records and all other events of a reader: that it has caught up, gaps, progress,
        and the seal.

        `whom` selects the server to ask; by default it is the log's owner.
        """
        client = self._client
        truncated = messages.OnTruncated.SKIP if skip_truncated else messages.OnTruncated.FAIL
        request = messages.ReadStream(
            self.name,
            position_of(start),
            until_offset=None if until is None else parse_offset(until),
            at_tail=at_tail,
            on_truncated=truncated,
            heartbeat_ms=round(client.config.heartbeat_s * 1000),
            uid=self.uid,
        )
        return EventReader(request, client.channels, whom or client.owners, client.config)

    def bounded_events(self, start: Start, end: int | None) -> EventReader:
        """Returns the events from which `read` takes its records."""
        at_tail = messages.AtTail.STOP if end is None else messages.AtTail.FOLLOW
        return self.events(start, until=end, at_tail=at_tail)

    # --- Where it begins and ends -------------------------------------------------------------

    async def tail_offset(
        self, consistency: messages.Consistency | str = messages.Consistency.COMMITTED
    ) -> Offset:
        """Returns the offset of the next record to be appended. With `"barrier"`, it is above every
        append that was acked before the call."""
        return (await self.state_of_tail(consistency)).tail

    async def head_offset(self) -> Offset:
        """Returns the offset of the first kept record."""
        return (await self.state_of_tail()).head

    async def state_of_tail(
        self, consistency: messages.Consistency | str = messages.Consistency.COMMITTED
    ) -> messages.LogTail:
        """Returns the log's head and tail, whether it is sealed, and its owner. `tail_offset`
        describes `consistency`."""
        wanted = messages.Consistency(consistency)
        answer: messages.LogTail = await self._client.ask(
            messages.GetTail(self.name, wanted, self.uid)
        )
        return answer

    async def find(
        self, position: Start | None = None, *, timestamp: datetime | None = None
    ) -> Offset:
        """Returns the offset of a position, or the first offset that is not older than `timestamp`.

        Raises `BeyondTail`.
        """
        if not isinstance(timestamp, datetime | None):
            raise InvalidRequest(
                f"timestamp={timestamp!r:.80} is not a datetime",
                next_step="give a datetime with its time zone, or a position as the first argument",
            )
        wanted = timestamp if timestamp is not None else position
        if wanted is None:
            raise InvalidRequest("give a position or a timestamp")
        found: messages.FoundOffset = await self._client.ask(
            messages.FindOffset(self.name, position_of(wanted), self.uid)
        )
        return found.offset

    # --- Truncation, seal, exclusive writers ----------------------------------------------------

    async def truncate(
        self, before: Start, *, plan: bool = False, force_roll: bool = False
    ) -> messages.TruncateAnswer:
        """Makes records before `before` unreadable. With `plan`, it only returns what it would do.

        With `force_roll`, it also rolls the open segment, so that the segment's space is freed.
        Raises `Guarded` if a protected cursor prevents the truncation. If the call is cancelled,
        the records may or may not be truncated: `head_offset` shows which.
        """
        answer: messages.TruncateAnswer = await self._client.ask(
            messages.Truncate(self.name, position_of(before), plan, force_roll, self.uid)
        )
        return answer

    async def seal(self, *, expect: int | None = None, epoch: int | None = None) -> Offset:
        """Ends the log permanently, and returns its final tail. The conditions are those of
        `append`.

        If the call is cancelled, the log may or may not be sealed: a second call returns the same
        tail.
        """
        condition = condition_of(expect, epoch, False)
        answer: messages.SealAnswer = await self._client.ask(
            messages.Seal(self.name, None, condition, self.uid)
        )
        return answer.tail

    async def acquire_writer(
        self,
        holder: str,
        mode: messages.AcquireMode | str = messages.AcquireMode.FAIL,
        *,
        ttl_s: float = 0,
        timeout_s: float | None = None,
        attempt: str = "",
    ) -> messages.WriterGrant:
        """Acquires the next writer epoch, which appends pass as `epoch`. Older epochs are fenced.

        `mode` says what to do if the log has a holder: `"fail"` raises `WriterHeld`, `"wait"` waits
        until the holder releases the log or its lease is over, and `"steal"` takes the log from it.
        After an error with an unknown outcome, `holder` may have the log under an unknown epoch.
        `attempt` is a name that you draw at random for one acquisition: if you repeat the call with
        the same name, `holder` gets that epoch, or `StaleEpoch` if it was released. Without a name,
        only this call itself retries. If the call is cancelled, the outcome is unknown.
        """
        request = messages.AcquireWriter(
            self.name,
            holder,
            messages.AcquireMode(mode),
            milliseconds_of(ttl_s, "ttl_s"),
            attempt,
            self.uid,
        )
        grant: messages.WriterGrant = await self._client.ask(request, timeout_s=timeout_s)
        return grant

    async def renew_writer(self, epoch: int) -> messages.WriterGrant:
        """Restarts the writer's lease. Raises `StaleEpoch`. If the call is cancelled, the lease may
        or may not be renewed."""
        grant: messages.WriterGrant = await self._client.ask(
            messages.RenewWriter(self.name, parse_writer_epoch(epoch), self.uid)
        )
        return grant

    async def release_writer(self, epoch: int) -> None:
        """Releases the writer epoch, so that the next writer need not wait or steal. Raises `StaleEpoch`.
        If the call is cancelled, the epoch may or may not still be held."""
        await self._client.ask(
            messages.ReleaseWriter(self.name, parse_writer_epoch(epoch), self.uid)
        )

    # --- Cursors ------------------------------------------------------------------------------

    def cursor(self, name: str) -> Cursor:
        """Returns a named position of the log; a protected one prevents truncation."""
        return Cursor(self._client.ask, self.name, parse_cursor_name(name), self.uid)

    async def cursors(self) -> tuple[messages.Cursor, ...]:
        """Returns all cursors of the log, ordered by name."""
        found: list[messages.Cursor] = []
        start_after = ""
        while True:
            asked = messages.ListCursors(self.name, start_after, uid=self.uid)
            page: messages.Cursors = await self._client.ask(asked)
            found += page.cursors
            if not page.next_page:
                return tuple(found)
            start_after = page.next_page

    # --- Administration -----------------------------------------------------------------------

    async def state(self) -> messages.LogState:
        """Returns the log's configuration and etag, its size, its owner and its writer."""
        answer: messages.LogState = await self._client.ask(messages.GetLog(self.name, self.uid))
        return answer

    async def update(self, *, etag: str = "", **changes: Any) -> messages.LogState:
        """Changes fields of `LogConfig` together, as in `update(retention_age_s=3600)`.

        With `etag`, it changes the configuration only if that still has this etag, and otherwise
        raises `MetadataConflict`. If the call is cancelled, the configuration may or may not be
        changed: `state` shows which.
        """
        known = {field.name for field in fields(LogConfig)}
        if unknown := sorted(set(changes) - known):
            raise InvalidRequest(
                f"a log has no setting {', '.join(unknown)}",
                next_step=did_you_mean(unknown[0], known, f"known: {', '.join(sorted(known))}"),
            )
        answer: messages.LogState = await self._client.ask(
            messages.UpdateLog(self.name, ConfigValues(**changes), tuple(changes), etag, self.uid)
        )
        self.config = answer.config
        return answer

    async def roll(self) -> SegmentId:
        """Begins a new segment, unless the open one is empty. If the call is cancelled, the segment
        may or may not begin."""
        answer: messages.RollLogAnswer = await self._client.ask(
            messages.RollLog(self.name, self.uid)
        )
        return answer.segment_id

    async def segments(self) -> list[messages.SegmentView]:
        """Returns the log's segments, oldest first."""
        found: list[messages.SegmentView] = []
        start: SegmentId | None = SegmentId(0)
        while start is not None:
            page: messages.Segments = await self._client.ask(
                messages.ListSegments(self.name, start, uid=self.uid)
            )
            found += page.segments
            start = page.next_segment
        return found

    async def journal(self, limit: int = 100) -> tuple[messages.JournalEvent, ...]:
        """Returns the log's events, newest first."""
        answer: messages.LogJournal = await self._client.ask(
            messages.GetJournal(self.name, limit, self.uid)
        )
        return answer.events


def names_of(names: Iterable[str | LogName]) -> tuple[LogName, ...]:
    return tuple(map(LogName.parse, names))
