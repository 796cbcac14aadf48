"""One storage server: a journal, and what it says.

The journal is a run of records `kind u8, entry i32, body i32, lac i32, crc32 u32` (big-endian), in
the order in which things happened. Nothing is answered before it is durable, with one exception: a
plain read tells of what is durable already.

At start the records up to the first bad one are copied to a new journal that takes the old one's
name. That drops a torn tail permanently. It also makes durable what the old process left in the page
cache: after a failed sync those pages count as clean, so syncing them again would prove nothing.
"""

import asyncio
import struct
import zlib
from typing import Final, Protocol

from rollbook.proto.ids import NO_ENTRY, BookieId
from rollbook.proto.ports import Address, Disk, File, OpenMode, Transport
from tests.simulation.worlds.toy.wire import (
    ABSENT,
    ADD,
    FENCED,
    FENCING_READ,
    HAVE,
    PORT,
    READ,
    RECOVERY_ADD,
    Message,
    Stream,
)

JOURNAL: Final = "/journal"
_NEW_JOURNAL: Final = "/journal.new"
_FIELDS: Final = struct.Struct(">Biii")
_CRC: Final = struct.Struct(">I")
_RECORD_SIZE: Final = _FIELDS.size + _CRC.size


class Watcher(Protocol):
    def on_serving(self, bookie: "Bookie") -> None:
        """Called when it has replayed its journal and listens."""

    def on_answer(self, bookie: "Bookie", stream: Stream, ask: Message, answer: Message) -> None:
        """Called with every answer at the instant it leaves."""


def pack_record(kind: int, entry: int, body: int, lac: int) -> bytes:
    fields = _FIELDS.pack(kind, entry, body, lac)
    return fields + _CRC.pack(zlib.crc32(fields))


def copy_in(journal: bytes, entry: int, body: int) -> bool:
    """Whether an add of this entry stands in the bytes, whatever LAC it carries."""
    return any(_FIELDS.pack(kind, entry, body, 0)[:-4] in journal for kind in (ADD, RECOVERY_ADD))


class Bookie:
    def __init__(self, name: BookieId, transport: Transport, disk: Disk, watcher: Watcher) -> None:
        self.name = name
        self.entries: dict[int, int] = {}  # Durable ones, with their bodies.
        self.lac: int = NO_ENTRY
        self.fenced = (
            False  # From the moment the fence is accepted: it stands in front of later adds.
        )
        self._transport, self._disk, self._watcher = transport, disk, watcher
        self._journal: File
        self._end = 0
        self._queue: list[tuple[Stream, Message, bytes]] = []
        self._wake = asyncio.Event()

    async def serve(self) -> None:
        """Ends with the OSError of a disk that fails: what is in the file is unknown from then on."""
        await self._replay()
        await self._transport.listen(lambda: Stream(self.on_ask), Address(self.name, PORT))
        self._watcher.on_serving(self)
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                batch, self._queue = self._queue, []
                await self._commit(batch)

    # --- Answers ------------------------------------------------------------------------------

    def on_ask(self, stream: Stream, ask: Message) -> None:
        if ask.kind == READ:
            self._answer(stream, ask, self._look_up(ask))
        elif ask.kind == ADD and self.fenced:
            self._answer(stream, ask, FENCED)
        else:
            self._enqueue(stream, ask, self._record_of(ask))

    def _record_of(self, ask: Message) -> bytes:
        if ask.kind != FENCING_READ:
            return pack_record(ask.kind, ask.entry, ask.body, ask.lac)
        if self.fenced:  # It waits its turn all the same: the fence may not be durable yet.
            return b""
        self.fenced = True
        return pack_record(FENCING_READ, NO_ENTRY, 0, NO_ENTRY)

    def _enqueue(self, stream: Stream, ask: Message, record: bytes) -> None:
        self._queue.append((stream, ask, record))
        self._wake.set()

    async def _commit(self, batch: list[tuple[Stream, Message, bytes]]) -> None:
        records = b"".join(record for _, _, record in batch)
        if records:
            await self._make_durable(records)
        for stream, ask, _ in batch:
            self._finish(stream, ask)

    def _finish(self, stream: Stream, ask: Message) -> None:
        if ask.kind == FENCING_READ:
            self._answer(stream, ask, self._look_up(ask))
        else:
            self._apply(ask.entry, ask.body, ask.lac)
            self._answer(stream, ask, HAVE)

    def _look_up(self, ask: Message) -> int:
        return HAVE if ask.entry in self.entries or ask.entry == NO_ENTRY else ABSENT

    def _answer(self, stream: Stream, ask: Message, kind: int) -> None:
        body = self.entries.get(ask.entry, 0)
        answer = Message(ask.id, kind, ask.entry, self.lac, body)
        self._watcher.on_answer(self, stream, ask, answer)
        stream.send(answer)

    def _apply(self, entry: int, body: int, lac: int) -> None:
        self.entries[entry] = body
        self.lac = max(self.lac, lac)

    # --- The journal --------------------------------------------------------------------------

    async def _make_durable(self, records: bytes) -> None:
        await self._journal.write_and_sync(self._end, [records])
        self._end += len(records)

    async def _replay(self) -> None:
        kept = self._load(await self._read_journal())
        try:
            self._journal = await self._disk.open(_NEW_JOURNAL, OpenMode.CREATE)
        except FileExistsError:  # Of a process that died here.
            await self._disk.unlink(_NEW_JOURNAL)
            self._journal = await self._disk.open(_NEW_JOURNAL, OpenMode.CREATE)
        await self._make_durable(kept)
        await self._disk.rename(_NEW_JOURNAL, JOURNAL)
        await self._disk.sync_directory("/")

    async def _read_journal(self) -> bytes:
        try:
            old = await self._disk.open(JOURNAL, OpenMode.READ)
        except FileNotFoundError:
            return b""
        journal = await old.read_at(0, await old.size())
        await old.close()
        return journal

    def _load(self, journal: bytes) -> bytes:
        """Applies the good records and returns them."""
        end = 0
        while end + _RECORD_SIZE <= len(journal):
            fields = journal[end : end + _FIELDS.size]
            (crc,) = _CRC.unpack_from(journal, end + _FIELDS.size)
            if zlib.crc32(fields) != crc:
                break
            kind, entry, body, lac = _FIELDS.unpack(fields)
            if kind == FENCING_READ:
                self.fenced = True
            else:
                self._apply(entry, body, lac)
            end += _RECORD_SIZE
        return journal[:end]
