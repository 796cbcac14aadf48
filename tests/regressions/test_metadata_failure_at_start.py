"""SU1: a server starts even if the metadata store fails for a moment during the start."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from rollbook.api.cli import server_startup
from rollbook.api.cli.server import log as log_process
from rollbook.api.cli.server import recovery as recovery_process
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.errors import MetadataUnavailable, RollbookError, SessionExpired
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.regressions.defects import defect

_OPERATIONS: Final = ("get", "children", "create", "set", "delete", "transaction", "watch", "sync")
_PATIENCE_S: Final = 20.0

Start = Callable[[str], Awaitable[None]]


@dataclass(frozen=True)
class Failing:
    error: type[RollbookError]
    every: int = 1

    def __str__(self) -> str:
        return self.error.__name__


class _FailingOnce:
    """Opens stores in which one operation fails: number `number`, counted over all of them."""

    def __init__(self, number: int, error: type[RollbookError]) -> None:
        self.left = number
        self._error = error

    async def open(self, *words: Any, **settings: Any) -> Any:
        store = await open_metadata_store(*words, **settings)
        for name in _OPERATIONS:
            setattr(store, name, self._counted(getattr(store, name)))
        return store

    def _counted(self, operation: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*words: Any, **settings: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise self._error
            return await operation(*words, **settings)

        return call


async def _log_server(url: str) -> None:
    settings = log_process.load_log_settings(
        metadata=url, listen="127.0.0.1:0", server_name="log-1"
    )
    async with log_process.log_server(settings, serves_store=False):
        pass


async def _recovery_server(url: str) -> None:
    settings = recovery_process.load_recovery_settings(metadata=url, name="recovery-1")
    async with recovery_process.recovery_server(settings, serves_store=False):
        pass


async def _start_while_it_fails(
    start: Start, module: Any, failing: Failing, url: str, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Starts once for every `failing.every`-th operation of a start, which fails.

    Returns the number of the last operation.
    """
    number = 1
    while True:
        store = _FailingOnce(number, failing.error)
        monkeypatch.setattr(module, "open_metadata_store", store.open)
        await asyncio.wait_for(start(url), _PATIENCE_S)
        if store.left > 0:
            return number
        number += failing.every


@defect(
    "store-that-fails-during-a-start-ends-it",
    "A server whose metadata session expired while it started, or whose store was away for a moment, ended.",
)
@pytest.mark.parametrize(
    "failing", [Failing(SessionExpired), Failing(MetadataUnavailable, every=4)], ids=str
)
@pytest.mark.parametrize(
    ("start", "module"),
    [(_log_server, log_process), (_recovery_server, recovery_process)],
    ids=["log", "recovery"],
)
async def test_server_starts_though_one_store_operation_fails(
    start: Start, module: Any, failing: Failing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    monkeypatch.setattr(server_startup, "_PAUSES_S", (0.01, 0.01))
    store = await open_metadata_store(url, serve=True, create=True)
    try:
        await initialise(store, MetadataUrl.parse(url).ledgers_root, random.Random(1))
        tried = await _start_while_it_fails(start, module, failing, url, monkeypatch)
    finally:
        await store.close()
    assert tried > failing.every  # At least one start had a failing operation.
