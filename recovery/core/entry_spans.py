"""Ranges of entries: their intersections, and ranges of ascending ids."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rollbook.proto.ids import NO_ENTRY
from rollbook.proto.metadata import ENTRY_ID_MAX


class EntrySpan(NamedTuple):
    """A range of entries, both ends included. Entry -1 is the explicit LAC."""

    first_entry: int
    last_entry: int


WHOLE: Final = EntrySpan(NO_ENTRY, ENTRY_ID_MAX)


def covers(ranges: Sequence[EntrySpan], entry_id: int) -> bool:
    return any(first <= entry_id <= last for first, last in ranges)


def intersection(some: Iterable[EntrySpan], others: Sequence[EntrySpan]) -> list[EntrySpan]:
    """Return the common ranges, in ascending order if both arguments are."""
    return [
        EntrySpan(max(a.first_entry, b.first_entry), min(a.last_entry, b.last_entry))
        for a in some
        for b in others
        if max(a.first_entry, b.first_entry) <= min(a.last_entry, b.last_entry)
    ]


def ranges_of(entry_ids: Iterable[int], gap: int = 1) -> list[EntrySpan]:
    """Return ranges of ascending ids. Ids that are at most `gap` apart share a range."""
    found: list[EntrySpan] = []
    for each in entry_ids:
        if found and each <= found[-1].last_entry + gap:
            found[-1] = EntrySpan(found[-1].first_entry, each)
        else:
            found.append(EntrySpan(each, each))
    return found
