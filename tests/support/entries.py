"""Complete entries, as in frames and on disk."""

from rollbook.proto.ids import EntryId
from rollbook.proto.wire.digest import LedgerDigest


def pack_entry(
    digest: LedgerDigest,
    entry_id: EntryId,
    last_add_confirmed: EntryId,
    ledger_length: int,
    payload: bytes,
) -> bytes:
    before = digest.pack_before_payload(entry_id, last_add_confirmed, ledger_length, payload)
    return before + payload
