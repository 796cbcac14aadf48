"""Reads ranges of logs as a table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rollbook.api.spark.core.options import ServerAccess, SourceOptions, StartPositions
from rollbook.api.spark.core.plan import MeasuredSegment, Span, Task, split
from rollbook.api.spark.failures import shown_in_spark
from rollbook.logservice.position_syntax import Earliest

if TYPE_CHECKING:
    from rollbook.api.spark.log_bounds import Logs

_ASKED_FROM: Final = 1000  # Only spans of at least this many records are divided at segments.


@dataclass(frozen=True)
class TaskPartition(InputPartition):
    """The spans that one task reads."""

    spans: Task = ()

    def __init__(self, spans: Task) -> None:
        object.__setattr__(self, "spans", spans)
        object.__setattr__(self, "value", None)


def spans_of(options: SourceOptions) -> tuple[Span, ...]:
    """Resolves the start and the end of a batch read in each log, as the logs are now."""
    from rollbook.api.spark.log_bounds import Logs, require_some
    from rollbook.api.spark.shared_client import channel_of
    from rollbook.api.spark.tails import SelectionTails

    channel = channel_of(options.access)
    logs, view = Logs(channel), SelectionTails(channel, options.selection)
    try:
        tails = view.ask()
    finally:
        view.close()
    require_some(options.selection, tails)
    finds, strict = options.finds_latest, options.fails_on_data_loss
    starts = logs.places(
        options.starting or StartPositions(Earliest()), tails, finds_latest=finds, is_strict=strict
    )
    ends = logs.places(options.ending, tails, finds_latest=True, is_strict=False)
    return tuple(
        Span(log, tail.uid, starts[log], max(ends[log], starts[log])) for log, tail in tails.items()
    )


def planned(options: SourceOptions, spans: Sequence[Span], logs: "Logs") -> list[Task]:
    segments: dict[str, list[MeasuredSegment]] = {
        each.log: logs.segments_of(each.log)
        for each in spans
        if each.end - each.start >= _ASKED_FROM
    }
    return split(spans, segments, options.split)


def read_task(
    access: ServerAccess, schema: StructType, spans: Task, fails_on_data_loss: bool
) -> Iterator["pa.RecordBatch"]:
    """Yields exactly the records of the spans, as Arrow batches. The function runs in a worker."""
    from rollbook.api.spark.arrow import Batches
    from rollbook.api.spark.fetch import slices_of
    from rollbook.api.spark.shared_client import channel_of

    batches = Batches(to_arrow_schema(schema, timezone="UTC"))
    with shown_in_spark():
        for part in slices_of(channel_of(access), spans, fails_on_data_loss):
            yield from batches.add(part)
        yield from batches.flush()


class BatchReader(DataSourceReader):
    """The reader of a batch read. `spans` are the ranges that `load()` has fixed. None: the ranges are resolved when
    they are needed.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, spans: tuple[Span, ...] | None
    ) -> None:
        self._options, self._schema, self._spans = options, schema, spans

    def partitions(self) -> list[InputPartition]:
        from rollbook.api.spark.log_bounds import Logs
        from rollbook.api.spark.shared_client import channel_of

        with shown_in_spark():
            spans = spans_of(self._options) if self._spans is None else self._spans
            logs = Logs(channel_of(self._options.access))
            return [TaskPartition(task) for task in planned(self._options, spans, logs)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Reads the spans of a partition. If there is nothing to read, Spark makes a partition without spans."""
        spans = partition.spans if isinstance(partition, TaskPartition) else ()
        options = self._options
        return read_task(options.access, self._schema, spans, options.fails_on_data_loss)
