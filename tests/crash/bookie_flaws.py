"""Flaws planted in a bookie; crash tests must find each of them, or they prove nothing.

Crash images must find most of these flaws as well (`images/flaws.py`); the others concern
effects of processes, kernels and disks. A flaw is planted permanently in the process that calls
it, a test's bookie (`bookie_server.py`). If a crash must hit a certain moment, the flaw prolongs
that moment.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final
from unittest import mock

from rollbook.bookie import catalog_files, checkpoint, store_opening
from rollbook.bookie.core.catalog_records import ReplayStart
from rollbook.bookie.core.fencing import Ledger
from rollbook.bookie.journal import Journal, OnDone
from rollbook.bookie.storage import Storage
from rollbook.proto.ports import File
from tests.crash.images import flaws as in_images
from tests.support.planting import planted

_LATER_S: Final = 3.0


def _patch(owner: Any, name: str, new: Any) -> None:
    mock.patch.object(owner, name, new).start()


def answers_what_it_will_write() -> None:
    """Acknowledges adds while they wait for the disk."""
    enqueue = Journal._enqueue
    write_waiting = Journal._write_waiting

    def answer(
        journal: Journal, item: Any, is_sync_deferred: bool, size: int, on_done: OnDone
    ) -> None:
        enqueue(journal, item, is_sync_deferred, size, lambda _count, _error: None)
        asyncio.get_running_loop().call_soon(on_done, 1, None)

    async def write_later(journal: Journal) -> None:
        await asyncio.sleep(_LATER_S)
        await write_waiting(journal)

    _patch(Journal, "_enqueue", answer)
    _patch(Journal, "_write_waiting", write_later)


def keeps_fences_in_memory() -> None:
    async def fence(storage: Storage, ledger_id: int, ledger_key: bytes) -> None:
        ledger = storage._ledger(ledger_id)
        if refusal := ledger.refusal_of_control(ledger_key):
            raise refusal(ledger_id=ledger_id)
        ledger.show_key(ledger_key)
        ledger.fence_is_wanted = True

    _patch(Storage, "fence", fence)


def forgets_lacs() -> None:
    """A ledger that is loaded after a start has only the LAC of new adds."""
    _patch(Storage, "_make_ledger", lambda _storage, ledger_id, facts: Ledger(ledger_id, facts))


def marks_too_much_as_done() -> None:
    """The replay start also skips the file after the checkpointed one."""

    def too_far(journal: int, first_sequence: int) -> ReplayStart:
        return ReplayStart(journal + 1, first_sequence)

    _patch(checkpoint, "ReplayStart", too_far)


def only_syncs_what_it_read() -> None:
    """Syncs without rewriting: after a failed sync the kernel has nothing left to write."""

    async def sync(file: File, _start: int, _end: int) -> None:
        await file.sync()

    _patch(store_opening, "write_again", sync)
    _patch(catalog_files, "write_again", sync)


def takes_failed_syncs_for_good() -> None:
    fdatasync = os.fdatasync

    def try_to_sync(descriptor: int) -> None:
        try:
            fdatasync(descriptor)
        except OSError:
            pass

    _patch(os, "fdatasync", try_to_sync)


def _as_in_images(name: str) -> Callable[[], None]:
    return partial(_plant, name)


_PLANTED: Final = ExitStack()  # Never closed.


def _plant(name: str) -> None:
    _PLANTED.enter_context(planted(in_images.FLAWS[name].patches))


_IN_MEMORY: Final = (
    answers_what_it_will_write,
    keeps_fences_in_memory,
    forgets_lacs,
    marks_too_much_as_done,
)
_ON_FAILURE: Final = (only_syncs_what_it_read, takes_failed_syncs_for_good)

FOUND_BY_KILLS: Final = (*(flaw.__name__ for flaw in _IN_MEMORY), "the facts stay behind")
FOUND_BY_POWER_CUTS: Final = (
    "the journal never syncs",
    "a log is not synced",
    "the catalog never syncs",
)
# These need a file system on which a file's sync does not make its name durable.
FOUND_BY_LOST_NAMES: Final = ("a log's name is not synced",)
FOUND_BY_FAILED_SYNCS: Final = tuple(flaw.__name__ for flaw in _ON_FAILURE)
FLAWS: Final[dict[str, Callable[[], None]]] = {
    **{flaw.__name__: flaw for flaw in (*_IN_MEMORY, *_ON_FAILURE)},
    **{
        name: _as_in_images(name)
        for name in ("the facts stay behind", *FOUND_BY_POWER_CUTS, *FOUND_BY_LOST_NAMES)
    },
}
