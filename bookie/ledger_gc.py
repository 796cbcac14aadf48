"""Deletes ledgers that were deleted in the metadata, and finally forgets them.

`core/ledger_gc.py` decides when a ledger may be deleted, and `DeletedLedgerScan` finds the ledgers
that metadata does not name. Before a candidate is deleted, its adds are refused and its metadata is
read once more: if a new ledger uses the id, the ledger is in metadata before its first add. Then
the candidate is fenced and deleted in the journal, and removed from the catalog. Its entries are
then dead, and logs without other entries can be removed. The bookie remembers the deletion for
`deleted_kept_s`, so that a late add does not bring the ledger back.
"""

import asyncio
from array import array
from dataclasses import dataclass
from typing import Final

import structlog

from rollbook.bookie.config import SpaceConfig
from rollbook.bookie.core.journal_index import IntArray
from rollbook.bookie.core.ledger_gc import Suspects
from rollbook.bookie.deleted_ledger_scan import DeletedLedgerScan
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import BookieFailed, RollbookError
from rollbook.proto.logging_rate_limit import EventBudget
from rollbook.proto.ports import Clock
from rollbook.proto.tasks import to_its_end

logger = structlog.get_logger()

_BATCH: Final = 1024  # Ledgers that one record deletes.
_FACTS_PER_STEP: Final = 4096


@dataclass(frozen=True, slots=True)
class GarbageState:
    is_running: bool
    outcome: str  # Outcome of the last run: "", "done", "braked", "failed" or "off".
    reason: str  # Why the last run failed.
    ended_ms: int  # Wall time of the last run; 0 for never.
    ledgers: int  # Ledgers that the last complete scan compared.
    suspects: int  # Ledgers that metadata did not name.
    agreed: int  # Suspects that two scans agree on; they are deleted after `gc_quarantine_s`.
    deleted: int  # Ledgers deleted since the start.


class Garbage:
    """`census` is None without a metadata store; then no ledger is ever deleted."""

    def __init__(
        self, storage: Storage, clock: Clock, config: SpaceConfig, census: DeletedLedgerScan | None
    ) -> None:
        self._storage = storage
        self._stats = storage.stats
        self._clock = clock
        self._census = census
        self._kept_ms = int(config.deleted_kept_s * 1000)
        self._suspects = Suspects(
            int(config.gc_interval_s * 1e9),
            int(config.gc_quarantine_s * 1e9),
            config.gc_brake_share,
        )
        self._events = EventBudget()
        self._lock = asyncio.Lock()
        self._outcome = "" if census else "off"
        self._reason = ""
        self._ended_ms = 0
        self._deleted = 0
        self._is_ending = False

    def end(self) -> None:
        """Called when the metadata store is closing: after that, a missing response is no failure."""
        self._is_ending = True

    @property
    def state(self) -> GarbageState:
        suspects = self._suspects
        return GarbageState(
            self._lock.locked(),
            self._outcome,
            self._reason,
            self._ended_ms,
            suspects.ledgers,
            len(suspects),
            suspects.agreed,
            self._deleted,
        )

    async def collect(self, *, force: bool = False) -> GarbageState:
        """Runs one scan, and deletes the ledgers that it and earlier scans agree on.

        With `force`, it immediately deletes all ledgers that two scans agree on, however many there
        are. A failed scan is recorded in the state. Raises `OSError` if the disk is full,
        `BookieFailed`.
        """
        async with self._lock:
            began_ns = self._clock.monotonic_ns()
            if self._census:
                try:
                    await self._collect(self._census, force=force)
                except BookieFailed:
                    raise
                except RollbookError as error:
                    self._count("failed", str(error))
                    if not self._is_ending:
                        logger.warning("garbage_not_collected", reason=str(error))
            await self._forget()
            self._ended_ms = self._clock.wall_us() // 1000
            self._stats.gc_latency.observe(self._clock.monotonic_ns() - began_ns)
        return self.state

    async def _collect(self, census: DeletedLedgerScan, *, force: bool) -> None:
        # The ledgers are listed before the scan, because a ledger that is added later must not be
        # compared.
        ledger_ids = await self._storage.ledger_ids()
        began_ns = self._clock.monotonic_ns()
        absent = await census.absent_of(ledger_ids)
        ended_ns = self._clock.monotonic_ns()
        self._suspects.on_scan(began_ns, ended_ns, absent, len(ledger_ids))
        verdict = self._suspects.judge(ended_ns, force=force)
        if verdict.is_braked:
            if self._outcome != "braked":
                logger.error(
                    "garbage_collection_braked",
                    ledgers=len(ledger_ids),
                    gone=self._suspects.agreed,
                    next_step="check the metadata; if the ledgers were deleted: rollbook bookie gc --force",
                )
            self._count("braked", "many ledgers are gone at once")
            return
        deleted = array("q")
        try:
            for start in range(0, len(verdict.garbage), _BATCH):
                suspects = verdict.garbage[start : start + _BATCH]
                self._storage.expect_deletion(suspects, is_wanted=True)
                try:
                    batch = await census.still_absent(suspects)
                    if batch:
                        await to_its_end(self._delete(batch))
                        deleted.extend(batch)
                finally:
                    self._storage.expect_deletion(suspects, is_wanted=False)
        finally:
            self._suspects.on_deleted(deleted)
        self._count("done", "")

    async def _delete(self, ledger_ids: IntArray) -> None:
        await self._storage.delete(*ledger_ids)
        await self._storage.save_facts(ledger_ids)
        self._deleted += len(ledger_ids)
        self._stats.gc_ledgers += len(ledger_ids)
        logged = self._events.take(len(ledger_ids), self._clock.monotonic_ns())
        for ledger_id in ledger_ids[:logged]:
            logger.info("ledger_collected", ledger_id=ledger_id)
        logger.info(
            "ledgers_deleted",
            count=len(ledger_ids),
            first_ledger=ledger_ids[0],
            left_out=len(ledger_ids) - logged,
        )

    async def _forget(self) -> None:
        """Forgets deletions that are old enough."""
        before_ms = self._clock.wall_us() // 1000 - self._kept_ms
        facts, due = self._storage.catalog.facts, list[int]()
        for done, ledger_id in enumerate(list(facts)):
            if done % _FACTS_PER_STEP == 0:
                await asyncio.sleep(0)  # Adds that wait on the loop run first.
            known = facts.get(ledger_id)
            if known and known.deleted_ms is not None and known.deleted_ms <= before_ms:
                due.append(ledger_id)
        for start in range(0, len(due), _BATCH):
            await to_its_end(self._storage.forget(*due[start : start + _BATCH]))

    def _count(self, outcome: str, reason: str) -> None:
        self._outcome, self._reason = outcome, reason
        self._stats.gc_runs[outcome] = self._stats.gc_runs.get(outcome, 0) + 1
