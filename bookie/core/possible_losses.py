"""The doubts of a bookie: ranges of entries that it may have lost, so that its negative answers
about them prove nothing (B1).

Doubts are kept by ledger, as ranges of entries. If it is not known to which ledgers lost bytes
belonged, everything is in doubt. Entry -1 of a ledger means its explicit LAC. A doubt only turns
ABSENT into UNKNOWN: an entry that is found and sound is returned. A doubt ends when its entries
have been restored from other copies, or are given up explicitly. If a ledger was settled as a
whole, no entry of it is in doubt, even while everything else is.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rollbook.bookie.core.journal_index import run_end
from rollbook.proto.ids import LEDGER_ID_MAX, NO_ENTRY


class LossRange(NamedTuple):
    first_entry: int
    last_entry: int


EVERYTHING: Final = (LossRange(NO_ENTRY, LEDGER_ID_MAX),)


class PossibleLosses:
    def __init__(self) -> None:
        self.everything = False
        self.news = 0  # Doubts added so far: a caller may settle doubts only if it has seen all.
        # Ledgers that are settled although everything else is in doubt.
        self._settled: dict[int, None] = {}
        self._ranges: dict[
            int, list[LossRange]
        ] = {}  # For each ledger, ascending ranges that neither touch nor overlap.

    def __bool__(self) -> bool:
        return self.everything or bool(self._ranges)

    def add(self, ledger_id: int, first_entry: int, last_entry: int) -> bool:
        """Adds a doubt; returns whether any part of it is new."""
        self.news += 1
        ranges = self._ranges.setdefault(ledger_id, [])
        at = bisect_right(ranges, LossRange(first_entry, LEDGER_ID_MAX))
        if at and ranges[at - 1].last_entry >= last_entry:
            return False
        start = at - (at > 0 and ranges[at - 1].last_entry + 1 >= first_entry)
        end = at
        while end < len(ranges) and ranges[end].first_entry <= last_entry + 1:
            end += 1
        merged = [LossRange(first_entry, last_entry), *ranges[start:end]]
        ranges[start:end] = [
            LossRange(min(r.first_entry for r in merged), max(r.last_entry for r in merged))
        ]
        assert ranges[start].first_entry <= first_entry, "B1: a possible loss was forgotten"
        assert ranges[start].last_entry >= last_entry, "B1: a possible loss was forgotten"
        return True

    def remove(self, ledger_id: int, first_entry: int, last_entry: int) -> None:
        """Removes these entries from all ranges; the rest of a range is kept."""
        ranges = self._ranges.pop(ledger_id, None)
        if ranges is None:
            return
        kept: list[LossRange] = []
        for first, last in ranges:
            if first < first_entry:
                kept.append(LossRange(first, min(last, first_entry - 1)))
            if last > last_entry:
                kept.append(LossRange(max(first, last_entry + 1), last))
        if kept:
            self._ranges[ledger_id] = kept

    def settle(self, ledger_id: int, first_entry: int, last_entry: int) -> None:
        """Removes a doubt. A ledger that is settled as a whole stays settled while everything is in
        doubt."""
        if self.everything and (first_entry, last_entry) == EVERYTHING[0]:
            self._settled[ledger_id] = None
        self.remove(ledger_id, first_entry, last_entry)

    def add_everything(self) -> None:
        self.news += 1
        self.everything = True
        self._settled.clear()

    def remove_everything(self) -> None:
        """Ends the doubt about everything; doubts about single ledgers stay."""
        self.everything = False
        self._settled.clear()

    def all_of(self, ledger_id: int) -> bool:
        """Returns whether all entries of the ledger are in doubt."""
        return self.everything and ledger_id not in self._settled

    def is_settled(self, ledger_id: int) -> bool:
        """Returns whether the ledger is settled although everything else is in doubt."""
        return ledger_id in self._settled

    def about(self, ledger_id: int, entry_id: int) -> bool:
        if self.all_of(ledger_id):
            return True
        ranges = self._ranges.get(ledger_id)
        if not ranges:
            return False
        at = bisect_right(ranges, LossRange(entry_id, LEDGER_ID_MAX))
        return at > 0 and ranges[at - 1].last_entry >= entry_id

    def covers(self, ledger_id: int, first_entry: int, last_entry: int) -> bool:
        """Returns whether a doubt about this ledger covers all of these entries."""
        return any(
            each.first_entry <= first_entry and last_entry <= each.last_entry
            for each in self._ranges.get(ledger_id, ())
        )

    def beyond(self, ledger_id: int, entry_id: int) -> bool:
        """Returns whether an entry above this one may have been lost."""
        if self.all_of(ledger_id):
            return True
        ranges = self._ranges.get(ledger_id)
        return bool(ranges and ranges[-1].last_entry > entry_id)

    @property
    def ledgers(self) -> int:
        """The number of ledgers with doubts of their own."""
        return len(self._ranges)

    def of(self, ledger_id: int) -> tuple[LossRange, ...]:
        return tuple(self._ranges.get(ledger_id, ()))

    def settled_by(self, ledger_id: int, entry_ids: Sequence[int]) -> Iterator[LossRange]:
        """Yields the ids that were in doubt, as ranges; the given ids ascend. The doubts about
        these entries end, because the entries are here."""
        for first, last in self._ranges.get(ledger_id, ()):
            start, end = bisect_left(entry_ids, first), bisect_right(entry_ids, last)
            while start < end:
                run = run_end(entry_ids, entry_ids[start], start, end - start)
                yield LossRange(entry_ids[start], entry_ids[run - 1])
                start = run

    @property
    def settled_ids(self) -> list[int]:
        return list(self._settled)

    @property
    def ledger_ids(self) -> list[int]:
        return list(self._ranges)

    def __iter__(self) -> Iterator[tuple[int, LossRange]]:
        for ledger_id, ranges in self._ranges.items():
            for each in ranges:
                yield ledger_id, each
