"""Creates ledgers that have only metadata, and maintains an index of them or audits them.

    python -m tests.bench.load.index_worker sqlite:///…/metadata.db

Several of these processes use one store: one maintains the index, so that its CPU can be measured,
and another one creates and changes ledgers. Jobs are the methods of `_Worker`.
"""

import asyncio
import gc
import random
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Never, cast

import structlog

from rollbook.proto.cluster.bookie_watcher import BookieWatcher
from rollbook.proto.cluster.cluster_root import Cluster, initialise, open_cluster
from rollbook.proto.cluster.election import Vote
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.formats.ledger_metadata import pack_ledger_metadata
from rollbook.proto.formats.paths import READ_ONLY
from rollbook.proto.ids import FIRST_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata, LedgerState
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import NO_SESSION, Create, Delete, MetadataStore, Node, NodeStat, Op
from rollbook.proto.quorum import Quorum
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.gc_tuning import calm_collector
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.wire.digest import DigestType
from rollbook.recovery.auditor import Auditor
from rollbook.recovery.config import AuditConfig
from rollbook.recovery.ledger_index import LedgerIndex
from tests.bench.load import jobs
from tests.bench.load.jobs import Found, Job

LOST: Final = BookieId("lost:3181")
_OPS_AT_ONCE: Final = 500
_AT_ONCE: Final = 32
_TICK_S: Final = 0.001


def members(count: int) -> list[BookieId]:
    return [BookieId(f"member-{number}:3181") for number in range(count)]


def metadata_of(ledger_id: int, ensemble: tuple[BookieId, ...], *, length: int) -> LedgerMetadata:
    """Metadata of a closed ledger with one entry."""
    return LedgerMetadata(
        LedgerId(ledger_id),
        Quorum(len(ensemble), len(ensemble), min(2, len(ensemble))),
        (Fragment(FIRST_ENTRY, ensemble),),
        LedgerState.CLOSED,
        last_entry=EntryId(0),
        length=length,
        digest_type=DigestType.CRC32C,
        password=b"",
        created_ms=1,
        creation_token=1,
    )


async def create_all(
    store: MetadataStore, cluster: Cluster, ledgers: Iterator[LedgerMetadata]
) -> None:
    """Creates many nodes per transaction, after their folders."""
    nodes = LedgerNodes(store, cluster.root, cluster.layout)
    made: dict[str, None] = {cluster.root: None}
    ops: list[Op] = []
    for metadata in ledgers:
        path = nodes.path(metadata.ledger_id)
        above = path.rpartition("/")[0]
        missing = []
        while above not in made:
            if await store.get(above) is None:
                missing.append(above)
            made[above] = None
            above = above.rpartition("/")[0]
        ops += [Create(folder) for folder in reversed(missing)]
        ops.append(Create(path, pack_ledger_metadata(metadata)))
        if len(ops) >= _OPS_AT_ONCE:
            await store.transaction(ops)
            ops = []
    if ops:
        await store.transaction(ops)


