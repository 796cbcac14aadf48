"""Reads pieces for pipelines, and counts and hashes their records. A piece is a range of a log or a file of an
archive.

Workers pass the offset and value of every record to Spark, which hashes them with its function `xxhash64`. After
the records of a piece, they pass one row of facts about it. If a folder is given, they also write the records to
files, so that the hashed bytes are the written ones. A failed task may leave a file behind; a manifest names only
files in a result that Spark has accepted.
"""

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from rollbook.api.spark.archive_folder import STEPS, place_of, unwritable
from rollbook.api.spark.arrow import Batches, Slice
from rollbook.api.spark.columns import schema_of
from rollbook.api.spark.core.archive import ArchiveFile, unsigned
from rollbook.api.spark.core.options import access_of, values_of
from rollbook.api.spark.core.plan import Span
from rollbook.api.spark.failures import original_from_spark, shown_in_spark
from rollbook.api.spark.fetch import slices_of
from rollbook.api.spark.shared_client import ServerChannel, channel_of
from rollbook.proto.errors import Corrupt, LogDataLoss, RollbookError

ARCHIVED: Final = ("offset", "timestamp", "key", "value", "event_time", "headers", "writer_epoch")
ROWS: Final = StructType(
    [
        StructField("piece", LongType(), nullable=False),
        StructField("offset", LongType()),
        StructField("value", BinaryType()),
        StructField("facts", StringType()),
    ]
)
_DAY_US: Final = 86_400_000_000
_GROUP_BYTES: Final = 32 * 1024 * 1024  # The uncompressed size of a row group.
_GROUP_ROWS: Final = 1_000_000
_ZSTD_LEVEL: Final = 1


class FilePiece(NamedTuple):
    """A file of an archive that is read back."""

    path: str
    first: int


Piece = tuple[int, Span | FilePiece]


class Measured(NamedTuple):
    """The measurements of one piece: the counts and hashes from Spark, and the facts from the worker."""

    piece: int
    records: int
    first: int
    last: int
    xor: int
    facts: Mapping[str, Any]

    def file(self) -> ArchiveFile:
        """Returns the file that was written."""
        facts = self.facts
        is_whole = (self.first, self.last + 1) == (facts["first"], facts["next"])
        path = place_of(facts["log"], facts["day"], self.first, self.last + 1, self.piece)
        return ArchiveFile(
            path=path,
            first=facts["first"],
            next=facts["next"],
            records=self.records if is_whole else -1,
            xor=self.xor,
            bytes=facts["bytes"],
            crc=facts["crc"],
            first_us=facts["first_us"],
            last_us=facts["last_us"],
        )


@dataclass(frozen=True)
class ScanPartition(InputPartition):
    pieces: tuple[Piece, ...] = ()

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        object.__setattr__(self, "pieces", pieces)
        object.__setattr__(self, "value", None)


def packed(tasks: Sequence[Sequence[Piece]]) -> str:
    return json.dumps([[(number, *what) for number, what in task] for task in tasks])


def _unpacked(text: str) -> list[tuple[Piece, ...]]:
    kinds = {2: FilePiece, 4: Span}
    return [
        tuple((number, kinds[len(what)](*what)) for number, *what in task)
        for task in json.loads(text)
    ]


class ScanSource(DataSource):
    """The data source of a scan. Its options are those for connecting to servers, `pieces`, the `folder` for written
    files, and the folder `root` of the archive.
    """

    @classmethod
    def name(cls) -> str:
        return "rollbook_scan"

    def schema(self) -> StructType:
        return ROWS

    def reader(self, schema: StructType) -> DataSourceReader:
        given = {name.lower(): value for name, value in self.options.items()}
        tasks, folder = _unpacked(given.pop("pieces")), given.pop("folder", "")
        root = given.pop("root", "")
        return ScanReader(given, tasks, folder, root)


