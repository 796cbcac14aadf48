"""Connects a healer directly to a bookie of the same process, without HTTP."""

from rollbook.bookie.bookie import Bookie
from rollbook.proto.ids import LedgerId
from rollbook.recovery.core.entry_spans import EntrySpan
from rollbook.recovery.possible_losses_port import DoubtsPage


class DirectDoubts:
    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie

    async def page(self, after: int, limit: int) -> DoubtsPage:
        storage = self._bookie.storage
        doubts = storage.catalog.doubts
        ids = sorted(each for each in doubts.ledger_ids if each > after)[:limit]
        return DoubtsPage(
            self._bookie.bookie_id,
            self._bookie.cluster.instance_id,
            storage.doubts_stamp,
            everything=doubts.everything,
            ledgers={each: tuple(EntrySpan(*part) for part in doubts.of(each)) for each in ids},
            next_after=ids[-1] if len(ids) == limit else None,
        )

    async def settle(self, stamp: str, ledger_id: LedgerId, ranges: list[EntrySpan]) -> None:
        await self._bookie.storage.settle(stamp, ledger_id, ranges)

    async def settle_everything(self, stamp: str) -> None:
        await self._bookie.settle_everything(stamp)
