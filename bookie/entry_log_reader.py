"""Reads one entry log, an adopted journal file or a sorted log, by its footer.

A damaged footer loses no entry: the log is read once and indexed in memory, and its records are
found as before. A read raises `TornRecord` if the entry's own bytes are damaged.
"""

from array import array
from collections.abc import Callable
from typing import Final

import structlog

from rollbook.bookie.cached_record_reader import Cache, RecordFile
from rollbook.bookie.core.entry_log_footer import (
    TRAILER_BYTES,
    PageRow,
    Tables,
    check_page,
    find_in_page,
    run_in_page,
    unpack_page,
    unpack_tables,
    unpack_trailer,
)
from rollbook.bookie.core.journal_index import (
    Columns,
    EntryLocation,
    IntArray,
    JournalIndex,
    LedgerRows,
)
from rollbook.bookie.core.possible_losses import EVERYTHING, LossRange, PossibleLosses
from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    FileHeader,
    RecordReader,
    unpack_file_header,
)
from rollbook.bookie.core.replay import Replayed, replay
from rollbook.bookie.core.torn_tail import scan
from rollbook.proto.errors import TornRecord, WrongCluster
from rollbook.proto.ports import Buffer, Disk, File, OpenMode

logger = structlog.get_logger()

_ALL_DURABLE: Final = 2**62
_PAGES_AHEAD_BYTES: Final = 32 * 1024
# The maximum number of open logs; each takes a file descriptor and the tables of its footer.
_OPEN_MAX: Final = 256


async def open_record_file(
    disk: Disk, path: str, mode: OpenMode, store_id: bytes
) -> tuple[File, FileHeader]:
    """Opens a file that consists of records. Raises `TornRecord` if it has no header, and
    `WrongCluster` if it belongs to another store."""
    file = await disk.open(path, mode)
    try:
        header = unpack_file_header(await file.read_at(0, FILE_HEADER_BYTES))
        if header is None:
            raise TornRecord("a file has no header", path=path)
        if header.store_id != store_id:
            raise WrongCluster(
                "a file belongs to another store", path=path, next_step="mount the right disk"
            )
    except BaseException:
        await file.close()
        raise
    return file, header