class ScanReader(DataSourceReader):
    def __init__(
        self, way: Mapping[str, str], tasks: list[tuple[Piece, ...]], folder: str, root: str
    ) -> None:
        self._way, self._tasks, self._folder, self._root = dict(way), tasks, folder, root

    def partitions(self) -> list[InputPartition]:
        return [ScanPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        pieces = partition.pieces if isinstance(partition, ScanPartition) else ()
        with shown_in_spark():
            spans = [(number, what) for number, what in pieces if isinstance(what, Span)]
            channel = channel_of(access_of(values_of(self._way, os.environ))) if spans else None
            if self._folder:
                assert channel is not None or not spans
                if channel is not None:
                    yield from written(channel, [span for _, span in spans], self._folder)
                return
            for number, what in pieces:
                if isinstance(what, FilePiece):
                    yield from _file_rows(number, what, self._root)
                elif channel is not None:
                    yield from _span_rows(channel, number, what)


_SCHEMA: Final = to_arrow_schema(ROWS, timezone="UTC")
_RECORDS: Final = to_arrow_schema(schema_of(ARCHIVED), timezone="UTC")
_HASHED: Final = to_arrow_schema(schema_of(("offset", "value")), timezone="UTC")


def _rows(piece: int, batch: "pa.RecordBatch") -> "pa.RecordBatch":
    count = batch.num_rows
    columns = [
        pa.repeat(pa.scalar(piece, pa.int64()), count),
        batch.column("offset"),
        batch.column("value"),
        pa.nulls(count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _facts(piece: int, facts: Mapping[str, Any]) -> "pa.RecordBatch":
    row = {"piece": piece, "offset": None, "value": None, "facts": json.dumps(facts)}
    return pa.RecordBatch.from_pylist([row], schema=_SCHEMA)


# --- Logs into files --------------------------------------------------------------------------


class _Sequence:
    """Checks that records are in order by offset and time. The check compares blocks, so its cost does not
    depend on the number of records.
    """

    def __init__(self, at: int) -> None:
        self.first = self.next = at
        self.first_us = self.last_us = 0

    def fault(self, part: Slice) -> str:
        """Returns the reason why `part` does not follow the last part, or an empty string if it does."""
        at, time_us = part.block.base_offset + part.first, part.block.timestamp_us
        expected, last_us = self.next, self.last_us
        self.next = at + part.rows
        self.last_us = time_us
        if expected == self.first and not self.first_us:
            self.first_us = time_us
        if at != expected:
            return f"offset {at} follows {expected - 1}"
        return (
            f"the time of record {at} is before that of record {at - 1}"
            if time_us < last_us
            else ""
        )


class _Output:
    """A file that is being written. `close` yields the facts about its contents."""

    def __init__(self, folder: str, log: str, uid: str, part: Slice) -> None:
        self.piece = int.from_bytes(os.urandom(8), "big") >> 1
        self.log, self._uid = log, uid
        self.day = part.block.timestamp_us // _DAY_US
        self._path = os.path.join(folder, f"{self.piece:016x}")
        self._sequence = _Sequence(part.block.base_offset + part.first)
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
        yield _facts(
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
        return _rows(self.piece, batch)

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


# --- Pieces that are checked -----------------------------------------------------------------


def _span_rows(channel: ServerChannel, number: int, span: Span) -> Iterator["pa.RecordBatch"]:
    """Yields the rows and the facts of a range. A defect is reported as a fact, so that the other pieces are still
    checked.

    The fact `lost` names records that are damaged or gone. `unread` is the reason why the range could not be
    read to its end; it does not show a defect of the records.
    """
    sequence, batches = _Sequence(span.start), Batches(_HASHED)
    faults: list[str] = []
    lost = unread = ""
    try:
        for part in slices_of(channel, [span], True):
            if fault := sequence.fault(part):
                faults.append(fault)
            for batch in batches.add(part):
                yield _rows(number, batch)
    except Corrupt as error:
        lost = f"{error.code.reason}: {error.message}"
    except RollbookError as error:
        unread = f"{error.code.reason}: {error.message}"
    for batch in batches.flush():
        yield _rows(number, batch)
    facts = {
        "first_us": sequence.first_us,
        "last_us": sequence.last_us,
        "faults": faults[:10],
        "lost": lost,
        "unread": unread,
    }
    yield _facts(number, facts)


def _file_rows(number: int, piece: FilePiece, root: str) -> Iterator["pa.RecordBatch"]:
    facts: dict[str, Any] = {"bytes": -1, "crc": 0, "faults": []}
    try:
        with open(os.path.join(root, piece.path), "rb") as file:
            data = file.read()
        facts |= {"bytes": len(data), "crc": google_crc32c.value(data)}
        for group in _groups(data):
            facts["faults"] += _faults_in(group, facts)
            columns = [group.column("offset"), group.column("value")]
            yield _rows(number, pa.RecordBatch.from_arrays(columns, names=["offset", "value"]))
    except (OSError, pa.ArrowException, KeyError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        facts["faults"].append(f"it cannot be read: {why[:200]}")
    facts["faults"] = facts["faults"][:10]
    yield _facts(number, {name: facts[name] for name in facts if name not in ("next", "last")})


def _groups(data: bytes) -> Iterator["pa.RecordBatch"]:
    file = pq.ParquetFile(pa.BufferReader(data))
    yield from file.iter_batches(batch_size=10_000, columns=["offset", "timestamp", "value"])


def _faults_in(batch: "pa.RecordBatch", facts: dict[str, Any]) -> list[str]:
    """Checks that offsets are dense, and times do not go back. `facts` has the end of the previous batch."""
    if not batch.num_rows:
        return []
    offsets, times = batch.column("offset"), batch.column("timestamp").cast(pa.int64())
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    first_us, last_us = times[0].as_py(), times[-1].as_py()
    found = []
    steps = pc.subtract(offsets[1:], offsets[:-1])
    if facts.get("next", first) != first or pc.any(pc.not_equal(steps, 1)).as_py():
        found.append(f"offsets from {first} to {last} are not dense")
    if facts.get("last", first_us) > first_us or pc.any(pc.less(times[1:], times[:-1])).as_py():
        found.append(f"times from offset {first} to {last} go back")
    facts.setdefault("first_us", first_us)
    facts |= {"next": last + 1, "last": last_us, "last_us": last_us}
    return found


# --- On the driver ----------------------------------------------------------------------------


def measure(
    spark: Any, way: Mapping[str, str], tasks: Sequence[Sequence[Piece]], **more: str
) -> list[Measured]:
    """Measures pieces. `way` has the options for connecting to servers."""
    from pyspark.sql import functions as f

    if not tasks:
        return []
    spark.dataSource.register(ScanSource)
    rows = spark.read.format("rollbook_scan").options(**way, pieces=packed(tasks), **more).load()
    hashed = f.when(f.col("offset").isNotNull(), f.xxhash64("offset", "value"))
    found = rows.groupBy("piece").agg(
        f.count("offset"), f.min("offset"), f.max("offset"), f.bit_xor(hashed), f.max("facts")
    )
    with original_from_spark():
        collected = found.collect()
    return [
        Measured(piece, count, -1 if first is None else first, -1 if last is None else last,
                 unsigned(xor or 0), json.loads(facts or "{}"))
        for piece, count, first, last, xor, facts in collected
    ]  # fmt: skip


def folder_of(path: str, run: str) -> str:
    """Returns the folder that holds a run's files until they are published."""
    return os.path.join(path, STEPS, run)
