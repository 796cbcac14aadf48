"""What a bookie brought, held against what it was asked for: only whole, right entries count (RD3).

An entry is right if its digest is, and if it names this ledger and an entry that was asked for. Of a
batch everything up to the first flaw is taken; what comes behind is asked for again.
"""

from collections.abc import Sequence

from rollbook.proto.errors import DigestMismatch
from rollbook.proto.ids import EntryId
from rollbook.proto.ports import Buffer
from rollbook.proto.wire.digest import Entry, LedgerDigest


def unpack_batch(
    digest: LedgerDigest, bodies: Sequence[Buffer], first_entry: EntryId, count: int
) -> list[Entry]:
    """In ascending order, perhaps with gaps. Raises `DigestMismatch` if the first body is flawed."""
    entries: list[Entry] = []
    next_entry, end = first_entry, first_entry + count
    for body in bodies:
        try:
            entry = digest.unpack_entry(body, None)
            if not next_entry <= entry.entry_id < end:
                raise DigestMismatch(
                    f"entry {entry.entry_id} was not asked for",
                    ledger_id=digest.ledger_id,
                    entry_id=next_entry,
                )
        except DigestMismatch:
            if not entries:
                raise
            break
        entries.append(entry)
        next_entry = EntryId(entry.entry_id + 1)
    return entries


def consecutive(entries: Sequence[Entry], first_entry: EntryId) -> int:
    """How many of them follow one another from `first_entry` on."""
    count = 0
    for entry in entries:
        if entry.entry_id != first_entry + count:
            break
        count += 1
    return count
