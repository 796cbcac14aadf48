"""Reads a bookie's doubts, and settles them on the bookie.

In production this uses HTTP (`rollbook.api.cli.recovery.possible_loss_adapters`); the simulator passes the bookie
directly.
"""

from dataclasses import dataclass
from typing import Protocol

from rollbook.proto.ids import BookieId, LedgerId
from rollbook.recovery.core.entry_spans import EntrySpan


@dataclass(frozen=True, slots=True)
class DoubtsPage:
    """A page of doubts, with ledgers in ascending order. The stamp changes with every new doubt."""

    bookie: BookieId
    instance_id: str | None  # The id of the bookie's cluster.
    stamp: str
    everything: bool
    ledgers: dict[int, tuple[EntrySpan, ...]]
    next_after: int | None  # None: this is the last page.


class BookieDoubts(Protocol):
    async def page(self, after: int, limit: int) -> DoubtsPage:
        """Return doubts about ledgers with an id above `after`."""

    async def settle(self, stamp: str, ledger_id: LedgerId, ranges: list[EntrySpan]) -> None:
        """Settle ranges of one ledger durably. Raises `Superseded` if the stamp is not the latest."""

    async def settle_everything(self, stamp: str) -> None:
        """Settle the doubt about everything, but keep doubts about single ledgers. Raises `Superseded` if the
        bookie was restarted.
        """
