"""Finds the ledgers that name some bookies, by a complete fresh walk over the metadata instead of the index.

The walk sees all ledgers that exist during the whole walk (`LedgerWalk`), each in a state that it had during
the walk. If a walk begins after a bookie stopped accepting entries, and finds no ledger that names it, only a
client that picked its ensemble before can still create such a ledger (LC4).
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.errors import BadMetadata, NoSuchLedger
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.metadata import LedgerMetadata

_AT_ONCE: Final = 64


@dataclass(slots=True)
class ReferenceScan:
    ledgers: int = 0  # Examined ledgers.
    # The number of ledgers that name each bookie, which may be 0.
    naming: dict[BookieId, int] = field(default_factory=dict)
    examples: dict[BookieId, LedgerId] = field(default_factory=dict)
    # Ledgers with unreadable metadata, which may name any bookie.
    unreadable: list[LedgerId] = field(default_factory=list)


async def take_census(
    nodes: LedgerNodes,
    bookies: Collection[BookieId],
    on_ledger: Callable[[LedgerMetadata], None] = lambda _: None,
) -> ReferenceScan:
    """Walk over all ledgers, and call `on_ledger` for each one that names one of the bookies. Raises
    `MetadataUnavailable`, `ConnectionLost`, `SessionExpired`.
    """
    census = ReferenceScan(naming=dict.fromkeys(bookies, 0))

    async def read(ledger_id: LedgerId) -> None:
        try:
            metadata = (await nodes.read(ledger_id)).metadata
        except NoSuchLedger:
            return
        except BadMetadata:
            census.unreadable.append(ledger_id)
            return
        finally:
            census.ledgers += 1
        named = [bookie for bookie in bookies if metadata.names(bookie)]
        for bookie in named:
            census.naming[bookie] += 1
            census.examples.setdefault(bookie, ledger_id)
        if named:
            on_ledger(metadata)

    batch: list[LedgerId] = []
    async for ledger_id in nodes.ids():  # The first read of the walk sees all earlier writes.
        batch.append(ledger_id)
        if len(batch) == _AT_ONCE:
            await _all(read(each) for each in batch)
            batch.clear()
    await _all(read(each) for each in batch)
    return census


async def _all(reads: Iterable[Coroutine[Any, Any, None]]) -> None:
    for result in await asyncio.gather(*reads, return_exceptions=True):
        if result is not None:
            raise result
