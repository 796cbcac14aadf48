"""Writes and reads snapshots of a state, and truncates old ones (the rules are in
`core/snapshot_pointer.py`).
"""

import asyncio
import os
from collections.abc import Awaitable, Callable

import google_crc32c

from rollbook.api.client.log import Log
from rollbook.api.wal.core.snapshot_pointer import POINTER_CURSOR, SnapshotPointer, pieces_of
from rollbook.logservice import messages
from rollbook.logservice.ids import Offset, WriterEpoch
from rollbook.proto.errors import Guarded, MetadataConflict, NoSuchCursor

StoredPointer = tuple[messages.Cursor, SnapshotPointer]


class Snapshots:
    def __init__(self, log: Log, open_pieces: Callable[[], Awaitable[Log]]) -> None:
        self._log = log
        self._open_pieces = open_pieces
        self._cursor = log.cursor(POINTER_CURSOR)

    async def newest(self) -> StoredPointer | None:
        try:
            cursor = await self._cursor.get()
        except NoSuchCursor:
            return None
        return cursor, SnapshotPointer.unpack(cursor.blob)

    async def load(self, snapshot: SnapshotPointer) -> bytes:
        """Reads a snapshot. Raises `Truncated` if newer snapshots have replaced it."""
        pieces, token = await self._open_pieces(), snapshot.token.encode()
        # This raises an error if the log has no owner. Without it, the newest records could be missing unnoticed.
        await pieces.tail_offset()
        found: list[bytes] = []
        async for batch in pieces.read_batches(snapshot.first, snapshot.next):
            found += [record.value for record in batch.records() if record.key == token]
        return snapshot.check(b"".join(found))

    async def write(
        self, data: bytes, applied: Offset, epoch: WriterEpoch, before: StoredPointer | None
    ) -> bool:
        """Writes a snapshot. Returns False if `before` is no longer the newest snapshot; the new one is then not
        valid (WK6).
        """
        pieces, token = await self._open_pieces(), os.urandom(8).hex()
        async with pieces.writer() as writer:
            sent = [await writer.send(each, key=token.encode()) for each in pieces_of(data)]
            offsets = [await each for each in sent]
        crc = google_crc32c.value(data)
        end = Offset(offsets[-1] + 1)
        snapshot = SnapshotPointer(epoch, offsets[0], end, token, len(data), crc)
        version = messages.NO_CURSOR if before is None else before[0].version
        try:
            await self._cursor.mark(applied, snapshot.pack(), version=version)
        except MetadataConflict:
            return False
        if before is not None:
            cursor, older = before
            await asyncio.gather(
                _truncate(self._log, cursor.offset), _truncate(pieces, older.first)
            )
        return True


async def _truncate(log: Log, before: Offset) -> None:
    try:
        await log.truncate(before)
    except Guarded:  # A protected cursor prevents it; the next snapshot tries again.
        pass
