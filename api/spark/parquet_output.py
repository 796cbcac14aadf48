"""Writes the records of logs to the Parquet files of an archive, and yields the written rows to Spark.

A row of facts follows the records of each file. A failed task may leave a file behind; a manifest names only files in a
result that Spark has accepted.
"""

import io
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from rollbook.api.spark.archive_folder import unwritable
from rollbook.api.spark.arrow import Batches, Slice
from rollbook.api.spark.core.plan import Span
from rollbook.api.spark.fetch import slices_of
from rollbook.api.spark.scan_result_rows import RecordOrder, facts_row, record_rows
from rollbook.api.spark.shared_client import ServerChannel
from rollbook.api.spark.source_schema import schema_of
from rollbook.proto.errors import LogDataLoss

ARCHIVED: Final = ("offset", "timestamp", "key", "value", "event_time", "headers", "writer_epoch")
_DAY_US: Final = 86_400_000_000
_GROUP_BYTES: Final = 32 * 1024 * 1024  # The uncompressed size of a row group.
_GROUP_ROWS: Final = 1_000_000
_ZSTD_LEVEL: Final = 1
_RECORDS: Final = to_arrow_schema(schema_of(ARCHIVED), timezone="UTC")


class _Output:
    """A file that is being written. `close` yields the facts about its contents."""

    def __init__(self, folder: str, log: str, uid: str, part: Slice) -> None:
        self.piece = int.from_bytes(os.urandom(8), "big") >> 1
        self.log, self._uid = log, uid
        self.day = part.block.timestamp_us // _DAY_US
        self._path = os.path.join(folder, f"{self.piece:016x}")
        self._sequence = RecordOrder(part.block.base_offset + part.first)
        with unwritable():
            os.makedirs(folder, exist_ok=True)
            self._sink = _Checked(self._path)
        try:
            self._writer = self._begun()
        except BaseException:
            self._sink.drop()
            raise
        self._batches = Batches(_RECORDS)
        self._group: list[Any] = []
        self._bytes = self._count = 0

    def _begun(self) -> "pq.ParquetWriter":
        with unwritable():
            return pq.ParquetWriter(
                self._sink,
                _RECORDS,
                compression="zstd",
                compression_level=_ZSTD_LEVEL,
                use_dictionary=["timestamp", "writer_epoch"],
                write_statistics=["offset", "timestamp"],
            )

    def takes(self, log: str, part: Slice) -> bool:
        at = part.block.base_offset + part.first
        day = part.block.timestamp_us // _DAY_US
        return (log, self.day, self._sequence.next) == (self.log, day, at)

    def add(self, part: Slice) -> Iterator["pa.RecordBatch"]:
        if fault := self._sequence.fault(part):
            raise LogDataLoss(f"{self.log} is out of order: {fault}", log=self.log)
        for batch in self._batches.add(part):
            yield self._taken(batch)

    def close(self) -> Iterator["pa.RecordBatch"]:
        for batch in self._batches.flush():
            yield self._taken(batch)
        with unwritable():
            self._write_group()
            self._writer.close()
            self._sink.sync()
        sequence = self._sequence
        yield facts_row(
            self.piece,
            {
                "log": self.log,
                "uid": self._uid,
                "first": sequence.first,
                "next": sequence.next,
                "day": datetime.fromtimestamp(self.day * 86_400, UTC).date().isoformat(),
                "path": self._path,
                "bytes": self._sink.size,
                "crc": self._sink.crc,
                "first_us": sequence.first_us,
                "last_us": sequence.last_us,
            },
        )

    def drop(self) -> None:
        self._sink.drop()

    def _taken(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        self._group.append(batch)
        self._bytes += batch.nbytes
        self._count += batch.num_rows
        if self._bytes >= _GROUP_BYTES or self._count >= _GROUP_ROWS:
            with unwritable():
                self._write_group()
        return record_rows(self.piece, batch)

    def _write_group(self) -> None:
        if self._group:
            table = pa.Table.from_batches(self._group, schema=_RECORDS)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
            self._group, self._bytes, self._count = [], 0, 0


class _Checked(io.RawIOBase):
    """A new file, and the checksum of the bytes that were written to it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115
        self.size = self.crc = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        data = bytes(data)
        done = 0
        while done < len(data):
            done += self._file.write(data[done:])
        self.size += len(data)
        self.crc = google_crc32c.extend(self.crc, data)
        return len(data)

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()
        folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Does nothing, since pyarrow may call this before the file is synced. `sync` and `drop` close the file."""

    def drop(self) -> None:
        self._file.close()


def written(
    channel: ServerChannel, spans: Sequence[Span], folder: str
) -> Iterator["pa.RecordBatch"]:
    """Writes the records of the spans to files, one for each log and day. Raises `LogDataLoss`,
    `ArchiveUnwritable`.
    """
    uids = {span.log: span.uid for span in spans}
    output: _Output | None = None
    try:
        for part in slices_of(channel, spans, True):
            if output is not None and not output.takes(part.log, part):
                yield from output.close()
                output = None
            if output is None:
                output = _Output(folder, part.log, uids[part.log], part)
            yield from output.add(part)
        if output is not None:
            yield from output.close()
            output = None
    finally:
        if output is not None:
            output.drop()
