"""Exports logs into an archive of Parquet files, step by step, and moves a protected cursor after each step.

    wanted ─► plan.py: ranges and tasks ─► count_and_hash_scan.py: files under _steps ─► archive_folder.py: manifest ─► cursor

The progress is stored in the archive itself, so there is no checkpoint to lose. A cursor moves only over
records that a manifest names (SA5), so retention and truncation keep records that are not archived. A log is
protected from its first export on: the cursor is made at the log's head before the first record is read.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rollbook.api.client.sync import SyncCursor
from rollbook.api.spark.archive_folder import Archive, drop_folder, require_name
from rollbook.api.spark.core.archive_manifests import ArchiveFile, Chain, Manifest, manifest_of
from rollbook.api.spark.core.archive_seam import is_overtaken
from rollbook.api.spark.core.options import Selection, SplitLimits
from rollbook.api.spark.core.plan import Span, next_ends, split
from rollbook.api.spark.core.stream_offsets import Point, TailPoint, replaced
from rollbook.api.spark.count_and_hash_scan import Measured, Piece, folder_of, measure
from rollbook.api.spark.log_bounds import Logs, require_some
from rollbook.api.spark.pipelines.connection import Way
from rollbook.api.spark.pipelines.job_report import Progress, Report
from rollbook.proto.errors import (
    ArchiveDamaged,
    ArchiveHeld,
    BadConfig,
    LogDataLoss,
    LogDeleted,
    LogReplaced,
    NoSuchCursor,
    NoSuchLog,
    RollbookError,
)

_logger: Final = logging.getLogger("rollbook.spark")
Measure = Callable[[Sequence[Sequence[Piece]], str], list[Measured]]
_STEP_BYTES: Final = 1024 * 1024 * 1024
_OF_ONE_LOG: Final = (
    ArchiveDamaged,
    ArchiveHeld,
    BadConfig,
    LogDataLoss,
    LogDeleted,
    LogReplaced,
    NoSuchLog,
)


@dataclass(frozen=True)
class ExportOptions:
    selection: Selection
    cursor: str = "archive"
    # The approximate size of a step. Larger: an interrupted export has to repeat more. Smaller: more
    # steps, each with its own overhead.
    step_bytes: int = _STEP_BYTES
    split: SplitLimits = field(default_factory=SplitLimits)


class Export:
    """Exports logs while it holds the archive's lock."""

    def __init__(
        self, archive: Archive, way: Way, wanted: ExportOptions, measure_: Measure, report: Report
    ) -> None:
        self._archive, self._way, self._wanted, self._measure = archive, way, wanted, measure_
        self._report = report
        self._channel = way.channel
        self._logs = Logs(self._channel)
        self._cursors: dict[str, SyncCursor] = {}
        self._chains: dict[str, Chain | None] = {}

    def run(self, on_progress: Progress) -> None:
        """Exports all records that exist now. If the export of a log cannot begin, the other logs are still
        exported, and the log's error, such as `LogReplaced`, is raised at the end. `ArchiveUnwritable` is raised at
        once.
        """
        for manifest in self._archive.complete():
            _logger.info("step_completed: %s up to %d", manifest.log, manifest.next)
        tails = self._way.tails(self._wanted.selection)
        require_some(self._wanted.selection, tails)
        if not tails:
            _logger.warning("nothing_to_export: there is no log with %s", self._wanted.selection)
        failed: dict[str, RollbookError] = {}
        for log, tail in list(tails.items()):
            try:
                self._begin(log, tail)
            except _OF_ONE_LOG as error:
                failed[log] = error
                self._report.logs.setdefault(log, {})["error"] = error.message
                del tails[log]
        starts = {log: self._next(log, tail) for log, tail in tails.items()}
        total = sum(max(tail.tail - starts[log], 0) for log, tail in tails.items())
        done = 0
        on_progress(0, total)
        while spans := self._next_spans(tails):
            done += self._step(spans)
            on_progress(done, total)
        if failed:
            raise _combined(failed)

    def _next(self, log: str, tail: TailPoint) -> int:
        chain = self._chains[log]
        return chain.next if chain else tail.head

    # --- One log ------------------------------------------------------------------------------

    def _begin(self, log: str, tail: TailPoint) -> None:
        """Checks the log against its archive, and moves the log's cursor to the next record to export."""
        require_name(log)
        chain = self._chains[log] = self._archive.chain(log)
        if chain is not None and chain.uid != tail.uid:
            raise replaced(log, Point(chain.uid, chain.next), tail)
        if chain is not None and is_overtaken(chain, tail):
            raise LogDataLoss(
                f"records [{chain.next}, {tail.head}) of {log} were truncated before they were archived",
                next_step="export it into another folder, whose archive begins at the log's head",
                log=log,
            )
        handle = self._channel.patiently(lambda: self._channel.client.open(log))
        cursor = self._cursors[log] = handle.cursor(self._wanted.cursor)
        self._require_own(log, cursor)
        self._move(cursor, self._next(log, tail))
        row = self._report.logs.setdefault(log, {"records": 0, "files": 0, "bytes": 0})
        row |= {"first": chain.first if chain else tail.head, "next": self._next(log, tail)}

    def _require_own(self, log: str, cursor: SyncCursor) -> None:
        """Refuses the cursor of another archive or program, for example of a reader, which would lose its
        position.
        """
        try:
            found = self._channel.patiently(cursor.get)
        except NoSuchCursor:
            return
        if _archive_in(found.blob) != self._archive.id:
            raise ArchiveHeld(
                f"cursor {self._wanted.cursor} of {log} belongs to another archive or program",
                next_step="name another one: --cursor NAME",
                log=log,
            )

    def _move(self, cursor: SyncCursor, offset: int) -> None:
        blob = json.dumps({"archive": self._archive.id}).encode()
        self._channel.patiently(
            lambda: cursor.commit(offset, blob=blob, protect=True, may_rewind=True)
        )

    # --- One step -----------------------------------------------------------------------------

    def _next_spans(self, tails: Mapping[str, TailPoint]) -> list[Span]:
        starts = {log: self._next(log, tail) for log, tail in tails.items()}
        ends = {log: tail.tail for log, tail in tails.items()}
        behind = [log for log, end in ends.items() if end > starts[log]]
        stops = next_ends(
            {log: starts[log] for log in behind},
            ends,
            bytes_max=self._wanted.step_bytes,
            record_bytes=self._logs.record_bytes(behind),
        )
        return [
            Span(log, tails[log].uid, starts[log], stops[log])
            for log in behind
            if stops[log] > starts[log]
        ]

    def _step(self, spans: Sequence[Span]) -> int:
        segments = {span.log: self._logs.segments_of(span.log) for span in spans}
        tasks = split(spans, segments, self._wanted.split)
        pieces = [[(0, span) for span in task] for task in tasks]
        run = os.urandom(8).hex()
        found: dict[str, list[tuple[ArchiveFile, str]]] = {}
        folder = folder_of(self._archive.path, run)
        try:
            measured = self._measure(pieces, folder)
        except BaseException:
            drop_folder(folder)  # Dropping the folder makes room on a full disk.
            raise
        for each in measured:
            found.setdefault(each.facts["log"], []).append((each.file(), each.facts["path"]))
        for span in spans:
            self._publish(span, found.get(span.log, []))
        drop_folder(folder)
        return sum(span.end - span.start for span in spans)

    def _publish(self, span: Span, files: Sequence[tuple[ArchiveFile, str]]) -> None:
        manifest = manifest_of(
            span.log, span.uid, span.start, span.end, (file for file, _ in files)
        )
        sources = {file.path: path for file, path in files}
        moves = {sources[file.path]: file.path for file in manifest.files}
        self._archive.publish(manifest, moves)
        chain = self._chains[span.log]
        before = chain.manifests if chain else ()
        self._chains[span.log] = Chain(span.log, span.uid, (*before, manifest))
        self._move(self._cursors[span.log], manifest.next)
        self._note(manifest)

    def _note(self, manifest: Manifest) -> None:
        row = self._report.logs[manifest.log]
        row["records"] += manifest.count
        row["files"] += len(manifest.files)
        row["bytes"] += sum(file.bytes for file in manifest.files)
        row["next"] = manifest.next


def _combined(failed: Mapping[str, RollbookError]) -> RollbookError:
    """Returns the error of the first failed log, with the names of the others."""
    first, *others = failed
    error = failed[first].copy()
    if others:
        error.message += f"; also not exported: {', '.join(others)}; the report has the reasons"
    return error


def _archive_in(blob: bytes) -> str:
    try:
        return str(json.loads(blob)["archive"])
    except (ValueError, KeyError, TypeError):
        return ""


def export(
    spark: Any,
    archive: Archive,
    way: Way,
    wanted: ExportOptions,
    report: Report,
    on_progress: Progress,
    every_s: float = 0.0,
) -> None:
    """Exports logs. With `every_s`, the export is repeated at this interval until it is interrupted; 0 means once."""

    def measured(tasks: Sequence[Sequence[Piece]], folder: str) -> list[Measured]:
        return measure(spark, way.options, tasks, folder=folder)

    with archive.held():
        report.facts |= {"archive": archive.path, "cursor": wanted.cursor}
        while True:
            began_s = time.monotonic()
            Export(archive, way, wanted, measured, report).run(on_progress)
            if not every_s:
                return
            time.sleep(max(every_s - (time.monotonic() - began_s), 0))
