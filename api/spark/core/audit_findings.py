"""Derives an audit's findings from counts and hashes that are not as expected."""

from collections.abc import Sequence
from typing import NamedTuple

from rollbook.api.spark.core.archive_manifests import ArchiveFile, hex_of


class AuditFinding(NamedTuple):
    log: str
    start: int
    end: int
    kind: str
    what: str


class Content(NamedTuple):
    """The number of records in a range, and the xor of their hashes."""

    records: int
    xor: int


def judge_file(
    log: str, file: ArchiveFile, content: Content, size: int, crc: int, faults: Sequence[str]
) -> list[AuditFinding]:
    """Compares a file's present state with its manifest. `size` is -1 if the file cannot be opened."""

    def found(kind: str, what: str) -> AuditFinding:
        return AuditFinding(log, file.first, file.next, kind, f"{file.path}: {what}")

    if size < 0:
        return [found("file_missing", *(faults or ["it does not exist"])[:1])]
    findings: list[AuditFinding] = []
    if size != file.bytes:
        findings.append(
            found("file_changed", f"it has {size} bytes, and had {file.bytes} when it was written")
        )
    elif crc != file.crc:
        findings.append(found("file_changed", "its bytes differ from those that were written"))
    findings += [found("file_unreadable", fault) for fault in faults]
    if not findings and content != Content(file.records, file.xor):
        findings.append(
            found("content", _differs(content, Content(file.records, file.xor), "its manifest"))
        )
    return findings


def judge_span(
    log: str, start: int, end: int, content: Content, faults: Sequence[str]
) -> list[AuditFinding]:
    """Checks that a range has each record once, in order and without a hole."""
    findings = [AuditFinding(log, start, end, "log", fault) for fault in faults]
    if not findings and content.records != end - start:
        what = f"it has {content.records} records, and should have {end - start}"
        findings.append(AuditFinding(log, start, end, "log", what))
    return findings


def compare(
    log: str, start: int, end: int, one: Content, other: Content, where: str
) -> list[AuditFinding]:
    """Compares a range in two places. `where` names the other place."""
    if one == other:
        return []
    return [AuditFinding(log, start, end, "differs", _differs(one, other, where))]


def _differs(one: Content, other: Content, where: str) -> str:
    if one.records != other.records:
        return f"it has {one.records} records, and {where} has {other.records}"
    return f"its records hash to {hex_of(one.xor)}, and those of {where} to {hex_of(other.xor)}"


class Mirrored(NamedTuple):
    """The measurements of a mirror's records for one range of its source. Each record names its source offset."""

    records: int
    xor: int
    shift_least: int  # The smallest difference between a record's own offset and its source offset.
    # The largest difference. It equals the smallest if no record is out of order, missing or repeated.
    shift_most: int


def judge_mirror(
    log: str, start: int, end: int, source: Content, mirror: Mirrored | None
) -> list[AuditFinding]:
    """Compares a mirror with a range of its source. `mirror` is None if the mirror has no record of the
    range.
    """
    if mirror is None:
        return [AuditFinding(log, start, end, "mirror", "the mirror has none of these records")]
    findings = compare(log, start, end, Content(mirror.records, mirror.xor), source, "the source")
    if not findings and mirror.shift_least != mirror.shift_most:
        findings = [
            AuditFinding(log, start, end, "order", "the mirror has these records in another order")
        ]
    return findings
