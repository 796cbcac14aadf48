"""Tells whether damage in a file of records is rot or a torn tail (B3).

Each record says in `last_synced` which sequence was durable when it was made, and records become
durable in order. A damaged or missing record is

- *rot*, if a readable record or another source (`durable_through`) says that the record was
  durable. Its entries are then in doubt (B1).
- a *torn tail* otherwise: the record was not durable, so neither it nor any later record was ever
  acknowledged. The file ends before it.

A start therefore does two things before it writes anything else:

- It cuts the torn tail off: it overwrites the tail with an END record in a journal (`store_opening.py`), and
  with zeros in the catalog, which continues in the same file (`catalog_files.py`).
- It writes everything from `unproven_at` on again and syncs it, because these bytes may so far be
  in the system's memory alone (`journal_reading.write_again`). Nothing may depend on these bytes
  before the sync.
"""

from dataclasses import dataclass
from typing import NamedTuple

from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    EntryRow,
    FoundRecord,
    RecordKind,
    RecordReader,
    align,
)
from rollbook.proto.errors import TornRecord


@dataclass(frozen=True, slots=True)
class Rot:
    """Durable data that cannot be read, with its ledgers, or None if they are not known."""

    position: int
    rows: tuple[EntryRow, ...] | None
    record: FoundRecord | None = None  # The damaged record, if its position and size are known.


@dataclass(frozen=True, slots=True)
class Scan:
    # The sound records in order, without records that have no contents.
    records: tuple[FoundRecord, ...]
    rot: tuple[Rot, ...]
    end: int  # The position of the next record.
    next_sequence: int
    is_ended: bool
    proven: int  # The highest sequence that is known to have been durable.
    unproven_at: int  # The position of the first record that is not proven durable, or `end`.


def scan(
    reader: RecordReader,
    *,
    start: int = FILE_HEADER_BYTES,
    first_sequence: int = 1,
    durable_through: int = 0,
) -> Scan:
    """Reads a file from the front and tells a torn tail from rot (B3).

    `durable_through` is the highest sequence that another source proves durable; if the file has a
    successor, all of the file was durable.
    """
    pieces, position, is_ended = _pieces(reader, start, first_sequence)
    proven = max([durable_through, *(piece.last_synced for piece in pieces)])
    records: list[FoundRecord] = []
    rot: list[Rot] = []
    sequence = first_sequence
    unproven_at = start if sequence > proven else -1

    def found(end: int, *, is_ended: bool) -> Scan:
        end = align(end)
        known = tuple(records), tuple(rot), end, sequence, is_ended
        return Scan(*known, proven, end if unproven_at < 0 else unproven_at)

    for record, hole_at, is_sound in pieces:
        # Records are missing here: neither their heads nor their trailers were found.
        if record.sequence != sequence:
            if sequence > proven:
                return found(hole_at, is_ended=False)
            rot.append(Rot(hole_at, None))
        sequence = record.sequence
        if sequence > proven and unproven_at < 0:
            unproven_at = record.position
        if not is_sound:
            if sequence > proven:
                return found(record.position, is_ended=False)
            rows = reader.rows(record)
            rot.append(Rot(record.position, None if rows is None else tuple(rows), record))
        elif record.kind not in (RecordKind.IDLE, RecordKind.END):
            records.append(record)
        sequence += 1
    # The file ends before records that were durable.
    if not is_ended and sequence <= durable_through:
        rot.append(Rot(position, None))
    return found(position, is_ended=is_ended)


class RecordRun(NamedTuple):
    """Consecutive sound records."""

    records: list[tuple[FoundRecord, bytes]]  # Each record with its body.
    end: int
    next_sequence: int
    is_ended: bool


def sound_run(reader: RecordReader, position: int, sequence: int) -> RecordRun:
    """Reads sound records up to the end of the bytes or the first flaw, like `scan` but at less
    cost."""
    records: list[tuple[FoundRecord, bytes]] = []
    while record := _record_at(reader, position, sequence):
        try:
            body = reader.body(record)
        except TornRecord:
            break
        records.append((record, body))
        position, sequence = record.end, sequence + 1
        if record.kind is RecordKind.END:
            return RecordRun(records, position, sequence, True)
    return RecordRun(records, position, sequence, False)


def _record_at(reader: RecordReader, position: int, sequence: int) -> FoundRecord | None:
    for at in (position, align(position)):  # A new write begins on the next sector.
        record = reader.at(at)
        if record and record.sequence == sequence:
            return record
    return None


class _ScannedRecord(NamedTuple):
    record: FoundRecord
    searched_from: int
    is_sound: bool

    @property
    def last_synced(self) -> int:
        return self.record.last_synced


def _pieces(
    reader: RecordReader, start: int, first_sequence: int
) -> tuple[list[_ScannedRecord], int, bool]:
    pieces: list[_ScannedRecord] = []
    position, sequence = start, first_sequence
    while True:
        piece = _piece_at(reader, position, sequence)
        if piece is None:
            return pieces, position, False
        pieces.append(piece)
        position, sequence = piece.record.end, piece.record.sequence + 1
        if piece.record.kind is RecordKind.END:
            return pieces, position, True


def _piece_at(reader: RecordReader, position: int, sequence: int) -> _ScannedRecord | None:
    damaged: FoundRecord | None = None
    for at in (position, align(position)):  # A new write begins on the next sector.
        record = reader.at(at)
        if record and record.sequence == sequence:
            if reader.is_sound(record):
                return _ScannedRecord(record, position, True)
            # This may be the head of a torn record; the next sector may have an END.
            damaged = damaged or record
    record = damaged or reader.next_after(position, sequence)
    return _ScannedRecord(record, position, reader.is_sound(record)) if record else None
