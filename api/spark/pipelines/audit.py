"""Checks that logs, archives and mirrors hold every record once, in order, with the bytes that were written.

a log by itself       by segment: offsets are dense and in order, and times do not go back
an archive            each file has the size, CRC-32C, count and xor of its manifest, and there is no hole between files
an archive and a log  file by file: the ranges that both still have are equal
a log and a mirror    by segment: the records are equal, matched by the source offset in a header
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

from rollbook.api.spark.archive_folder import Archive, sizes_in
from rollbook.api.spark.core import mirror_origin
from rollbook.api.spark.core.archive_manifests import ArchiveFile, Chain, faults_of, unsigned
from rollbook.api.spark.core.archive_seam import is_overtaken
from rollbook.api.spark.core.audit_findings import (
    AuditFinding,
    Content,
    Mirrored,
    compare,
    judge_file,
    judge_mirror,
    judge_span,
)
from rollbook.api.spark.core.options import Selection
from rollbook.api.spark.core.plan import Span
from rollbook.api.spark.core.stream_offsets import TailPoint
from rollbook.api.spark.count_and_hash_scan import FilePiece, Measured, Piece, measure
from rollbook.api.spark.failures import original_from_spark
from rollbook.api.spark.log_bounds import Logs, require_some
from rollbook.api.spark.pipelines.connection import Way
from rollbook.api.spark.pipelines.job_report import Progress, Report
from rollbook.api.spark.session_functions import register
from rollbook.proto.errors import NoSuchLog, RollbookError

Measure = Callable[[Sequence[Sequence[Piece]]], list[Measured]]
_TASK_BYTES: Final = 64 * 1024 * 1024
_RECORD_BYTES: Final = 100  # The assumed size of a record.
_UNSEEN: Final = "it was not checked"
# The maximum number of attempts if retention truncates records while they are read.
_TURNS: Final = 3


@dataclass(frozen=True)
class _Look:
    """A piece to be measured. `file` is the entry of a manifest to compare it with, or None if there is none."""

    log: str
    what: Span | FilePiece
    file: ArchiveFile | None
    bytes: int


class ArchiveAudit:
    def __init__(self, way: Way | None, archive: Archive | None, report: Report) -> None:
        """Creates an audit. If `way` is None, only the archive is checked."""
        self._way, self._archive, self._report = way, archive, report
        self._looks: list[_Look] = []

    def run(self, selection: Selection, measure_: Measure, on_progress: Progress) -> None:
        chains, tails = self._pinned(selection)
        known = {**chains, **tails}
        require_some(selection, known)
        if not known:
            raise NoSuchLog(f"there is no log with {selection}", next_step="see rollbook log ls")
        for log in sorted(known):
            self._plan(log, chains.get(log), tails.get(log))
        total = sum(_records(each) for each in self._looks)
        on_progress(0, total)
        for turn in range(_TURNS):
            found = {each.piece: each for each in measure_(self._tasks())}
            now = self._way.tails(selection) if self._way else {}
            looks, self._looks = self._looks, []
            for number, look in enumerate(looks):
                measured = found.get(number, Measured(number, 0, -1, -1, 0, {}))
                self._judge(look, measured, now.get(look.log), is_last=turn == _TURNS - 1)
            if not self._looks:
                break
        on_progress(total, total)

    def _pinned(self, selection: Selection) -> tuple[dict[str, Chain | None], dict[str, TailPoint]]:
        """Reads the manifests and then the tails of the logs, as a table does, and repeats this if an export and a
        truncation came in between.
        """
        for _ in range(_TURNS):
            findings: list[AuditFinding] = []
            chains = self._chains(selection, findings)
            tails = self._way.tails(selection) if self._way else {}
            if not any(is_overtaken(chains.get(log), tail) for log, tail in tails.items()):
                break
        self._report.findings += findings
        return chains, tails

    def _chains(
        self, selection: Selection, findings: list[AuditFinding]
    ) -> dict[str, Chain | None]:
        """Returns the chains of all archived logs in the selection. Defects of a damaged chain are added to
        `findings`, and the rest of the chain is still checked.
        """
        if self._archive is None:
            return {}
        assert self._archive.id
        chains: dict[str, Chain | None] = {}
        for log in filter(selection.covers, self._archive.logs()):
            damaged: dict[str, RollbookError] = {}
            manifests = self._archive.manifests(log, damaged.__setitem__)
            for name, error in damaged.items():
                first = int(digits) if (digits := name.partition(".")[0]).isdecimal() else 0
                findings.append(AuditFinding(log, first, first, "manifests", error.message))
            ordered = sorted(manifests, key=lambda each: (each.first, each.next))
            findings += [
                AuditFinding(log, ordered[0].first, ordered[-1].next, "manifests", fault)
                for fault in faults_of(log, ordered)
            ]
            chains[log] = Chain(log, ordered[0].uid, tuple(ordered)) if ordered else None
        return chains

    def _plan(self, log: str, chain: Chain | None, tail: TailPoint | None) -> None:
        row = self._report.logs.setdefault(log, {})
        if tail is not None:
            row |= {"head": tail.head, "tail": tail.tail}
        if chain is not None and self._archive is not None:
            row |= {"archived_from": chain.first, "archived_to": chain.next}
            row |= {"files": len(chain.files), "bytes": sum(file.bytes for file in chain.files)}
            sizes = sizes_in(self._archive, (file.path for file in chain.files))
            for file in chain.files:
                if file.path not in sizes:
                    what = f"{file.path} does not exist"
                    self._find(AuditFinding(log, file.first, file.next, "file_missing", what))
                    continue
                piece = FilePiece(file.path, file.first)
                self._looks.append(_Look(log, piece, file, file.bytes))
        if tail is None:
            return
        if chain is not None and chain.uid != tail.uid:
            what = "the archive belongs to another log that had this name"
            self._find(AuditFinding(log, chain.first, chain.next, "replaced", what))
            chain = None
        if chain is not None and tail.head > chain.next:
            what = "these records are neither in the archive nor in the log"
            self._find(AuditFinding(log, chain.next, tail.head, "hole", what))
        if chain is not None and tail.tail < chain.next:
            what = "the archive has these records, but the log ends before them"
            self._find(AuditFinding(log, tail.tail, chain.next, "tail", what))
        self._plan_ranges(log, chain, tail)

    def _plan_ranges(self, log: str, chain: Chain | None, tail: TailPoint) -> None:
        """Plans a log's ranges: by file where the archive has the same records, otherwise by segment.

        If a file extends beyond the log's head or tail, the part in the log is read without a comparison: a
        manifest has no hash of a part.
        """
        both = chain.files_in(tail.head, tail.tail) if chain else ()
        row = self._report.logs[log]
        row["compared"] = 0
        for file in both:
            low, high = max(tail.head, file.first), min(file.next, tail.tail)
            is_whole = (low, high) == (file.first, file.next)
            span = Span(log, tail.uid, low, high)
            self._looks.append(_Look(log, span, file if is_whole else None, file.bytes))
            row["compared"] += file.records if is_whole else 0
        assert self._way is not None
        rest = [(tail.head, tail.tail)]
        if chain is not None:
            rest = [(tail.head, chain.first), (max(tail.head, chain.next), tail.tail)]
        for start, end in rest:
            for low, high in ranges_of(self._way, log, start, end) if end > start else ():
                span = Span(log, tail.uid, low, high)
                self._looks.append(_Look(log, span, None, (high - low) * _RECORD_BYTES))

    def _tasks(self) -> list[list[Piece]]:
        tasks: list[list[Piece]] = []
        size = 0
        for number, look in enumerate(self._looks):
            if not tasks or size + look.bytes > _TASK_BYTES:
                tasks.append([])
                size = 0
            tasks[-1].append((number, look.what))
            size += look.bytes
        return tasks

    def _judge(self, look: _Look, found: Measured, now: TailPoint | None, *, is_last: bool) -> None:
        """Judges the measurements of one piece. `now` is the state of the log after the read."""
        row = self._report.logs[look.log]
        content = Content(found.records, found.xor)
        if isinstance(look.what, FilePiece):
            assert look.file is not None
            row["records"] = row.get("records", 0) + found.records
            size, crc = found.facts.get("bytes", -1), found.facts.get("crc", 0)
            faults = found.facts.get("faults", [_UNSEEN])
            for each in judge_file(look.log, look.file, content, size, crc, faults):
                self._find(each)
            return
        span = look.what
        rest = rest_of(span, found, now)
        if rest != span:
            row["truncated"] = row.get("truncated", 0) + rest.start - span.start
            if rest.start < rest.end and not is_last:
                self._looks.append(_Look(look.log, rest, None, look.bytes))
            elif rest.start < rest.end:
                what = f"the log was truncated {_TURNS} times while it was read"
                self._find(AuditFinding(look.log, rest.start, rest.end, "unread", what))
            return
        row["records"] = row.get("records", 0) + found.records
        findings = judged(span, found)
        if look.file is not None and not findings:
            archived = Content(look.file.records, look.file.xor)
            findings = compare(look.log, span.start, span.end, content, archived, look.file.path)
        for each in findings:
            self._find(each)

    def _find(self, finding: AuditFinding) -> None:
        self._report.findings.append(finding)


def rest_of(span: Span, found: Measured, now: TailPoint | None) -> Span:
    """Returns the part of a span to read again if the log was truncated during the read, since truncation is
    not damage.
    """
    facts = found.facts
    if not (facts.get("lost") or facts.get("unread")) or facts.get("faults"):
        return span
    if now is None or now.uid != span.uid:  # The log was deleted.
        return span._replace(start=span.end)
    return span._replace(start=min(max(span.start, now.head), span.end))


def judged(span: Span, found: Measured) -> list[AuditFinding]:
    """Judges a span by itself, without comparing it to a file or a mirror."""
    facts = found.facts
    if unread := facts.get("unread", "" if facts else _UNSEEN):
        return [AuditFinding(span.log, span.start, span.end, "unread", unread)]
    faults = [*facts.get("faults", ()), *filter(None, [facts.get("lost")])]
    content = Content(found.records, found.xor)
    return judge_span(span.log, span.start, span.end, content, faults)


def _records(look: _Look) -> int:
    if isinstance(look.what, Span):
        return look.what.end - look.what.start
    return look.file.records if look.file else 0


def ranges_of(way: Way, log: str, start: int, end: int) -> list[tuple[int, int]]:
    """Divides the range between two offsets at the starts of segments."""
    bounds = [each.start for each in Logs(way.channel).segments_of(log)]
    inside = [start, *(at for at in sorted(dict.fromkeys(bounds)) if start < at < end), end]
    return [(low, high) for low, high in pairwise(inside) if high > low]


def audit_mirror(
    spark: Any, way: Way, to: Way, log: str, target: str, report: Report, on_progress: Progress
) -> None:
    """Audits a mirror by segments of its source, from the source's head to the last mirrored record."""
    tails = way.tails(Selection(names=(log,)))
    require_some(Selection(names=(log,)), tails)
    tail = tails[log]
    rows = _of_mirror(spark, to, log, tail.uid, target)
    first, last, foreign = _bounds_of(rows)
    row = report.logs.setdefault(target, {"mirrors": log, "foreign": foreign.records})
    if foreign.records:
        what = f"{foreign.records} records do not come from {log}"
        report.findings.append(AuditFinding(target, foreign.first, foreign.next, "foreign", what))
    start, end = max(first, tail.head), last + 1
    row |= {"first": start, "next": end, "behind": tail.tail - end}
    ranges = ranges_of(way, log, start, min(end, tail.tail))
    if end > tail.tail:
        what = "the mirror has these records, but its source ends before them"
        report.findings.append(AuditFinding(target, tail.tail, end, "tail", what))
    on_progress(0, tail.tail - tail.head)
    tasks = [
        [(number, Span(log, tail.uid, low, high))] for number, (low, high) in enumerate(ranges)
    ]
    sources = {each.piece: each for each in measure(spark, way.options, tasks)}
    now = way.tails(Selection(names=(log,))).get(log)
    mirrored = _mirrored(rows, ranges)
    for number, (low, high) in enumerate(ranges):
        found = sources.get(number, Measured(number, 0, -1, -1, 0, {}))
        span = Span(log, tail.uid, low, high)
        if rest_of(span, found, now) != span:
            row["truncated"] = row.get("truncated", 0) + high - low
            continue
        if findings := judged(span, found):
            report.findings += findings
            continue
        content = Content(found.records, found.xor)
        report.findings += judge_mirror(target, low, high, content, mirrored.get(number))
        row["records"] = row.get("records", 0) + found.records
    on_progress(tail.tail - tail.head, tail.tail - tail.head)


