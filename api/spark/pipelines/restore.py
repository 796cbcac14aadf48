"""Restores an archive into a log: every archived record once, in order, even if the restore is started several times.

Each file of the archive is a batch of the sink, numbered by its place in the archive. The
producer's numbers show which part the log has already, and only the rest is appended (SK6). Records keep value, key,
headers and event time; the server assigns new timestamps, and new offsets at the end of the log.
"""

import hashlib
import io
import os
from typing import Any

import google_crc32c
import pyarrow.parquet as pq

from rollbook.api.spark.archive_folder import Archive
from rollbook.api.spark.core.archive_manifests import ArchiveFile, Chain
from rollbook.api.spark.exactly_once_append import LogSink, MicroBatch
from rollbook.api.spark.pipelines.connection import Way
from rollbook.api.spark.pipelines.job_report import Progress, Report
from rollbook.api.spark.rows_to_blocks import ArrowRows, columns_of
from rollbook.api.spark.shared_client import ServerChannel
from rollbook.logservice.core.record_block import Codec
from rollbook.proto.errors import ArchiveDamaged, NoSuchArchive

_COLUMNS = ["value", "key", "event_time", "headers"]


def restore(
    archive: Archive, way: Way, log: str, target: str, report: Report, on_progress: Progress
) -> None:
    """Raises `ArchiveDamaged`, `NoSuchArchive`."""
    chain = archive.chain(log)
    if chain is None:
        raise NoSuchArchive(
            f"nothing of {log} is in {archive.path}",
            next_step=f"the archive has {', '.join(archive.logs()) or 'no log'}",
        )
    query = query_of(archive, log)
    channel = way.channel
    done = last_whole(channel, target, query) + 1
    total = chain.next - chain.first
    records = sum(file.records for file in chain.files[:done])
    row = report.logs.setdefault(target, {"from": log, "records": 0, "files": 0})
    report.facts["archive"] = archive.path
    on_progress(records, total)
    for number in range(done, len(chain.files)):
        file = chain.files[number]
        rows = rows_of(archive, chain, file)
        sink = LogSink(channel, target, MicroBatch(query, number, is_recorded=True), Codec.NONE)
        sink.append(rows)
        records += file.records
        row |= {"records": row["records"] + file.records, "files": row["files"] + 1}
        on_progress(records, total)


def query_of(archive: Archive, log: str) -> str:
    """Returns the name of the restore, which is different for each archive and log; the producer's id contains it."""
    return f"restore-{archive.id}-{hashlib.sha256(log.encode()).hexdigest()[:12]}"


def last_whole(channel: ServerChannel, target: str, query: str) -> int:
    """Returns the number of the last file that is completely in the log, or -1."""
    return LogSink(channel, target, MicroBatch(query, 0, is_recorded=True), Codec.NONE).last_whole()


def rows_of(archive: Archive, chain: Chain, file: ArchiveFile) -> ArrowRows:
    """Raises `ArchiveDamaged`."""
    path = os.path.join(archive.path, file.path)
    try:
        with open(path, "rb") as opened:
            data = opened.read()
    except OSError as error:
        raise ArchiveDamaged(
            f"{path} cannot be read: {error.strerror}",
            next_step="restore it from a copy",
            log=chain.log,
        ) from error
    if (len(data), google_crc32c.value(data)) != (file.bytes, file.crc):
        raise ArchiveDamaged(
            f"{path} is damaged: its content has changed since it was written",
            next_step="restore it from a copy",
            log=chain.log,
        )
    table: Any = pq.ParquetFile(io.BytesIO(data)).read(columns=_COLUMNS)
    return ArrowRows.of([columns_of(batch) for batch in table.to_batches()])
