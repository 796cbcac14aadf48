"""Reads pieces for pipelines, and counts and hashes their records. A piece is a range of a log or a file of an
archive.

Workers pass the offset and value of every record to Spark, which hashes them with its function `xxhash64`. After
the records of a piece, they pass one row of facts about it. If a folder is given, they also write the records to
files (`parquet_output.py`), so that the hashed bytes are the written ones.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rollbook.api.spark.archive_folder import STEPS, place_of
from rollbook.api.spark.arrow import Batches
from rollbook.api.spark.core.archive_manifests import ArchiveFile, unsigned
from rollbook.api.spark.core.options import access_of, values_of
from rollbook.api.spark.core.plan import Span
from rollbook.api.spark.failures import original_from_spark, shown_in_spark
from rollbook.api.spark.fetch import slices_of
from rollbook.api.spark.parquet_output import written
from rollbook.api.spark.scan_result_rows import ROWS, RecordOrder, facts_row, record_rows
from rollbook.api.spark.shared_client import ServerChannel, channel_of
from rollbook.api.spark.source_schema import schema_of
from rollbook.proto.errors import Corrupt, RollbookError


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


_HASHED: Final = to_arrow_schema(schema_of(("offset", "value")), timezone="UTC")


# --- Pieces that are checked -----------------------------------------------------------------


def _span_rows(channel: ServerChannel, number: int, span: Span) -> Iterator["pa.RecordBatch"]:
    """Yields the rows and the facts of a range. A defect is reported as a fact, so that the other pieces are still
    checked.

    The fact `lost` names records that are damaged or gone. `unread` is the reason why the range could not be
    read to its end; it does not show a defect of the records.
    """
    sequence, batches = RecordOrder(span.start), Batches(_HASHED)
    faults: list[str] = []
    lost = unread = ""
    try:
        for part in slices_of(channel, [span], True):
            if fault := sequence.fault(part):
                faults.append(fault)
            for batch in batches.add(part):
                yield record_rows(number, batch)
    except Corrupt as error:
        lost = f"{error.code.reason}: {error.message}"
    except RollbookError as error:
        unread = f"{error.code.reason}: {error.message}"
    for batch in batches.flush():
        yield record_rows(number, batch)
    facts = {
        "first_us": sequence.first_us,
        "last_us": sequence.last_us,
        "faults": faults[:10],
        "lost": lost,
        "unread": unread,
    }
    yield facts_row(number, facts)


def _file_rows(number: int, piece: FilePiece, root: str) -> Iterator["pa.RecordBatch"]:
    facts: dict[str, Any] = {"bytes": -1, "crc": 0, "faults": []}
    try:
        with open(os.path.join(root, piece.path), "rb") as file:
            data = file.read()
        facts |= {"bytes": len(data), "crc": google_crc32c.value(data)}
        for group in _groups(data):
            facts["faults"] += _faults_in(group, facts)
            columns = [group.column("offset"), group.column("value")]
            yield record_rows(
                number, pa.RecordBatch.from_arrays(columns, names=["offset", "value"])
            )
    except (OSError, pa.ArrowException, KeyError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        facts["faults"].append(f"it cannot be read: {why[:200]}")
    facts["faults"] = facts["faults"][:10]
    yield facts_row(number, {name: facts[name] for name in facts if name not in ("next", "last")})


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
