"""Ledgers: durable, replicated runs of entries, in any BookKeeper cluster. See DESIGN.md.

    import rollbook.ledger

    async with rollbook.ledger.connect("zk://zk1,zk2,zk3/ledgers") as ledgers:
        async with await ledgers.create(ensemble=3, write=3, ack=2) as writer:
            entry_id = await writer.append(b"…")
        async with await ledgers.open(writer.ledger_id) as reader:
            async for entry in reader.read():
                print(entry.entry_id, entry.payload)

`rollbook.ledger.sync` offers the same to programs without an event loop.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollbook.ledger.config import ClientConfig
    from rollbook.ledger.ledgers import Ledgers
    from rollbook.ledger.open_client import connect
    from rollbook.ledger.reader import LedgerReader
    from rollbook.ledger.writer import LedgerWriter
    from rollbook.proto.wire.digest import DigestType, Entry

__all__ = (
    "ClientConfig",
    "DigestType",
    "Entry",
    "LedgerReader",
    "LedgerWriter",
    "Ledgers",
    "connect",
)

# Names are imported on first use: a program that needs only a rule of `core/` does not load the rest.
_HOMES = {
    "ClientConfig": "rollbook.ledger.config",
    "DigestType": "rollbook.proto.wire.digest",
    "Entry": "rollbook.proto.wire.digest",
    "LedgerReader": "rollbook.ledger.reader",
    "LedgerWriter": "rollbook.ledger.writer",
    "Ledgers": "rollbook.ledger.ledgers",
    "connect": "rollbook.ledger.open_client",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
