"""The result of reading a journal file again after a stop.

Entries enter a journal index as they did when they were written, and facts about ledgers are
reported in order. If a record is damaged, its entries with a valid digest are kept, and all other
entries that its rows name are in doubt (B1); ledgers that it may have fenced count as fenced (B4).

Entries of many records are gathered before they are moved to the index. Gathered entries are always
moved before the next record of another kind is replayed, so that a ledger's entries keep their
order.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from rollbook.bookie.core.control_records import (
    Control,
    ControlOperation,
    is_of_control,
    unpack_controls,
)
from rollbook.bookie.core.entry_salvage import find_entries
from rollbook.bookie.core.journal_as_entry_log import JournalShape
from rollbook.bookie.core.journal_index import IntArray, JournalIndex
from rollbook.bookie.core.record_format import (
    ENTRY_LENGTH,
    EntryRow,
    FoundRecord,
    RecordKind,
    RecordReader,
)
from rollbook.bookie.core.torn_tail import Rot, Scan
from rollbook.proto.errors import TornRecord
from rollbook.proto.wire.digest import entry_ids_and_lac_at
from rollbook.proto.wire.journaled_adds import StoredAdds

_GATHERED_MAX: Final = 128 * 1024  # Gathered adds; they take 70 bytes each until they are sorted.


@dataclass(slots=True)
class Replayed:
    index: JournalIndex = field(default_factory=JournalIndex)
    shape: JournalShape = field(default_factory=JournalShape)
    records: IntArray = field(default_factory=lambda: array("I"))
    # The control records of the file, in order.
    controls: list[Control] = field(default_factory=list)
    doubts: list[EntryRow] = field(default_factory=list)
    fenced_by_damage: list[int] = field(default_factory=list)
    doubts_everything: bool = False
    _gathered: StoredAdds = field(default_factory=StoredAdds)

    @property
    def keys(self) -> dict[int, bytes]:
        """For each ledger, the first key that was shown."""
        return self._gathered.ledger_keys

    def gather(self, record: FoundRecord, body: bytes) -> None:
        end = self._gathered.gather(body, record.body_start)
        if end != len(body):
            raise TornRecord(
                "a sound record holds something other than adds", position=record.position + end
            )
        if len(self._gathered) >= _GATHERED_MAX:
            self.flush()

    def flush(self) -> None:
        """Moves all gathered entries to the index."""
        if not self._gathered:
            return
        for entries in self._gathered.take():
            self.index.add_group(*entries)


def replay(reader: RecordReader, found: Scan) -> Replayed:
    result = Replayed()
    replay_scan(result, reader, found)
    return result


def replay_scan(result: Replayed, reader: RecordReader, found: Scan) -> None:
    for record in found.records:
        replay_record(result, record, reader.body(record))
    result.flush()
    for rot in found.rot:
        _replay_rot(result, reader, rot)


def replay_record(result: Replayed, record: FoundRecord, body: bytes) -> None:
    """Replays the next record, which must be sound. The caller calls `flush` after the last record."""
    if record.kind is RecordKind.FRAMES:
        result.gather(record, body)
        result.records.append(record.position)
        result.shape.on_record(len(body), record.ledgers)
        return
    if record.kind is RecordKind.ENTRIES:
        result.flush()
        _replay_entries(result, record, body)
    elif record.kind is RecordKind.CONTROL:
        for control in unpack_controls(body):
            result.controls.append(control)
            if control.operation in (ControlOperation.DELETE, ControlOperation.DROP):
                result.flush()
                result.index.drop(control.ledger_id)


def entries_of(body: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yields ledger, entry, LAC, position in the body and length of each entry of an ENTRIES
    record."""
    at = 0
    while at < len(body):
        (length,) = ENTRY_LENGTH.unpack_from(body, at)
        at += ENTRY_LENGTH.size
        ledger_id, entry_id, lac = entry_ids_and_lac_at(body, at)
        yield ledger_id, entry_id, lac, at, length
        at += length


def _replay_entries(result: Replayed, record: FoundRecord, body: bytes) -> None:
    for ledger_id, entry_id, lac, at, length in entries_of(body):
        result.index.add_group(ledger_id, lac, [entry_id], [record.body_start + at], [length])
    result.records.append(record.position)


def _replay_rot(result: Replayed, reader: RecordReader, rot: Rot) -> None:
    if rot.rows is None:
        result.doubts_everything = True
        return
    for row in rot.rows:
        result.doubts.append(row)
        if is_of_control(row):
            result.fenced_by_damage.append(row.ledger_id)
    if rot.record is None or rot.record.kind is not RecordKind.FRAMES:
        return
    body_start, body = rot.record.body_start, reader.damaged_body(rot.record)
    ledger_ids = dict.fromkeys(row.ledger_id for row in rot.rows)
    for entry in find_entries(body, ledger_ids, result.keys):
        result.index.add_group(
            entry.ledger_id,
            entry.last_add_confirmed,
            [entry.entry_id],
            [body_start + entry.start],
            [entry.end - entry.start],
        )
    at = 0
    while at < len(result.records) and result.records[at] < rot.record.position:
        at += 1
    result.records.insert(at, rot.record.position)
