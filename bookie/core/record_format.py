"""The format of the records in journals, entry logs and the catalog. Integers are little-endian.

    file     header · header again · record · … · END record [· footer, in entry logs]
    header   a sector: magic · version · purpose · number · store id · file id · allocated bytes · crc
    record   head · body · rows · trailer            a write of several records starts on a sector
    head     magic · version · kind · count of rows · body bytes · sequence · last_synced ·
             crc of the rows · crc of the body · crc of the head itself
    trailer  the head once more, under another magic
    row      ledger · first entry · last entry    names a ledger with entries or facts in the body
    body     FRAMES: add frames, as received (`v2_layout.py`, `v3_fast_path_layout.py`)
             ENTRIES: (u32 length · entry)*, sorted by ledger and entry; entries: `digest.py`
             CONTROL: `control_records.py`      CHANGES: `catalog_records.py`      IDLE, END: empty

Checksums are CRC-32C, seeded with the file's random id and the position. Therefore neither an older
file's bytes nor a payload that contains a journal are ever mistaken for a record (B2). The head and
the trailer are equal, and the body and the rows have separate checksums. Therefore a single damaged
byte costs at most one body, and the rows still name its ledgers.

`last_synced` is the highest sequence that was durable when the record was made. This value
distinguishes damage to durable data from a write that a crash cut short: see `torn_tail.py`.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import google_crc32c

from rollbook.proto.errors import TornRecord, UnsupportedVersion
from rollbook.proto.ports import Buffer

SECTOR: Final = 512
_VERSION: Final = 1
LATER_RELEASE: Final = "run the release of Rollbook that wrote it, or a later one"
_FILE_MAGIC: Final = b"rollbook"
_HEAD_MAGIC: Final = b"\xb5rec"
_TRAILER_MAGIC: Final = b"\xb5cer"
ID_BYTES: Final = 16

_FILE: Final = struct.Struct("<8sHHIQ16s16sQ")
_HEAD: Final = struct.Struct("<4sBBHIIQQII")
_CRC: Final = struct.Struct("<I")
_unpack_head: Final = struct.Struct(_HEAD.format + "I").unpack
_ROW: Final = struct.Struct("<qqq")
_POSITION: Final = struct.Struct("<Q")
ENTRY_LENGTH: Final = struct.Struct("<I")  # Precedes each entry of an ENTRIES record.

FILE_HEADER_BYTES: Final = 2 * SECTOR
HEAD_BYTES: Final = _HEAD.size + _CRC.size
RECORD_OVERHEAD_BYTES: Final = 2 * HEAD_BYTES
# Limits how much a forged head can make us read; the end of the file limits it, too.
_ROWS_MAX: Final = 2**24

_extend = google_crc32c.extend
_pack_position: Final = _POSITION.pack


def align(position: int) -> int:
    return -(-position // SECTOR) * SECTOR


def is_blank(contents: bytes, start: int) -> bool:
    """Returns whether nothing was ever written from `start` on."""
    step = len(_BLANK)
    return all(
        contents[at : at + step] == _BLANK[: len(contents) - at]
        for at in range(start, len(contents), step)
    )


_BLANK: Final = bytes(256 * 1024)


class Purpose(IntEnum):
    JOURNAL = 1  # A journal file keeps this purpose when it is adopted as an entry log.
    LOG = 2
    CATALOG = 3


class RecordKind(IntEnum):
    FRAMES = 1  # Add frames as they were received.
    ENTRIES = 2  # Entries without their frames, sorted by ledger and entry.
    CONTROL = 3  # Fences, explicit LACs, deletions.
    CHANGES = 4  # Changes of the catalog.
    IDLE = 5  # No contents; its purpose is its `last_synced`.
    END = 6  # The last record of a file; only the file being written has none.


@dataclass(frozen=True, slots=True)
class FileHeader:
    purpose: Purpose
    number: int
    store_id: bytes  # The store that the file belongs to.
    file_id: bytes  # Random bytes that seed every checksum in the file.
    # The size with which the file was allocated: if a file is shorter and has no END, it was cut.
    allocated_bytes: int = 0

    def pack(self) -> bytes:
        fields = _FILE.pack(
            _FILE_MAGIC,
            _VERSION,
            self.purpose,
            0,
            self.number,
            self.store_id,
            self.file_id,
            self.allocated_bytes,
        )
        sector = (fields + _CRC.pack(_extend(0, fields))).ljust(SECTOR, b"\0")
        return sector + sector


def unpack_file_header(data: bytes) -> FileHeader | None:
    """Unpacks either of the two copies; returns None if both are damaged or were never written."""
    for start in (0, SECTOR):
        fields = data[start : start + _FILE.size]
        crc = data[start + _FILE.size : start + _FILE.size + _CRC.size]
        if len(crc) < _CRC.size or crc != _CRC.pack(_extend(0, fields)):
            continue
        magic, version, purpose, _, number, store_id, file_id, allocated = _FILE.unpack(fields)
        if magic != _FILE_MAGIC:
            continue
        if version != _VERSION:
            raise UnsupportedVersion(
                f"a file of version {version} is from a later release", next_step=LATER_RELEASE
            )
        return FileHeader(Purpose(purpose), number, store_id, file_id, allocated)
    return None


class EntryRow(NamedTuple):
    ledger_id: int
    first_entry: int
    last_entry: int


def pack_rows(rows: Iterable[Sequence[int]]) -> bytes:
    return b"".join([_ROW.pack(*row) for row in rows])


def unpack_rows(data: bytes) -> list[EntryRow]:
    return list(map(EntryRow._make, _ROW.iter_unpack(data)))


class RecordFrame(NamedTuple):
    """The parts of a record that precede and follow its body."""

    head: bytes
    rows_and_tail: bytes


def seed_of(file_id: bytes, position: int) -> int:
    return int(_extend(0, file_id + _POSITION.pack(position)))


def pack_record(
    file_id: bytes,
    position: int,
    kind: RecordKind,
    sequence: int,
    last_synced: int,
    body: bytes = b"",
    rows: bytes = b"",
) -> RecordFrame:
    seed = seed_of(file_id, position)
    trailer_at = position + HEAD_BYTES + len(body) + len(rows)
    fields = (
        _VERSION,
        kind,
        0,
        len(rows) // _ROW.size,
        len(body),
        sequence,
        last_synced,
        _extend(seed, rows),
        _extend(seed, body),
    )
    head = _HEAD.pack(_HEAD_MAGIC, *fields)
    trailer = _TRAILER_MAGIC + head[len(_HEAD_MAGIC) :]
    return RecordFrame(
        head + _CRC.pack(_extend(seed, head)),
        b"".join((rows, trailer, _CRC.pack(_extend(seed_of(file_id, trailer_at), trailer)))),
    )


@dataclass(slots=True)
class FoundRecord:
    """A record that was found by its head or its trailer. Its body may be damaged."""

    position: int
    kind: RecordKind
    sequence: int
    last_synced: int
    body_start: int
    body_end: int
    end: int
    rows_crc: int
    body_crc: int

    @property
    def size(self) -> int:
        return self.end - self.position

    @property
    def ledgers(self) -> int:
        """The number of ledgers that the record names: each has a row."""
        return (self.end - HEAD_BYTES - self.body_end) // _ROW.size


class RecordReader:
    """Finds records in the bytes of a file, or in a part of the file that starts at `origin`."""

    def __init__(self, contents: bytes, file_id: bytes, origin: int = 0) -> None:
        self._contents = contents
        self._file_id = file_id
        self._origin = origin
        self._end = origin + len(contents)

    def at(self, position: int) -> FoundRecord | None:
        """Returns the record whose whole head is at this position. Its body may be damaged."""
        return self._unpack(position, _HEAD_MAGIC)

    def may_start_at(self, position: int) -> bool:
        """Returns whether a record's head seems to be here, however long the record is."""
        return any(
            self._slice(at, at + len(_HEAD_MAGIC)) == _HEAD_MAGIC
            for at in (position, align(position))
        )

    def body(self, record: FoundRecord) -> bytes:
        """Returns the verified body. Raises `TornRecord`."""
        found = self._slice(record.body_start, record.body_end)
        if _extend(seed_of(self._file_id, record.position), found) != record.body_crc:
            raise TornRecord("a record's body is damaged", position=record.position)
        return found

    def damaged_body(self, record: FoundRecord) -> bytes:
        """Returns the body unverified."""
        return self._slice(record.body_start, record.body_end)

    def is_sound(self, record: FoundRecord) -> bool:
        try:
            self.body(record)
        except TornRecord:
            return False
        return True

    def is_whole(self, record: FoundRecord) -> bool:
        """Returns whether all four parts are sound: from any three of them, the fourth can be
        repaired or its damage detected."""
        trailer_at = record.end - HEAD_BYTES
        return (
            self._unpack(record.position, _HEAD_MAGIC) == record
            and self._unpack(trailer_at, _TRAILER_MAGIC) == record
            and self.rows(record) is not None
            and self.is_sound(record)
        )

    def rows(self, record: FoundRecord) -> list[EntryRow] | None:
        """Returns the rows of its ledgers; None if the rows are damaged."""
        found = self._slice(record.body_end, record.end - HEAD_BYTES)
        if _extend(seed_of(self._file_id, record.position), found) != record.rows_crc:
            return None
        return unpack_rows(found)

    def next_after(self, position: int, sequence: int) -> FoundRecord | None:
        """Returns the first record that starts at `position` or later and is not older than
        `sequence`."""
        best: FoundRecord | None = None
        for magic in (_HEAD_MAGIC, _TRAILER_MAGIC):
            at = position - 1
            while (at := self._find(magic, at + 1)) >= 0 and (best is None or at < best.end):
                found = self._unpack(at, magic)
                if found and found.position >= position and found.sequence >= sequence:
                    if best is None or found.position < best.position:
                        best = found
                    break
        return best

    def _find(self, magic: bytes, position: int) -> int:
        at = self._contents.find(magic, position - self._origin)
        return at if at < 0 else at + self._origin

    def _slice(self, start: int, end: int) -> bytes:
        return self._contents[start - self._origin : end - self._origin]

    def _unpack(self, at: int, magic: bytes) -> FoundRecord | None:
        data = self._slice(at, at + HEAD_BYTES)
        if len(data) < HEAD_BYTES or data[:4] != magic:
            return None
        fields = data[: _HEAD.size]
        if data[_HEAD.size :] != _CRC.pack(_extend(seed_of(self._file_id, at), fields)):
            return None
        _, version, kind, _, rows, body_bytes, sequence, last_synced, rows_crc, body_crc = (
            _HEAD.unpack(fields)
        )
        if version != _VERSION:
            raise UnsupportedVersion(
                f"a record of version {version} is from a later release", next_step=LATER_RELEASE
            )
        inner = body_bytes + rows * _ROW.size
        position = at if magic == _HEAD_MAGIC else at - inner - HEAD_BYTES
        end = position + inner + RECORD_OVERHEAD_BYTES
        if rows > _ROWS_MAX or position < self._origin or end > self._end:
            return None
        body_start = position + HEAD_BYTES
        return FoundRecord(
            position,
            RecordKind(kind),
            sequence,
            last_synced,
            body_start,
            body_start + body_bytes,
            end,
            rows_crc,
            body_crc,
        )


def bodies_in(
    contents: Buffer, file_id: bytes, origin: int, positions: Iterable[int]
) -> list[bytes | None]:
    """Returns the verified bodies of the records at these positions, or None for a record with a
    damaged head or body. `contents` are the file's bytes from `origin` on.

    This function combines `at` and `body` for callers that read one record after the other. To save
    time for each record, it calls no functions except checksums. Each body is copied before it is
    verified, so that it is in the processor's cache by then.
    """
    bodies: list[bytes | None] = []
    for position in positions:
        body_start = position - origin + HEAD_BYTES
        head = bytes(contents[body_start - HEAD_BYTES : body_start])
        body: bytes | None = None
        if len(head) == HEAD_BYTES:
            seed = _extend(0, file_id + _pack_position(position))
            magic, version, _, _, _, body_bytes, _, _, _, body_crc, crc = _unpack_head(head)
            if (
                magic == _HEAD_MAGIC
                and version == _VERSION
                and _extend(seed, head[: _HEAD.size]) == crc
            ):
                body = bytes(contents[body_start : body_start + body_bytes])
                if _extend(seed, body) != body_crc:
                    body = None
        bodies.append(body)
    return bodies
