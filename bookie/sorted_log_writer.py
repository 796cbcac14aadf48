"""Writes entries, sorted by ledger and entry, to an entry log: records, END, footer.

The caller first syncs the log, then makes its name durable, and then adds it to the catalog.
"""

from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Final, TypeAlias

import structlog

from rollbook.bookie.cached_record_reader import Cache, RecordFile
from rollbook.bookie.core.catalog_records import EntryLogInfo
from rollbook.bookie.core.entry_log_footer import Extent, FooterBuilder
from rollbook.bookie.core.journal_index import Columns, IntArray, fitting_end
from rollbook.bookie.core.record_format import (
    ENTRY_LENGTH,
    FILE_HEADER_BYTES,
    HEAD_BYTES,
    ID_BYTES,
    FileHeader,
    Purpose,
    RecordKind,
    pack_rows,
)
from rollbook.bookie.core.record_packer import RecordPacker
from rollbook.proto.ports import Buffer, Disk, File, OpenMode, Randomness

logger = structlog.get_logger()

_RECORD_BYTES: Final = 64 * 1024
# The disk's queue has at most this many bytes of the log when the journal writes.
_SYNC_BYTES: Final = 1024 * 1024
# Packing a page takes as long as copying four times as many bytes.
_INDEX_STEP_BYTES: Final = 16 * 1024

Indexed: TypeAlias = Iterator[tuple[int, Columns, int, int]]
"""Ledger, columns, LAC and bytes of entries, ledger by ledger."""

Pause: TypeAlias = Callable[[int, int], Awaitable[None]]
"""Called with the bytes and entries that were just written, so that it can let adds run."""


class _Appender:
    """Writes one piece after another, and syncs after each `_SYNC_BYTES`."""

    def __init__(self, file: File, position: int) -> None:
        self._file = file
        self._position = position
        self._unsynced = 0

    async def append(self, buffers: Sequence[Buffer]) -> None:
        # Writes run without a thread. If they used a thread, the journal's syncs would use threads,
        # too. Each of them would have to take the interpreter from a busy loop twice, and adds
        # would lose more time than they do by these writes.
        await self._file.write_at(self._position, buffers)
        size = sum(map(len, buffers))
        self._position += size
        self._unsynced += size
        if self._unsynced >= _SYNC_BYTES:
            await self.flush()

    async def flush(self) -> int:
        """Writes the gathered bytes; returns the position after them."""
        await self._file.sync()
        self._unsynced = 0
        return self._position


async def write_footer(
    file: File, builder: FooterBuilder, indexed: Indexed, records: IntArray, pause: Pause
) -> int:
    """Writes and syncs the footer; returns the size of the file."""
    appender = _Appender(file, builder.position)
    packed: list[bytes] = []
    size = 0
    for ledger in indexed:
        for page in builder.add_ledger(*ledger):
            packed.append(page)
            size += len(page)
            if size >= _INDEX_STEP_BYTES:
                await appender.append(packed)
                await pause(size, 0)
                packed, size = [], 0
    await appender.append([*packed, builder.finish(records)])
    return await appender.flush()


