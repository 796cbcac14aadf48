"""Runs pipelines without a JVM: counts and hashes records here instead of in Spark."""

import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import pyarrow.parquet as pq

from rollbook.api.client.sync import SyncClient
from rollbook.api.spark.archive_and_log_table import parts_of
from rollbook.api.spark.archive_folder import Archive
from rollbook.api.spark.batch import read_task
from rollbook.api.spark.core.options import source_options, values_of
from rollbook.api.spark.count_and_hash_scan import Measured, Piece, ScanSource, packed
from rollbook.api.spark.pipelines.audit import ArchiveAudit
from rollbook.api.spark.pipelines.connection import Way
from rollbook.api.spark.pipelines.export import Export, ExportOptions
from rollbook.api.spark.pipelines.job_report import Report
from rollbook.api.spark.pipelines.log_selection import selection_of
from rollbook.api.spark.source_schema import schema_of
from tests.regressions.lone_server import Site
from tests.spark.drive import copied

_MASK: Final = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_SEED: Final = 42  # Spark's default seed.


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _round(accumulator: int, lane: int) -> int:
    return _rotated((accumulator + lane * _P2) & _MASK, 31) * _P1 & _MASK


def xxhash64(data: bytes, seed: int) -> int:
    at, end = 0, len(data)
    if end >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while at + 32 <= end:
            for lane in range(4):
                word = int.from_bytes(data[at : at + 8], "little")
                lanes[lane] = _round(lanes[lane], word)
                at += 8
        found = sum(_rotated(lanes[n], bits) for n, bits in enumerate((1, 7, 12, 18))) & _MASK
        for lane_value in lanes:
            found = ((found ^ _round(0, lane_value)) * _P1 + _P4) & _MASK
    else:
        found = (seed + _P5) & _MASK
    found = (found + end) & _MASK
    while at + 8 <= end:
        found ^= _round(0, int.from_bytes(data[at : at + 8], "little"))
        found = (_rotated(found, 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= end:
        found ^= int.from_bytes(data[at : at + 4], "little") * _P1 & _MASK
        found = (_rotated(found, 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        found = _rotated(found ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    found = (found ^ (found >> 33)) * _P2 & _MASK
    found = (found ^ (found >> 29)) * _P3 & _MASK
    return found ^ (found >> 32)


def hash_of(offset: int, value: bytes) -> int:
    """Spark's `xxhash64(offset, value)`, unsigned."""
    return xxhash64(value, xxhash64(offset.to_bytes(8, "little", signed=True), _SEED))


def measured(
    way: Mapping[str, str], tasks: Sequence[Sequence[Piece]], *, times: int = 1, **more: str
) -> list[Measured]:
    """`times`: how often each task runs."""
    source = ScanSource({**way, "pieces": packed(tasks), **more})
    reader = copied(copied(source).reader(schema=source.schema()))
    found = []
    for partition in reader.partitions() * times:
        rows = [row for each in copied(reader).read(copied(partition)) for row in each.to_pylist()]
        rows.sort(key=lambda row: row["piece"])
        for piece, group in groupby(rows, key=lambda row: row["piece"]):
            found.append(_measured(piece, list(group)))
    return found


def _measured(piece: int, rows: list[dict[str, Any]]) -> Measured:
    import json

    records = [row for row in rows if row["offset"] is not None]
    offsets = [row["offset"] for row in records]
    xor = 0
    for row in records:
        xor ^= hash_of(row["offset"], row["value"])
    facts = next((row["facts"] for row in rows if row["facts"]), "{}")
    first, last = min(offsets, default=-1), max(offsets, default=-1)
    return Measured(piece, len(records), first, last, xor, json.loads(facts))


class Pipes:
    """The pipelines of one archive, over the logs of one server."""

    def __init__(self, site: Site, client: SyncClient, folder: Any, *logs: str) -> None:
        self.way = Way({"endpoint": site.url})
        self.client, self.logs = client, logs
        self.archive = Archive(str(folder))
        self.times = 1
        self.reports: list[Report] = []

    def export(self, **wanted: Any) -> Report:
        report = Report("export")
        want = ExportOptions(selection_of(self.logs), **wanted)

        def measure(tasks: Sequence[Sequence[Piece]], folder: str) -> list[Measured]:
            return measured(self.way.options, tasks, folder=folder, times=self.times)

        with self.archive.held():
            Export(self.archive, self.way, want, measure, report).run(lambda *_: None)
        return report

    def audit(self, *, offline: bool = False) -> Report:
        report = Report("audit")

        def measure(tasks: Sequence[Sequence[Piece]]) -> list[Measured]:
            return measured(self.way.options, tasks, root=self.archive.path)

        way = None if offline else self.way
        ArchiveAudit(way, self.archive, report).run(
            selection_of(self.logs), measure, lambda *_: None
        )
        return report

    def kinds(self, *, offline: bool = False) -> list[str]:
        return [each.kind for each in self.audit(offline=offline).findings]

    def rows(self, **given: str) -> list[tuple[int, bytes]]:
        """Returns the rows of the table over the archive and the log, in order."""
        options = source_options(
            values_of({**self.way.options, "logs": ",".join(self.logs), **given}, {})
        )
        found: list[tuple[int, bytes]] = []
        schema = schema_of(("offset", "value"))
        for parts in parts_of(options, self.archive):
            for clip in parts.clips:
                path = os.path.join(self.archive.path, clip.file.path)
                stored = pq.ParquetFile(path).read(columns=["offset", "value"]).to_pylist()
                pairs = [(row["offset"], row["value"]) for row in stored]
                found += [pair for pair in pairs if clip.start <= pair[0] < clip.end]
            for span in parts.spans:
                for batch in read_task(options.access, schema, (span,), True):
                    found += [(row["offset"], row["value"]) for row in batch.to_pylist()]
        return found
