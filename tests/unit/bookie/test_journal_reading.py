"""Journal files read in windows give the same result as read whole, with or without damage."""

import random
import struct
from array import array
from collections.abc import Sequence
from typing import cast

import pytest

from rollbook.bookie import journal_reading
from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    SECTOR,
    FileHeader,
    Purpose,
    RecordKind,
    RecordReader,
    pack_rows,
)
from rollbook.bookie.core.record_packer import RecordPacker
from rollbook.bookie.core.replay import replay
from rollbook.bookie.core.torn_tail import scan
from rollbook.bookie.journal_reading import ReadBack, read_back, write_again
from rollbook.proto.ports import Buffer, File

FILE_ID = bytes(range(16))
HEADER = FileHeader(Purpose.JOURNAL, 7, b"store of sixteen", FILE_ID, 1 << 20)


class MemoryFile:
    def __init__(self, contents: bytes | bytearray) -> None:
        self.contents = bytearray(contents)
        self.rewritten: list[tuple[int, int]] = []
        self.syncs = 0

    async def size(self) -> int:
        return len(self.contents)

    async def read_at(self, position: int, length: int) -> bytes:
        return bytes(self.contents[position : position + length])

    async def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        assert self.contents[position : position + len(data)] == data
        self.rewritten.append((position, position + len(data)))

    async def sync(self) -> None:
        self.syncs += 1

    @property
    def file(self) -> File:
        return cast(File, self)


class CountingFile(MemoryFile):
    reads = 0

    async def read_at(self, position: int, length: int) -> bytes:
        self.reads += 1
        return await super().read_at(position, length)


def entries(ledger_id: int, first: int, sizes: Sequence[int]) -> tuple[bytes, bytes]:
    """An ENTRIES record's body and rows."""
    packed = [
        struct.pack(">qqqq", ledger_id, first + at, -1, 0) + bytes(size)
        for at, size in enumerate(sizes)
    ]
    body = b"".join(struct.pack("<I", len(entry)) + entry for entry in packed)
    return body, pack_rows([(ledger_id, first, first + len(sizes) - 1)])


def journal(chance: random.Random, *, records: int = 12) -> tuple[bytearray, list[int]]:
    """A journal file of some records, most in separate writes, and the start of each write."""
    packer = RecordPacker(FILE_ID, FILE_HEADER_BYTES, 100, 99)
    contents, starts = bytearray(HEADER.pack()), []
    for number in range(records):
        size = chance.choice((0, 30, 500, 3000))
        body, rows = entries(number % 3, 10 * number, [size] * chance.randint(1, 4))
        written = packer.pack_body(RecordKind.ENTRIES, body, rows)
        starts.append(written.position)
        contents += b"".join(written.buffers)
        if chance.random() < 0.8:  # Otherwise the next record is written before this one is synced.
            packer.on_synced(written)
    if chance.random() < 0.5:
        kind = chance.choice((RecordKind.IDLE, RecordKind.END))
        contents += b"".join(packer.pack_empty(kind).buffers)
    contents += bytes(chance.choice((0, SECTOR, 10_000)))
    return contents, starts


async def whole(contents: bytes, durable_through: int) -> ReadBack:
    reader = RecordReader(contents, FILE_ID)
    found = scan(reader, first_sequence=100, durable_through=durable_through)
    return ReadBack(
        replay(reader, found),
        len(found.rot),
        found.end,
        found.next_sequence,
        found.is_ended,
        found.unproven_at,
        False,
    )


def known_of(found: ReadBack) -> tuple[object, ...]:
    replayed = found.replayed
    ledgers = {
        ledger_id: rows.sorted_columns() for ledger_id, rows in replayed.index.ledgers.items()
    }
    return (
        ledgers,
        replayed.records,
        replayed.doubts,
        replayed.doubts_everything,
        found.rotten_places,
        found.end,
        found.next_sequence,
        found.is_ended,
        found.unproven_at,
    )


