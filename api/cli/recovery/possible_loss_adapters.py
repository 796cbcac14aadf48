"""Reads and settles a bookie's possible losses, through its admin pages or in this process."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rollbook.api.cli.bookie_admin_client import AdminClient
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.recovery.core.entry_spans import EntrySpan
from rollbook.recovery.possible_losses_port import DoubtsPage

_PATH: Final = "/api/v1/bookie/doubts"
_RANGES: Final = 1000  # The number of ranges that one request settles.


@dataclass(frozen=True, slots=True)
class AdminDoubts:
    """The doubts (possible losses) of a bookie, which are read and settled through its admin pages."""

    client: AdminClient

    async def page(self, after: int, limit: int) -> DoubtsPage:
        found = await asyncio.to_thread(self.client.get, _PATH, after=after, limit=limit)
        return _page_of(found)

    async def settle(self, stamp: str, ledger_id: LedgerId, ranges: list[EntrySpan]) -> None:
        for start in range(0, len(ranges), _RANGES):
            parts = [part._asdict() for part in ranges[start : start + _RANGES]]
            await self._tell(stamp=stamp, ledger_id=ledger_id, ranges=parts)

    async def settle_everything(self, stamp: str) -> None:
        await self._tell(stamp=stamp, everything=True)

    async def _tell(self, **settled: Any) -> None:
        await asyncio.to_thread(self.client.put, f"{_PATH}/settled", settled)


class AdminViews(Protocol):
    """The part of `bookie/admin_operations.py` that reads and settles a bookie's doubts."""

    def doubts(self, after: int, limit: int) -> Mapping[str, Any]: ...

    async def settle_doubts(
        self, stamp: str, ledger_id: int, ranges: Sequence[tuple[int, int]]
    ) -> None: ...

    async def settle_everything(self, stamp: str) -> None: ...


@dataclass(frozen=True, slots=True)
class LocalDoubts:
    """The doubts (possible losses) of a bookie in this process."""

    admin: AdminViews

    async def page(self, after: int, limit: int) -> DoubtsPage:
        return _page_of(self.admin.doubts(after, limit))

    async def settle(self, stamp: str, ledger_id: LedgerId, ranges: list[EntrySpan]) -> None:
        await self.admin.settle_doubts(stamp, ledger_id, ranges)

    async def settle_everything(self, stamp: str) -> None:
        await self.admin.settle_everything(stamp)


def _page_of(found: Mapping[str, Any]) -> DoubtsPage:
    return DoubtsPage(
        bookie=BookieId(found["bookie_id"]),
        instance_id=found["instance_id"],
        stamp=found["stamp"],
        everything=found["everything"],
        ledgers={
            each["ledger_id"]: tuple(
                EntrySpan(part["first_entry"], part["last_entry"]) for part in each["ranges"]
            )
            for each in found["ledgers"]
        },
        next_after=found["next_after"],
    )
