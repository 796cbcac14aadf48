"""Reads logs as a stream of micro-batches, whose ends Spark keeps in its checkpoint."""

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rollbook.api.spark.batch import TaskPartition, planned, read_task
from rollbook.api.spark.core.options import SourceOptions, StartPositions
from rollbook.api.spark.core.plan import Span, next_ends
from rollbook.api.spark.core.stream_offsets import (
    BatchEnd,
    Point,
    Points,
    TailPoint,
    begin,
    ends_of,
    idle_wait_s,
    initial,
    moved,
    unpack,
)
from rollbook.api.spark.failures import shown_in_spark
from rollbook.logservice.position_syntax import Latest
from rollbook.proto.errors import RollbookError

if TYPE_CHECKING:
    from rollbook.api.spark.log_bounds import Logs
    from rollbook.api.spark.shared_client import ServerChannel
    from rollbook.api.spark.tails import SelectionTails

_logger: Final = logging.getLogger("rollbook.spark")
_CURSOR_S: Final = 10.0  # The minimum seconds between two moves of a log's cursor.


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream. The source's process has one reader for each query; tasks get a copy that has
    only the options.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._live: _Live | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's names, here and below.
        starting = self._options.starting
        return initial(str(starting or "latest"))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Returns one limit, which Spark passes back to `latestOffset`. The options allow two limits at once, which
        Spark cannot express, so `latestOffset` applies the options.
        """
        options = self._options
        if options.rows_max:
            return ReadMaxRows(options.rows_max)
        if options.bytes_max:
            return ReadMaxBytes(options.bytes_max)
        return ReadMinRows(options.rows_min) if options.rows_min else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with shown_in_spark():
            self._alive().freeze()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with shown_in_spark():
            is_limited = not isinstance(limit, ReadAllAvailable)
            return self._alive().next_end(start, is_limited=is_limited)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._live.report() if self._live else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with shown_in_spark():
            live = self._alive()
            found = live.unpacked(end)
            if start == end or found is None:
                return []
            return [TaskPartition(task) for task in live.tasks(found)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        spans = partition.spans if isinstance(partition, TaskPartition) else ()
        options = self._options
        return read_task(options.access, self._schema, spans, options.fails_on_data_loss)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.cursor:
            self._alive().move_cursors(end)

    def stop(self) -> None:
        """Does nothing, since Spark does not call this in all cases."""

    def _alive(self) -> "_Live":
        if self._live is None:
            from rollbook.api.spark.log_bounds import Logs
            from rollbook.api.spark.shared_client import channel_of
            from rollbook.api.spark.tails import SelectionTails

            channel = channel_of(self._options.access)
            tails = SelectionTails(channel, self._options.selection)
            self._live = _Live(self._options, channel, Logs(channel), tails)
        return self._live


class _Live:
    """The state that the source keeps between batches. It does not have to survive a restart."""

    def __init__(
        self,
        options: SourceOptions,
        channel: "ServerChannel",
        logs: "Logs",
        tails: "SelectionTails",
    ) -> None:
        self._options, self._channel, self._logs, self._tails = options, channel, logs, tails
        # The tails at which a query with AvailableNow ends.
        self._frozen: dict[str, TailPoint] | None = None
        self._seen: Mapping[str, TailPoint] = {}
        self._last: tuple[dict[str, Any], BatchEnd] | None = (
            None  # The end that was packed or unpacked last.
        )
        self._starts: Points | None = None  # The start of the first batch, once it is resolved.
        self._triggered_s = time.monotonic()
        self._moved_s: dict[str, float] = {}

    def freeze(self) -> None:
        self._frozen = self._tails.ask()

    def report(self) -> dict[str, Any]:
        """Reports logs with records beyond the last end."""
        known = self._last[1].ends if self._last else {}
        tails = {name: self._seen[name] for name in moved(known, self._seen) if name in self._seen}
        points = {name: Point(tail.uid, tail.tail) for name, tail in tails.items()}
        return BatchEnd({}, points).packed()

    def next_end(self, start: dict[str, Any], *, is_limited: bool) -> dict[str, Any]:
        previous = self.unpacked(start)
        if previous is None:
            return self._first_end(is_limited)
        known = previous.ends
        if self._frozen is not None:
            tails: Mapping[str, TailPoint] = self._frozen
        else:
            tails = self._tails.wait(known, self._wait_s(len(known)))
        self._seen = tails
        names = moved(known, tails)
        if not names:
            return start
        beginning = begin(
            {name: known[name] for name in names if name in known},
            {name: tails[name] for name in names if name in tails},
        )
        for loss in beginning.losses:
            if self._options.fails_on_data_loss:
                raise loss
            _logger.warning("records_skipped: %s", loss)
        starts = beginning.starts
        ends = {**known, **self._ends(starts, tails, is_limited, is_first=False)}
        for name in names:
            if name not in starts:
                del ends[name]
        if ends == known:
            return start
        self._triggered_s = time.monotonic()
        return self._packed(BatchEnd.of(starts, ends))

    def _wait_s(self, logs: int) -> float:
        given = self._options.poll_wait_s
        return idle_wait_s(logs) if given is None else given

    def unpacked(self, offset: dict[str, Any]) -> BatchEnd | None:
        """Unpacks an offset. The last one is cached, since unpacking thousands of logs is slow, and Spark
        usually passes that offset.
        """
        if self._last is None or self._last[0] != offset:
            found = unpack(offset)
            if found is None:
                return None
            self._last = offset, found
        return self._last[1]

    def _packed(self, end: BatchEnd) -> dict[str, Any]:
        self._last = end.packed(), end
        return self._last[0]

    def _first_end(self, is_limited: bool) -> dict[str, Any]:
        """Returns the first end without waiting. The returned offset also has the start of each log that the batch
        reads, so that the checkpoint has these starts (SK1).
        """
        from rollbook.api.spark.log_bounds import require_some

        tails = self._frozen if self._frozen is not None else self._tails.ask()
        self._seen = tails
        options = self._options
        if self._starts is None:
            require_some(options.selection, tails)
            starts = self._logs.places(
                options.starting or StartPositions(Latest()),
                tails,
                finds_latest=options.finds_latest,
                is_strict=options.fails_on_data_loss,
            )
            self._starts = {name: Point(tail.uid, starts[name]) for name, tail in tails.items()}
        ends = self._ends(self._starts, tails, is_limited, is_first=True)
        return self._packed(BatchEnd.of(self._starts, ends))

    def _ends(
        self, starts: Points, tails: Mapping[str, TailPoint], is_limited: bool, *, is_first: bool
    ) -> dict[str, Point]:
        options = self._options
        first = {name: point.next for name, point in starts.items()}
        last = {name: tails[name].tail for name in starts}
        backlogs = {name: last[name] - at for name, at in first.items()}
        behind = [name for name, backlog in backlogs.items() if backlog > 0]
        if is_limited and options.rows_min and self._frozen is None and not is_first:
            waited_s = time.monotonic() - self._triggered_s
            is_little = sum(backlogs[name] for name in behind) < options.rows_min
            if is_little and waited_s < options.delay_s_max:
                # There are new records, so `wait` returned at once, and Spark asks again after 10 ms: wait here.
                time.sleep(min(self._wait_s(len(starts)), options.delay_s_max - waited_s))
                return dict(starts)
        bytes_max = options.bytes_max if is_limited else 0
        ends = next_ends(
            first,
            last,
            rows_max=options.rows_max if is_limited else 0,
            bytes_max=bytes_max,
            record_bytes=self._logs.record_bytes(behind) if bytes_max else None,
        )
        return ends_of(starts, ends)

    def tasks(self, end: BatchEnd) -> list[tuple[Span, ...]]:
        spans = [
            Span(name, point.uid, point.next, end.ends[name].next)
            for name, point in end.starts.items()
            if name in end.ends and end.ends[name].next > point.next
        ]
        return planned(self._options, spans, self._logs)

    def move_cursors(self, end: dict[str, Any]) -> None:
        """Moves the cursors to the end of a batch that was read. A failure to move one does not end the
        query.
        """
        found = self.unpacked(end)
        now_s, options = time.monotonic(), self._options
        for name, point in (found.ends if found else {}).items():
            moved_s = self._moved_s.get(name)
            if moved_s is not None and now_s - moved_s < _CURSOR_S:
                continue
            self._moved_s[name] = now_s
            try:
                self._move(name, point, is_protected=options.is_protected)
            except RollbookError as error:
                _logger.warning("cursor_not_moved: %s of %s: %s", options.cursor, name, error)

    def _move(self, name: str, point: Point, *, is_protected: bool) -> None:
        from rollbook.logservice import messages
        from rollbook.logservice.ids import CursorName, LogName, Offset

        request = messages.CommitCursor(
            LogName.parse(name),
            CursorName(self._options.cursor),
            Offset(point.next),
            is_protected=is_protected or None,
            may_rewind=True,
            uid=point.uid,
        )
        self._channel.client.ask(request, timeout_s=1.0)
