"""The footer of an entry log, which says where the log's entries are. Little-endian.

    entry log   file header · records · END record · footer      sorted, or an adopted journal
    footer      page · … · extents · page table · record table · trailer     starts on a sector
    page        ledger · first entry · count · crc · count x u32 entry id - first ·
                count x u32 position · count x u32 length         of entries of one ledger, ascending
    extent      ledger · first entry · last entry · entries · entry bytes · LAC · first page · pages
    page table  first entry · position · count                    a row for each page
    record table  u32 position                                    a row for each record with entries
    trailer     magic · version · footer position · extents · pages · records · crc of the three
                tables · crc of the trailer itself                the last bytes of the file

Positions and lengths refer to the entries' own bytes within their record. To read an entry, a
reader reads and verifies the whole record. Pages and tables are checksummed like records (B2). The
footer has no information that the records lack, so a log with a damaged footer is read once and
indexed in memory.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import sub
from typing import Final, NamedTuple

import google_crc32c

from rollbook.bookie.core.journal_index import (
    Columns,
    EntryLocation,
    EntryLocations,
    fitting_end,
    run_end,
)
from rollbook.bookie.core.record_format import LATER_RELEASE, seed_of
from rollbook.proto.errors import TornRecord, UnsupportedVersion

PAGE_ROWS_MAX: Final = 1024
FILE_BYTES_MAX: Final = 2**32 - 1  # Positions are u32, which limits a file's size.

_VERSION: Final = 1
_MAGIC: Final = b"\xb5foot"
_PAGE: Final = struct.Struct("<qqII")
EXTENT: Final = struct.Struct("<qqqQQqII")
_PAGE_ROW: Final = struct.Struct("<qII")
_RECORD_ROW_BYTES: Final = 4
_TRAILER: Final = struct.Struct("<5sBHQIIII")
_CRC: Final = struct.Struct("<I")
TRAILER_BYTES: Final = _TRAILER.size + _CRC.size
_COLUMN_BYTES: Final = 4

assert array("I").itemsize == _COLUMN_BYTES

_extend = google_crc32c.extend


class Extent(NamedTuple):
    """The entries of one ledger that one log holds."""

    ledger_id: int
    first_entry: int
    last_entry: int
    entries: int
    entry_bytes: int
    last_add_confirmed: int  # The highest LAC that one of the entries carries.
    first_page: int
    pages: int


class PageRow(NamedTuple):
    first_entry: int
    position: int
    entries: int

    @property
    def size(self) -> int:
        return _PAGE.size + 3 * _COLUMN_BYTES * self.entries


class Tables:
    """A footer without its pages, kept packed because a store has millions of extents."""

    def __init__(self, data: bytes, trailer: "Trailer") -> None:
        self.extents = trailer.extents
        self.records = array("I")  # Positions of the records, ascending.
        self._data = data
        self._pages_at = trailer.extents * EXTENT.size
        records_at = self._pages_at + trailer.pages * _PAGE_ROW.size
        self.records.frombytes(data[records_at:])
        self.ledger_ids = array("q")
        self.ledger_ids.extend(row[0] for row in EXTENT.iter_unpack(data[: self._pages_at]))
        self._first_entries = array("q")
        self._first_entries.extend(
            row[0] for row in _PAGE_ROW.iter_unpack(data[self._pages_at : records_at])
        )

    def page_of(self, ledger_id: int, entry_id: int) -> PageRow | None:
        """Returns the only page that can have the entry."""
        extent = self.extent_of(ledger_id)
        if extent is None or not extent.first_entry <= entry_id <= extent.last_entry:
            return None
        start, end = extent.first_page, extent.first_page + extent.pages
        at = bisect_right(self._first_entries, entry_id, start, end)
        return self._page(at - 1) if at > start else None

    def pages_of(self, ledger_id: int) -> list[PageRow]:
        extent = self.extent_of(ledger_id)
        if extent is None:
            return []
        return [self._page(extent.first_page + number) for number in range(extent.pages)]

    def extent_of(self, ledger_id: int) -> Extent | None:
        at = bisect_left(self.ledger_ids, ledger_id)
        if at == len(self.ledger_ids) or self.ledger_ids[at] != ledger_id:
            return None
        return Extent(*EXTENT.unpack_from(self._data, at * EXTENT.size))

    def _page(self, at: int) -> PageRow:
        return PageRow(*_PAGE_ROW.unpack_from(self._data, self._pages_at + at * _PAGE_ROW.size))


def pack_page(file_id: bytes, position: int, ledger_id: int, columns: Columns) -> bytes:
    entry_ids, positions, lengths = columns
    first = entry_ids[0]
    deltas = array("I", map(sub, entry_ids, repeat(first)))
    rows = b"".join((deltas.tobytes(), positions.tobytes(), lengths.tobytes()))
    seed = seed_of(file_id, position)
    crc = _extend(_extend(seed, _PAGE.pack(ledger_id, first, len(deltas), 0)), rows)
    return _PAGE.pack(ledger_id, first, len(deltas), crc) + rows


def check_page(data: bytes, file_id: bytes, row: PageRow, ledger_id: int) -> None:
    """Raises `TornRecord` unless these are the bytes that `pack_page` made for it."""
    if len(data) == row.size:
        *found, crc = _PAGE.unpack_from(data)
        seed = _extend(seed_of(file_id, row.position), _PAGE.pack(*found, 0))
        expected = _extend(seed, data[_PAGE.size :])
        if crc == expected and found == [ledger_id, row.first_entry, row.entries]:
            return
    raise TornRecord("an index page is damaged", position=row.position)


def unpack_page(data: bytes, row: PageRow) -> Columns:
    """Unpacks a page that has been checked."""
    columns, count = memoryview(data)[_PAGE.size :].cast("I"), row.entries
    return Columns(
        array("q", [row.first_entry + delta for delta in columns[:count]]),
        array("I", columns[count : 2 * count]),
        array("I", columns[2 * count :]),
    )


def find_in_page(data: bytes, row: PageRow, entry_id: int) -> EntryLocation | None:
    """Returns the place of an entry in a page that has been checked."""
    columns = memoryview(data)[_PAGE.size :].cast("I")
    count, delta = row.entries, entry_id - row.first_entry
    at = bisect_right(columns, delta, 0, count) - 1
    if at < 0 or columns[at] != delta:
        return None
    return EntryLocation(columns[count + at], columns[2 * count + at])


def run_in_page(
    data: bytes, row: PageRow, entry_id: int, count_max: int, bytes_max: int
) -> EntryLocations:
    """Returns the places of the entry and of the entries that follow it without a gap, from a
    checked page."""
    columns = memoryview(data)[_PAGE.size :].cast("I")
    count, delta = row.entries, entry_id - row.first_entry
    positions, lengths = columns[count : 2 * count], columns[2 * count :]
    start = bisect_left(columns, delta, 0, count)
    end = run_end(columns[:count], delta, start, count_max)
    end = fitting_end(lengths, start, end, bytes_max)
    return EntryLocations(positions[start:end], lengths[start:end])


class FooterBuilder:
    """Packs a footer ledger by ledger, so that its pages are never all needed at once."""

    def __init__(self, file_id: bytes, position: int) -> None:
        self.position = position  # The position of the next bytes in the file.
        self.extents: list[Extent] = []
        self._file_id = file_id
        self._footer_at = position
        # Rows are packed one ledger at a time, because packing all at the end would block the loop.
        self._extent_rows = bytearray()
        self._page_rows = bytearray()
        self._pages = 0

    def add_ledger(
        self, ledger_id: int, columns: Columns, last_add_confirmed: int, entry_bytes: int
    ) -> Iterator[bytes]:
        """Yields the ledger's pages one by one, so that other work may run in between.

        Ledgers come in ascending order.
        """
        first_page = self._pages
        for page in _cut_pages(columns):
            data = pack_page(self._file_id, self.position, ledger_id, page)
            self._page_rows += _PAGE_ROW.pack(page.entry_ids[0], self.position, len(page.entry_ids))
            self._pages += 1
            self.position += len(data)
            yield data
        entry_ids = columns.entry_ids
        extent = Extent(
            ledger_id,
            entry_ids[0],
            entry_ids[-1],
            len(entry_ids),
            entry_bytes,
            last_add_confirmed,
            first_page,
            self._pages - first_page,
        )
        self.extents.append(extent)
        self._extent_rows += EXTENT.pack(*extent)

    def finish(self, record_positions: Sequence[int]) -> bytes:
        record_rows = array("I", record_positions).tobytes()
        tables = b"".join((self._extent_rows, self._page_rows, record_rows))
        trailer = _TRAILER.pack(
            _MAGIC,
            _VERSION,
            0,
            self._footer_at,
            len(self.extents),
            self._pages,
            len(record_positions),
            _extend(seed_of(self._file_id, self.position), tables),
        )
        trailer_at = self.position + len(tables)
        crc = _extend(seed_of(self._file_id, trailer_at), trailer)
        return b"".join((tables, trailer, _CRC.pack(crc)))


def _cut_pages(columns: Columns) -> Iterator[Columns]:
    entry_ids, positions, lengths = columns
    start, count = 0, len(entry_ids)
    while start < count:
        end = min(start + PAGE_ROWS_MAX, count)
        if entry_ids[end - 1] - entry_ids[start] >= 2**32:
            end = bisect_right(entry_ids, entry_ids[start] + 2**32 - 1, start, end)
        yield Columns(entry_ids[start:end], positions[start:end], lengths[start:end])
        start = end


class Trailer(NamedTuple):
    footer_at: int
    extents: int
    pages: int
    records: int
    tables_crc: int

    @property
    def table_bytes(self) -> int:
        return (
            self.extents * EXTENT.size
            + self.pages * _PAGE_ROW.size
            + self.records * _RECORD_ROW_BYTES
        )


def unpack_trailer(data: bytes, file_id: bytes, file_bytes: int) -> Trailer:
    """Unpacks the last bytes of a file. Raises `TornRecord`."""
    fields, crc = data[: _TRAILER.size], data[_TRAILER.size :]
    trailer_at = file_bytes - TRAILER_BYTES
    if len(data) != TRAILER_BYTES or crc != _CRC.pack(
        _extend(seed_of(file_id, trailer_at), fields)
    ):
        raise TornRecord("an entry log has no trailer")
    magic, version, _, footer_at, extents, pages, records, tables_crc = _TRAILER.unpack(fields)
    if magic != _MAGIC:
        raise TornRecord("an entry log has no trailer")
    if version != _VERSION:
        raise UnsupportedVersion(
            f"a footer of version {version} is from a later release", next_step=LATER_RELEASE
        )
    trailer = Trailer(footer_at, extents, pages, records, tables_crc)
    if not footer_at <= trailer_at - trailer.table_bytes:
        raise TornRecord("an entry log's trailer is invalid")
    return trailer


def unpack_tables(data: bytes, file_id: bytes, position: int, trailer: Trailer) -> Tables:
    """Unpacks the tables between the pages and the trailer. Raises `TornRecord`."""
    if (
        len(data) != trailer.table_bytes
        or _extend(seed_of(file_id, position), data) != trailer.tables_crc
    ):
        raise TornRecord("an entry log's tables are damaged", position=position)
    return Tables(data, trailer)
