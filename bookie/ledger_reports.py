"""Makes views of ledgers for operators, as plain values, for the admin pages and for `rollbook
bookie`.

A ledger's entries may be in several files of this bookie; an entry that was added twice counts
twice.
"""

import asyncio
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby, islice
from typing import Any, Final

from rollbook.bookie.core.catalog import Catalog
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.bookie.core.journal_index import IntArray, JournalIndex, LedgerRows
from rollbook.proto.ids import NO_ENTRY

View = dict[str, Any]

_PIECE: Final = 5_000


def log_name(number: int) -> str:
    return f"{number:016}.log"


class LedgerViews:
    """Views of the ledgers in a catalog and in journal files. `files` begins with the newest."""

    def __init__(
        self,
        catalog: Catalog,
        files: Sequence[tuple[str, JournalIndex]],
        newer: Collection[int],
        newer_facts: Callable[[int], LedgerFacts],
    ) -> None:
        """`newer` has the ledgers with facts that are not in the catalog."""
        self._catalog = catalog
        self._files = files
        self._newer = newer
        self._newer_facts = newer_facts

    def __contains__(self, ledger_id: int) -> bool:
        return (
            ledger_id in self._newer
            or ledger_id in self._catalog.facts
            or any(True for _ in self._catalog.held(ledger_id))
            or any(ledger_id in index.ledgers for _, index in self._files)
        )

    def summary(self, ledger_id: int) -> View:
        places = list(self._places(ledger_id))
        facts = self._facts_of(ledger_id)
        doubts = self._catalog.doubts
        return {
            "ledger_id": ledger_id,
            "entries": sum(place["entries"] for place in places),
            "first_entry": min((place["first_entry"] for place in places), default=None),
            "last_entry": max((place["last_entry"] for place in places), default=None),
            "entry_bytes": sum(place["entry_bytes"] for place in places),
            "last_add_confirmed": self._last_add_confirmed(ledger_id, facts),
            "is_fenced": facts.is_fenced,
            "is_deleted": facts.deleted_ms is not None,
            "is_doubtful": doubts.all_of(ledger_id) or bool(doubts.of(ledger_id)),
        }

    def details(self, ledger_id: int) -> View:
        facts = self._facts_of(ledger_id)
        return {
            **self.summary(ledger_id),
            "has_key": facts.ledger_key is not None,
            "explicit_lac": facts.lac_of_packet if facts.lac_packet is not None else None,
            "places": list(self._places(ledger_id)),
            "doubts": [doubt._asdict() for doubt in self._catalog.doubts.of(ledger_id)],
        }

    def _places(self, ledger_id: int) -> Iterator[View]:
        """Yields the places of a ledger's entries, newest first."""
        if self._facts_of(ledger_id).deleted_ms is not None:
            return
        for name, index in self._files:
            rows = index.ledgers.get(ledger_id)
            if rows and rows.columns.entry_ids:
                yield {
                    "file": name,
                    "first_entry": _first_of(rows),
                    "last_entry": rows.last_entry,
                    "entries": len(rows.columns.entry_ids) + len(rows.strays),
                    "entry_bytes": rows.entry_bytes,
                }
        for held in self._catalog.held(ledger_id):
            yield {
                "file": log_name(held.log),
                "first_entry": held.first_entry,
                "last_entry": held.last_entry,
                "entries": held.entries,
                "entry_bytes": held.entry_bytes,
            }

    def _last_add_confirmed(self, ledger_id: int, facts: LedgerFacts) -> int:
        rows = [index.ledgers.get(ledger_id) for _, index in self._files]
        return max(
            facts.lac_of_packet,
            self._catalog.last_add_confirmed(ledger_id),
            *(each.last_add_confirmed if each else NO_ENTRY for each in rows),
            NO_ENTRY,
        )

    def _facts_of(self, ledger_id: int) -> LedgerFacts:
        if ledger_id in self._newer:
            return self._newer_facts(ledger_id)
        return self._catalog.facts.get(ledger_id) or LedgerFacts()

    def known_ids(self) -> Iterator[int]:
        """Yields ids in no particular order, some of them more than once. Ledgers may change during
        the iteration."""
        yield from list(self._catalog.facts)
        yield from list(self._catalog.held_ledgers)
        yield from list(self._newer)
        for _, index in self._files:
            yield from list(index.ledgers)


def _first_of(rows: LedgerRows) -> int:
    return min(rows.columns.entry_ids[0], *rows.strays, rows.columns.entry_ids[0])


async def sorted_ids(known: Iterable[int]) -> IntArray:
    """Returns the ids ascending, each once. There may be millions of them, so other work runs in
    between."""
    ids, pieces = iter(known), list[list[int]]()
    while piece := list(islice(ids, _PIECE)):
        pieces.append(sorted(piece))
        await asyncio.sleep(0)
    merged, found, last = merge(*pieces), array("q"), None
    while some := list(islice(merged, _PIECE)):
        found.extend(each for each, _ in groupby(some) if each != last)
        last = some[-1]
        await asyncio.sleep(0)
    return found