class EntryLog:
    def __init__(self, number: int, records: RecordFile, cache: Cache) -> None:
        self.number = number
        self.records = records
        self.users = 0
        self.is_gone = False  # The log was removed; its last reader closes it.
        self._pages = cache.bodies
        self._serial = next(cache.serials) << 32
        self._tables: Tables | None = None
        self._rebuilt_index: JournalIndex | None = None  # The index that replaces a damaged footer.
        # Ranges of entries that may exist although `_rebuilt_index` does not have them.
        self._doubts = PossibleLosses()
        self._stretch = b""  # The pages that a walk through all ledgers read last.
        self._stretch_at = 0  # The position of `_stretch`.

    async def read(self, ledger_id: int, entry_id: int) -> bytes | None:
        """Returns the entry, or None if it is not in the log. Raises `TornRecord` if the entry is
        damaged, or may be in a damaged part."""
        place = await self._find(ledger_id, entry_id)
        return await self.records.read(ledger_id, entry_id, place) if place else None

    async def read_run(
        self, ledger_id: int, entry_id: int, count_max: int, bytes_max: int
    ) -> list[Buffer]:
        """Returns consecutive entries, up to the end of one index page or a damaged record;
        possibly none."""
        if self._rebuilt_index is not None:
            return []
        tables = self._tables or await self._load_tables()
        row = tables.page_of(ledger_id, entry_id)
        if row is None:
            return []
        page = await self._page(row, ledger_id)
        return await self.records.read_run(*run_in_page(page, row, entry_id, count_max, bytes_max))

    async def entry_ids(self, ledger_id: int) -> IntArray:
        """Returns the ledger's entry ids, ascending. Raises `TornRecord` if damage may hide more
        entries."""
        if self._rebuilt_index is None:
            try:
                return await self._entry_ids_in_footer(ledger_id)
            except TornRecord as error:
                await self._index_anew(error)
        assert self._rebuilt_index is not None
        if self._doubts.everything or self._doubts.of(ledger_id):
            raise TornRecord("an entry log is damaged", log=self.number)
        rows = self._rebuilt_index.ledgers.get(ledger_id)
        return rows.sorted_columns().entry_ids if rows else array("q")

    async def all_of(self, ledger_id: int) -> tuple[Columns, tuple[LossRange, ...]]:
        """Returns the places of the ledger's entries, ascending, and the ranges that may have
        further entries which cannot be found."""
        if self._rebuilt_index is None:
            try:
                return await self._columns_in_footer(ledger_id), ()
            except TornRecord as error:
                await self._index_anew(error)
        assert self._rebuilt_index is not None
        rows = self._rebuilt_index.ledgers.get(ledger_id) or LedgerRows()
        unknown = self._doubts.of(ledger_id)
        return rows.sorted_columns(), EVERYTHING if self._doubts.everything else unknown

    async def load(self) -> None:
        """Finds the places of all records."""
        if self._tables is None and self._rebuilt_index is None:
            try:
                await self._load_tables()
            except TornRecord as error:
                await self._index_anew(error)

    @property
    def has_sound_footer(self) -> bool:
        """Returns whether the part of the footer that was read is sound."""
        return self._rebuilt_index is None

    async def _columns_in_footer(self, ledger_id: int) -> Columns:
        tables = self._tables or await self._load_tables()
        found = Columns(array("q"), array("I"), array("I"))
        for row in tables.pages_of(ledger_id):
            page = unpack_page(await self._page_in_order(row, ledger_id), row)
            for column, more in zip(found, page, strict=True):
                column.extend(more)
        return found

    async def _find(self, ledger_id: int, entry_id: int) -> EntryLocation | None:
        if self._rebuilt_index is None:
            try:
                return await self._find_in_footer(ledger_id, entry_id)
            except TornRecord as error:
                await self._index_anew(error)
        assert self._rebuilt_index is not None
        place = self._rebuilt_index.find(ledger_id, entry_id)
        if place is None and self._doubts.about(ledger_id, entry_id):
            raise TornRecord("an entry log is damaged", log=self.number)
        return place

    async def _find_in_footer(self, ledger_id: int, entry_id: int) -> EntryLocation | None:
        tables = self._tables or await self._load_tables()
        row = tables.page_of(ledger_id, entry_id)
        if row is None:
            return None
        return find_in_page(await self._page(row, ledger_id), row, entry_id)

    async def _entry_ids_in_footer(self, ledger_id: int) -> IntArray:
        tables = self._tables or await self._load_tables()
        found = array("q")
        for row in tables.pages_of(ledger_id):
            found.extend(unpack_page(await self._page(row, ledger_id), row).entry_ids)
        return found

    async def _page(self, row: PageRow, ledger_id: int) -> bytes:
        key = self._serial | row.position
        data = self._pages.get(key)
        if data is None:
            data = await self.records.file.read_at(row.position, row.size)
            check_page(data, self.records.header.file_id, row, ledger_id)
            self._pages.put(key, data)
        return data

    async def _page_in_order(self, row: PageRow, ledger_id: int) -> bytes:
        """Reads a page for a walk through all ledgers, together with the following pages and
        without the cache."""
        at, stretch = row.position - self._stretch_at, self._stretch
        if not 0 <= at <= len(stretch) - row.size:
            size = max(row.size, _PAGES_AHEAD_BYTES)
            at, stretch = 0, await self.records.file.read_at(row.position, size)
            self._stretch_at, self._stretch = row.position, stretch
        data = stretch[at : at + row.size]
        check_page(data, self.records.header.file_id, row, ledger_id)
        return data

    async def _load_tables(self) -> Tables:
        file, file_id = self.records.file, self.records.header.file_id
        size = await file.size()
        trailer_at = size - TRAILER_BYTES
        trailer = unpack_trailer(await file.read_at(trailer_at, TRAILER_BYTES), file_id, size)
        tables_at = trailer_at - trailer.table_bytes
        data = await file.read_at(tables_at, trailer.table_bytes)
        tables = unpack_tables(data, file_id, tables_at, trailer)
        self.records.records = tables.records
        self.records.end = trailer.footer_at
        self._tables = tables
        return tables

    async def _index_anew(self, reason: TornRecord) -> None:
        logger.warning("footer_damaged", log=self.number, reason=str(reason))
        file = self.records.file
        contents = await file.read_at(0, await file.size())
        reader = RecordReader(contents, self.records.header.file_id)
        first = reader.next_after(FILE_HEADER_BYTES, 0)
        replayed = Replayed()
        if first is None or first.position != FILE_HEADER_BYTES:
            self._doubts.everything = True
        if first:
            found = scan(
                reader,
                start=first.position,
                first_sequence=first.sequence,
                durable_through=_ALL_DURABLE,
            )
            replayed = replay(reader, found)
            self._doubts.everything |= replayed.doubts_everything or not found.is_ended
            for doubt in replayed.doubts:
                self._doubts.add(*doubt)
            self.records.records, self.records.end = replayed.records, found.end
        self._rebuilt_index = replayed.index


