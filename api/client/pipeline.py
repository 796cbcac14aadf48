"""Sends the batches of one writer: in order, exactly once, several at a time.

- Each batch has the producer's next sequence number, and keeps it however often it is sent: the log
  recognises batches that it has, and accepts none out of order.
- The first batch to a server is sent alone; once it is acked, more batches follow, up to the
  window.
- When the log has forgotten the producer, the batches in flight are numbered as a new epoch
  (`producer_numbering.py`), unless the outcome of one is unknown.
- After a temporary failure of a batch, this batch and all later ones in flight are sent again.
  `core/retries_and_outcomes.py` decides when a batch's outcome is then unknown, and when the writer ends
  instead.
- A batch that fails permanently, or misses its deadline, ends the writer: later records are
  refused, too, so that no record is appended without its predecessor.

The pipeline has no tasks: results, timers and calls drive it.
"""

import asyncio
from collections import deque
from functools import partial
from typing import Protocol

from rollbook.api.client.append_stream import AppendStreamPool, ClientAppendStream
from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.core.retries_and_outcomes import (
    AfterError,
    after_error,
    again,
    note_failure,
    outcome_at_end,
    outlives_memory,
    results_at_end,
)
from rollbook.api.client.owner_cache import OwnerCache
from rollbook.api.client.producer_batch import Batch
from rollbook.api.client.producer_numbering import Producer
from rollbook.api.client.retry_pauses import Pauses
from rollbook.logservice.core.record_block import Codec
from rollbook.logservice.ids import LogName
from rollbook.logservice.messages import AppendAck, Condition
from rollbook.proto.errors import BadFrame, InvalidRequest, QuorumTimeout, RollbookError


class Source(Protocol):
    """Provides the pipeline with batches."""

    def take(self, *, only_full: bool) -> Batch | None:
        """Returns the oldest batch, to which no more records are added; None if there is none."""

    def on_settled(self, batch: Batch) -> None: ...

    def on_stopped(self, error: RollbookError) -> None:
        """Fails the records that the pipeline has not taken. The error's outcome is that of the
        records that it has taken."""


