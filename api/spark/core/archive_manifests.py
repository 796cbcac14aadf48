"""The contents of an archive for one log: files of records, and the manifests that make them valid.

A manifest names the files of one range of offsets, and describes the contents of each file. A file that no
manifest names is ignored (SA1). The manifests of a log follow each other without a hole: the archive ends
where the last manifest ends, and the next export begins there (SA2). A log that was deleted and created again
has another uid, and needs another archive.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import xor as _xor
from typing import Any, Final, NamedTuple, Self

import google_crc32c

from rollbook.proto.errors import ArchiveDamaged, UnsupportedVersion

VERSION: Final = 1
_BITS: Final = 64
_DIGITS: Final = 20  # The digits of an offset in a name, so that names sort like offsets.


class ArchiveFile(NamedTuple):
    """One file of the archive, with its range of records and its checksums."""

    path: str  # Relative to the archive's folder.
    first: int
    next: int
    records: int
    xor: int  # The xor of Spark's xxhash64(offset, value) over all records.
    bytes: int
    crc: int  # The CRC-32C of all bytes of the file.
    first_us: int
    last_us: int


@dataclass(frozen=True, slots=True)
class Manifest:
    log: str
    uid: str
    first: int
    next: int
    files: tuple[ArchiveFile, ...]

    @property
    def count(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def xor(self) -> int:
        return reduce(_xor, (file.xor for file in self.files), 0)

    @property
    def name(self) -> str:
        """Returns the manifest's file name. Only one manifest can begin at an offset, since the name has only the
        offset.
        """
        return f"{self.first:0{_DIGITS}}.json"

    def pack(self) -> bytes:
        said = {
            "v": VERSION,
            "log": self.log,
            "uid": self.uid,
            "first": self.first,
            "next": self.next,
            "count": self.count,
            "xor": hex_of(self.xor),
            "files": [
                file._asdict() | {"xor": hex_of(file.xor), "crc": f"{file.crc:08x}"}
                for file in self.files
            ],
        }
        return json.dumps(said | {"check": _check_of(said)}, indent=1).encode()

    @classmethod
    def unpack(cls, data: bytes, where: str) -> Self:
        """Raises `ArchiveDamaged`, `UnsupportedVersion`."""
        try:
            said = json.loads(data)
            check, version = said.pop("check"), int(said["v"])
            is_whole = version > VERSION or check == _check_of(said)
        except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError):
            raise _damaged(where) from None
        if version > VERSION:
            raise UnsupportedVersion(
                f"{where} was written by a newer release: version {version}, and this one reads {VERSION}",
                next_step="install that release",
            )
        if not is_whole:
            raise _damaged(where)
        files = tuple(_file_of(each) for each in said["files"])
        return cls(said["log"], said["uid"], said["first"], said["next"], files)


def _damaged(where: str) -> ArchiveDamaged:
    return ArchiveDamaged(
        f"{where} is damaged: its content has changed since it was written",
        next_step="restore it from a copy of the archive",
    )


def _file_of(said: Mapping[str, Any]) -> ArchiveFile:
    return ArchiveFile(**{**said, "xor": int(said["xor"], 16), "crc": int(said["crc"], 16)})


def _check_of(said: Mapping[str, Any]) -> str:
    return f"{google_crc32c.value(json.dumps(said, sort_keys=True).encode()):08x}"


def hex_of(xor: int) -> str:
    return f"{xor:016x}"


def unsigned(xor: int) -> int:
    """Turns a signed number from Spark into an unsigned one."""
    return xor % (1 << _BITS)


# --- Making a manifest -----------------------------------------------------------------------


def manifest_of(log: str, uid: str, first: int, end: int, files: Iterable[ArchiveFile]) -> Manifest:
    """Returns a manifest of files that together hold exactly these records, each once and without a hole
    (SA1). Raises `ArchiveDamaged`.

    Spark may run a task twice and report both files. These hold the same records, so one of them is used.
    """
    found: list[ArchiveFile] = []
    at = first
    for file in sorted(files, key=lambda each: (each.first, each.next, each.path)):
        if file.records != file.next - file.first:
            raise _not_exact(
                log, f"{file.path} has {file.records} of {file.next - file.first} records"
            )
        last = found[-1] if found else None
        if last is not None and (file.first, file.next, file.xor) == (
            last.first,
            last.next,
            last.xor,
        ):
            continue
        if file.first != at:
            what = "lack records" if file.first > at else "have records twice"
            start, stop = sorted((at, file.first))
            raise _not_exact(log, f"the files {what} [{start}, {stop})")
        found.append(file)
        at = file.next
    if at != end:
        raise _not_exact(log, f"the files end at {at}, and should end at {end}")
    return Manifest(log, uid, first, end, tuple(found))


def _not_exact(log: str, what: str) -> ArchiveDamaged:
    return ArchiveDamaged(
        f"the export of {log} is not complete: {what}",
        next_step="nothing of it was published; run it again",
        log=log,
    )


# --- The archive of one log -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chain:
    """The consecutive manifests of one log, beginning at its first archived record."""

    log: str
    uid: str
    manifests: tuple[Manifest, ...]

    @property
    def first(self) -> int:
        return self.manifests[0].first

    @property
    def next(self) -> int:
        return self.manifests[-1].next

    @property
    def files(self) -> tuple[ArchiveFile, ...]:
        return tuple(file for each in self.manifests for file in each.files)

    def files_in(self, start: int, end: int) -> tuple[ArchiveFile, ...]:
        return tuple(file for file in self.files if file.first < end and file.next > start)


def faults_of(log: str, manifests: Sequence[Manifest]) -> list[str]:
    """Returns the reasons why these manifests are not a chain, or an empty list if they are one (SA2)."""
    found: list[str] = []
    ordered = sorted(manifests, key=lambda each: (each.first, each.next))
    for each in ordered:
        if each.log != log:
            found.append(f"manifest {each.name} of {log} is about {each.log}")
        try:
            manifest_of(each.log, each.uid, each.first, each.next, each.files)
        except ArchiveDamaged as error:
            found.append(f"manifest {each.name}: {error.message}")
    for before, after in pairwise(ordered):
        if before.uid != after.uid:
            found.append(
                f"from {after.first} on, the archive belongs to another log that had this name"
            )
        elif before.next < after.first:
            found.append(f"no manifest has records [{before.next}, {after.first})")
        elif before.next > after.first:
            found.append(
                f"two manifests have records [{after.first}, {min(before.next, after.next)})"
            )
    return found


def chain_of(log: str, manifests: Sequence[Manifest]) -> Chain | None:
    """Returns the log's chain, or None if no record of it is archived. Raises `ArchiveDamaged`."""
    if not manifests:
        return None
    if faults := faults_of(log, manifests):
        raise ArchiveDamaged(
            f"the archive of {log} is damaged: {faults[0]}",
            next_step="restore the manifests from a copy of the archive",
            log=log,
        )
    ordered = sorted(manifests, key=lambda each: each.first)
    return Chain(log, ordered[0].uid, tuple(ordered))