class EntryLogs:
    """The logs of a store by number. A log is opened when it is first asked for, and some logs are
    kept open."""

    def __init__(
        self, disk: Disk, store_id: bytes, path_of: Callable[[int], str], cache: Cache
    ) -> None:
        """`path_of` raises `FileNotFoundError` if the log is gone."""
        self._disk = disk
        self._store_id = store_id
        self._path_of = path_of
        self._cache = cache
        self._open: dict[int, EntryLog] = {}  # Open logs in order of use, oldest first.

    def use(self, number: int) -> "_Use":
        """Returns a context for one use of the log; entering it raises `TornRecord` or `OSError` if
        the log cannot be used now."""
        return _Use(self, number)

    async def take(self, number: int) -> EntryLog:
        while (log := self._open.pop(number, None)) is None:
            await self._open_log(number)
        self._open[number] = log  # The log that was used last is at the end.
        log.users += 1
        return log

    async def give_back(self, log: EntryLog) -> None:
        log.users -= 1
        if log.is_gone and not log.users:
            await log.records.retire()
        if len(self._open) > _OPEN_MAX:
            await self._close_some()

    async def put(self, number: int, records: RecordFile) -> None:
        """Takes over a log that is already open, unless another caller has opened it."""
        if number in self._open:
            await records.retire()
        else:
            self._open[number] = EntryLog(number, records, self._cache)

    async def _open_log(self, number: int) -> None:
        """Opens the log. The log may be closed again before this returns, if another caller had
        opened it."""
        file, header = await open_record_file(
            self._disk, self._path_of(number), OpenMode.READ, self._store_id
        )
        if number in self._open:  # Another caller opened the log in the meantime.
            await file.close()
            return
        try:
            self._path_of(number)
        except OSError:  # The log was removed; an open file would keep its space.
            await file.close()
            raise
        self._open[number] = EntryLog(number, RecordFile(file, header, self._cache), self._cache)

    async def remove(self, number: int) -> None:
        """Forgets a log whose file will be removed. Reads in progress may finish."""
        if log := self._open.pop(number, None):
            log.is_gone = True
            if not log.users:
                await log.records.retire()

    async def _close_some(self) -> None:
        while len(self._open) > _OPEN_MAX:
            log = next((log for log in self._open.values() if not log.users), None)
            if log is None:
                break
            del self._open[log.number]
            await log.records.retire()

    async def close(self) -> None:
        while self._open:
            _, log = self._open.popitem()
            await log.records.retire()


class _Use:
    """One use of a log, as a context manager. This is a class because a generator would make
    readers of many entries 5 % slower."""

    __slots__ = ("_log", "_logs", "_number")

    def __init__(self, logs: EntryLogs, number: int) -> None:
        self._logs = logs
        self._number = number
        self._log: EntryLog

    async def __aenter__(self) -> EntryLog:
        self._log = await self._logs.take(self._number)
        return self._log

    async def __aexit__(self, *_: object) -> None:
        await self._logs.give_back(self._log)
