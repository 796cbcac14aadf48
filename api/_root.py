"""Rollbook: durable, replicated, append-only logs for people who work in Python.

    import rollbook

    with rollbook.connect("log://127.0.0.1:7400") as client:
        log = client.open("orders", create=True)
        log.append(b"first")
        for record in log.read():
            print(record.offset, record.value)

`rollbook.aio.connect` gives the same for programs with an event loop; `rollbook.wal` keeps state machines alike;
`rollbook.spark` is the data source for Spark. What these need is loaded when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rollbook.api import spark, wal
    from rollbook.api.client import aio
    from rollbook.api.client.config import LogClientConfig
    from rollbook.api.client.sync import connect
    from rollbook.logservice.core.block import pack_block
    from rollbook.logservice.ids import ProducerRef
    from rollbook.logservice.log_config import LogConfig
    from rollbook.proto.errors import RollbookError

__version__: Final = "0.1.0.dev0"
__all__ = [
    "LogClientConfig",
    "LogConfig",
    "ProducerRef",
    "RollbookError",
    "__version__",
    "aio",
    "connect",
    "pack_block",
    "spark",
    "wal",
]

_HOMES: Final = {
    "LogClientConfig": "rollbook.api.client.config",
    "LogConfig": "rollbook.logservice.log_config",
    "ProducerRef": "rollbook.logservice.ids",
    "RollbookError": "rollbook.proto.errors",
    "connect": "rollbook.api.client.sync",
    "pack_block": "rollbook.logservice.core.block",
}
_MODULES: Final = {
    "aio": "rollbook.api.client.aio",
    "spark": "rollbook.api.spark",
    "wal": "rollbook.api.wal",
}


def __getattr__(name: str) -> Any:
    if home := _MODULES.get(name):
        return import_module(home)
    if home := _HOMES.get(name):
        return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])
