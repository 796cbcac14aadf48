"""The catalog: everything durable that a store knows, but for the entries and what is still in its
journal. Little-endian.

It is a file of CHANGES records, written in two copies. A record is applied whole or not at all, so
that what belongs together changes together: an entry log comes into being, the facts about its
ledgers with it, and its journal file becomes superfluous, in one step (B5).

    change      u8 kind · fields
    LEDGER      i64 ledger · u8 flags (1 fenced, 2 has a packet, 4 deleted) · u8 key bytes + 1 · key ·
                i64 LAC of the packet · u16 packet bytes · packet · i64 wall ms of the deletion
    FORGET      i64 ledger              nothing is known of it any more
    LOG         u64 number · u16 directory · u64 file bytes · u32 extents · the extents
    UNLOG       u64 number              its file may go
    MARK        u64 journal file · u64 first sequence in it     earlier ones are not needed
    OPENED      u64 journal file        it exists and may have records
    LOST        u64 journal file        it was given up: do not ask for it again
    DOUBT       i64 ledger · i64 first entry · i64 last entry
    TRUST       i64 ledger
    DOUBT_ALL
    COMPLETE                            ends what a new generation begins with

A generation begins with all that is known; the older one counts until both copies of the new one are
durable. Marks never go back (B5).
"""

import struct
from array import array
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from rollbook.bookie.core.doubt import Doubts
from rollbook.bookie.core.entry_log_format import Extent
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.bookie.core.memtable import IntArray
from rollbook.proto.errors import TornRecord
from rollbook.proto.ids import NO_ENTRY

_KIND: Final = struct.Struct("<B")
_LEDGER: Final = struct.Struct("<BqBB")
_LEDGER_REST: Final = struct.Struct("<qHq")
_ID: Final = struct.Struct("<BQ")
_LOG: Final = struct.Struct("<BQHQI")
_MARK: Final = struct.Struct("<BQQ")
_DOUBT: Final = struct.Struct("<Bqqq")
_EXTENT: Final = struct.Struct("<qqqQQqII")
_LEDGERS_PER_RECORD: Final = 4096


class Change(IntEnum):
    LEDGER = 1
    FORGET = 2
    LOG = 3
    UNLOG = 4
    MARK = 5
    OPENED = 6
    DOUBT = 7
    TRUST = 8
    DOUBT_ALL = 9
    COMPLETE = 10
    LOST = 11


_FENCED, _HAS_PACKET, _DELETED = 1, 2, 4


class Mark(NamedTuple):
    """Where replay starts."""

    journal: int
    first_sequence: int


class Log(NamedTuple):
    number: int
    directory: int  # Which of the ledger directories has it.
    file_bytes: int


class Held(NamedTuple):
    """What one log holds of a ledger."""

    log: int
    first_entry: int
    last_entry: int
    entries: int
    entry_bytes: int
    last_add_confirmed: int


# --- Packing ----------------------------------------------------------------------------------


def pack_ledger(ledger_id: int, facts: LedgerFacts) -> bytes:
    flags = _FENCED * facts.is_fenced
    flags |= _HAS_PACKET * (facts.lac_packet is not None)
    flags |= _DELETED * (facts.deleted_ms is not None)
    key, packet = facts.ledger_key, facts.lac_packet or b""
    return b"".join(
        (
            _LEDGER.pack(Change.LEDGER, ledger_id, flags, 0 if key is None else len(key) + 1),
            key or b"",
            _LEDGER_REST.pack(facts.lac_of_packet, len(packet), facts.deleted_ms or 0),
            packet,
        )
    )


def pack_forget(ledger_id: int) -> bytes:
    return _ID.pack(Change.FORGET, ledger_id)


def pack_log(log: Log, extents: list[Extent]) -> bytes:
    head = _LOG.pack(Change.LOG, log.number, log.directory, log.file_bytes, len(extents))
    return head + b"".join([_EXTENT.pack(*extent) for extent in extents])


def pack_unlog(number: int) -> bytes:
    return _ID.pack(Change.UNLOG, number)


def pack_mark(mark: Mark) -> bytes:
    return _MARK.pack(Change.MARK, *mark)


def pack_opened(journal: int) -> bytes:
    return _ID.pack(Change.OPENED, journal)


def pack_lost(journal: int) -> bytes:
    return _ID.pack(Change.LOST, journal)


def pack_doubt(ledger_id: int, first_entry: int, last_entry: int) -> bytes:
    return _DOUBT.pack(Change.DOUBT, ledger_id, first_entry, last_entry)


def pack_trust(ledger_id: int) -> bytes:
    return _ID.pack(Change.TRUST, ledger_id)


DOUBT_ALL: Final = _KIND.pack(Change.DOUBT_ALL)
COMPLETE: Final = _KIND.pack(Change.COMPLETE)


# --- What it comes to -------------------------------------------------------------------------


