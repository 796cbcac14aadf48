"""Drops, at regular intervals, copies that metadata no longer names (`core/surplus.py` says which).

    every ledger with entries here ─► its metadata, fresh ─► surplus in two looks, and quiet since?
                                                                    │
                          lock ─► metadata, fresh, in the lock's session ─► DROP in the journal ─► release

A ledger with doubts is not dropped before it is healed. Therefore an entry that is absent after a
drop was stored here before.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import structlog

from rollbook.bookie.core.surplus import SurplusCopies, is_surplus
from rollbook.bookie.stats import Stats
from rollbook.bookie.storage import Storage
from rollbook.proto.cluster.cluster_root import Cluster, require_cluster
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.underreplication_marks import Lock, Marks
from rollbook.proto.errors import BadMetadata, BookieFailed, NoSuchLedger, RollbookError
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.logging_rate_limit import EventBudget
from rollbook.proto.pacing import Pace
from rollbook.proto.ports import Clock, MetadataStore
from rollbook.proto.tasks import to_its_end

logger = structlog.get_logger()

_AT_ONCE: Final = 16
_SHOWN: Final = 10
_READS_PER_S: Final = (
    500  # Ledgers per second: a million take half an hour. The store has other clients, too.
)


@dataclass(frozen=True, slots=True)
class SurplusState:
    is_running: bool
    outcome: str  # The outcome of the last look: "", "done" or "failed".
    reason: str  # Why the last look failed.
    ended_ms: int  # Wall time of the last look; 0 for never.
    ledgers: int  # Ledgers that the last look examined.
    # Ledgers with copies here although metadata names other bookies: the copies are dropped if a look
    # at least nine tenths of an interval later finds the same.
    surplus: int
    surplus_bytes: int  # Bytes of the surplus ledgers' entries.
    first_ledgers: tuple[int, ...]  # The first few surplus ledgers.
    dropped: int  # Ledgers that were dropped since the start.


@dataclass(frozen=True, slots=True)
class _Locked:
    ledger_id: int
    lock: Lock | None
    is_surplus: bool
    asked_ns: int


class Surplus:
    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        interval_s: float,
        store: MetadataStore,
        cluster: Cluster,
        bookie: BookieId,
        session_timeout_s: float,
    ) -> None:
        self._storage = storage
        self._stats: Stats = storage.stats
        self._clock = clock
        self._store = store
        self._cluster = cluster
        self._bookie = bookie
        self._nodes = LedgerNodes(store, cluster.root, cluster.layout)
        self._marks = Marks(store, cluster.root)
        self._copies = SurplusCopies(int(interval_s * 1e9), session_timeout_s, storage.quiet)
        self._pace = Pace(_READS_PER_S)
        self._events = EventBudget()
        self._lock = asyncio.Lock()
        self._outcome = ""
        self._reason = ""
        self._ended_ms = 0
        self._ledgers = 0
        self._bytes = 0
        self._is_ending = False
        self._stats.gc_surplus_ledgers = lambda: len(self._copies.ledger_ids)

    def end(self) -> None:
        """Called when the metadata store is closing: after that, a missing response is no failure."""
        self._is_ending = True

    @property
    def state(self) -> SurplusState:
        return SurplusState(
            is_running=self._lock.locked(),
            outcome=self._outcome,
            reason=self._reason,
            ended_ms=self._ended_ms,
            ledgers=self._ledgers,
            surplus=len(self._copies.ledger_ids),
            surplus_bytes=self._bytes,
            first_ledgers=tuple(islice(self._copies.ledger_ids, _SHOWN)),
            dropped=self._stats.gc_dropped_ledgers,
        )

    async def look(self) -> SurplusState:
        """Looks at all ledgers once, and drops those for which two looks agree.

        A failed look is recorded in the state. Raises `OSError` if the disk is full,
        `BookieFailed`.
        """
        async with self._lock:
            try:
                await self._look()
                self._outcome, self._reason = "done", ""
            except BookieFailed:
                raise
            except RollbookError as error:
                self._outcome, self._reason = "failed", str(error)
                if not self._is_ending:
                    logger.warning("surplus_not_looked_for", reason=str(error))
            self._ended_ms = self._clock.wall_us() // 1000
        return self.state

    async def _look(self) -> None:
        await require_cluster(self._store, self._cluster)
        known = await self._storage.ledger_ids()
        for ledger_id in list(self._copies.ledger_ids):
            if not self._storage.holds_entries_of(ledger_id):
                self._copies.on_gone(ledger_id)
        looked_at = surplus_bytes = 0
        for start in range(0, len(known), _AT_ONCE):
            ledger_ids = [each for each in known[start : start + _AT_ONCE] if self._may_go(each)]
            await asyncio.sleep(self._pace.spend(len(ledger_ids), self._clock.monotonic_ns()))
            due = await self._ask_about(ledger_ids)
            if due:
                await self._drop(due)
            looked_at += len(ledger_ids)
            left = (each for each in ledger_ids if each in self._copies.ledger_ids)
            surplus_bytes += sum(self._storage.entry_bytes_of(each) for each in left)
        self._ledgers, self._bytes = looked_at, surplus_bytes
        # The release must not wait for the next look, which is a whole interval later (MK5).
        await self._marks.release_strays()

    async def _ask_about(self, ledger_ids: Sequence[int]) -> list[int]:
        """Reads the ledgers' metadata; returns the ledgers to read again under their locks."""
        asked_ns = self._clock.monotonic_ns()
        for ledger_id in ledger_ids:
            self._copies.on_asked(ledger_id, asked_ns)
        failure: BaseException | None = None
        due: list[int] = []
        try:
            found = await asyncio.gather(*map(self._is_surplus, ledger_ids), return_exceptions=True)
        except asyncio.CancelledError:
            found = [asyncio.CancelledError()] * len(ledger_ids)
        for ledger_id, answer in zip(ledger_ids, found, strict=True):
            if isinstance(answer, BaseException):
                self._copies.on_unanswered(ledger_id, asked_ns)
                failure = answer
            elif self._copies.on_answer(ledger_id, asked_ns, surplus=answer):
                due.append(ledger_id)
        if failure:
            raise failure
        return due

    def _may_go(self, ledger_id: int) -> bool:
        doubts = self._storage.catalog.doubts
        return (
            self._storage.may_promise
            and self._storage.holds_entries_of(ledger_id)
            and not doubts.all_of(ledger_id)
            and not doubts.of(ledger_id)
        )

    async def _is_surplus(self, ledger_id: int) -> bool:
        try:
            stored = await self._nodes.read(LedgerId(ledger_id), fresh=True)
        except (NoSuchLedger, BadMetadata):
            return False  # A deleted ledger is for `ledger_gc.py`; an unreadable one is kept.
        return is_surplus(stored.metadata, self._bookie)

    async def _drop(self, ledger_ids: Sequence[int]) -> None:
        await require_cluster(self._store, self._cluster)
        await self._marks.prepare()
        looks = await asyncio.gather(*map(self._look_locked, ledger_ids), return_exceptions=True)
        locked = [each for each in looks if isinstance(each, _Locked)]
        try:
            # No other code runs from here until the drop is queued in the journal, so no add is
            # accepted unnoticed.
            now_ns = self._clock.monotonic_ns()
            going = [each.ledger_id for each in locked if self._is_certain(each, now_ns)]
            if going:
                await self._storage.drop(*going)
                await to_its_end(self._storage.save_facts(going))
                self._on_dropped(going)
        except (RollbookError, OSError):
            await self._release(locked)
            raise
        # If this is cancelled, the session ends and releases the locks.
        await self._release(locked)
        for look in looks:
            if isinstance(look, BaseException):
                raise look

    async def _look_locked(self, ledger_id: int) -> _Locked:
        lock = await self._marks.take(LedgerId(ledger_id), self._bookie)
        asked_ns = self._clock.monotonic_ns()
        surplus = lock is not None and await self._is_surplus(ledger_id)
        return _Locked(ledger_id, lock, surplus, asked_ns)

    def _is_certain(self, look: _Locked, now_ns: int) -> bool:
        return (
            look.lock is not None
            and look.lock.session == self._store.session
            and look.is_surplus
            and self._may_go(look.ledger_id)
            and self._copies.may_drop(look.ledger_id, look.asked_ns, now_ns)
        )

    async def _release(self, locked: Sequence[_Locked]) -> None:
        locks = [each.lock for each in locked if each.lock]
        outcomes = await asyncio.gather(*map(self._marks.release, locks), return_exceptions=True)
        for lock, outcome in zip(locks, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                logger.info(
                    "surplus_lock_not_released", ledger_id=lock.ledger_id, reason=str(outcome)
                )

    def _on_dropped(self, ledger_ids: Sequence[int]) -> None:
        for ledger_id in ledger_ids:
            self._copies.on_gone(ledger_id)
        self._stats.gc_dropped_ledgers += len(ledger_ids)
        logged = self._events.take(len(ledger_ids), self._clock.monotonic_ns())
        for ledger_id in ledger_ids[:logged]:
            logger.info("surplus_copy_dropped", ledger_id=ledger_id)
        logger.info(
            "surplus_copies_dropped",
            count=len(ledger_ids),
            first_ledger=ledger_ids[0],
            left_out=len(ledger_ids) - logged,
        )