class _Worker:
    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store, self._root = store, root
        self._cluster: Cluster
        self._keeping: asyncio.Task[Any] | None = None
        self._index: LedgerIndex
        self._changes = 0

    async def run(self, job: Job) -> Found:
        if job["do"] != "initialise":
            self._cluster = await open_cluster(self._store, self._root)
        found: Found = await getattr(self, job["do"])(job)
        return found

    # --- Ledgers ------------------------------------------------------------------------------

    async def initialise(self, job: Job) -> Found:
        await initialise(self._store, self._root, random.Random(1))
        for bookie in (*members(job["members"]), LOST):  # They are there, and take no entries.
            await self._store.create(f"{self._root}/{READ_ONLY}/{bookie}")
        return {}

    async def set_delay(self, job: Job) -> Found:
        marks = Marks(self._store, self._root)
        await marks.prepare()
        await marks.set_delay(job["seconds"])
        return {}

    async def populate(self, job: Job) -> Found:
        """Creates ledgers, of which the first `naming` name the bookie that will be lost."""
        draw, names = random.Random(1), members(job["members"])

        def ledgers() -> Iterator[LedgerMetadata]:
            for ledger_id in range(job["first"], job["first"] + job["ledgers"]):
                ensemble = draw.sample(names, 3)
                if ledger_id < job["first"] + job["naming"]:
                    ensemble[draw.randrange(3)] = LOST
                yield metadata_of(ledger_id, tuple(ensemble), length=1024)

        stopwatch = jobs.Stopwatch()
        await create_all(self._store, self._cluster, ledgers())
        return stopwatch.read()

    async def change(self, job: Job) -> Found:
        """Replaces one member of each ledger by another one."""
        nodes = LedgerNodes(self._store, self._cluster.root, self._cluster.layout)
        names = members(job["members"])
        ids = iter(range(job["first"], job["first"] + job["count"]))

        async def work() -> None:
            for ledger_id in ids:
                stored = await nodes.read(LedgerId(ledger_id))
                fragment = stored.metadata.fragments[0]
                new = next(name for name in names if name not in fragment.ensemble)
                changed = stored.metadata.with_replacement(FIRST_ENTRY, fragment.ensemble[0], new)
                await nodes.update(stored, changed)

        stopwatch = jobs.Stopwatch()
        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
        return stopwatch.read()

    async def register(self, job: Job) -> Found:
        """Registers or unregisters a bookie."""
        path = f"{self._root}/{READ_ONLY}/{LOST}"
        await (self._store.create(path) if job["is_there"] else self._store.delete(path))
        return {}

    async def unmark_all(self, _job: Job) -> Found:
        marks = Marks(self._store, self._root)
        ids = [each async for each in marks.ids()]
        for start in range(0, len(ids), _OPS_AT_ONCE):
            some = ids[start : start + _OPS_AT_ONCE]
            paths = [marks.path(each) for each in some]
            folders = [path.rpartition("/")[0] for path in paths]
            await self._store.transaction([*map(Delete, paths), *map(Delete, folders)])
        return {"marks": len(ids)}

    # --- Index and auditor --------------------------------------------------------------------

    async def index(self, _job: Job) -> Found:
        """Builds a new index, which follows changes after this returns."""
        await self._end()
        self._index = LedgerIndex(self._store, self._cluster, SystemClock())
        stopwatch = jobs.Stopwatch()
        self._keeping = asyncio.create_task(self._index.run())
        while not self._index.is_ready:
            await asyncio.sleep(_TICK_S)
        found = stopwatch.read() | {"ledgers": len(self._index)}
        self._changes = 0
        self._index.on_change(self._on_change)
        return found

    def _on_change(self, *_: object) -> None:
        self._changes += 1

    async def spent(self, _job: Job) -> Found:
        return {"changes": self._changes, "cpu_s": time.process_time()}

    async def audit(self, _job: Job) -> Found:
        """Runs one pass of an elected auditor over the ledgers of the lost bookie."""
        watcher = BookieWatcher(self._store, self._root)
        await watcher.start()
        config = AuditConfig(lost_bookie_delay_s=0)
        marks = Marks(self._store, self._root)
        auditor = Auditor(
            self._store, self._cluster, SystemClock(), watcher, self._index, marks, config
        )
        leading = asyncio.create_task(auditor.lead(Vote("bench", self._store.session)))
        try:
            while not auditor.state.to_mark:
                await asyncio.sleep(_TICK_S)
            stopwatch = jobs.Stopwatch()
            while not auditor.state.passes:
                await asyncio.sleep(_TICK_S)
            return stopwatch.read() | {"marked": auditor.state.marked}
        finally:
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)
            await watcher.close()

    async def million(self, job: Job) -> Found:
        """Measures the memory of an index of that many ledgers, with a store that generates them."""
        store = _MadeUpStore(job["ledgers"], members(job["members"]), self._root)
        index = LedgerIndex(cast(MetadataStore, store), self._cluster, SystemClock())
        gc.collect()
        before = _resident_bytes()
        stopwatch = jobs.Stopwatch()
        keeping = asyncio.create_task(index.run())
        while not index.is_ready:
            await asyncio.sleep(_TICK_S)
        found = stopwatch.read() | {"ledgers": len(index), "bytes": _resident_bytes() - before}
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        return found

    async def _end(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
            self._keeping = None


class _MadeUpStore:
    """Answers a walk like a store with this many ledgers, computed from the digits of ids."""

    session = NO_SESSION

    def __init__(self, ledgers: int, names: Sequence[BookieId], root: str) -> None:
        self._ledgers, self._names, self._root = ledgers, names, root

    async def sync(self) -> None:
        pass

    async def get(self, path: str) -> Node | None:
        digits = path[len(self._root) :].replace("/", "").replace("L", "")
        if len(digits) != sum(_WIDTHS):
            return Node(b"", _STAT)
        draw = random.Random(int(digits))
        metadata = metadata_of(int(digits), tuple(draw.sample(self._names, 3)), length=1024)
        return Node(pack_ledger_metadata(metadata), _STAT)

    async def children(self, path: str) -> list[str]:
        digits = path[len(self._root) :].replace("/", "")
        depth = list(accumulate(_WIDTHS, initial=0)).index(len(digits))
        width, is_leaf = _WIDTHS[depth], depth == len(_WIDTHS) - 1
        below = 10 ** (sum(_WIDTHS) - len(digits) - width)  # Ids under one child.
        first = int(digits or "0") * 10**width
        count = min(10**width, max(0, -(-self._ledgers // below) - first))
        return [f"{'L' if is_leaf else ''}{number:0{width}d}" for number in range(count)]

    async def watch(self, _path: str, *, recursive: bool = False) -> "_MadeUpStore":
        return self

    def __aiter__(self) -> "_MadeUpStore":
        return self

    async def __anext__(self) -> Never:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        pass


_WIDTHS: Final = (2, 4, 4)  # Of the names that an id's digits are split into.
_STAT: Final = NodeStat(0, 1, 1, 1, 1, NO_SESSION, 0)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def _serve() -> None:
    url = MetadataUrl.parse(sys.argv[1])
    async with await open_metadata_store(url) as store:
        await jobs.serve(_Worker(store, url.ledgers_root).run)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    calm_collector()
    asyncio.run(_serve())
