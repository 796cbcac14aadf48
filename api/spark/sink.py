"""Writes rows to logs: tasks prepare the columns, and the driver appends them when Spark commits the batch.

A task may run twice, concurrently or after a failure, so it appends nothing; its result is appended if Spark
accepts it. Spark may call `abort` even after a successful commit, so `abort` undoes nothing.
"""

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rollbook.api.spark.core.options import SinkOptions
from rollbook.api.spark.exactly_once_append import LogSink, MicroBatch
from rollbook.api.spark.failures import shown_in_spark
from rollbook.api.spark.rows_to_blocks import (
    SCHEMA,
    ArrowRows,
    by_log,
    check_columns,
    sorted_by_bytes,
)
from rollbook.api.spark.shared_client import channel_of
from rollbook.logservice.core.record_block import Codec
from rollbook.proto.errors import BadConfig, EntryTooLarge, InvalidRequest

_logger: Final = logging.getLogger("rollbook.spark")
# Internal names of Spark. The tests in tests/spark/test_session.py check that they exist.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class TaskRows(WriterCommitMessage):
    """The rows of one task, as one Arrow stream for each log."""

    query: str
    batch: int
    partition: int
    rows: tuple[tuple[str, bytes], ...]

    @property
    def size(self) -> int:
        return sum(len(data) for _, data in self.rows)


def check(options: SinkOptions, schema: StructType, overwrite: bool) -> None:
    """Raises `BadConfig`."""
    if overwrite:
        raise BadConfig(
            "a log cannot be overwritten: records can only be appended",
            next_step="write with mode append; rollbook log truncate removes old records",
        )
    check_columns(schema, options.log)


def _written(options: SinkOptions, batches: Iterator["pa.RecordBatch"]) -> TaskRows:
    """Collects the rows of a task. This runs in the task."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    query = (context.getLocalProperty(_QUERY) if context else None) or ""
    batch = (context.getLocalProperty(_BATCH) if context else None) or "-1"
    partition = context.partitionId() if context else 0
    gathered: dict[str, list[Any]] = {}
    size = 0
    for each in batches:
        for log, table in by_log(each, options.log):
            if options.commits_in_tasks:
                _append_now(options, log, ArrowRows.of([table]))
                continue
            gathered.setdefault(log, []).append(table)
            size += table.nbytes
            _check_size(options, size)
    if options.commits_in_tasks:
        return TaskRows(query, int(batch), partition, ())
    rows = []
    for log, tables in sorted(gathered.items()):
        table = pa.concat_tables(tables)
        rows.append((log, _packed(sorted_by_bytes(table) if options.sorts_rows else table)))
    return TaskRows(query, int(batch), partition, tuple(rows))


def _packed(table: "pa.Table") -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _check_size(options: SinkOptions, size: int) -> None:
    if size > options.batch_bytes_max:
        raise EntryTooLarge(
            f"this batch has more than maxBatchBytes={options.batch_bytes_max}, but all of it goes through the driver",
            next_step="read less for each batch (maxBytesPerTrigger), raise maxBatchBytes, or set commit=task, which "
            "writes at least once",
        )


def _append_now(options: SinkOptions, log: str, rows: ArrowRows) -> None:
    batch = MicroBatch(f"task-{os.urandom(8).hex()}", 0, is_recorded=False)
    LogSink(channel_of(options.access), log, batch, _codec_of(options)).append(rows)


def _codec_of(options: SinkOptions) -> Codec:
    return Codec.ZSTD if options.compresses else Codec.NONE


def _commit(options: SinkOptions, messages: Sequence[Any], batch: MicroBatch) -> None:
    """Appends the rows of all tasks. This runs on the driver."""
    task_rows = [each for each in messages if isinstance(each, TaskRows)]
    _check_size(options, sum(each.size for each in task_rows))
    gathered: dict[str, list[Any]] = {}
    for message in task_rows:  # The messages are in the order of partitions.
        for log, data in message.rows:
            gathered.setdefault(log, []).append(pa.ipc.open_stream(data).read_all())
    channel = channel_of(options.access)
    for log, tables in sorted(gathered.items()):
        rows = ArrowRows.of(tables)
        if len(rows):
            LogSink(channel, log, batch, _codec_of(options)).append(rows)


class StreamSink(DataSourceStreamArrowWriter):
    """A sink with exactly-once appends: it recognises a repeated batch by its blocks in the log."""

    def __init__(self, options: SinkOptions, schema: StructType, checkpoint: str) -> None:
        self._options, self._schema, self._checkpoint = options, schema, checkpoint

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        with shown_in_spark():
            return _written(self._options, iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  # Spark's name.
        with shown_in_spark():
            queries = {each.query: None for each in messages if each is not None and each.query}
            if len(queries) > 1:
                raise InvalidRequest(f"tasks of {len(queries)} queries are committed together")
            batch = MicroBatch(next(iter(queries), "") or self._name(), batchId, is_recorded=True)
            _commit(self._options, messages, batch)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Does nothing: appended rows stay in the log, where they are found when the batch is written again."""
        _logger.warning("batch_aborted: %d", batchId)

    def _name(self) -> str:
        """Returns a name that is made from the checkpoint, for a query whose id Spark does not pass."""
        if not self._checkpoint:
            raise InvalidRequest(
                "neither a query id nor a checkpointLocation is known to this sink"
            )
        return f"at-{hashlib.sha256(self._checkpoint.encode()).hexdigest()[:32]}"


class BatchSink(DataSourceArrowWriter):
    """A sink that appends at least once, or exactly once with the option `txnId`."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        with shown_in_spark():
            return _written(self._options, iterator)

    def commit(self, messages: list[Any]) -> None:
        txn = self._options.txn_id
        name = f"txn-{txn}" if txn else f"once-{os.urandom(8).hex()}"
        with shown_in_spark():
            _commit(self._options, messages, MicroBatch(name, 0, is_recorded=bool(txn)))

    def abort(self, messages: list[Any]) -> None:
        """Does nothing: appended rows stay in the log."""
        _logger.warning("write_aborted")
