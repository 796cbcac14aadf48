"""`log.writer()` for programs without an event loop. Any thread may add records; the client's own
thread sends them."""

import logging
import threading
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Final, Self

from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.core.retries_and_outcomes import again
from rollbook.api.client.fork_guard import BelongsToProcess, is_own_process, require_own_process
from rollbook.api.client.pipeline import AppendPipeline
from rollbook.api.client.producer_batch import Batch
from rollbook.api.client.producer_numbering import NOT_RESUMED, Resumed
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
from rollbook.proto.errors import ClientClosed, Outcome, Overloaded, RollbookError
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.loop_thread import LoopThread

_logger: Final = logging.getLogger(__name__)


class SyncSubmission:
    """A submitted record. It is a future that is resolved without further calls."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        """Returns whether the record's outcome is known."""
        return self._batch.is_settled

    def result(self, timeout: float | None = None) -> Offset:
        """Waits for the record's offset, but never longer than the client's own time-out.

        Raises the record's error, or `TimeoutError` if the outcome is not known yet.
        """
        if not self._batch.is_settled and not wait_for(self._batch, timeout):
            raise TimeoutError("the record is still being sent")
        return self._batch.offset_of(self._index)

    def add_done_callback(self, callback: Callable[["SyncSubmission"], None]) -> None:
        """Calls `callback` on the client's thread, which it must not block, or at once if the
        record is settled. Errors of `callback` are logged, as those of futures' callbacks are,
        because no caller would see them.
        """
        is_called = threading.Lock()  # The first caller that acquires this lock calls the function.

        def call() -> None:
            if is_called.acquire(blocking=False):
                try:
                    callback(self)
                except Exception:
                    _logger.exception("a done-callback of %r failed", self)

        self._batch.waiters.append(call)
        if self._batch.is_settled:
            call()


def wait_for(batch: Batch, timeout: float | None) -> bool:
    """Waits until the batch is settled, at most `timeout` seconds, and returns whether it is. The
    client's thread settles the batch first, and then wakes the waiters."""
    require_own_process()
    is_over = threading.Event()
    batch.waiters.append(is_over.set)
    return batch.is_settled or is_over.wait(timeout)


