"""Flaws planted in the embedded store; crash tests must find each of them, or they prove nothing.

A flaw is a function that changes the store's classes in the process that calls it, which is always
a test's server (`server.py`).
"""

import asyncio
import functools
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from unittest import mock

from rollbook.proto.metastore.core.metadata_service import CommitGroup, Kept, MetadataService
from rollbook.proto.metastore.core.request_checks import ROOT, parent_of
from rollbook.proto.runtime.metastore import embedded_sqlite
from rollbook.proto.runtime.metastore.embedded_sqlite import StoreFile
from tests.crash.judge import LOG

_BETWEEN_COMMITS_S: Final = 0.03


def _patch(owner: Any, name: str, new: Any) -> None:
    mock.patch.object(owner, name, new).start()


class _NeverSyncs(sqlite3.Connection):
    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        is_about_syncing = "synchronous" in sql.lower()
        return super().execute("PRAGMA synchronous = OFF" if is_about_syncing else sql, *arguments)


def never_syncs() -> None:
    """SQLite never syncs, so the kernel decides when to write (MS1)."""
    _patch(sqlite3, "connect", functools.partial(sqlite3.connect, factory=_NeverSyncs))


def answers_first() -> None:
    """Writes in progress count as durable (MS1)."""
    keep, writing = StoreFile.keep, []

    async def begin_to_keep(file: StoreFile, batch: CommitGroup) -> None:
        writing.append(asyncio.create_task(keep(file, batch)))

    _patch(StoreFile, "keep", begin_to_keep)


def tears_transactions() -> None:
    """Each node is written in a commit of its own.

    It pauses between the commits of a counter and of its log, so that a kill is likely there.
    """
    keep = StoreFile.keep

    async def keep_one_by_one(file: StoreFile, batch: CommitGroup) -> None:
        await keep(file, replace(batch, rows={}))
        for path, row in batch.rows.items():
            if path.startswith(LOG):
                await asyncio.sleep(_BETWEEN_COMMITS_S)
            await keep(file, replace(batch, rows={path: row}, timeouts_ms={}))

    _patch(StoreFile, "keep", keep_one_by_one)


def trusts_the_log() -> None:
    """A new owner takes everything it reads in the log for durable (MS1)."""
    _patch(embedded_sqlite, "_write_again", lambda path: None)


def _patch_kept(change: Callable[[Kept], Kept]) -> None:
    open_file = StoreFile.open

    async def open_and_change(path: str, new_id: str | None) -> tuple[StoreFile, Kept]:
        file, kept = await open_file(path, new_id)
        return file, change(kept)

    _patch(StoreFile, "open", open_and_change)


def forgets_sessions() -> None:
    """Sessions belong to the process that opened them (MS3)."""
    _patch_kept(lambda kept: replace(kept, timeouts_ms=()))


def counts_children_that_are_left() -> None:
    """A new owner numbers sequential nodes by the children that are left (MS4)."""

    def count_again(kept: Kept) -> Kept:
        rows = list(kept.rows)
        left = Counter(parent_of(path) for path, _ in rows if path != ROOT)
        return replace(kept, rows=[(path, row._replace(creates=left[path])) for path, row in rows])

    _patch_kept(count_again)


def forgets_what_watchers_heard() -> None:
    """A watch that is started again gets no RESYNC for what it missed (MS5)."""
    start_watch = MetadataService._start_watch

    def start_afresh(service: MetadataService, connection: int, known: Any, watch: Any) -> None:
        start_watch(service, connection, known, replace(watch, since=None))

    _patch(MetadataService, "_start_watch", start_afresh)


FOUND_BY_KILLS: Final = (
    answers_first,
    tears_transactions,
    forgets_sessions,
    counts_children_that_are_left,
    forgets_what_watchers_heard,
)
FOUND_BY_POWER_CUTS: Final = (never_syncs,)
FOUND_BY_FAILED_SYNCS: Final = (trusts_the_log,)
FLAWS: Final = {
    flaw.__name__: flaw for flaw in (*FOUND_BY_KILLS, *FOUND_BY_POWER_CUTS, *FOUND_BY_FAILED_SYNCS)
}
