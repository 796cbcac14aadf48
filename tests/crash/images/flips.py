"""Flips every byte of a closed store once and judges its responses (B1, B2).

The store is small but complete: it has entry logs of both kinds, a journal without a checkpoint,
fences, explicit LACs, a deletion, and both copies of the catalog. It was closed, so it knows what
is durable. With each flip it is opened, read completely, checkpointed and read again:

- it opens;
- an entry is returned as it was written, or is UNKNOWN, but never different or ABSENT;
- entries that were never added are ABSENT, and deleted ledgers stay deleted;
- fences hold, and an explicit LAC is the one that was written, or UNKNOWN;
- only ledgers in the record that the flip touched may have UNKNOWN entries; with a CRC as digest,
  at most one of these ledgers.
"""

import asyncio
import random
from collections.abc import Iterator
from typing import Final

from rollbook.bookie.config import StorageConfig
from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    RecordKind,
    RecordReader,
    align,
    unpack_file_header,
)
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import EntryStateUnknown, NoSuchEntry, NoSuchLedger, RollbookError
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.wire import v2_adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest
from tests.crash.images.judge import Promise, answer
from tests.crash.images.life import FRAME_BYTES_MAX, KEY
from tests.crash.images.step_disk import StepDisk, step
from tests.simulation.kernel import Node, World
from tests.simulation.kernel.filesystem import FileSystem
from tests.support.clocks import StandingClock
from tests.support.entries import pack_entry

KINDS: Final = tuple(DigestType)
CONFIG: Final = StorageConfig(
    "/s/journal", ("/s/ledgers",), journal_file_bytes=16 * 1024, index_bytes_max=1000
)
_FOLDERS: Final = ("/s/journal", "/s/ledgers")
_FENCED: Final = (3, 5, 30)
_PACKETS: Final = (4, 6)
_DELETED: Final = 7
_NOBODYS: Final = ((999, 0), (2, 100))


