"""Footers of entry logs: packing, lookup, and detection of damage."""

import random
from array import array
from collections.abc import Sequence

import pytest

from rollbook.bookie.core.entry_log_footer import (
    PAGE_ROWS_MAX,
    TRAILER_BYTES,
    FooterBuilder,
    Tables,
    check_page,
    find_in_page,
    unpack_page,
    unpack_tables,
    unpack_trailer,
)
from rollbook.bookie.core.journal_index import EntryLocation, JournalIndex
from rollbook.proto.errors import TornRecord

FILE_ID = b"i" * 16
START = 4096


def pack_footer(
    file_id: bytes, position: int, index: JournalIndex, record_positions: Sequence[int]
) -> list[bytes]:
    """The whole footer of a file with the entries of this journal index."""
    builder = FooterBuilder(file_id, position)
    packed: list[bytes] = []
    for ledger_id, rows in index.by_ledger():
        if rows.columns.entry_ids:
            packed += builder.add_ledger(
                ledger_id, rows.sorted_columns(), rows.last_add_confirmed, rows.entry_bytes
            )
    packed.append(builder.finish(record_positions))
    return packed


def packed(table: JournalIndex, records: list[int]) -> bytes:
    return bytes(START) + b"".join(pack_footer(FILE_ID, START, table, records))


def load(file: bytes, file_id: bytes = FILE_ID) -> Tables:
    trailer = unpack_trailer(file[-TRAILER_BYTES:], file_id, len(file))
    at = len(file) - TRAILER_BYTES - trailer.table_bytes
    return unpack_tables(file[at:-TRAILER_BYTES], file_id, at, trailer)


def find(file: bytes, tables: Tables, ledger_id: int, entry_id: int) -> EntryLocation | None:
    row = tables.page_of(ledger_id, entry_id)
    if row is None:
        return None
    page = file[row.position : row.position + row.size]
    check_page(page, FILE_ID, row, ledger_id)
    return find_in_page(page, row, entry_id)


def some_table(chance: random.Random) -> JournalIndex:
    table = JournalIndex()
    for ledger_id in (0, 5, 2**63 - 1):
        first = chance.choice((0, 10, 2**62))
        ids = sorted(chance.sample(range(first, first + 5000), chance.choice((1, 30, 2500))))
        if chance.random() < 0.3:
            ids.append(ids[-1] + 2**40)  # This id is too far away for the same page.
        places = [chance.randrange(2**32) for _ in ids]
        table.add_group(ledger_id, ids[-1] - 1, ids, places, [32 + n % 9 for n in range(len(ids))])
    # Added again: the newer location counts.
    table.add_group(5, 0, [table.last_entry(5)], [7], [99])
    return table


@pytest.mark.parametrize("seed", range(25))
def test_footer_agrees_with_journal_index(seed: int) -> None:
    table = some_table(random.Random(seed))
    file = packed(table, [1024, 2048])
    tables = load(file)
    assert tables.records == array("I", [1024, 2048])
    assert tables.extents == 3
    for ledger_id, rows in table.by_ledger():
        columns = rows.sorted_columns()
        extent = tables.extent_of(ledger_id)
        assert extent
        assert (extent.first_entry, extent.last_entry) == (columns[0][0], columns[0][-1])
        assert extent.entries == len(columns.entry_ids)
        assert extent.last_add_confirmed == rows.last_add_confirmed
        listed: list[int] = []
        for row in tables.pages_of(ledger_id):
            page = unpack_page(file[row.position : row.position + row.size], row)
            assert len(page.entry_ids) <= PAGE_ROWS_MAX
            listed += page.entry_ids
        assert listed == list(columns.entry_ids)
        for entry_id in columns.entry_ids[:: max(1, len(columns.entry_ids) // 50)]:
            assert find(file, tables, ledger_id, entry_id) == rows.find(entry_id)
            gap = entry_id + 1
            assert find(file, tables, ledger_id, gap) == rows.find(gap)
        assert find(file, tables, ledger_id, -1) is None
    assert tables.page_of(77, 0) is None


def find_both(file: bytes) -> None:
    tables = load(file)
    find(file, tables, 3, 7)
    find(file, tables, 4, 9)


def test_every_flipped_footer_byte_is_detected() -> None:
    """B2: whether it is in a page, a table or the trailer."""
    table = JournalIndex()
    table.add_group(3, 0, [0, 1, 7], [100, 200, 300], [50, 51, 52])
    table.add_group(4, 0, [9], [400], [53])
    file = packed(table, [64])
    for position in range(START, len(file)):
        damaged = bytearray(file)
        damaged[position] ^= 0x20
        with pytest.raises(TornRecord):
            find_both(bytes(damaged))


def test_footer_of_another_file_is_rejected() -> None:
    """B2: checksums are seeded with the file's id and the position."""
    table = JournalIndex()
    table.add_group(3, 0, [0], [100], [50])
    file = packed(table, [64])
    with pytest.raises(TornRecord):
        load(file, b"j" * 16)
    with pytest.raises(TornRecord):
        load(b"x" + file)
    with pytest.raises(TornRecord):
        unpack_trailer(b"", FILE_ID, 0)