@pytest.mark.parametrize("seed", range(150))
async def test_read_back_does_not_depend_on_window_size(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B3: for sound, torn and rotten files, and any end of a window."""
    chance = random.Random(seed)
    contents, _ = journal(chance)
    for _ in range(chance.choice((0, 0, 1, 2))):
        contents[chance.randrange(FILE_HEADER_BYTES, len(contents))] ^= 0x40
    if chance.random() < 0.2:
        del contents[chance.randrange(FILE_HEADER_BYTES, len(contents)) :]
    durable_through = chance.choice((0, 0, 105, 200))
    expected = known_of(await whole(bytes(contents), durable_through))
    for window in (200, 700, 5000, 1 << 20):
        monkeypatch.setattr(journal_reading, "_WINDOW_BYTES", window)
        found = await read_back(MemoryFile(contents).file, HEADER, 100, durable_through)
        assert known_of(found) == expected, window


async def test_a_file_that_was_never_written_to_is_blank() -> None:
    for size in (FILE_HEADER_BYTES, 1 << 20):
        contents = HEADER.pack().ljust(size, b"\0")
        assert (await read_back(MemoryFile(contents).file, HEADER, 100, 0)).is_blank
    written, _ = journal(random.Random(1))
    assert not (await read_back(MemoryFile(written).file, HEADER, 100, 0)).is_blank


async def test_unproven_part_starts_after_the_last_durability_claim() -> None:
    """B3: usually only the last write is unproven; an idle record or a successor proves it."""
    packer = RecordPacker(FILE_ID, FILE_HEADER_BYTES, 100, 99)
    contents, starts = bytearray(HEADER.pack()), array("I")
    for number in range(3):
        written = packer.pack_body(RecordKind.ENTRIES, *entries(1, number, [700]))
        packer.on_synced(written)
        starts.append(written.position)
        contents += b"".join(written.buffers)
    found = await read_back(MemoryFile(contents).file, HEADER, 100, 0)
    assert (found.unproven_at, found.end) == (starts[2], len(contents))
    found = await read_back(MemoryFile(contents).file, HEADER, 100, 102)
    assert found.unproven_at == found.end == len(contents)
    contents += b"".join(packer.pack_empty(RecordKind.IDLE).buffers)
    found = await read_back(MemoryFile(contents).file, HEADER, 100, 0)
    assert (found.unproven_at, found.end) == (len(contents) - SECTOR, len(contents))


async def test_write_again_rewrites_the_range_unchanged_and_syncs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B3: the header is rewritten too if the range begins right after it."""
    monkeypatch.setattr(journal_reading, "_WINDOW_BYTES", 1000)
    contents, starts = journal(random.Random(2))
    file = MemoryFile(contents)
    await write_again(file.file, starts[5], starts[9])
    assert file.rewritten[0][0] == starts[5]
    assert file.rewritten[-1][1] == starts[9]
    assert all(a[1] == b[0] for a, b in zip(file.rewritten, file.rewritten[1:], strict=False))
    assert file.syncs == 1
    file = MemoryFile(contents)
    await write_again(file.file, FILE_HEADER_BYTES, starts[1])
    assert file.rewritten[0][0] == 0
    file = MemoryFile(contents)
    await write_again(file.file, starts[9], starts[9])
    assert (file.rewritten, file.syncs) == ([], 1)


async def test_known_blank_file_is_not_scanned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_reading, "_WINDOW_BYTES", 4096)
    reads: list[int] = []
    for is_known in (False, True):
        file = CountingFile(HEADER.pack() + bytes(100_000))
        found = await read_back(file.file, HEADER, 100, 0, is_blank=is_known)
        assert (found.is_blank, found.end, found.next_sequence) == (True, FILE_HEADER_BYTES, 100)
        reads.append(file.reads)
    assert reads[1] == 1 < reads[0]
