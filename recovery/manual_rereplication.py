"""Copies the entries of lost bookies to other bookies by hand, without an auditor (AR36 to AR40).

Every ledger that names one of the bookies is repaired under its lock, in the same way as by a worker. The
evacuation may run concurrently with workers, and may be stopped and run again, since its progress is in
metadata. If the open end of a ledger names a lost bookie, its writer first gets the grace period to replace
the bookie. Then the ledger is closed, unless open ledgers should be skipped (RP4).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.errors import BadMetadata, NoSuchLedger, RollbookError
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.metadata import LedgerMetadata
from rollbook.proto.ports import MetadataStore
from rollbook.recovery.config import WorkerConfig
from rollbook.recovery.copy_limits import ByteBudget, Throttle
from rollbook.recovery.ledger_repair import LedgerRepair, Repair, RepairLimits, RepairOrder


@dataclass(frozen=True, slots=True)
class LedgerProblem:
    ledger_id: LedgerId
    reason: str


@dataclass(slots=True)
class Evacuated:
    """The result for the ledgers that named the bookies."""

    ledgers: int = 0  # Ledgers that name one of the bookies, or did so at first.
    repaired: int = 0
    skipped_open: int = 0
    entries: int = 0
    entry_bytes: int = 0
    closed: int = 0
    failed: list[LedgerProblem] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return not self.failed and not self.skipped_open


@dataclass(frozen=True)
class EvacuationOrder:
    bookies: Sequence[BookieId]
    targets: Sequence[BookieId] = ()  # Preferred targets.
    ledger_id: LedgerId | None = None  # Repair only this ledger; None: all ledgers.
    skips_open: bool = False
    is_rehearsal: bool = False


class Evacuation:
    def __init__(
        self,
        ledgers: Ledgers,
        store: MetadataStore,
        order: EvacuationOrder,
        config: WorkerConfig,
        *,
        name: str,
    ) -> None:
        self._ledgers = ledgers
        self._store = store
        self._order = order
        self._config = config
        self._name = name
        self._nodes = LedgerNodes(store, ledgers.cluster.root, ledgers.cluster.layout)
        self._marks = Marks(store, ledgers.cluster.root)
        self._budget = ByteBudget(config.bytes_in_memory_max)
        self._throttle = Throttle(config.bytes_per_s_max)
        self.found = Evacuated()

    async def run(self, on_progress: Callable[[int, int], None] = lambda *_: None) -> Evacuated:
        """Repair all ledgers. `on_progress` is called with the number of ledgers that are done and the total
        number of ledgers. Raises the metadata store's errors; a failure for one ledger is in the result. After
        a cancelled call, run it again.
        """
        ids = [ledger_id async for ledger_id in self._naming()]
        self.found.ledgers = len(ids)
        on_progress(0, len(ids))
        if self._order.is_rehearsal:
            return self.found
        await self._marks.prepare()
        done = 0

        def on_done() -> None:
            nonlocal done
            done += 1
            on_progress(done, len(ids))

        waiting = await self._repair_all(ids, is_grace_over=False, on_done=on_done)
        if waiting and self._order.skips_open:
            self.found.skipped_open = len(waiting)
        elif waiting:
            await asyncio.sleep(self._config.grace_s)
            await self._repair_all(waiting, is_grace_over=True, on_done=on_done)
        return self.found

    async def _naming(self) -> AsyncIterator[LedgerId]:
        if self._order.ledger_id is not None:
            # Raises `NoSuchLedger` for a missing ledger.
            await self._nodes.read(self._order.ledger_id, fresh=True)
            yield self._order.ledger_id
            return
        async for ledger_id in self._nodes.ids():
            try:
                metadata = (await self._nodes.read(ledger_id)).metadata
            except NoSuchLedger:
                continue
            except BadMetadata as error:
                self.found.failed.append(LedgerProblem(ledger_id, error.message))
                continue
            if self._names_one(metadata):
                yield ledger_id

    def _names_one(self, metadata: LedgerMetadata) -> bool:
        return any(metadata.names(bookie) for bookie in self._order.bookies)

    async def _repair_all(
        self, ids: Sequence[LedgerId], *, is_grace_over: bool, on_done: Callable[[], None]
    ) -> list[LedgerId]:
        """Repair these ledgers. Returns the ledgers whose writers still have time to replace a lost bookie."""
        remaining, waiting = iter(ids), list[LedgerId]()

        async def work() -> None:
            for ledger_id in remaining:
                if await self._repair(ledger_id, is_grace_over=is_grace_over):
                    on_done()
                else:
                    waiting.append(ledger_id)

        works = (work() for _ in range(min(self._config.ledgers_at_once, len(ids))))
        for outcome in await asyncio.gather(*works, return_exceptions=True):
            if outcome is not None:
                raise outcome
        return waiting

    async def _repair(self, ledger_id: LedgerId, *, is_grace_over: bool) -> bool:
        """Repair one ledger. Returns False if its writer still has time, and True otherwise, whether the
        repair succeeded or not.
        """
        try:
            lock = await self._marks.take(ledger_id, self._name)
            if lock is None:
                holder = await self._marks.holder(ledger_id) or "another process"
                self._fail(ledger_id, f"{holder} is repairing it now; run this again")
                return True
            try:
                repair = LedgerRepair(
                    self._ledgers,
                    self._store,
                    lock,
                    RepairOrder(
                        draining=dict.fromkeys(self._order.bookies), targets=self._order.targets
                    ),
                    RepairLimits(self._budget, self._throttle),
                    is_grace_over=lambda _: is_grace_over,
                )
                try:
                    found = await repair.run()
                finally:
                    self.found.entries += repair.found.entries
                    self.found.entry_bytes += repair.found.entry_bytes
                    self.found.closed += repair.found.was_closed
            finally:
                await self._marks.release(lock)
        except NoSuchLedger:
            self.found.repaired += 1  # The ledger was deleted concurrently and needs no repair.
            return True
        except RollbookError as error:
            self._fail(ledger_id, error.message or str(error))
            return True
        if found.is_complete:
            self.found.repaired += 1
            return True
        if found.awaited and not found.losses and not found.unavailable:
            return False
        self._fail(ledger_id, _reason_of(found))
        return True

    def _fail(self, ledger_id: LedgerId, reason: str) -> None:
        self.found.failed.append(LedgerProblem(ledger_id, reason))


def _reason_of(found: Repair) -> str:
    if found.losses:
        ranges = ", ".join(f"{loss.first_entry}-{loss.last_entry}" for loss in found.losses)
        return f"no holder has a good copy of entries {ranges}"
    return found.unavailable
