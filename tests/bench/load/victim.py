"""A bookie process for load tests, on an embedded metadata store.

Its files are in a new folder below the temporary directory: TMPDIR selects the disk.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

from rollbook.proto.cluster.cluster_root import initialise, open_cluster
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.ids import FIRST_ENTRY, BookieId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata, draw_creation_token
from rollbook.proto.quorum import Quorum
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.support import bookies, processes
from tests.support.bookies import PATIENCE_S, RunningBookie

_ROLLBOOK: Final = "rollbook.api.cli.main"
_TIMED: Final = "tests.bench.load.timed"
_CHANGES_AT_ONCE: Final = 100
# A benchmark's ledgers have no metadata, so they must not be collected while it runs.
_SETTINGS: Final = {
    "ROLLBOOK_SPACE_GC_INTERVAL_S": "86400",
    "ROLLBOOK_SPACE_SCRUB_INTERVAL_S": "86400",
}


@dataclass(frozen=True)
class Times:
    """CPU seconds of each step of all adds, and the longest block of the event loop."""

    spent_s: dict[str, float]
    loop_blocked_s_max: float


class Victim:
    def __init__(
        self,
        folder: Path,
        family: processes.Family,
        settings: Mapping[str, str],
        *,
        has_pages: bool,
    ) -> None:
        self.folder = folder
        self.bookie: RunningBookie  # From `start` on.
        self._family = family
        self._settings = {**_SETTINGS, **settings}
        self._metadata_url = f"sqlite://{folder}/metadata.db"
        self._report = folder / "times.json"
        self._pages = ["--http=127.0.0.1:0"] if has_pages else []
        self._http = ""  # Where they are, from `start` on.
        asyncio.run(self._initialise())

    async def _initialise(self) -> None:
        async with await open_metadata_store(self._metadata_url, create=True, visit=True) as store:
            await initialise(store, "/ledgers", random.Random(1))

    def start(self, *, is_timed: bool = False) -> None:
        module = [_TIMED, str(self._report)] if is_timed else [_ROLLBOOK]
        words = bookies.arguments(self.folder, self._metadata_url)
        more = ("--log-level=error", *self._pages)
        child = self._family.start_module(*module, *words, *more, environment=self._settings)
        self.bookie = RunningBookie(child)
        ready = child.line(PATIENCE_S)
        self.bookie.address = bookies.address_in(ready)
        if self._pages:
            self._http = ready.partition("http on ")[2].partition(")")[0]

    def stop(self) -> None:
        self.bookie.terminate()
        self.bookie.wait()

    @property
    def address(self) -> tuple[str, int]:
        return self.bookie.address.host, self.bookie.address.port

    def times(self) -> Times:
        """Measurements since the last call, for a timed bookie."""
        self._report.unlink(missing_ok=True)
        os.kill(self.bookie.pid, signal.SIGUSR1)
        deadline = time.monotonic() + PATIENCE_S
        while not self._report.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("the bookie does not say where its time went")
            time.sleep(0.01)
        return Times(**json.loads(self._report.read_text()))

    def create_ledgers(self, ledger_ids: Sequence[int]) -> None:
        """Creates ledgers in the metadata, so that they are not garbage."""
        asyncio.run(self._change_ledgers(_create, ledger_ids))

    def delete_ledgers(self, ledger_ids: Sequence[int]) -> None:
        asyncio.run(self._change_ledgers(_delete, ledger_ids))

    async def _change_ledgers(
        self, change: Callable[[LedgerNodes, LedgerId], Awaitable[None]], ledger_ids: Sequence[int]
    ) -> None:
        async with await open_metadata_store(self._metadata_url) as store:
            cluster = await open_cluster(store, "/ledgers")
            nodes = LedgerNodes(store, cluster.root, cluster.layout)
            for at in range(0, len(ledger_ids), _CHANGES_AT_ONCE):
                some = ledger_ids[at : at + _CHANGES_AT_ONCE]
                await asyncio.gather(*(change(nodes, LedgerId(each)) for each in some))

    def compact(self) -> None:
        """Collects garbage on which two scans agree, and starts a compaction."""
        request = Request(
            f"http://{self._http}/api/v1/bookie/gc",
            json.dumps({"forceMajor": True}).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        with urlopen(request, timeout=PATIENCE_S) as reply:
            assert reply.status == HTTPStatus.ACCEPTED

    def drop_caches(self) -> None:
        """Drops the system's caches of its journal and entry logs; its own caches end with the
        process.
        """
        for path in self.files():
            drop_from_cache(path)

    def files(self) -> list[Path]:
        return sorted(p for p in self.folder.rglob("*") if p.suffix in (".journal", ".log"))


def drop_from_cache(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)  # Only clean pages can be dropped.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


async def _create(nodes: LedgerNodes, ledger_id: LedgerId) -> None:
    metadata = LedgerMetadata(
        ledger_id,
        Quorum(1, 1, 1),
        (Fragment(FIRST_ENTRY, (BookieId("bk-1"),)),),
        created_ms=1,
        creation_token=draw_creation_token(random.Random(ledger_id)),
    )
    await nodes.create(metadata)


async def _delete(nodes: LedgerNodes, ledger_id: LedgerId) -> None:
    await nodes.delete(ledger_id)


@contextmanager
def victim(
    settings: Mapping[str, str] = {}, *, is_timed: bool = False, has_pages: bool = False
) -> Iterator[Victim]:
    """`has_pages`: those for operators, by which it can be made to compact."""
    folder = Path(tempfile.mkdtemp(prefix="rollbook-bench-"))
    try:
        with processes.family() as family:
            made = Victim(folder, family, settings, has_pages=has_pages)
            made.start(is_timed=is_timed)
            yield made
    finally:
        shutil.rmtree(folder)
