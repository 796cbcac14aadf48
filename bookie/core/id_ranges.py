"""Ascending ids, stored as ranges: only the first and the last of consecutive ids are stored."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from rollbook.bookie.core.journal_index import run_end


def ranges_of(entry_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the first and the last id of each run of the ascending ids. The iteration takes one
    step for each run, not for each id."""
    start, size = 0, len(entry_ids)
    while start < size:
        end = run_end(entry_ids, entry_ids[start], start, size)
        yield entry_ids[start], entry_ids[end - 1]
        start = end


class Ranges:
    """A set of ids. A range is added quickly if it is at the end or near it."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def add(self, first: int, last: int) -> None:
        firsts, lasts = self._firsts, self._lasts
        # The ranges from `start` to `end` overlap or touch the new one.
        start = bisect_left(lasts, first - 1)
        end = bisect_right(firsts, last + 1)
        if start < end:
            first, last = min(first, firsts[start]), max(last, lasts[end - 1])
        firsts[start:end] = [first]
        lasts[start:end] = [last]
