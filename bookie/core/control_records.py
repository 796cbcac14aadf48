"""The body of a CONTROL record, which holds facts about ledgers in the journal.

    operation   u8 kind · i64 ledger · u8 key bytes + 1, 0 for none · key · i64 number ·
                u32 packet bytes · packet                                      little-endian
    FENCE       with the key that was shown
    LAC         number: the explicit LAC; packet: as its writer packed it
    DELETE      number: wall time in milliseconds
    DROP        removes the entries that were added before it; key, fence and explicit LAC stay

If a control record is damaged, the ledgers that its rows name count as fenced, since an
acknowledged fence must not be forgotten (B4), and their explicit LACs are in doubt.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.bookie.core.record_format import EntryRow, pack_rows
from rollbook.proto.errors import TornRecord
from rollbook.proto.ids import NO_ENTRY

_HEAD: Final = struct.Struct("<BqB")
_BODY: Final = struct.Struct("<qI")


class ControlOperation(IntEnum):
    FENCE = 1
    LAC = 2
    DELETE = 3
    DROP = 4


class Control(NamedTuple):
    operation: ControlOperation
    ledger_id: int
    ledger_key: bytes | None
    number: int = 0
    packet: bytes = b""

    def applied_to(self, facts: LedgerFacts, journal: int) -> LedgerFacts:
        """Returns the facts after this control; `journal` is the number of the file that contains
        it."""
        if self.ledger_key is not None:
            facts = facts.with_key(self.ledger_key)
        if self.operation is ControlOperation.FENCE:
            return facts.with_fence()
        if self.operation is ControlOperation.LAC:
            return facts.with_lac_packet(self.number, self.packet)
        if self.operation is ControlOperation.DROP:
            return facts.with_drop(journal)
        return facts.with_deletion(self.number)

    def pack(self) -> bytes:
        key = self.ledger_key
        key_size = 0 if key is None else len(key) + 1
        return b"".join(
            (
                _HEAD.pack(self.operation, self.ledger_id, key_size),
                key or b"",
                _BODY.pack(self.number, len(self.packet)),
                self.packet,
            )
        )

    def pack_row(self) -> bytes:
        return pack_rows([(self.ledger_id, NO_ENTRY, NO_ENTRY)])


def is_of_control(row: EntryRow) -> bool:
    """Returns whether the row belongs to a control record: no entry has the row's id. If a possible
    loss has such a row, the explicit LAC may be lost."""
    return row.first_entry == NO_ENTRY


def unpack_controls(body: bytes) -> Iterator[Control]:
    """Unpacks a sound record. Raises `TornRecord` if the bytes were not packed here."""
    at = 0
    try:
        while at < len(body):
            kind, ledger_id, key_size = _HEAD.unpack_from(body, at)
            at += _HEAD.size
            key = body[at : at + key_size - 1] if key_size else None
            at += max(0, key_size - 1)
            number, packet_size = _BODY.unpack_from(body, at)
            at += _BODY.size + packet_size
            packet = body[at - packet_size : at]
            if at > len(body):
                raise TornRecord("a control record is cut short")
            yield Control(ControlOperation(kind), ledger_id, key, number, packet)
    except (struct.error, ValueError) as error:
        raise TornRecord(f"a control record cannot be read: {error}") from error
