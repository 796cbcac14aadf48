"""Entries, sorted by ledger and entry, become an entry log: records, END, footer.

Whoever writes one sees to it that it is synced, has its name durably, and is then taken up by the
catalog: in this order.
"""

import asyncio
import struct
from array import array
from collections.abc import Iterator
from typing import Final, TypeAlias

from rollbook.bookie.core.entry_log_format import FooterBuilder
from rollbook.bookie.core.group_commit import RecordPacker
from rollbook.bookie.core.memtable import Columns, IntArray
from rollbook.bookie.core.records import FILE_HEADER_BYTES, HEAD_BYTES, Kind, pack_rows
from rollbook.proto.ports import File

_LENGTH: Final = struct.Struct("<I")
_RECORD_BYTES: Final = 64 * 1024
_SYNC_BYTES: Final = 8 * 1024 * 1024  # So much at most lies before the journal in the disk's queue.
_WRITE_BYTES: Final = 64 * 1024

Indexed: TypeAlias = Iterator[tuple[int, Columns, int, int]]
"""Ledger, columns, LAC, bytes of its entries; by ledger."""


async def write_footer(
    file: File, builder: FooterBuilder, indexed: Indexed, records: IntArray
) -> int:
    """Returns where it ends: the size of the file."""
    packed: list[bytes] = []
    position, size = builder.position, 0
    for ledger in indexed:
        for page in builder.add_ledger(*ledger):
            packed.append(page)
            size += len(page)
            if size >= _WRITE_BYTES:
                await file.write_at(position, packed)
                position += size
                packed, size = [], 0
                await asyncio.sleep(0)  # Others have adds to answer.
    packed.append(builder.finish(records))
    await file.write_at(position, packed)
    return position + size + len(packed[-1])


class SortedWriter:
    """ENTRIES records, one after the other, and where the entries in them lie."""

    def __init__(self, file: File, file_id: bytes) -> None:
        self.records = array("I")
        self._file = file
        self._packer = RecordPacker(file_id, FILE_HEADER_BYTES, 1, 0)
        self._parts: list[bytes] = []
        self._size = 0
        self._unsynced = 0
        self._rows: dict[int, list[int]] = {}
        self._ledger_id = -1
        self._columns = Columns(array("q"), array("I"), array("I"))
        self._ledgers: list[tuple[int, Columns, int]] = []

    def begin_ledger(self, ledger_id: int, last_add_confirmed: int) -> None:
        self._ledger_id = ledger_id
        self._columns = Columns(array("q"), array("I"), array("I"))
        self._ledgers.append((ledger_id, self._columns, last_add_confirmed))

    def add(self, entry_id: int, entry: bytes) -> bool:
        """Whether it is time to `flush`."""
        length = len(entry)
        if row := self._rows.get(self._ledger_id):
            row[1] = entry_id
        else:
            self._rows[self._ledger_id] = [entry_id, entry_id]
        self._parts += (_LENGTH.pack(length), entry)
        entry_ids, positions, lengths = self._columns
        entry_ids.append(entry_id)
        positions.append(self._packer.position + HEAD_BYTES + self._size + _LENGTH.size)
        lengths.append(length)
        self._size += _LENGTH.size + length
        return self._size >= _RECORD_BYTES

    async def flush(self) -> None:
        if not self._parts:
            return
        self.records.append(self._packer.position)
        rows = pack_rows([(ledger_id, *row) for ledger_id, row in self._rows.items()])
        write = self._packer.pack_body(Kind.ENTRIES, b"".join(self._parts), rows)
        await self._file.write_at(write.position, write.buffers)
        self._parts, self._size, self._rows = [], 0, {}
        self._unsynced += write.end - write.position
        if self._unsynced >= _SYNC_BYTES:
            await self._file.sync()
            self._unsynced = 0

    async def finish(self) -> int:
        """Returns where the footer goes."""
        await self.flush()
        write = self._packer.pack_empty(Kind.END)
        await self._file.write_at(write.position, write.buffers)
        return write.end

    def indexed(self) -> Indexed:
        for ledger_id, columns, last_add_confirmed in self._ledgers:
            if columns.entry_ids:
                yield ledger_id, columns, last_add_confirmed, sum(columns.lengths)
