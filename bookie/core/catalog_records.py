"""The format of the catalog's changes, which are the bodies of CHANGES records. Integers are little-endian.

    change      u8 kind · fields
    LEDGER      i64 ledger · u8 flags (1 fenced, 2 has a packet, 4 deleted) · u8 key bytes + 1 · key ·
                i64 LAC of the packet · u16 packet bytes · packet · i64 wall ms of the deletion
    FORGET      i64 ledger              all facts about it are forgotten
    LOG         u64 number · u16 directory · u64 file bytes · u64 age
    EXTENTS     u64 log · u32 extents · the extents, as in `entry_log_footer.py`     after their LOG
    UNLOG       u64 number              its file may be removed
    REPLAY      u64 journal file · u64 first sequence in it     a start replays from there
    OPENED      u64 journal file        it exists and may have records
    LOST        u64 journal file        its loss was accepted: a start does not ask for it again
    DOUBT       i64 ledger · i64 first entry · i64 last entry
    TRUST       i64 ledger · i64 first entry · i64 last entry    these are restored, or not needed
    SCRUBBED    u64 number              logs up to this one have been verified, in this round
    DOUBT_ALL
    TRUST_ALL                           ends DOUBT_ALL; doubts about single ledgers stay
    OLD         i64 ledger              an earlier life may have fenced ledgers below it
    DROP        i64 ledger · u64 journal file   its entries were dropped there; after its LEDGER
    COMPLETE                            the new generation now has all facts

`catalog.py` applies changes.
"""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from rollbook.bookie.core.entry_log_footer import EXTENT, Extent
from rollbook.bookie.core.fencing import LedgerFacts

T = TypeVar("T")

KIND: Final = struct.Struct("<B")
_LEDGER: Final = struct.Struct("<BqBB")
_LEDGER_REST: Final = struct.Struct("<qHq")
ID: Final = struct.Struct("<BQ")
LOG: Final = struct.Struct("<BQHQQ")
EXTENTS: Final = struct.Struct("<BQI")
REPLAY_START: Final = struct.Struct("<BQQ")
DOUBT: Final = struct.Struct("<Bqqq")
OLD: Final = struct.Struct("<Bq")
DROP: Final = struct.Struct("<BqQ")
# Numbers of compacted logs begin here, above the numbers of all journal files.
COMPACTED: Final = 10**15
# Extents that `catalog.py` applies in one step, about its `_STEP_BYTES` of changes.
_EXTENTS_MAX: Final = 256


class Change(IntEnum):
    LEDGER = 1
    FORGET = 2
    LOG = 3
    UNLOG = 4
    REPLAY = 5
    OPENED = 6
    DOUBT = 7
    TRUST = 8
    DOUBT_ALL = 9
    COMPLETE = 10
    LOST = 11
    EXTENTS = 12
    SCRUBBED = 13
    TRUST_ALL = 14
    OLD = 15
    DROP = 16


_FENCED, _HAS_PACKET, _DELETED = 1, 2, 4


class ReplayStart(NamedTuple):
    """The place where a replay of the journal starts."""

    journal: int
    first_sequence: int


class EntryLogInfo(NamedTuple):
    number: int
    directory: int  # The index of its ledger directory.
    file_bytes: int
    age: int


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
            DROP.pack(Change.DROP, ledger_id, facts.dropped_in) if facts.dropped_in else b"",
        )
    )


def unpack_ledger(body: bytes, start: int) -> tuple[int, LedgerFacts, int]:
    """Returns the ledger, its facts, and the size of the change."""
    _, ledger_id, flags, key_size = _LEDGER.unpack_from(body, start)
    at = start + _LEDGER.size
    key = body[at : at + key_size - 1] if key_size else None
    at += max(0, key_size - 1)
    lac, packet_size, deleted_ms = _LEDGER_REST.unpack_from(body, at)
    at += _LEDGER_REST.size
    packet = body[at : at + packet_size]
    facts = LedgerFacts(
        key,
        bool(flags & _FENCED),
        packet if flags & _HAS_PACKET else None,
        lac,
        deleted_ms if flags & _DELETED else None,
    )
    return ledger_id, facts, int(at) - start + len(packet)


def pack_forget(ledger_id: int) -> bytes:
    return ID.pack(Change.FORGET, ledger_id)


def pack_log(log: EntryLogInfo, extents: Iterable[Extent]) -> Iterator[bytes]:
    """Packs a log in parts, which are written to one record, or to several records of a new
    generation."""
    yield LOG.pack(Change.LOG, *log)
    for batch in batches(extents, _EXTENTS_MAX):
        head = EXTENTS.pack(Change.EXTENTS, log.number, len(batch))
        yield head + b"".join([EXTENT.pack(*extent) for extent in batch])


def pack_unlog(number: int) -> bytes:
    return ID.pack(Change.UNLOG, number)


def pack_replay_start(start: ReplayStart) -> bytes:
    return REPLAY_START.pack(Change.REPLAY, *start)


def pack_opened(journal: int) -> bytes:
    return ID.pack(Change.OPENED, journal)


def pack_lost(journal: int) -> bytes:
    return ID.pack(Change.LOST, journal)


def pack_doubt(ledger_id: int, first_entry: int, last_entry: int) -> bytes:
    return DOUBT.pack(Change.DOUBT, ledger_id, first_entry, last_entry)


def pack_trust(ledger_id: int, first_entry: int, last_entry: int) -> bytes:
    return DOUBT.pack(Change.TRUST, ledger_id, first_entry, last_entry)


def pack_scrubbed(number: int) -> bytes:
    return ID.pack(Change.SCRUBBED, number)


def pack_old(ledger_id: int) -> bytes:
    return OLD.pack(Change.OLD, ledger_id)


DOUBT_ALL: Final = KIND.pack(Change.DOUBT_ALL)
TRUST_ALL: Final = KIND.pack(Change.TRUST_ALL)
COMPLETE: Final = KIND.pack(Change.COMPLETE)


def batches(things: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(things)
    while batch := list(islice(iterator, size)):
        yield batch
