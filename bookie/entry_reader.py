"""Reads an entry, a run of entries, the last entry or the list of entries, from whichever file has
them.

Journal files are searched first and then entry logs, both from the newest to the oldest, so that
the youngest of several copies is found (B12). Entries may move during a search. An entry that is
found is always right, but "absent" or "unknown" counts only if no entry moved during the search
(B1).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from rollbook.bookie.core.catalog import Catalog
from rollbook.bookie.core.fencing import Ledger
from rollbook.bookie.core.id_ranges import Ranges, ranges_of
from rollbook.bookie.core.journal_index import IntArray
from rollbook.bookie.entry_log_reader import EntryLogs
from rollbook.bookie.journal import JournalFile
from rollbook.bookie.stats import Stats
from rollbook.proto.errors import (
    BookieFailed,
    EntryStateUnknown,
    EntryTooLarge,
    NoSuchEntry,
    NoSuchLedger,
    RollbookError,
    TornRecord,
    WrongCluster,
)
from rollbook.proto.ids import NO_ENTRY
from rollbook.proto.ports import Buffer

T = TypeVar("T")

_IDS_PER_STEP: Final = 4096
_DAMAGE: Final = (TornRecord, WrongCluster, OSError)


class Reading:
    def __init__(
        self,
        catalog: Catalog,
        logs: EntryLogs,
        files: Callable[[], Sequence[JournalFile]],
        ledger: Callable[[int], Ledger | None],
        stats: Stats,
        has_failed: Callable[[], bool],
    ) -> None:
        """`files` returns the files with entries that are in no log yet, newest first. `ledger`
        returns the ledger if it is known, or None. If the journal `has_failed`, its contents are
        unknown."""
        self.moves = 0  # The number of times that entries moved from one file to another.
        self._catalog = catalog
        self._logs = logs
        self._files = files
        self._ledger = ledger
        self._stats = stats
        self._has_failed = has_failed

    def peek(self, ledger_id: int, entry_id: int) -> bytes | None:
        """Returns the entry if it is in memory; None proves nothing."""
        ledger = self._ledger(ledger_id)
        if ledger is None or ledger.is_deleted:
            return None
        for file in self._files():
            if place := file.index.find(ledger_id, entry_id):
                return file.records.peek(place)
        return None

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        """Returns the entry. Raises `NoSuchLedger`, `NoSuchEntry`, `EntryStateUnknown`."""
        if (found := self.peek(ledger_id, entry_id)) is not None:
            return found
        return await self._answer(lambda: self._read(ledger_id, entry_id))

    async def read_run(
        self, ledger_id: int, first_entry: int, count_max: int, bytes_max: int
    ) -> list[Buffer]:
        """Returns consecutive entries, at least the first one. The end of the run does not prove
        that the next entry is absent.

        Raises `NoSuchLedger`, `NoSuchEntry`, `EntryStateUnknown`.
        """
        found = await self._read_run(ledger_id, first_entry, count_max, bytes_max)
        if not found:
            found = [await self.read(ledger_id, first_entry)]
        # Small entries usually fill the count; then their sizes need not be added up.
        if len(found) == count_max:
            return found
        bytes_left = bytes_max - sum(map(len, found))
        while len(found) < count_max and bytes_left >= len(found[-1]):
            wanted = (ledger_id, first_entry + len(found), count_max - len(found), bytes_left)
            more = await self._read_run(*wanted)
            bytes_left -= sum(map(len, more))
            # A run has at least its first entry, even if that exceeds the limit.
            if not more or bytes_left < 0:
                break
            found += more
        return found

    async def read_last(self, ledger_id: int) -> bytes:
        """Returns the entry with the highest id, if no later entry may have been lost (B1). Raises
        `NoSuchLedger`, `NoSuchEntry`, `EntryStateUnknown`."""
        return await self._answer(lambda: self._read_last(ledger_id))

    async def entry_ranges(self, ledger_id: int, ranges_max: int) -> Ranges:
        """Returns the ranges of all entries here, ascending. Raises `NoSuchLedger`,
        `EntryStateUnknown`, and `EntryTooLarge` if there are too many ranges.
        """
        return await self._answer(lambda: self._entry_ranges(ledger_id, ranges_max))

    async def _answer(self, question: Callable[[], Awaitable[T]]) -> T:
        """Returns the answer. If no entry was found, but entries moved to another file in the
        meantime, it asks again."""
        while True:
            moves = self._all_moves
            try:
                return await question()
            except (NoSuchLedger, NoSuchEntry, EntryStateUnknown):
                if moves == self._all_moves:
                    raise

    @property
    def _all_moves(self) -> tuple[int, int]:
        return self.moves, self._catalog.removals

    async def _read(self, ledger_id: int, entry_id: int) -> bytes:
        self._require_not_deleted(ledger_id)
        moves = self._all_moves
        damage: BaseException | None = None
        for file in self._files():
            if place := file.index.find(ledger_id, entry_id):
                try:
                    return await file.records.read(ledger_id, entry_id, place)
                except _DAMAGE as error:
                    damage = error
                    # If entries have moved, a failed read is not damage.
                    self._stats.damages_met += moves == self._all_moves
        for number in self._catalog.holding(ledger_id, entry_id):
            try:
                async with self._logs.use(number) as log:
                    if (found := await log.read(ledger_id, entry_id)) is not None:
                        return found
            except _DAMAGE as error:
                damage = error
                self._stats.damages_met += moves == self._all_moves
        if damage or self._catalog.doubts.about(ledger_id, entry_id):
            raise EntryStateUnknown(ledger_id=ledger_id, entry_id=entry_id) from damage
        raise self._absence(ledger_id)(ledger_id=ledger_id, entry_id=entry_id)

    async def _read_run(
        self, ledger_id: int, entry_id: int, count_max: int, bytes_max: int
    ) -> list[Buffer]:
        """Reads from the youngest place that has the entry, up to an entry that a younger place
        has, too."""
        try:
            self._require_not_deleted(ledger_id)
            for file in self._files():
                rows = file.index.ledgers.get(ledger_id)
                if rows is None:
                    continue
                places = rows.run_from(entry_id, count_max, bytes_max)
                if places.positions:
                    return await file.records.read_run(*places)
                count_max = rows.absent_from(entry_id, count_max)
            beyond = self._catalog.next_extent(ledger_id, entry_id)
            count_max = min(count_max, beyond - entry_id)
            for number in self._catalog.holding(ledger_id, entry_id):
                async with self._logs.use(number) as log:
                    if found := await log.read_run(ledger_id, entry_id, count_max, bytes_max):
                        return found
                count_max = 1  # The next log may have the entry after this one.
        except (NoSuchLedger, *_DAMAGE):
            pass
        return []

    async def _read_last(self, ledger_id: int) -> bytes:
        self._require_not_deleted(ledger_id)
        if self._has_failed():  # A response with a last entry would say that there is no later one.
            raise BookieFailed
        last = max(
            [
                *(file.index.last_entry(ledger_id) for file in self._files()),
                *(held.last_entry for held in self._catalog.held(ledger_id)),
            ]
        )
        if self._catalog.doubts.beyond(ledger_id, last):
            raise EntryStateUnknown(ledger_id=ledger_id)
        if last == NO_ENTRY:
            raise self._absence(ledger_id)(ledger_id=ledger_id)
        return await self._read(ledger_id, last)

    async def _entry_ranges(self, ledger_id: int, ranges_max: int) -> Ranges:
        self._require_not_deleted(ledger_id)
        found = Ranges()
        for file in self._files():
            if rows := file.index.ledgers.get(ledger_id):
                await self._add_ranges(found, rows.sorted_columns().entry_ids, ranges_max)
        for held in self._catalog.held(ledger_id):
            try:
                async with self._logs.use(held.log) as log:
                    await self._add_ranges(found, await log.entry_ids(ledger_id), ranges_max)
            except _DAMAGE as error:
                raise EntryStateUnknown(ledger_id=ledger_id) from error
        doubts = self._catalog.doubts
        if not found and (doubts.all_of(ledger_id) or doubts.of(ledger_id)):
            raise EntryStateUnknown(ledger_id=ledger_id)
        if not found and self._ledger(ledger_id) is None:
            raise NoSuchLedger(ledger_id=ledger_id)
        return found

    async def _add_ranges(self, found: Ranges, entry_ids: IntArray, ranges_max: int) -> None:
        for number, (first, last) in enumerate(ranges_of(entry_ids), start=1):
            found.add(first, last)
            if len(found) > ranges_max:
                raise EntryTooLarge("a ledger has entries in too many ranges to list them")
            if number % _IDS_PER_STEP == 0:
                await asyncio.sleep(0)

    def _require_not_deleted(self, ledger_id: int) -> None:
        ledger = self._ledger(ledger_id)
        if ledger and ledger.is_deleted:
            raise NoSuchLedger(ledger_id=ledger_id)

    def _absence(self, ledger_id: int) -> type[RollbookError]:
        if self._has_failed():  # The next start may find data that was written but not synced.
            return BookieFailed
        return NoSuchEntry if self._ledger(ledger_id) else NoSuchLedger