def _of_mirror(spark: Any, to: Way, log: str, uid: str, target: str) -> Any:
    """Returns the rows of a mirror. Their column `source` is the source offset of a record, or null for a
    record from elsewhere.
    """
    register(spark)

    def header(name: str) -> str:
        return f"cast(try_element_at(filter(headers, h -> h.key = '{name}'), 1).value AS string)"

    rows = spark.read.format("rollbook").options(
        **to.options, log=target, columns="offset,value,headers"
    )
    is_ours = f"{header(mirror_origin.LOG)} = '{mirror_origin.as_text(log, uid)}'"
    source = f"CASE WHEN {is_ours} THEN try_cast({header(mirror_origin.OFFSET)} AS bigint) END"
    return rows.load().selectExpr("offset", "value", f"{source} AS source")


class _Foreign(NamedTuple):
    """The number of records in a mirror that do not name its source, and the range of offsets in which they
    are.
    """

    records: int
    first: int
    next: int


def _bounds_of(rows: Any) -> tuple[int, int, _Foreign]:
    """Returns the first and the last source offset in the mirror, and the records of another origin."""
    foreign = "CASE WHEN source IS NULL THEN offset END"
    with original_from_spark():
        (found,) = rows.selectExpr(
            "min(source)", "max(source)", f"count({foreign})", f"min({foreign})", f"max({foreign})"
        ).collect()
    first, last, count, low, high = found
    others = _Foreign(count, low, high + 1) if count else _Foreign(0, 0, 0)
    return (0 if first is None else first, -1 if last is None else last, others)


