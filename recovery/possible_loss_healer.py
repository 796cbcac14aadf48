"""Makes one bookie whole again: entries that it answers UNKNOWN for are restored from other copies, or
found to be unneeded. Then the doubt is settled, and the bookie answers by itself.

Ledgers that the bookie doubts are healed one by one (`ledger_loss_healer.py`). If it doubts everything, every
ledger of the cluster that names it is healed, and is fenced there again even if it is closed. When all
ledgers are whole, the doubt about everything is settled (HL3).

Progress is recorded as cleared doubts, so an interrupted run can be restarted (HL4). Settling names
the stamp of the doubts that were seen: a later doubt may be about the very entry that was restored,
so the ledger is examined again.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.errors import NoSuchLedger, RollbookError, Superseded, WrongBookie, WrongCluster
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.tasks import TaskGroup
from rollbook.recovery.config import HealConfig
from rollbook.recovery.copy_limits import ByteBudget, Throttle
from rollbook.recovery.core.entry_spans import EntrySpan
from rollbook.recovery.core.possible_losses_in_open_ledgers import Writers
from rollbook.recovery.ledger_loss_healer import (
    HealingLimits,
    HealingOutcome,
    LedgerHealing,
    LedgerLossHealer,
    Task,
)
from rollbook.recovery.possible_losses_port import BookieDoubts, DoubtsPage

logger = structlog.get_logger()

_PAGE: Final = 500
# The maximum number of consecutive attempts that may fail because of new doubts.
_RACES_MAX: Final = 20
_NOTHING: Final[Mapping[int, Sequence[EntrySpan]]] = {}


@dataclass(slots=True)
class Healing:
    """The result of healing one bookie."""

    bookie: BookieId
    ledgers: Counter[HealingOutcome] = field(default_factory=Counter)
    entries: int = 0  # Entries that were restored, or would be in a rehearsal.
    entry_bytes: int = 0
    # Ledgers that recovery closed for the healing, or would close in a rehearsal.
    closed: int = 0
    # Ledgers that wait, have losses, or have entries that were given up.
    remarkable: list[LedgerHealing] = field(default_factory=list)
    doubts_everything: bool = False  # The bookie still doubts everything.

    def on_ledger(self, healed: LedgerHealing) -> None:
        self.ledgers[healed.outcome] += 1
        self.entries += healed.entries
        self.entry_bytes += healed.entry_bytes
        self.closed += healed.has_been_closed
        if healed.lost or healed.given_up or healed.outcome is HealingOutcome.WAITING:
            self.remarkable.append(healed)

    @property
    def are_ledgers_whole(self) -> bool:
        return not (self.ledgers[HealingOutcome.WAITING] or self.ledgers[HealingOutcome.LOST])


class PossibleLossHealer:
    """Heals one bookie, once. Several healers may run at a time, and a healer may die, without harm."""

    def __init__(
        self,
        ledgers: Ledgers,
        bookie: BookieId,
        doubts: BookieDoubts,
        config: HealConfig,
        *,
        accepted: Mapping[int, Sequence[EntrySpan]] = _NOTHING,
        includes_all: bool = False,
        is_rehearsal: bool = False,
        spares_writers: bool = False,
        closes_open_ends: bool = False,
    ) -> None:
        """Create a healer for the bookie of `doubts`. `accepted` has the entries that may be given up, by
        ledger. With `includes_all`, entries are also restored in ledgers that the bookie does not doubt. A
        rehearsal changes nothing. With `spares_writers`, no ledger with a writer is closed. With
        `closes_open_ends`, such a ledger is closed all the same if its open end names a bookie that doubts
        everything or was formatted since.
        """
        self._ledgers = ledgers
        self._bookie = bookie
        self._doubts = doubts
        self._config = config
        self._accepted = accepted
        self._includes_all = includes_all
        self._is_rehearsal = is_rehearsal
        self._writers = Writers(spares_writers, closes_open_ends)
        self._limits = HealingLimits(
            ByteBudget(config.window_bytes * config.ledgers_at_once),
            Throttle(config.bytes_per_s_max),
            config.window_bytes,
        )

    async def heal(self, on_progress: Callable[[int, int], None] = lambda *_: None) -> Healing:
        """Heal all ledgers. `on_progress` is called with the number of ledgers that are done and the total
        number of ledgers.

        A failure for one ledger is reported in the result. Raises `WrongBookie` or `WrongCluster` if these
        are another bookie's doubts, `Superseded` if the bookie was restarted in the meantime and doubts
        everything, and the errors of the metadata store and the bookie.
        """
        first, doubted = await self._look_at_all()
        healing = Healing(self._bookie, doubts_everything=first.everything)
        ids = await self._ledger_ids(first, doubted)
        on_progress(0, len(ids))
        remaining = iter(ids)

        async def work() -> None:
            for ledger_id in remaining:
                healing.on_ledger(await self._heal(LedgerId(ledger_id), first, doubted))
                on_progress(healing.ledgers.total(), len(ids))

        async with TaskGroup() as group:
            for _ in range(self._config.ledgers_at_once):
                group.create_task(work())
        if first.everything and healing.are_ledgers_whole and not self._is_rehearsal:
            await self._doubts.settle_everything(first.stamp)
            healing.doubts_everything = False
        logger.info(
            "bookie_looked_after",
            bookie=self._bookie,
            ledgers={outcome.value: count for outcome, count in healing.ledgers.items()},
            entries=healing.entries,
            entry_bytes=healing.entry_bytes,
        )
        return healing

    async def _look_at_all(self) -> tuple[DoubtsPage, dict[int, tuple[EntrySpan, ...]]]:
        page = first = await self._page(-1, _PAGE)
        doubted: dict[int, tuple[EntrySpan, ...]] = dict(page.ledgers)
        while page.next_after is not None:
            page = await self._page(page.next_after, _PAGE)
            doubted.update(page.ledgers)
        return first, doubted

    async def _page(self, after: int, limit: int) -> DoubtsPage:
        page = await self._doubts.page(after, limit)
        if page.bookie != self._bookie:
            raise WrongBookie(f"the doubts are those of {page.bookie}", bookie=self._bookie)
        if page.instance_id != self._ledgers.cluster.instance_id:
            raise WrongCluster(
                "the bookie belongs to another cluster than the metadata", bookie=self._bookie
            )
        return page

    async def _ledger_ids(self, first: DoubtsPage, doubted: Mapping[int, object]) -> "array[int]":
        """Return the ledgers to heal. Doubted ledgers come first, since their recovery waits for the healing."""
        ids = array("q", doubted)
        if first.everything or self._includes_all:
            async for ledger_id in self._ledgers.list():
                if ledger_id not in doubted:
                    ids.append(ledger_id)
        return ids

    async def _heal(
        self, ledger_id: LedgerId, first: DoubtsPage, doubted: Mapping[int, tuple[EntrySpan, ...]]
    ) -> LedgerHealing:
        found = LedgerHealing(ledger_id)
        ranges, stamp = doubted.get(ledger_id, ()), first.stamp
        try:
            for _ in range(_RACES_MAX):
                try:
                    await self._healer_of(found, ranges, stamp, first.everything).heal()
                    return found
                except (Superseded, NoSuchLedger) as error:
                    # There are new doubts, the metadata has changed, or the ledger was deleted in the
                    # meantime: the next attempt shows whether the ledger still exists.
                    failure: RollbookError = error
                page = await self._page(ledger_id - 1, 1)
                ranges, stamp = page.ledgers.get(ledger_id, ()), page.stamp
        except RollbookError as error:
            failure = error
        found.outcome = HealingOutcome.WAITING
        found.reason, found.next_step = failure.message or str(failure), failure.next_step
        return found

    def _healer_of(
        self, found: LedgerHealing, ranges: tuple[EntrySpan, ...], stamp: str, everything: bool
    ) -> LedgerLossHealer:
        ledger_id = found.ledger_id

        async def settle(settled: Sequence[EntrySpan]) -> None:
            await self._doubts.settle(stamp, ledger_id, list(settled))

        accepted = self._accepted.get(ledger_id, ())
        return LedgerLossHealer(
            self._ledgers,
            self._bookie,
            Task(ledger_id, ranges, everything, self._includes_all, accepted),
            found=found,
            settle=settle,
            limits=self._limits,
            is_rehearsal=self._is_rehearsal,
            writers=self._writers,
        )
