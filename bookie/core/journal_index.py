"""The index of one journal file: it says where the file's entries are until the file is an entry
log with an index of its own.

No object is made for an entry: a ledger's entries are rows of columns, 16 bytes each, in ascending
order of ids. Therefore an entry is found by bisection, and an index page is made from a slice.
Entries nearly always arrive in ascending order. Entries that arrive out of order (repeats,
recovery, repair) are kept in a dict, which is searched first, because such an entry was added after
the entry with the same id in the columns.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, starmap
from operator import lt
from typing import Final, NamedTuple, TypeAlias

from rollbook.proto.arange import array_of
from rollbook.proto.ids import NO_ENTRY

IntArray: TypeAlias = "array[int]"

ROW_BYTES: Final = 16
_STRAY_BYTES: Final = 200  # The approximate memory that a dict takes for an entry.
_LEDGER_BYTES: Final = 700


class EntryLocation(NamedTuple):
    """The place of an entry's bytes in a file."""

    position: int
    length: int


class EntryLocations(NamedTuple):
    """The places of consecutive entries."""

    positions: Sequence[int]
    lengths: Sequence[int]


class Columns(NamedTuple):
    entry_ids: IntArray
    positions: IntArray
    lengths: IntArray


def run_end(entry_ids: Sequence[int], entry_id: int, start: int, count_max: int) -> int:
    """Returns the end index of the run of consecutive ids that begins with `entry_id` at `start`,
    or `start` if there is no such run."""
    end = min(start + count_max, len(entry_ids))
    if start >= end or entry_ids[start] != entry_id:
        return start
    # Ids ascend, so if the distances are equal, no id is missing.
    if entry_ids[end - 1] - entry_id == end - 1 - start:
        return end
    return bisect_left(
        range(end), 1, start, end, key=lambda at: entry_ids[at] - at != entry_id - start
    )


def fitting_end(lengths: Sequence[int], start: int, end: int, bytes_max: int) -> int:
    """Returns the end index of the entries from `start` on that fit into `bytes_max`; the first
    entry always counts."""
    if end - start < 2:
        return end
    # This considers twice as many entries as would fit at the first one's length, because later
    # ones may be smaller.
    most = 2 + 2 * max(0, bytes_max) // max(1, lengths[start])
    sums = list(accumulate(lengths[start : min(end, start + most)]))
    return start + max(1, bisect_right(sums, bytes_max))


def _is_ascending(entry_ids: Sequence[int]) -> bool:
    return (
        isinstance(entry_ids, range)
        or (isinstance(entry_ids, array) and _counts_on(entry_ids))
        or all(starmap(lt, pairwise(entry_ids)))
    )


def _counts_on(entry_ids: IntArray) -> bool:
    """Returns whether the ids are consecutive, which is the usual case; this costs a twentieth of
    comparing them one by one."""
    first, last = entry_ids[0], entry_ids[-1]
    return last - first == len(entry_ids) - 1 and entry_ids == array_of("q", range(first, last + 1))


