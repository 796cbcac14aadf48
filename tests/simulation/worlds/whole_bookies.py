"""What worlds of whole bookies have in common: how small these are, and what their history shows of them."""

from collections.abc import Iterable
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any, Final

from rollbook.bookie.config import ServerConfig, StorageConfig
from rollbook.proto.cluster.cluster_root import open_cluster
from rollbook.proto.errors import (
    DataLost,
    TornRecord,
    UnsupportedVersion,
    WrongBookie,
    WrongCluster,
)
from tests.simulation.history import History
from tests.support.planting import Patch

SMALL_STORAGE: Final = StorageConfig(
    "/bookie/journal",
    ("/bookie/ledgers",),
    journal_file_bytes=16 * 1024,
    index_bytes_max=4_000,
    cache_bytes=32 * 1024,
    queued_bytes_max=64 * 1024,
    waiting_files_max=2,
    zeros_ahead_bytes=8 * 1024,
)
SMALL_SERVER: Final = ServerConfig(
    frame_bytes_max=64 * 1024,
    held_bytes_max=256 * 1024,
    connection_bytes_max=128 * 1024,
    connection_bytes_floor=4 * 1024,
    reads_max=4,
    connection_reads_max=2,
    long_polls_max=20,
)
# What no start may end in, whatever crashed before: nothing of a disk was taken away.
NEVER_AT_START: Final = (DataLost, WrongBookie, WrongCluster, TornRecord, UnsupportedVersion)

InnerStep = tuple[Any, str, str]
"""A step that no user sees: the class and the method that take it, and its name in a history."""


def measured(history: History, steps: Iterable[InnerStep]) -> list[Patch]:
    """So that the history has them, too."""

    def measure(original: Any, step: str) -> Any:
        if not iscoroutinefunction(original):

            def take_at_once(*arguments: Any, **keywords: Any) -> Any:
                history.on_answered(history.call(step))
                return original(*arguments, **keywords)

            return take_at_once

        async def take(*arguments: Any, **keywords: Any) -> Any:
            call = history.call(step)
            try:
                return await original(*arguments, **keywords)
            finally:
                history.on_answered(call)

        return take

    return [(owner, name, measure(getattr(owner, name), step)) for owner, name, step in steps]


def remembering(*modules: ModuleType) -> list[Patch]:
    """What a cluster says of itself never changes: these modules read it once in a run."""
    known: list[Any] = []

    async def open_known(*arguments: Any, **options: Any) -> Any:
        if not known:
            known.append(await open_cluster(*arguments, **options))
        return known[0]

    return [(module, "open_cluster", open_known) for module in modules]
