"""References for `bench spark`: a source of generated Arrow batches, and a sink that only reads the
clock.

Spark's workers import it.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rollbook.api.spark.source_schema import schema_of

COLUMNS: Final = ("log", "offset", "timestamp", "key", "value")
PARTITIONS: Final = 2
BATCHES: Final = 3  # Of a stream.
_BLOCK_BYTES: Final = 1024 * 1024


def batches(schema: StructType, rows: int, size: int) -> Iterator["pa.RecordBatch"]:
    """Batches of 1 MiB, like blocks of logs, which reuse the same buffers."""
    count = max(min(_BLOCK_BYTES // size, 10_000), 1)
    arrays: dict[str, Any] = {
        "log": pa.array(["default/generated"] * count, pa.string()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([1_700_000_000_000_000] * count, pa.timestamp("us", tz="UTC")),
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array([bytes(size)] * count, pa.binary()),
    }
    wanted = to_arrow_schema(schema, timezone="UTC")
    batch = pa.RecordBatch.from_arrays([arrays[name] for name in wanted.names], schema=wanted)
    for first in range(0, rows, count):
        yield batch.slice(0, min(count, rows - first))


class _MicroBatch(DataSourceReader):
    def __init__(self, schema: StructType, rows: int, size: int) -> None:
        self._schema, self._rows, self._size = schema, rows, size

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // PARTITIONS)] * PARTITIONS

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return batches(self._schema, partition.value, self._size)


class _Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, schema: StructType, rows: int, size: int) -> None:
        self._schema, self._rows, self._size = schema, rows, size

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's names.
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"batch": min(start["batch"] + 1, BATCHES)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Does nothing: the amount of data is constant."""

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        return {"batch": BATCHES}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(self._rows // BATCHES // PARTITIONS)] * PARTITIONS

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return batches(self._schema, partition.value, self._size)


class Generated(DataSource):
    """A source of `rows` rows of `size` bytes."""

    @classmethod
    def name(cls) -> str:
        return "generated"

    def schema(self) -> StructType:
        return schema_of(COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _MicroBatch(schema, *self._sizes())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _Stream(schema, *self._sizes())

    def _sizes(self) -> tuple[int, int]:
        options: Mapping[str, str] = self.options
        return int(options["rows"]), int(options["size"])


class _Clock(DataSourceStreamArrowWriter):
    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        for batch in iterator:
            now_us = time.time_ns() // 1000
            column = batch.column(batch.schema.get_field_index("timestamp"))
            waited = [now_us - each.value for each in column]
            with open(self._path, "a") as file:
                file.writelines(f"{each}\n" for each in waited)
        return WriterCommitMessage()

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Does nothing: the sink stores nothing."""

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Does nothing: the sink stores nothing."""


class Clock(DataSource):
    """A sink that writes each record's age in µs as a line to the file `path`."""

    @classmethod
    def name(cls) -> str:
        return "clock"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return _Clock(self.options["path"])