class LedgerRows:
    __slots__ = ("columns", "entry_bytes", "last_add_confirmed", "strays")

    def __init__(self) -> None:
        self.columns = Columns(array("q"), array("I"), array("I"))
        self.strays: dict[int, EntryLocation] = {}
        self.last_add_confirmed: int = NO_ENTRY
        self.entry_bytes = 0

    def add(self, entry_id: int, position: int, length: int) -> None:
        entry_ids, positions, lengths = self.columns
        self.entry_bytes += length
        if entry_ids and entry_id <= entry_ids[-1]:
            self.strays[entry_id] = EntryLocation(position, length)
            return
        entry_ids.append(entry_id)
        positions.append(position)
        lengths.append(length)

    def extend(
        self, new_ids: Sequence[int], new_positions: Sequence[int], new_lengths: Sequence[int]
    ) -> None:
        entry_ids, positions, lengths = self.columns
        follows = not entry_ids or new_ids[0] > entry_ids[-1]
        if not (follows and _is_ascending(new_ids)):
            for row in zip(new_ids, new_positions, new_lengths, strict=True):
                self.add(*row)
            return
        entry_ids.extend(array_of("q", new_ids) if isinstance(new_ids, range) else new_ids)
        positions.extend(new_positions)
        lengths.extend(new_lengths)
        self.entry_bytes += sum(new_lengths)

    def find(self, entry_id: int) -> EntryLocation | None:
        if self.strays and (place := self.strays.get(entry_id)):
            return place
        entry_ids, positions, lengths = self.columns
        at = bisect_left(entry_ids, entry_id)
        if at == len(entry_ids) or entry_ids[at] != entry_id:
            return None
        return EntryLocation(positions[at], lengths[at])

    def run_from(self, entry_id: int, count_max: int, bytes_max: int) -> EntryLocations:
        """Returns the places of the entry and of the entries that follow it without a gap, each at
        its newest place."""
        if self.strays:
            if stray := self.strays.get(entry_id):
                return EntryLocations([stray.position], [stray.length])
            count_max = self._until_stray(entry_id, count_max)
        entry_ids, positions, lengths = self.columns
        start = bisect_left(entry_ids, entry_id)
        end = run_end(entry_ids, entry_id, start, count_max)
        end = fitting_end(lengths, start, end, bytes_max)
        return EntryLocations(positions[start:end], lengths[start:end])

    def absent_from(self, entry_id: int, count_max: int) -> int:
        """Returns how many consecutive ids are absent, beginning with this one."""
        if self.strays:
            count_max = self._until_stray(entry_id, count_max)
        entry_ids = self.columns.entry_ids
        at = bisect_left(entry_ids, entry_id)
        return min(count_max, entry_ids[at] - entry_id) if at < len(entry_ids) else count_max

    def _until_stray(self, entry_id: int, count_max: int) -> int:
        return next((n for n in range(count_max) if entry_id + n in self.strays), count_max)

    @property
    def last_entry(self) -> int:
        """The highest id; ids outside the columns are never higher."""
        return self.columns.entry_ids[-1] if self.columns.entry_ids else NO_ENTRY

    def sorted_columns(self) -> Columns:
        """Returns all entries, ascending, each once at its newest place."""
        if not self.strays:
            return self.columns
        places = {
            e: EntryLocation(p, n) for e, p, n in zip(*self.columns, strict=True)
        } | self.strays
        entry_ids = array("q", sorted(places))
        return Columns(
            entry_ids,
            array("I", [places[e].position for e in entry_ids]),
            array("I", [places[e].length for e in entry_ids]),
        )


class JournalIndex:
    """The entries of one file, by ledger."""

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerRows] = {}
        self.entry_bytes = 0
        self.entries = 0  # The number of entries, including those of dropped ledgers.
        self._strays = 0

    def of(self, ledger_id: int) -> LedgerRows:
        rows = self.ledgers.get(ledger_id)
        if rows is None:
            rows = self.ledgers[ledger_id] = LedgerRows()
        return rows

    def add_group(
        self,
        ledger_id: int,
        last_add_confirmed: int,
        entry_ids: Sequence[int],
        positions: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        rows = self.of(ledger_id)
        before, strays = rows.entry_bytes, len(rows.strays)
        if len(entry_ids) == 1:
            rows.add(entry_ids[0], positions[0], lengths[0])
        else:
            rows.extend(entry_ids, positions, lengths)
        if last_add_confirmed > rows.last_add_confirmed:
            rows.last_add_confirmed = last_add_confirmed
        self.entry_bytes += rows.entry_bytes - before
        self.entries += len(entry_ids)
        self._strays += len(rows.strays) - strays

    def find(self, ledger_id: int, entry_id: int) -> EntryLocation | None:
        rows = self.ledgers.get(ledger_id)
        return rows.find(entry_id) if rows else None

    def last_entry(self, ledger_id: int) -> int:
        rows = self.ledgers.get(ledger_id)
        return rows.last_entry if rows else NO_ENTRY

    def drop(self, ledger_id: int) -> None:
        """Drops a deleted or dropped ledger: its entries stay in the file but are no longer
        found."""
        if rows := self.ledgers.pop(ledger_id, None):
            self.entry_bytes -= rows.entry_bytes

    def by_ledger(self) -> Iterator[tuple[int, LedgerRows]]:
        """Yields the ledgers in ascending order; ledgers may be dropped in the meantime."""
        for ledger_id in sorted(self.ledgers):
            if rows := self.ledgers.get(ledger_id):
                yield ledger_id, rows

    @property
    def memory_bytes(self) -> int:
        """An upper estimate of the memory that the index takes."""
        return (
            self.entries * ROW_BYTES
            + self._strays * _STRAY_BYTES
            + len(self.ledgers) * _LEDGER_BYTES
        )