def _mirrored(rows: Any, ranges: Sequence[tuple[int, int]]) -> dict[int, Mirrored]:
    from pyspark.sql import functions as f

    if not ranges:
        return {}
    starts = f.array(*(f.lit(low) for low, _ in ranges))
    inside = (f.col("source") >= ranges[0][0]) & (f.col("source") < ranges[-1][1])
    number = f.size(f.filter(starts, lambda start: start <= f.col("source"))) - 1
    shift = f.col("offset") - f.col("source")
    found = (
        rows.where(inside)
        .groupBy(number.alias("number"))
        .agg(
            f.count("source"),
            f.bit_xor(f.xxhash64("source", "value")),
            f.min(shift),
            f.max(shift),
        )
    )
    with original_from_spark():
        collected = found.collect()
    return {
        at: Mirrored(records, unsigned(xor), least, most)
        for at, records, xor, least, most in collected
    }


def audit(
    spark: Any,
    way: Way | None,
    archive: Archive | None,
    selection: Selection,
    report: Report,
    on_progress: Progress,
) -> None:
    options: Mapping[str, str] = way.options if way else {"endpoint": "log://none:1"}
    root = archive.path if archive else ""

    def measured(tasks: Sequence[Sequence[Piece]]) -> list[Measured]:
        return measure(spark, options, tasks, root=root)

    if archive is not None:
        report.facts["archive"] = os.fspath(archive.path)
    ArchiveAudit(way, archive, report).run(selection, measured, on_progress)
