"""Finds the ledgers that name a bookie in an index, which a watch keeps up to date without scans.

    watch below the ledgers root ──► ids are noted ──► their metadata is read ──► rows, counts
    one walk at the start        ──►

The reader of the watch only notes ids, since a watch holds a bounded number of events and then reports
RESYNC. After RESYNC all ids are walked again. A ledger is read again if it is new, was noted, was not closed
at the last reading, or is missing from the walk. A sweep over all other ledgers becomes due, since Java may
have moved a closed ledger while there was no watch. A sweep reads at a limited pace, and is also due every
day.

The index may name too many ledgers for a bookie, but never omits one that was read (RI1). A caller can wait
for the rest to be read (`catch_up`, `sweeps`). No final decision uses the index: `safe-to-remove` and the end
of a drain walk the ledgers themselves (RI2).
"""

import asyncio
import contextlib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, Never

import structlog

from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.errors import (
    BadMetadata,
    MetadataUnavailable,
    NoSuchLedger,
    OutcomeUnknown,
    SessionExpired,
    Unavailable,
)
from rollbook.proto.formats.paths import ledger_of_path
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.ports import Clock, MetadataStore, Watch, WatchEventKind
from rollbook.proto.tasks import TaskGroup
from rollbook.recovery.core.ledger_index_rows import IndexRow, members_of, row_of

logger = structlog.get_logger()

SWEEP_S: Final = 24 * 3600.0
READS_PER_S: Final = 1000  # The maximum number of reads per second in a sweep.
_CHUNK: Final = 64  # Ledgers that are read together.
# The maximum number of rows that are kept so that ledgers with equal rows share one row.
_SHARED_MAX: Final = 200_000
_SCAN: Final = 10_000  # Ledgers that are handled in one step of the event loop.
_RETRY_PAUSE_S: Final = 0.5

OnChange = Callable[[LedgerId, IndexRow], None]