class SortedWriter:
    """Writes ENTRIES records one after another, and collects the places of their entries."""

    def __init__(self, file: File, file_id: bytes, pause: Pause) -> None:
        self.pause = pause
        self.records = array("I")
        self._appender = _Appender(file, FILE_HEADER_BYTES)
        self._packer = RecordPacker(file_id, FILE_HEADER_BYTES, 1, 0)
        self._parts: list[Buffer] = []
        self._size = 0
        self._entries = 0  # Entries since the last flush.
        self._rows: dict[int, list[int]] = {}
        self._ledger_id = -1
        self._columns = Columns(array("q"), array("I"), array("I"))
        self._ledgers: list[tuple[int, Columns, int]] = []

    @property
    def is_empty(self) -> bool:
        return not self.records and not self._parts

    def begin_ledger(self, ledger_id: int, last_add_confirmed: int) -> None:
        self._ledger_id = ledger_id
        self._columns = Columns(array("q"), array("I"), array("I"))
        self._ledgers.append((ledger_id, self._columns, last_add_confirmed))

    def runs(self, columns: Columns) -> Iterator[Columns]:
        """Cuts the columns into runs. A run is cut when it is taken, so that it fits into the rest
        of the present record. A run always has its first entry, and framing is not counted.
        """
        start, count = 0, len(columns.entry_ids)
        while start < count:
            room = _RECORD_BYTES - self._size
            end = fitting_end(columns.lengths, start, count, room)
            yield Columns(*(column[start:end] for column in columns))
            start = end

    async def add(self, new_ids: Sequence[int], entries: Sequence[Buffer]) -> None:
        """Adds more entries of the ledger, in ascending order: one of the `runs`."""
        if row := self._rows.get(self._ledger_id):
            row[1] = new_ids[-1]
        else:
            self._rows[self._ledger_id] = [new_ids[0], new_ids[-1]]
        new_lengths = list(map(len, entries))
        self._parts += chain.from_iterable(
            zip(map(ENTRY_LENGTH.pack, new_lengths), entries, strict=True)
        )
        start = self._packer.position + HEAD_BYTES + self._size + ENTRY_LENGTH.size
        starts = list(accumulate(map(ENTRY_LENGTH.size.__add__, new_lengths), initial=start))
        self._size += starts.pop() - start
        self._entries += len(new_lengths)
        entry_ids, positions, lengths = self._columns
        entry_ids.extend(new_ids)
        positions.extend(starts)
        lengths.extend(new_lengths)
        if self._size >= _RECORD_BYTES:
            await self.flush()

    async def flush(self) -> None:
        if not self._parts:
            return
        self.records.append(self._packer.position)
        rows = pack_rows([(ledger_id, *row) for ledger_id, row in self._rows.items()])
        write = self._packer.pack_body(RecordKind.ENTRIES, b"".join(self._parts), rows)
        self._parts, self._size, self._rows = [], 0, {}
        await self._appender.append(write.buffers)
        entries, self._entries = self._entries, 0
        await self.pause(write.end - write.position, entries)

    async def finish(self) -> int:
        """Writes the END; returns the position of the footer."""
        await self.flush()
        await self._appender.append(self._packer.pack_empty(RecordKind.END).buffers)
        return await self._appender.flush()

    def indexed(self) -> Indexed:
        for ledger_id, columns, last_add_confirmed in self._ledgers:
            if columns.entry_ids:
                yield ledger_id, columns, last_add_confirmed, sum(columns.lengths)


class NewLog:
    """A log that is durable under its name but not yet in the catalog."""

    def __init__(self, log: EntryLogInfo, extents: list[Extent], records: RecordFile) -> None:
        self.log = log
        self.extents = extents
        self.records = records
        # Ranges of entries that the log should have but lacks.
        self.doubts: list[tuple[int, int, int]] = []


class SortedLog:
    """A log that is being written: entries go to `writer`, then `finish` or `abandon` is called."""

    def __init__(
        self, disk: Disk, path: str, file: File, header: FileHeader, writer: SortedWriter
    ) -> None:
        self.writer = writer
        self._disk = disk
        self._path = path
        self._file = file
        self._header = header

    @classmethod
    async def create(
        cls,
        disk: Disk,
        path: str,
        number: int,
        store_id: bytes,
        randomness: Randomness,
        pause: Pause,
    ) -> "SortedLog":
        if await disk.stat(path):
            await disk.unlink(path)  # The file is left from an attempt that failed.
        header = FileHeader(Purpose.LOG, number, store_id, randomness.randbytes(ID_BYTES))
        file = await disk.open(path, OpenMode.CREATE)
        try:
            await file.write_at(0, [header.pack()])
        except BaseException:
            await file.close()
            raise
        return cls(disk, path, file, header, SortedWriter(file, header.file_id, pause))

    async def finish(self, directory: int, age: int, cache: Cache) -> NewLog:
        """Makes the log and its name durable."""
        writer = self.writer
        footer_at = await writer.finish()
        builder = FooterBuilder(self._header.file_id, footer_at)
        indexed = writer.indexed()
        size = await write_footer(self._file, builder, indexed, writer.records, writer.pause)
        await self._disk.sync_directory(self._path.rpartition("/")[0])
        records = RecordFile(self._file, self._header, cache)
        records.records, records.end = writer.records, footer_at
        return NewLog(
            EntryLogInfo(self._header.number, directory, size, age), builder.extents, records
        )

    async def abandon(self) -> None:
        await self._file.close()
        try:
            await self._disk.unlink(self._path)
        except OSError as error:  # The next start or the next attempt removes the file.
            logger.warning("entry_log_not_removed", path=self._path, reason=str(error))