class AppendPipeline:
    def __init__(
        self,
        log: LogName,
        source: Source,
        streams: AppendStreamPool,
        owners: OwnerCache,
        config: LogClientConfig,
        *,
        memory_s: float,
        condition: Condition | None,
        uid: str = "",
        producer: Producer | None = None,
    ) -> None:
        self.failure: RollbookError | None = None
        self._log, self._uid = log, uid
        self._source = source
        self._streams = streams
        self._owners = owners
        self._config, self._memory_s = config, memory_s
        self._codec = Codec.ZSTD if config.compresses else Codec.NONE
        self.producer = producer or Producer()
        self._condition = condition
        self._loop = asyncio.get_running_loop()
        self._pauses = Pauses(config)
        self._flight: deque[Batch] = deque()  # Batches in flight, in order.
        self._flight_bytes = 0
        self._sent = 0  # How many of the oldest batches in flight were sent to the server.
        self._stream: ClientAppendStream | None = None
        self._ref = 0
        self._is_proven = False  # Whether this stream has acked a batch.
        self._generation = 0  # The connection's number; results of older connections are ignored.
        # A refused batch, kept until all earlier batches have results.
        self._refused: tuple[Batch, RollbookError] | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._last_error: RollbookError | None = None
        self._watchdog: asyncio.TimerHandle | None = None

    def pump(self) -> None:
        """Sends all batches that may be sent now."""
        if self.failure is not None or self._pause is not None or self._refused is not None:
            return
        if self._stream is not None and self._stream.failure is not None:
            self._leave_stream()  # The stream broke while no batch of this log was on it.
        if self._stream is None and self._flight:
            self._open_stream()
        while self._sent < len(self._flight) and (self._is_proven or not self._sent):
            self._send(self._flight[self._sent])
        while self._is_proven or not self._flight:
            if len(self._flight) >= self._config.window_batches:
                break
            if self._flight_bytes >= self._config.window_bytes:
                break
            batch = self._source.take(only_full=bool(self._flight))
            if batch is None or not self._take_on(batch):
                break
            if self._stream is None:
                self._open_stream()
            self._send(batch)

    def close(self, error: RollbookError) -> None:
        """Fails the batches in flight with `error`."""
        self._stop(error, is_refusal=False)

    def _take_on(self, batch: Batch) -> bool:
        self._flight.append(batch)
        try:
            batch.pack(self.producer.next_ref, self._codec)
        except Exception as error:  # noqa: BLE001  # Any error must fail the batch, or its submitter hangs.
            self._stop(InvalidRequest(f"a batch cannot be packed: {error!r}"), is_refusal=False)
            return False
        self.producer.advance()
        self._flight_bytes += batch.size
        if self._watchdog is None:
            self._watch(self._loop.time() + self._config.attempt_s, batch.due)
        return True

    # --- Sending ------------------------------------------------------------------------------

    def _open_stream(self) -> None:
        self._stream = self._streams.to(self._owners.address_of(self._log))
        self._ref = self._stream.bind(self._log, is_ordered=True, uid=self._uid)
        self._is_proven = False
        self._sent = 0

    def _send(self, batch: Batch) -> None:
        assert self._stream is not None
        self._sent += 1
        batch.sent_at = self._loop.time()
        batch.first_sent_at = batch.first_sent_at or batch.sent_at
        on_result = partial(self._on_result, self._generation, batch)
        self._stream.submit(self._ref, batch.block, self._condition, on_result)

    def _leave_stream(self) -> list[Batch]:
        """Leaves the stream. Notes that the server may have received the oldest batches in flight."""
        stream, self._stream = self._stream, None
        sent, self._sent = self._sent, 0
        self._generation += 1
        self._refused = None
        if stream is not None and stream.failure is None:
            sent -= stream.unbind(self._ref)
        return list(self._flight)[:sent]

    # --- Results ------------------------------------------------------------------------------

    def _on_result(
        self, generation: int, batch: Batch, ack: AppendAck | None, error: RollbookError | None
    ) -> None:
        if generation != self._generation or self.failure is not None:
            return
        if ack is not None:
            self._on_ack(batch, ack)
        elif batch is self._flight[0]:
            assert error is not None
            self._on_error(error)
        elif self._refused is None:
            assert error is not None
            self._refused = batch, error

    def _on_ack(self, batch: Batch, ack: AppendAck) -> None:
        assert self._stream is not None
        if batch is not self._flight[0]:
            raise BadFrame("the server sent results of one log out of order")
        self._flight.popleft()
        self._flight_bytes -= batch.size
        self._sent -= 1
        if not self._is_proven:
            self._is_proven = True
            self._pauses.reset()
            self._owners.learn(self._log, self._stream.address, ack.owner_epoch)
        batch.settle(ack, None)
        self._source.on_settled(batch)
        if self._refused and self._refused[0] is self._flight[0]:
            self._on_error(self._refused[1])
        else:
            self.pump()

    def _on_error(self, error: RollbookError) -> None:
        """Handles an error of the oldest batch in flight."""
        assert self._stream is not None
        address = self._stream.address
        self._last_error = error
        match after_error(error, self._flight, is_named=bool(self.producer.name)):
            case AfterError.BEGIN_EPOCH:
                self._begin_epoch()
                return
            case AfterError.END:
                self._stop(self.producer.explained(error), is_refusal=True)
                return
            case AfterError.RETRY:
                pass
        is_known = self._owners.on_error(self._log, address, error)
        note_failure(error, self._leave_stream())
        pause_s = self._pauses.next_s(error, is_known=is_known)
        if outlives_memory(self._flight[0], self._loop.time() + pause_s, self._memory_s):
            self._stop(error, is_refusal=False)
            return
        self._pause = self._loop.call_later(pause_s, self._go_again)

    def _begin_epoch(self) -> None:
        """Sends the batches in flight again, from the oldest on, because the server has accepted
        none of them."""
        self._leave_stream()
        self.producer.begin_epoch()
        for batch in self._flight:
            batch.renumber(self.producer.next_ref)
            self.producer.advance()
        self.pump()

    def _go_again(self) -> None:
        self._pause = None
        self.pump()

    # --- Time ---------------------------------------------------------------------------------

    def _watch(self, *times: float) -> None:
        self._watchdog = self._loop.call_at(min(times), self._look)

    def _look(self) -> None:
        self._watchdog = None
        if not self._flight:
            return
        now, oldest = self._loop.time(), self._flight[0]
        if oldest.due <= now:
            why = f"; the last attempt: {self._last_error}" if self._last_error else ""
            late = QuorumTimeout(f"not acked within {self._config.timeout_s:g} s{why}")
            late.__cause__ = self._last_error
            self._owners.outages.explained(late)
            self._stop(late, is_refusal=False)
            return
        self._owners.outages.look()
        silent_at = oldest.sent_at + self._config.attempt_s
        if self._sent and silent_at <= now:
            self._on_error(
                QuorumTimeout(f"no answer from the log server within {self._config.attempt_s:g} s")
            )
            silent_at = now + self._config.attempt_s
        self._watch(oldest.due, max(silent_at, now + self._config.attempt_s / 4))

    # --- The end ------------------------------------------------------------------------------

    def _stop(self, error: RollbookError, *, is_refusal: bool) -> None:
        """Ends the writer. After a refusal, the server has accepted nothing that was sent later."""
        if self.failure is not None:
            return
        self.failure = error
        left = self._leave_stream()
        for each in () if is_refusal else left:
            each.may_be_applied = True
        for timer in (self._pause, self._watchdog):
            if timer is not None:
                timer.cancel()
        flight, self._flight = self._flight, deque()
        results = results_at_end(error, flight, is_refusal=is_refusal)
        for batch, result in zip(flight, results, strict=True):
            batch.settle(None, result)
            self._source.on_settled(batch)
        self._source.on_stopped(again(error, outcome_at_end(flight)))