class LedgerIndex:
    """The index, which is updated while `run` runs; all other methods may be called at any time."""

    def __init__(
        self,
        store: MetadataStore,
        cluster: Cluster,
        clock: Clock,
        *,
        sweep_s: float = SWEEP_S,
        reads_per_s: int = READS_PER_S,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._nodes = LedgerNodes(store, cluster.root, cluster.layout)
        self._sweep_s = sweep_s
        self._reads_per_s = reads_per_s
        self._rows: dict[int, IndexRow] = {}
        self._shared: dict[IndexRow, IndexRow] = {}
        self._unclosed: set[int] = set()
        self._counts: Counter[BookieId] = Counter()
        # The ids that were noted and not read since, each with the number of its first note; oldest first.
        self._noted: dict[int, int] = {}
        self._notes = 0
        self._must_walk = True
        self._has_news = asyncio.Event()
        self._progress = asyncio.Event()
        self._on_change: list[OnChange] = []
        self._sweep_due_ns = 0
        self.walks = 0  # Completed walks.
        self.sweeps = 0
        self.unreadable: dict[LedgerId, str] = {}  # Ledgers whose bookies are not known.

    # --- Questions ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_ready(self) -> bool:
        return self.walks > 0

    @property
    def unclosed(self) -> int:
        return len(self._unclosed)

    def bookies(self) -> dict[BookieId, int]:
        """Return the bookies that ledgers name, each with the number of these ledgers."""
        return dict(self._counts)

    def count(self, bookie: BookieId) -> int:
        return self._counts[bookie]

    def row(self, ledger_id: LedgerId) -> IndexRow | None:
        return self._rows.get(ledger_id)

    async def naming(self, bookies: Iterable[BookieId]) -> AsyncIterator[tuple[LedgerId, IndexRow]]:
        """Yield the ledgers that name one of the bookies, in no particular order. Other tasks run in between:
        a ledger that changes during the call is returned once, in its old or its new state.
        """
        wanted = frozenset(bookies)
        ids = array("q", self._rows)
        for start in range(0, len(ids), _SCAN):
            for ledger_id in ids[start : start + _SCAN]:
                row = self._rows.get(ledger_id)
                if row is not None and not wanted.isdisjoint(row):
                    yield LedgerId(ledger_id), row
            await asyncio.sleep(0)

    def on_change(self, call: OnChange) -> Callable[[], None]:
        """Call `call` for each new or changed ledger. Returns a function that ends these calls."""
        self._on_change.append(call)
        return lambda: self._on_change.remove(call)

    async def catch_up(self) -> None:
        """Return when all ids noted before the call have been read, and no walk is due."""
        notes = self._notes
        while self._must_walk or (self._noted and next(iter(self._noted.values())) <= notes):
            await self._progress.wait()

    async def swept(self, sweeps: int) -> int:
        """Return the number of completed sweeps as soon as it is larger than `sweeps`."""
        while self.sweeps <= sweeps:
            await self._progress.wait()
        return self.sweeps

    def request_sweep(self) -> None:
        """Make a sweep due: all metadata is read again, at the pace of sweeps."""
        self._sweep_due_ns = 0
        self._has_news.set()

    # --- Updates ------------------------------------------------------------------------------

    async def run(self) -> Never:
        """Update the index until cancelled. While the metadata store is unavailable this waits, and the
        index becomes stale.
        """
        while True:
            try:
                watch = await self._store.watch(self._cluster.root, recursive=True)
                try:
                    # Any ledger may have changed while there was no watch.
                    self._must_walk = True
                    async with TaskGroup() as group:
                        group.create_task(self._listen(watch))
                        group.create_task(self._keep())
                finally:
                    await watch.close()
            except* (Unavailable, OutcomeUnknown, SessionExpired) as errors:
                logger.warning("ledger_index_waits", reason=str(errors.exceptions[0]))
            await asyncio.sleep(_RETRY_PAUSE_S)

    async def _listen(self, watch: Watch) -> None:
        """Note the ids of events without waiting for anything else."""
        prefix = len(self._cluster.root) + 1
        layout = self._cluster.layout
        async for event in watch:
            if event.kind is WatchEventKind.RESYNC:
                self._must_walk = True
                self._has_news.set()
            elif (ledger_id := ledger_of_path(layout, event.path[prefix:])) is not None:
                self._note(ledger_id)
        raise MetadataUnavailable("the metadata store was closed")

    def _note(self, ledger_id: int) -> None:
        self._notes += 1
        self._noted.setdefault(ledger_id, self._notes)
        self._has_news.set()

    async def _keep(self) -> Never:
        while True:
            try:
                if self._must_walk:
                    await self._walk()
                elif self._noted:
                    await self._read_noted()
                elif self._clock.monotonic_ns() >= self._sweep_due_ns:
                    await self._sweep()
                else:
                    await self._await_news()
            except (Unavailable, OutcomeUnknown, SessionExpired) as error:
                logger.warning("ledger_index_waits", reason=error.code.reason)
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def _await_news(self) -> None:
        self._has_news.clear()
        left_s = (self._sweep_due_ns - self._clock.monotonic_ns()) / 1e9
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(left_s, 0.0)):
                await self._has_news.wait()

    async def _walk(self) -> None:
        """Walk over all ids. The ledgers are read during the walk, so that a first walk does not keep a
        million notes.
        """
        self._must_walk = False  # A later gap in the watch sets the flag again.
        try:
            known = array("q", sorted(self._rows))
            at = 0
            async for ledger_id in self._nodes.ids():
                upto = bisect_left(known, ledger_id, at)
                for gone in known[at:upto]:
                    self._note(gone)
                at = upto
                if at < len(known) and known[at] == ledger_id:
                    at += 1
                    if ledger_id in self._unclosed:
                        self._note(ledger_id)
                else:
                    self._note(ledger_id)
                while len(self._noted) >= _CHUNK:
                    await self._read_noted()
            for gone in known[at:]:
                self._note(gone)
            notes = self._notes
            while self._noted and next(iter(self._noted.values())) <= notes:
                await self._read_noted()
        except BaseException:
            self._must_walk = True
            raise
        if self._must_walk:
            return
        self.walks += 1
        # Ledgers that were closed at an earlier walk were not read again, so a sweep is due.
        if known:
            self._sweep_due_ns = 0
        else:
            self._sweep_is_due_in(self._sweep_s)
        logger.info("ledgers_indexed", ledgers=len(self), bookies=len(self.bookies()))
        self._tell_progress()

    async def _read_noted(self) -> None:
        """Read the oldest notes; ids noted in the meantime are read again."""
        chunk = dict(zip(self._noted, range(_CHUNK), strict=False))
        taken = {ledger_id: self._noted.pop(ledger_id) for ledger_id in chunk}
        try:
            await self._read(list(taken))
        except BaseException:
            # If a read fails, its notes are put back as the oldest ones.
            self._noted = taken | {k: v for k, v in self._noted.items() if k not in taken}
            raise
        self._tell_progress()

    async def _sweep(self) -> None:
        # A request in the meantime makes the next sweep due sooner.
        self._sweep_is_due_in(self._sweep_s)
        try:
            is_complete = await self._sweep_all()
        except BaseException:
            self._sweep_due_ns = 0
            raise
        if not is_complete:
            return  # A walk is due, which makes a sweep due again.
        self.sweeps += 1
        logger.info("ledger_index_swept", ledgers=len(self))
        self._tell_progress()

    async def _sweep_all(self) -> bool:
        """Read all ledgers once, at a limited pace. Returns False if a walk became due before all were
        read.
        """
        ids = array("q", self._rows)
        for start in range(0, len(ids), _CHUNK):
            if self._must_walk:
                return False
            began_ns = self._clock.monotonic_ns()
            chunk = [each for each in ids[start : start + _CHUNK] if each in self._rows]
            await self._read(chunk)
            while self._noted and not self._must_walk:
                await self._read_noted()
            took_s = (self._clock.monotonic_ns() - began_ns) / 1e9
            await asyncio.sleep(max(len(chunk) / self._reads_per_s - took_s, 0.0))
        return True

    def _sweep_is_due_in(self, seconds: float) -> None:
        self._sweep_due_ns = self._clock.monotonic_ns() + round(seconds * 1e9)

    def _tell_progress(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    async def _read(self, ids: Sequence[int]) -> None:
        """Read the ledgers with these ids. Only one task at a time reads an id, so an older answer never
        replaces a newer one.
        """
        reads = (self._read_one(LedgerId(each)) for each in ids)
        for result in await asyncio.gather(*reads, return_exceptions=True):
            if result is not None:
                raise result

    async def _read_one(self, ledger_id: LedgerId) -> None:
        try:
            metadata = (await self._nodes.read(ledger_id)).metadata
        except NoSuchLedger:
            self._forget(ledger_id)
            return
        except BadMetadata as error:
            if ledger_id not in self.unreadable:
                logger.warning("ledger_unreadable", ledger_id=ledger_id, reason=error.message)
            # The ledger keeps its last known bookies, which may still be right.
            self.unreadable[ledger_id] = error.message
            return
        self.unreadable.pop(ledger_id, None)
        if metadata.is_closed:
            self._unclosed.discard(ledger_id)
        else:
            self._unclosed.add(ledger_id)
        self._put(ledger_id, row_of(metadata))

    def _put(self, ledger_id: LedgerId, row: IndexRow) -> None:
        before = self._rows.get(ledger_id)
        if before == row:
            return
        if len(self._shared) < _SHARED_MAX:
            row = self._shared.setdefault(row, row)
        else:
            row = self._shared.get(row, row)
        self._rows[ledger_id] = row
        self._counts.update(members_of(row))
        if before is not None:
            self._discount(before)
        for call in self._on_change:
            call(ledger_id, row)

    def _forget(self, ledger_id: LedgerId) -> None:
        self._unclosed.discard(ledger_id)
        self.unreadable.pop(ledger_id, None)
        if (before := self._rows.pop(ledger_id, None)) is not None:
            self._discount(before)

    def _discount(self, row: IndexRow) -> None:
        for bookie in members_of(row):
            self._counts[bookie] -= 1
            if not self._counts[bookie]:
                del self._counts[bookie]
