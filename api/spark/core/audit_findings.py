"""An audit's findings: how counts and hashes differ from what they should be."""

from collections.abc import Sequence
from typing import NamedTuple

from rollbook.api.spark.core.archive import ArchiveFile, hex_of


class AuditFinding(NamedTuple):
    log: str
    start: int
    end: int
    kind: str
    what: str


class Content(NamedTuple):
    """A range's number of records, and the xor of their hashes."""

    records: int
    xor: int


def judge_file(
    log: str, file: ArchiveFile, content: Content, size: int, crc: int, faults: Sequence[str]
) -> list[AuditFinding]:
    """Compares a file's present state with its manifest. `size`: -1 if the file cannot be opened."""

    def found(kind: str, what: str) -> AuditFinding:
        return AuditFinding(log, file.first, file.next, kind, f"{file.path}: {what}")

    if size < 0:
        return [found("file_missing", *(faults or ["it is not there"])[:1])]
    findings: list[AuditFinding] = []
    if size != file.bytes:
        findings.append(
            found("file_changed", f"it has {size} bytes, and was written with {file.bytes}")
        )
    elif crc != file.crc:
        findings.append(found("file_changed", "its bytes are not those that were written"))
    findings += [found("file_unreadable", fault) for fault in faults]
    if not findings and content != Content(file.records, file.xor):
        findings.append(
            found("content", _differs(content, Content(file.records, file.xor), "its manifest"))
        )
    return findings


def judge_span(
    log: str, start: int, end: int, content: Content, faults: Sequence[str]
) -> list[AuditFinding]:
    """Checks that a range is dense and in order, with each record once."""
    findings = [AuditFinding(log, start, end, "log", fault) for fault in faults]
    if not findings and content.records != end - start:
        what = f"it has {content.records} records, and should have {end - start}"
        findings.append(AuditFinding(log, start, end, "log", what))
    return findings


def compare(
    log: str, start: int, end: int, one: Content, other: Content, where: str
) -> list[AuditFinding]:
    """Compares a range in two places; `where`: the name of the other one."""
    if one == other:
        return []
    return [AuditFinding(log, start, end, "differs", _differs(one, other, where))]


def _differs(one: Content, other: Content, where: str) -> str:
    if one.records != other.records:
        return f"it has {one.records} records, and {where} {other.records}"
    return f"its records hash to {hex_of(one.xor)}, and those of {where} to {hex_of(other.xor)}"


class Mirrored(NamedTuple):
    """A mirror's part of one range of its source, by the offsets that its records name."""

    records: int
    xor: int
    shift_least: int  # The difference of its own offsets to those of the source:
    shift_most: int  # the same for all, if records are in order and none is missing or repeated.


def judge_mirror(
    log: str, start: int, end: int, source: Content, mirror: Mirrored | None
) -> list[AuditFinding]:
    """`mirror`: None if it has nothing of the range."""
    if mirror is None:
        return [AuditFinding(log, start, end, "mirror", "the mirror has none of these records")]
    findings = compare(log, start, end, Content(mirror.records, mirror.xor), source, "the source")
    if not findings and mirror.shift_least != mirror.shift_most:
        findings = [
            AuditFinding(log, start, end, "order", "the mirror has these records in another order")
        ]
    return findings