class StoreAtRest:
    def __init__(self, kind: DigestType) -> None:
        self.entries: dict[tuple[int, int], bytes] = {}
        self.proves_itself = kind in (DigestType.CRC32C, DigestType.CRC32)
        self._kind = kind
        world = World(1)
        node = world.node("b1")

        async def scenario() -> None:
            await node.start(self._live).result

        world.run(scenario())
        self.system = node.disk.system
        self._records = {path: list(self._records_of(path)) for path in self.paths()}

    async def _live(self, node: Node) -> None:
        await Storage.make(node.disk, CONFIG, node.randomness)
        storage = await Storage.open(node.disk, CONFIG, node.clock, node.randomness)
        storage.start()
        for first in (0, 5, 10):  # This file is adopted as a log.
            await self._add(storage, [(1, entry_id) for entry_id in range(first, first + 5)], 300)
        ids = [(each, entry_id) for entry_id in range(3) for each in range(2, 8)]
        # This file is rewritten, since it has many ledgers in one record.
        await self._add(storage, ids, 60)
        await storage.fence(3, KEY)
        await storage.write_lac(4, KEY, 5, b"packet")
        await storage.delete(_DELETED)
        await self._add(storage, [(1, 15), (20, 0), (21, 0), (22, 0)], 40)
        await self._add(storage, [(20, 1)], 40)  # This add begins the third file.
        # The other files are checkpointed. This one is replayed at each start:
        await asyncio.sleep(1)
        await storage.fence(5, KEY)
        await storage.fence(30, KEY)
        await storage.write_lac(6, KEY, 5, b"packet")
        await self._add(storage, [(20, 2), (21, 1), (20, 3)], 60)
        await storage.close()
        self.entries = {ids: body for ids, body in self.entries.items() if ids[0] != _DELETED}

    async def _add(self, storage: Storage, ids: list[tuple[int, int]], size: int) -> None:
        frames: list[bytes] = []
        for ledger_id, entry_id in ids:
            digest = LedgerDigest(self._kind, b"secret", LedgerId(ledger_id))
            entry = (EntryId(entry_id), NO_ENTRY, 0, bytes([ledger_id]) * size)
            frames.append(v2_adds.V2AddPacker(KEY, digest).pack(*entry))
            self.entries[ledger_id, entry_id] = pack_entry(digest, *entry)
        found, _ = v2_adds.take_adds(b"".join(frames), 0, FRAME_BYTES_MAX)
        assert found
        done = storage.add(found).done
        assert done
        await done

    # --- Damage -------------------------------------------------------------------------------

    def paths(self) -> Iterator[str]:
        for folder in _FOLDERS:
            for name in self.system.list_directory(folder):
                yield f"{folder}/{name}"

    def places(self) -> Iterator[tuple[str, int]]:
        """The positions of all bytes that were written."""
        for path in self.paths():
            for position in range(len(self._contents(path).rstrip(b"\0"))):
                yield path, position

    def blank_places(self) -> Iterator[tuple[str, int]]:
        """The positions of the preallocated zeros at the end of each file."""
        for path in self.paths():
            contents = self._contents(path)
            for position in range(len(contents.rstrip(b"\0")), len(contents)):
                yield path, position

    def copy(self) -> FileSystem:
        return self.system.after_power_cut(lambda count: count - 1)

    def damaged(self, path: str, position: int, change: bytes) -> FileSystem:
        """A copy with these bytes at that position, up to the end of the file."""
        system = self.copy()
        number = system.find(path)
        assert number is not None
        contents = system.files[number].contents
        end = min(position + len(change), len(contents))
        contents[position:end] = change[: end - position]
        return system

    def flipped(self, path: str, position: int, bits: int) -> FileSystem:
        return self.damaged(path, position, bytes([self._contents(path)[position] ^ bits]))

    def touched(self, path: str, position: int) -> dict[int, None]:
        """The ledgers with entries in the record at this position."""
        for start, end, ledger_ids in self._records[path]:
            if start <= position < end:
                return ledger_ids
        return {}

    def _contents(self, path: str) -> bytes:
        number = self.system.find(path)
        assert number is not None
        return bytes(self.system.files[number].contents)

    def _records_of(self, path: str) -> Iterator[tuple[int, int, dict[int, None]]]:
        contents = self._contents(path)
        header = unpack_file_header(contents)
        if header is None:
            return
        reader, at = RecordReader(contents, header.file_id), FILE_HEADER_BYTES
        while record := reader.at(at) or reader.at(align(at)):
            rows = reader.rows(record)
            assert rows is not None
            yield record.position, record.end, dict.fromkeys(row.ledger_id for row in rows)
            at = record.end
            if record.kind is RecordKind.END:
                return

    # --- Judgements ---------------------------------------------------------------------------

    def judge(self, system: FileSystem, touched: dict[int, None]) -> int:
        """Raises `Promise`. Returns how many entries are UNKNOWN, before and after checkpoints alike."""
        storage = open_at_rest(system)
        before = self.judge_answers(storage)
        ledger_ids = dict.fromkeys(ledger_id for ledger_id, _ in before)
        if any(ledger_id not in touched for ledger_id in ledger_ids):
            raise Promise(f"{before} are unknown, the damage touches {list(touched)}")
        if self.proves_itself and len(ledger_ids) > 1:
            raise Promise(f"{before} are unknown, most of which prove themselves")
        for ledger_id in _FENCED:
            if not storage.is_fenced(ledger_id):
                raise Promise(f"ledger {ledger_id} has lost its fence")
        for ledger_id, entry_id in _NOBODYS:
            if answer(storage, ledger_id, entry_id) not in (NoSuchEntry, NoSuchLedger):
                raise Promise(f"ledger {ledger_id} entry {entry_id} is not plainly absent")
        if step(storage.checkpoint()):
            while step(storage.checkpoint()):
                pass
            after = self.judge_answers(storage)
            if before != after:
                raise Promise(f"{before} were unknown, {after} after the checkpoint")
        return len(before)

    def judge_answers(self, storage: Storage) -> list[tuple[int, int]]:
        """Returns the entries that are UNKNOWN."""
        unknown: list[tuple[int, int]] = []
        for (ledger_id, entry_id), body in self.entries.items():
            found = answer(storage, ledger_id, entry_id)
            if found is EntryStateUnknown:
                unknown.append((ledger_id, entry_id))
            elif found != body:
                raise Promise(f"ledger {ledger_id} entry {entry_id}: {found!r}")
        for ledger_id in _PACKETS:
            try:
                if storage.lac_packet(ledger_id) != b"packet":
                    raise Promise(f"ledger {ledger_id} has lost its explicit LAC")
            except EntryStateUnknown:
                unknown.append((ledger_id, NO_ENTRY))
        if isinstance(answer(storage, _DELETED, 0), bytes):
            raise Promise("a ledger was deleted and is back")
        return unknown


def open_at_rest(system: FileSystem) -> Storage:
    return step(Storage.open(StepDisk(system), CONFIG, StandingClock(), random.Random(1)))


def flip(store: StoreAtRest, path: str, position: int, chance: random.Random) -> str | None:
    """Flips a bit of this byte; returns the failure, or None."""
    image = store.flipped(path, position, 1 << chance.randrange(8))
    try:
        store.judge(image, store.touched(path, position))
    except (Promise, RollbookError, OSError, AssertionError) as error:
        return f"{path} at {position}: {type(error).__name__}: {error}"
    return None
