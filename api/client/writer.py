"""Implements `log.writer()`: a program adds records one by one, which are sent in batches that grow
with the load.

A batch is sent at once when nothing is in flight; later records gather in the next one. Therefore a
single record does not wait, and many records are sent in large batches.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime
from types import TracebackType
from typing import Self

from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.core.retries_and_outcomes import again
from rollbook.api.client.fork_guard import BelongsToProcess, is_own_process
from rollbook.api.client.pipeline import AppendPipeline
from rollbook.api.client.producer_batch import Batch, Submission
from rollbook.api.client.producer_numbering import NOT_RESUMED, Producer, Resumed
from rollbook.api.client.record_accumulator import RecordAccumulator, Tally
from rollbook.api.client.record_field_encoding import Text, TextHeaders, event_time_us_of
from rollbook.api.client.unacked_appends_report import (
    UnackedRecords,
    attach,
    on_collected,
    on_ended,
    take_loss,
)
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.messages import ProducerProgress
from rollbook.proto.errors import ClientClosed, Outcome, RollbookError

Begins = tuple[str, Callable[[], Awaitable[ProducerProgress]]]
"""A producer's name, and how its next epoch is asked for."""


class Writer(BelongsToProcess):
    """Appends records in order and exactly once. The first failure ends the writer: no record is
    appended after one that was not. Call `close`, or use `async with`; otherwise the client closes
    the writer.

    At most `window_bytes` and `window_batches` are in flight. If there is no room, `ready` waits,
    and `submit` raises `Overloaded`. A writer with a producer's name accepts records after `begin`,
    which `async with` calls.
    """

    def __init__(
        self,
        config: LogClientConfig,
        name: LogName,
        log: LogConfig,
        make_pipeline: Callable[["Writer"], AppendPipeline],
        on_closed: Callable[["Writer"], None],
        begins: Begins | None = None,
    ) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._accumulator = RecordAccumulator(config, log, self._loop.time)
        self._pipeline = make_pipeline(self)
        self._on_closed = on_closed
        self._begins, self._resumed = begins, NOT_RESUMED
        if begins is not None:
            self._accumulator.wait_for_begin()
        self._is_pumping = False
        # Callers that wait for room in the buffer.
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __repr__(self) -> str:
        tally = self._accumulator.tally
        said = f"{tally.acked} acknowledged, {self._accumulator.pending} on their way"
        return f"<Writer of {self._name}: {said}{f', {tally.unacked} failed' if tally.unacked else ''}>"

    def __del__(self) -> None:
        accumulator = getattr(self, "_accumulator", None)
        if accumulator is not None and is_own_process():
            on_collected(self, self._name, accumulator.pending)

    @property
    def tally(self) -> Tally:
        """Returns the outcomes of the submitted records, as far as they are known."""
        return self._accumulator.tally

    @property
    def resumed_at(self) -> int:
        """How many records the producer had appended, over all its restarts, when this writer
        began.

        Raises `InvalidRequest` if the writer has no producer's name, or no server has counted the
        records.
        """
        return self._resumed.at

    @property
    def last_offset(self) -> Offset | None:
        """The offset of the producer's last record at the start; None if it had none. Raises
        `InvalidRequest`."""
        return self._resumed.last_offset

    async def begin(self) -> None:
        """Asks the log how many records the producer has appended, and fences older writers with
        its name. Idempotent.

        Raises `LogSealed`. If the call is cancelled, older writers may be fenced.
        """
        if self._begins is None:
            return
        name, ask = self._begins
        progress = await ask()
        if self._begins is not None:  # Another task may have finished this during `ask`.
            self._begins = None
            self._pipeline.producer = Producer(name, progress.epoch)
            self._resumed = Resumed(name, progress)
            self._accumulator.on_begun()

    @property
    def has_room(self) -> bool:
        """Whether `submit` accepts a record now."""
        return self._accumulator.has_room

    def submit(
        self,
        value: bytes,
        *,
        key: Text | None = None,
        headers: TextHeaders | None = None,
        event_time: datetime | None = None,
        event_time_us: int | None = None,
    ) -> Submission:
        """Submits a record. The record is sent without any flush; the submission can be awaited,
        and returns the record's offset.

        Raises `Overloaded` if there is no room, `EntryTooLarge`, or the error that ended the
        writer.
        """
        if event_time is not None:
            event_time_us = event_time_us_of(event_time, event_time_us)
        accumulator = self._accumulator
        index = accumulator.add(value, key, headers, event_time_us)
        if not index and not self._is_pumping:
            self._is_pumping = True
            self._loop.call_soon(self._pump)
        return Submission(accumulator.newest, index)

    async def ready(self) -> None:
        """Waits for room. Raises the error that ended the writer. If the call is cancelled, no
        record was submitted."""
        while not self._accumulator.has_room:
            self._raise_failure()
            turn: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(turn)
            await turn
        self._raise_failure()

    async def send(
        self,
        value: bytes,
        *,
        key: Text | None = None,
        headers: TextHeaders | None = None,
        event_time: datetime | None = None,
        event_time_us: int | None = None,
    ) -> Submission:
        """Waits for room, and then submits a record. If the call is cancelled, no record was
        submitted."""
        while not self._accumulator.has_room:
            await self.ready()
        return self.submit(
            value,
            key=key,
            headers=headers,
            event_time=event_time,
            event_time_us=event_time_us,
        )

    async def flush(self) -> None:
        """Waits until all submitted records are durable. Raises the error that ended the writer.

        If the call is cancelled, the records are still sent, and the writer accepts more.
        """
        if (last := self._accumulator.last) is not None:
            await last.settled()
        self._raise_failure()

    async def close(self) -> None:
        """Refuses later submits, and waits like `flush`. Raises the error that ended the writer,
        with the number of records whose outcome is unknown, unless the caller has seen it before.
        Idempotent.

        If the call is cancelled, the writer ends at once: the outcome of unacked records stays
        unknown, and their submissions report that.
        """
        try:
            await self.drain()
        except asyncio.CancelledError:
            self.warn_of_pending()
            raise
        finally:
            self.end()
        if (loss := self.take_loss()) is not None:
            raise loss.error()

    async def drain(self) -> None:
        """Refuses later submits, and waits until the outcomes of the others are known. Raises
        nothing.

        If the call is cancelled, the records are still sent.
        """
        self._accumulator.refuse_more()
        if (last := self._accumulator.last) is not None:
            await last.settled()

    def take_loss(self) -> UnackedRecords | None:
        """Returns records that were neither acknowledged nor reported to the caller; each record is
        returned once."""
        return take_loss(self._name, self._accumulator)

    def warn_of_pending(self) -> None:
        """Logs pending records, because a cancelled caller would not learn of them."""
        on_ended(self._name, self._accumulator.pending)

    def end(self) -> None:
        """Ends the writer at once, without waiting for records in flight."""
        self._pipeline.close(ClientClosed("the writer was closed"))
        self._on_closed(self)

    async def __aenter__(self) -> Self:
        try:
            await self.begin()
        except BaseException:
            self.end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Also sends the records that were submitted before an exception, and then raises that
        exception."""
        try:
            await self.close()
        except RollbookError as unacked:
            if error is None:
                raise
            attach(unacked, error)

    # --- The pipeline's source ----------------------------------------------------------------

    def take(self, *, only_full: bool) -> Batch | None:
        """Returns the next batch to send; None if there is none yet."""
        return self._accumulator.take(only_full=only_full)

    def on_settled(self, batch: Batch) -> None:
        """Handles a batch whose outcome is known."""
        self._accumulator.settle(batch)
        self._offer_room()

    def on_stopped(self, error: RollbookError) -> None:
        """Ends the writer, which then sends nothing more."""
        for batch in self._accumulator.stop(error):
            batch.settle(None, again(error, Outcome.NOT_APPLIED))
            self._accumulator.settle(batch)
        self._offer_room()

    def _offer_room(self) -> None:
        while self._waiting and (self.has_room or self._accumulator.failure):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)

    def _pump(self) -> None:
        self._is_pumping = False
        self._pipeline.pump()

    def _raise_failure(self) -> None:
        if (failure := self._accumulator.failure) is not None:
            self._accumulator.is_noticed = True
            raise again(failure, failure.outcome)
