"""Reads the spans of a task. The loss of a record raises an error, or is logged if the options tolerate losses."""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Final

from rollbook.api.client.core.retries_and_outcomes import may_retry
from rollbook.api.client.reader import Event, EventReader, RecordBatch
from rollbook.api.spark.arrow import Slice
from rollbook.api.spark.core.plan import Span
from rollbook.api.spark.core.stream_offsets import (
    TOLERATE,
    Point,
    TailPoint,
    deleted,
    replaced,
    truncated,
)
from rollbook.api.spark.shared_client import ServerChannel
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.position_syntax import AtOffset
from rollbook.proto.errors import (
    LogDataLoss,
    LogDeleted,
    LogReplaced,
    NoSuchLog,
    ReaderStalled,
    RollbookError,
    Truncated,
)

_logger: Final = logging.getLogger("rollbook.spark")
# The maximum number of open spans: later ones are fetched while the first is read.
_AHEAD: Final = 4


class _Reading:
    """The reader of one span, which starts to fetch at once."""

    def __init__(self, channel: ServerChannel, span: Span, fails_on_data_loss: bool) -> None:
        self.span = span
        self.position = span.start
        self._channel = channel
        self._is_strict = fails_on_data_loss
        self._thread, client = channel.client.inside()
        on_truncated = (
            messages.OnTruncated.FAIL if fails_on_data_loss else messages.OnTruncated.SKIP
        )
        request = messages.ReadStream(
            LogName.parse(span.log),
            AtOffset(Offset(span.start)),
            until_offset=Offset(span.end),
            on_truncated=on_truncated,
            heartbeat_ms=round(client.config.heartbeat_s * 1000),
            uid=span.uid,
        )
        self._reader: EventReader = self._thread.call(
            lambda: EventReader(request, client.channels, client.owners, client.config)
        )
        self._ahead: Future[Event | None] = self._thread.submit(self._reader.next())

    def close(self) -> None:
        self._ahead.cancel()
        self._thread.start(self._reader.aclose)

    def slices(self) -> Iterator[Slice]:
        span = self.span
        try:
            while (event := self._next()) is not None:
                if isinstance(event, RecordBatch):
                    yield from _slices(span.log, event)
                    self.position = event.next_offset
                elif isinstance(event, messages.Gap):
                    self._on_gap(event)
        except (NoSuchLog, LogDeleted, LogReplaced, Truncated) as error:
            self._on_lost(self._named(error), span.end)
        finally:
            self.close()
        if self.position < span.end:
            lost = LogDataLoss(
                f"{span.log} ends at {self.position}, but this task reads up to {span.end}",
                next_step=TOLERATE,
                log=span.log,
            )
            self._on_lost(lost, span.end)

    def _next(self) -> Event | None:
        """Returns the next batch or gap, or None at the end. Raises `ReaderStalled` if none arrives within the
        time of the option `fetchTimeout`.
        """
        due_s = time.monotonic() + self._channel.access.fetch_timeout_s
        while True:
            try:
                event = self._ahead.result()
            except ReaderStalled as error:
                if time.monotonic() >= due_s or not may_retry(error):
                    raise
                self._ahead = self._thread.submit(self._reader.next())
                continue
            if event is not None:
                self._ahead = self._thread.submit(self._reader.next())
            if isinstance(event, RecordBatch | messages.Gap | None):
                return event

    def _on_gap(self, gap: messages.Gap) -> None:
        end = min(gap.end, self.span.end)
        if gap.kind is messages.GapKind.TRUNCATED:
            self._on_lost(truncated(self.span.log, gap.start, end, None), end)
        else:
            lost = LogDataLoss(
                f"no copy of records [{gap.start}, {end}) of {self.span.log} can be read",
                next_step=TOLERATE,
                log=self.span.log,
            )
            self._on_lost(lost, end)

    def _on_lost(self, error: RollbookError, end: int) -> None:
        if self._is_strict:
            raise error
        _logger.warning("records_skipped: %d: %s", end - self.position, error)
        self.position = max(self.position, end)

    def _named(self, error: RollbookError) -> RollbookError:
        """Returns the error with the log, the lost range, and the range that exists."""
        span, point = self.span, Point(self.span.uid, self.position)
        if isinstance(error, NoSuchLog | LogDeleted):
            return deleted(span.log, point)
        tail = TailPoint.of(self._channel.tail_of(LogName.parse(span.log)))
        if isinstance(error, LogReplaced):
            return replaced(span.log, point, tail)
        return truncated(
            span.log, self.position, min(max(tail.head, self.position), span.end), tail
        )


def _slices(log: str, batch: RecordBatch) -> Iterator[Slice]:
    for block in batch.blocks:
        base = block.base_offset
        first = max(batch.base_offset - base, 0)
        yield Slice(log, block, first, min(batch.next_offset, block.next_offset) - base)


def slices_of(
    channel: ServerChannel, spans: Sequence[Span], fails_on_data_loss: bool
) -> Iterator[Slice]:
    """Yields slices of all spans, in order. If the caller stops early, the streams are closed."""
    waiting = deque(spans)
    open_: deque[_Reading] = deque()
    try:
        while waiting or open_:
            while waiting and len(open_) < _AHEAD:
                open_.append(_Reading(channel, waiting.popleft(), fails_on_data_loss))
            yield from open_.popleft().slices()
    finally:
        for reading in open_:
            reading.close()
