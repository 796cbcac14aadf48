"""Calls the data source as Spark does, step by step and pickled in between, without a JVM."""

import json
import pickle
import time
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from rollbook.api.spark import exactly_once_append
from rollbook.api.spark.failures import RollbookFailure
from rollbook.api.spark.source import RollbookSource

PATIENCE_S: Final = 30.0


def copied(what: Any) -> Any:
    """Pickles and unpickles, as on the way to another process."""
    return pickle.loads(pickle.dumps(what))


class Loaded:
    """`spark.read.format("rollbook").options(…).load()`."""

    def __init__(self, schema: StructType | None = None, **options: str) -> None:
        source = RollbookSource({name.lower(): value for name, value in options.items()})
        self.schema = schema or source.schema()
        self.source: RollbookSource = copied(source)

    def partitions(self) -> list[Any]:
        return list(copied(self.source).reader(schema=self.schema).partitions())

    def batches(self) -> list["pa.RecordBatch"]:
        return read(copied(self.source).reader(schema=self.schema), self.partitions())

    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches() for row in batch.to_pylist()]


def read(reader: Any, partitions: list[Any]) -> list["pa.RecordBatch"]:
    """Reads all partitions and checks each batch's schema; Spark's tasks check only the first."""
    found = [batch for partition in copied(partitions) for batch in copied(reader).read(partition)]
    wanted = to_arrow_schema(reader._schema, timezone="UTC")
    for batch in found:
        assert batch.schema.equals(wanted), (batch.schema, wanted)
        batch.validate(full=True)
    return found


class Query:
    """A streaming query with its checkpoint; uses a source as Spark's micro-batches do."""

    def __init__(self, **options: str) -> None:
        self.offsets: list[str] = []
        self.commits = 0
        self._loaded = Loaded(**options)
        self.restart()

    def restart(self) -> None:
        """Starts the source in a new process, as it were."""
        self.reader = copied(self._loaded.source).streamReader(schema=self._loaded.schema)

    def plan(self) -> bool:
        """Writes a batch to the checkpoint; returns False if there are no new records."""
        if len(self.offsets) > self.commits:
            return True  # The batch is planned already and is run again.
        start = self._start(len(self.offsets))
        limit = self.reader.getDefaultReadLimit() or ReadAllAvailable()
        end = json.dumps(self.reader.latestOffset(json.loads(start), limit))
        self.reader.reportLatestOffset()
        if end == start:
            return False
        self.offsets.append(end)
        return True

    def _start(self, batch: int) -> str:
        return self.offsets[batch - 1] if batch else json.dumps(self.reader.initialOffset())

    def run(self) -> list[dict[str, Any]]:
        """Returns the rows of the planned batch and does not commit it."""
        batch = len(self.offsets) - 1
        start, end = json.loads(self._start(batch)), json.loads(self.offsets[batch])
        partitions = self.reader.partitions(start, end)
        tasks = copied(self._loaded.source).streamReader(schema=self._loaded.schema)
        return [row for each in read(tasks, partitions) for row in each.to_pylist()]

    def commit(self) -> None:
        self.commits = len(self.offsets)
        self.reader.commit(json.loads(self.offsets[-1]))

    def batches(self, at_most: int = 1000) -> Iterator[list[dict[str, Any]]]:
        """Runs batches one after the other until there are no new records."""
        for _ in range(at_most):
            if not self.plan():
                return
            rows = self.run()
            self.commit()
            yield rows

    def rows(self, least: int = 0) -> list[dict[str, Any]]:
        """Runs batches until there are `least` rows and nothing new; servers send news late."""
        due_s = time.monotonic() + PATIENCE_S
        found = [row for batch in self.batches() for row in batch]
        while len(found) < least:
            assert time.monotonic() < due_s, f"{len(found)} rows have come"
            found += [row for batch in self.batches() for row in batch]
        return found

    def failure(self) -> str:
        """Runs batches until one fails; returns the message of the failure."""
        due_s = time.monotonic() + PATIENCE_S
        try:
            while time.monotonic() < due_s:
                self.rows()
        except RollbookFailure as failure:
            return str(failure)
        raise AssertionError("nothing has ended it")


class Sink:
    """`df.writeStream.format("rollbook")`: each batch has a writer of its own."""

    def __init__(self, schema: StructType, **options: str) -> None:
        self._schema = schema
        source = RollbookSource({name.lower(): value for name, value in options.items()})
        self._source: RollbookSource = copied(source)
        self.writer()

    def writer(self) -> Any:
        return copied(self._source).streamWriter(schema=self._schema, overwrite=False)

    def write(self, *partitions: list[dict[str, Any]]) -> list[Any]:
        """Runs a task for each partition, whose rows arrive in two Arrow batches."""
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        messages = []
        for rows in partitions:
            half = len(rows) // 2
            parts = [part for part in (rows[:half], rows[half:]) if part]
            batches = [pa.RecordBatch.from_pylist(part, schema=wanted) for part in parts]
            messages.append(copied(self.writer().write(iter(batches))))
        return messages

    def commit(self, messages: list[Any], batch: int) -> None:
        self.writer().commit(messages, batch)

    def run(self, batch: int, *partitions: list[dict[str, Any]]) -> None:
        self.commit(self.write(*partitions), batch)


def write_batch(schema: StructType, rows: list[dict[str, Any]], **options: str) -> None:
    """`df.write.format("rollbook").mode("append")` with one task."""
    source = RollbookSource({name.lower(): value for name, value in options.items()})
    writer = source.writer(schema=schema, overwrite=False)
    batch = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(schema, timezone="UTC"))
    copied(writer).commit([copied(writer).write(iter([batch]))])


def forget_process() -> None:
    """Makes this process look like one that has committed nothing yet."""
    exactly_once_append._whole.clear()