class Catalog:
    def __init__(self) -> None:
        self.facts: dict[int, LedgerFacts] = {}
        self.logs: dict[int, Log] = {}
        self.doubts = Doubts()
        self.mark = Mark(1, 1)
        self.opened = 0  # The highest journal file that may have records.
        self.lost: dict[int, None] = {}  # Journal files behind the mark that are not there.
        self.is_complete = False
        # Of each ledger, the fields of `Held` one after the other: an object for each would be
        # ten times the size, and stores have millions.
        self._held: dict[int, IntArray] = {}

    def held(self, ledger_id: int) -> Iterator[Held]:
        """Newest log first."""
        fields = self._held.get(ledger_id, ())
        for at in range(len(fields) - _HELD, -1, -_HELD):
            yield Held(*fields[at : at + _HELD])

    def holding(self, ledger_id: int, entry_id: int) -> list[int]:
        """The logs whose range has the entry, newest first."""
        fields = self._held.get(ledger_id)
        if fields is None:
            return []
        return [
            fields[at]
            for at in range(len(fields) - _HELD, -1, -_HELD)
            if fields[at + 1] <= entry_id <= fields[at + 2]
        ]

    def last_add_confirmed(self, ledger_id: int) -> int:
        fields = self._held.get(ledger_id)
        return max(fields[5::_HELD]) if fields else NO_ENTRY

    @property
    def ledger_ids(self) -> Iterator[int]:
        yield from self.facts
        yield from (ledger_id for ledger_id in self._held if ledger_id not in self.facts)

    # --- Changing -----------------------------------------------------------------------------

    def apply(self, body: bytes) -> None:
        """One record's changes. Raises `TornRecord` on what nobody packed."""
        try:
            at = 0
            while at < len(body):
                at += self._apply_one(body, at)
        except (struct.error, ValueError) as error:
            raise TornRecord(f"the catalog cannot be read: {error}") from error

    def _apply_one(self, body: bytes, at: int) -> int:
        """Returns its size."""
        kind = Change(body[at])
        match kind:
            case Change.LEDGER:
                return self._apply_ledger(body, at)
            case Change.LOG:
                return self._apply_log(body, at)
            case Change.DOUBT:
                _, *doubt = _DOUBT.unpack_from(body, at)
                self.doubts.add(*doubt)
                return _DOUBT.size
            case Change.MARK:
                _, journal, first_sequence = _MARK.unpack_from(body, at)
                assert (journal, first_sequence) >= self.mark, "a mark went back"
                self.mark = Mark(journal, first_sequence)
                self.lost = {number: None for number in self.lost if number >= journal}
                return _MARK.size
            case Change.DOUBT_ALL:
                self.doubts.everything = True
                return _KIND.size
            case Change.COMPLETE:
                self.is_complete = True
                return _KIND.size
        _, number = _ID.unpack_from(body, at)
        match kind:
            case Change.FORGET:
                self.facts.pop(number, None)
            case Change.UNLOG:
                self._remove_log(number)
            case Change.OPENED:
                self.opened = max(self.opened, number)
            case Change.LOST:
                self.lost[number] = None
            case Change.TRUST:
                self.doubts.clear(number)
        return _ID.size

    def _apply_ledger(self, body: bytes, start: int) -> int:
        _, ledger_id, flags, key_size = _LEDGER.unpack_from(body, start)
        at = start + _LEDGER.size
        key = body[at : at + key_size - 1] if key_size else None
        at += max(0, key_size - 1)
        lac, packet_size, deleted_ms = _LEDGER_REST.unpack_from(body, at)
        at += _LEDGER_REST.size
        packet = body[at : at + packet_size]
        self.facts[ledger_id] = LedgerFacts(
            key,
            bool(flags & _FENCED),
            packet if flags & _HAS_PACKET else None,
            lac,
            deleted_ms if flags & _DELETED else None,
        )
        return int(at) - start + len(packet)

    def _apply_log(self, body: bytes, start: int) -> int:
        _, number, directory, file_bytes, extents = _LOG.unpack_from(body, start)
        at = start + _LOG.size
        end = at + extents * _EXTENT.size
        if end > len(body):
            raise ValueError("a log's extents are cut short")
        self.logs[number] = Log(number, directory, file_bytes)
        for extent in map(Extent._make, _EXTENT.iter_unpack(body[at:end])):
            fields = self._held.setdefault(extent.ledger_id, array("q"))
            fields.extend((number, *extent[1:6]))
        return int(end) - start

    def _remove_log(self, number: int) -> None:
        self.logs.pop(number, None)
        for ledger_id in list(self._held):
            kept = [held for held in self.held(ledger_id) if held.log != number]
            if kept:
                self._held[ledger_id] = array("q", [n for held in reversed(kept) for n in held])
            else:
                del self._held[ledger_id]

    # --- A new generation ---------------------------------------------------------------------

    def pack_all(self) -> Iterator[bytes]:
        """Bodies of records that, applied to an empty catalog, give this one."""
        yield pack_mark(self.mark) + pack_opened(self.opened)
        yield b"".join(
            [
                *(pack_doubt(ledger_id, *doubt) for ledger_id, doubt in self.doubts),
                *([DOUBT_ALL] if self.doubts.everything else []),
                *map(pack_lost, self.lost),
            ]
        )
        batch: list[bytes] = []
        for ledger_id, facts in self.facts.items():
            batch.append(pack_ledger(ledger_id, facts))
            if len(batch) == _LEDGERS_PER_RECORD:
                yield b"".join(batch)
                batch.clear()
        yield b"".join(batch)
        extents: dict[int, list[Extent]] = {number: [] for number in self.logs}
        for ledger_id in sorted(self._held):
            for held in self.held(ledger_id):
                extents[held.log].append(Extent(ledger_id, *held[1:], 0, 0))
        for number, log in self.logs.items():  # In order of age: `held` goes by it.
            yield pack_log(log, extents[number])
        yield COMPLETE


_HELD: Final = len(Held._fields)
