"""Rollbook: durable, replicated, append-only logs for people who work in Python.

    import rollbook

    with rollbook.connect("log://127.0.0.1:7400") as client:
        log = client.open("orders", create=True)
        log.append(b"first")
        for record in log.read():
            print(record.offset, record.value)

`Client`, `Log`, `Writer`, `Cursor` and `Tail` are what `connect` and its methods return. `rollbook.aio` has the same names
for programs with an event loop, and `rollbook.errors` all errors. `rollbook.wal` keeps state machines alike;
`rollbook.spark` is the data source for Spark. Each name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rollbook.api import spark, wal
    from rollbook.api.client import aio
    from rollbook.api.client.config import LogClientConfig
    from rollbook.api.client.reader import RecordBatch
    from rollbook.api.client.sync import SyncClient as Client
    from rollbook.api.client.sync import SyncCursor as Cursor
    from rollbook.api.client.sync import SyncLog as Log
    from rollbook.api.client.sync import SyncTail as Tail
    from rollbook.api.client.sync import connect
    from rollbook.api.client.sync_writer import SyncWriter as Writer
    from rollbook.logservice.core.record_block import Record, pack_block
    from rollbook.logservice.ids import LogName, ProducerRef
    from rollbook.logservice.log_config import LogConfig, WriterMode
    from rollbook.proto import errors
    from rollbook.proto.errors import Outcome, RollbookError

__version__: Final = "0.1.0.dev0"
__all__ = [
    "Client",
    "Cursor",
    "Log",
    "LogClientConfig",
    "LogConfig",
    "LogName",
    "Outcome",
    "ProducerRef",
    "Record",
    "RecordBatch",
    "RollbookError",
    "Tail",
    "Writer",
    "WriterMode",
    "__version__",
    "aio",
    "connect",
    "errors",
    "pack_block",
    "spark",
    "wal",
]

_HOMES: Final = {  # Where each name is, and what it is called there.
    "Client": ("rollbook.api.client.sync", "SyncClient"),
    "Cursor": ("rollbook.api.client.sync", "SyncCursor"),
    "Log": ("rollbook.api.client.sync", "SyncLog"),
    "LogClientConfig": ("rollbook.api.client.config", "LogClientConfig"),
    "LogConfig": ("rollbook.logservice.log_config", "LogConfig"),
    "LogName": ("rollbook.logservice.ids", "LogName"),
    "Outcome": ("rollbook.proto.errors", "Outcome"),
    "ProducerRef": ("rollbook.logservice.ids", "ProducerRef"),
    "Record": ("rollbook.logservice.core.record_block", "Record"),
    "RecordBatch": ("rollbook.api.client.reader", "RecordBatch"),
    "RollbookError": ("rollbook.proto.errors", "RollbookError"),
    "Tail": ("rollbook.api.client.sync", "SyncTail"),
    "Writer": ("rollbook.api.client.sync_writer", "SyncWriter"),
    "WriterMode": ("rollbook.logservice.log_config", "WriterMode"),
    "connect": ("rollbook.api.client.sync", "connect"),
    "pack_block": ("rollbook.logservice.core.record_block", "pack_block"),
}
_MODULES: Final = {
    "aio": "rollbook.api.client.aio",
    "errors": "rollbook.proto.errors",
    "spark": "rollbook.api.spark",
    "wal": "rollbook.api.wal",
}


def __getattr__(name: str) -> Any:
    if module := _MODULES.get(name):
        return import_module(module)
    if home := _HOMES.get(name):
        place, name_there = home
        found = globals()[name] = getattr(import_module(place), name_there)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])