class SyncWriter(BelongsToProcess):
    """A `Writer` for threads: `submit` blocks while the window is full, and `try_submit` raises
    `Overloaded`."""

    def __init__(
        self,
        thread: LoopThread,
        config: LogClientConfig,
        name: LogName,
        log: LogConfig,
        make_pipeline: Callable[["SyncWriter"], AppendPipeline],
        on_closed: Callable[["SyncWriter"], None],
        resumed: Resumed = NOT_RESUMED,
    ) -> None:
        self._thread = thread
        self._name = name
        self._on_closed = on_closed
        self._resumed = resumed
        self._clock = SystemClock()
        self._accumulator = RecordAccumulator(config, log, self._now)
        self._lock = threading.Lock()  # Guards the accumulator.
        self._has_changed = threading.Condition(self._lock)
        self._is_pumping = False
        self._pipeline = thread.call(lambda: make_pipeline(self))

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
        """Returns the same as `Writer.resumed_at`."""
        return self._resumed.at

    @property
    def last_offset(self) -> Offset | None:
        """Returns the same as `Writer.last_offset`."""
        return self._resumed.last_offset

    def submit(
        self,
        value: bytes,
        *,
        key: Text | None = None,
        headers: TextHeaders | None = None,
        event_time: datetime | None = None,
        event_time_us: int | None = None,
    ) -> SyncSubmission:
        """Submits a record as soon as there is room. The record is sent without any flush; the
        `result()` of its future is its offset.

        Raises `EntryTooLarge`, or the error that ended the writer.
        """
        if event_time is not None:
            event_time_us = event_time_us_of(event_time, event_time_us)
        while True:
            try:
                return self.try_submit(value, key=key, headers=headers, event_time_us=event_time_us)
            except Overloaded:
                self._wait_for_room()

    def try_submit(
        self,
        value: bytes,
        *,
        key: Text | None = None,
        headers: TextHeaders | None = None,
        event_time: datetime | None = None,
        event_time_us: int | None = None,
    ) -> SyncSubmission:
        """Submits a record like `submit`, but raises `Overloaded` if there is no room now."""
        if event_time is not None:
            event_time_us = event_time_us_of(event_time, event_time_us)
        accumulator = self._accumulator
        with self._lock:
            index = accumulator.add(value, key, headers, event_time_us)
            batch = accumulator.newest
            wakes = not index and not self._is_pumping
            if wakes:
                self._is_pumping = True
        if wakes:
            self._thread.soon(self._pump)
        return SyncSubmission(batch, index)

    def flush(self) -> None:
        """Waits until all submitted records are durable. Raises the error that ended the writer."""
        with self._lock:
            last = self._accumulator.last
        if last is not None:
            wait_for(last, None)
        self._raise_failure()

    def close(self) -> None:
        """Refuses later submits, and waits like `flush`. Raises the error that ended the writer,
        with the number of records whose outcome is unknown, unless the caller has seen it before.
        Idempotent.
        """
        try:
            with self._lock:
                self._accumulator.refuse_more()
                last = self._accumulator.last
            if last is not None:
                wait_for(last, None)
        finally:
            if self._thread.is_alive:
                self._thread.call(self.end)
        if (loss := self.take_loss()) is not None:
            raise loss.error()

    async def drain(self) -> None:
        """Refuses later submits, and waits until the outcomes of all others are known. Runs on the
        client's thread."""
        with self._lock:
            self._accumulator.refuse_more()
            last = self._accumulator.last
        if last is not None:
            await last.settled()

    def take_loss(self) -> UnackedRecords | None:
        """Returns records that were neither acknowledged nor reported to the caller; each record is
        returned once."""
        with self._lock:
            return take_loss(self._name, self._accumulator)

    def warn_of_pending(self) -> None:
        """Logs pending records, because a cancelled caller would not learn of them."""
        with self._lock:
            pending = self._accumulator.pending
        on_ended(self._name, pending)

    def end(self) -> None:
        """Ends the writer at once; runs on the client's thread."""
        self._pipeline.close(ClientClosed("the writer was closed"))
        self._on_closed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Also sends the records that were submitted before an exception, and then raises that
        exception."""
        try:
            self.close()
        except RollbookError as unacked:
            if error is None:
                raise
            attach(unacked, error)

    # --- The pipeline's source, on the client's thread ------------------------------------------

    def take(self, *, only_full: bool) -> Batch | None:
        """Returns the next batch to send; None if there is none yet."""
        with self._lock:
            return self._accumulator.take(only_full=only_full)

    def on_settled(self, batch: Batch) -> None:
        """Handles a batch whose outcome is known."""
        with self._has_changed:
            self._accumulator.settle(batch)
            self._has_changed.notify_all()

    def on_stopped(self, error: RollbookError) -> None:
        """Ends the writer, which then sends nothing more."""
        with self._has_changed:
            for batch in self._accumulator.stop(error):
                batch.settle(None, again(error, Outcome.NOT_APPLIED))
                self._accumulator.settle(batch)
            self._has_changed.notify_all()

    def _pump(self) -> None:
        with self._lock:
            self._is_pumping = False
        self._pipeline.pump()

    def _wait_for_room(self) -> None:
        """Waits for room. The wait is bounded, because every batch in the window has a deadline."""
        require_own_process()
        with self._has_changed:
            self._has_changed.wait_for(
                lambda: self._accumulator.has_room or self._accumulator.failure is not None
            )

    def _raise_failure(self) -> None:
        if (failure := self._accumulator.failure) is not None:
            self._accumulator.is_noticed = True
            raise again(failure, failure.outcome)

    def _now(self) -> float:
        """Returns the event loop's time."""
        return self._clock.monotonic_ns() / 1e9
