"""Reads all records of a file, as a checkpoint does."""

import asyncio
import random
from array import array
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from rollbook.bookie.cached_record_reader import Cache, RecordFile
from rollbook.bookie.core.byte_cache import ByteCache
from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    HEAD_BYTES,
    FileHeader,
    Purpose,
    RecordKind,
)
from rollbook.bookie.core.record_packer import RecordPacker
from rollbook.proto.ports import Buffer

T = TypeVar("T")

FILE_ID = random.Random(1).randbytes(16)
BODIES = [random.Random(n).randbytes(300) for n in range(1_000)] + [bytes(200_000), b"last"]


class CountingFile:
    """A file in memory, with only the methods that readers need."""

    def __init__(self, contents: bytearray) -> None:
        self.contents = contents
        self.bytes_read = 0
        self.reads: list[tuple[int, int]] = []
        self.announced: list[tuple[int, int]] = []

    async def read_at(self, position: int, length: int) -> bytes:
        self.bytes_read += length
        self.reads.append((position, position + length))
        return bytes(self.contents[position : position + length])

    async def read_with(self, position: int, length: int, use: Callable[[Buffer], T]) -> T:
        return use(await self.read_at(position, length))

    def prefetch(self, position: int, length: int) -> None:
        self.announced.append((position, position + length))

    async def size(self) -> int:
        return len(self.contents)

    async def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        raise AssertionError

    async def sync(self) -> None:
        raise AssertionError

    async def write_and_sync(self, position: int, buffers: Sequence[Buffer]) -> None:
        raise AssertionError

    def is_quick(self, size: int) -> bool:
        raise AssertionError

    def write_and_sync_now(self, position: int, buffers: Sequence[Buffer]) -> None:
        raise AssertionError

    async def truncate(self, size: int) -> None:
        raise AssertionError

    async def allocate(self, position: int, length: int) -> None:
        raise AssertionError

    async def close(self) -> None:
        raise AssertionError


def written(cache: Cache, bodies: Sequence[bytes] = BODIES) -> tuple[RecordFile, CountingFile]:
    packer = RecordPacker(FILE_ID, FILE_HEADER_BYTES, 1, 0)
    contents = bytearray(FILE_HEADER_BYTES)
    header = FileHeader(Purpose.JOURNAL, 1, bytes(16), FILE_ID)
    file = CountingFile(contents)
    records = RecordFile(file, header, cache)
    for body in bodies:
        write = packer.pack_body(RecordKind.ENTRIES, body)
        contents += b"".join(write.buffers)
        records.on_written(write.position, body, write.end)
    return records, file


async def walk(records: RecordFile) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < len(records.records):
        found += await records.bodies_from(len(found))
    return found


def test_each_record_is_read_once_and_not_cached() -> None:
    cache = Cache(ByteCache(1))
    records, file = written(cache)
    assert asyncio.run(walk(records)) == BODIES
    assert file.bytes_read == len(file.contents) - FILE_HEADER_BYTES
    assert cache.bodies.bytes <= 1


@pytest.mark.parametrize("cache_bytes", [100_000, 1_000_000])
def test_cached_records_are_not_read_from_disk(cache_bytes: int) -> None:
    records, file = written(Cache(ByteCache(cache_bytes)))
    assert asyncio.run(walk(records)) == BODIES
    assert (file.bytes_read == 0) == (cache_bytes > 2 * sum(map(len, BODIES[:-2])))


def test_damaged_record_is_the_only_one_missing() -> None:
    records, file = written(Cache(ByteCache(1)))
    file.contents[records.records[500] + 100] ^= 1
    found = asyncio.run(walk(records))
    assert found[500] is None
    assert found[:500] + found[501:] == BODIES[:500] + BODIES[501:]


MANY = [bytes([number]) * 65_536 for number in range(200)]


def test_sequential_reads_are_prefetched() -> None:
    """Each prefetch has the position and length of a later read; the first two reads have none."""
    records, file = written(Cache(ByteCache(1_000_000)), MANY)

    some = range(5, 180)  # The records at the end are still in the cache.
    positions = [records.records[number] + HEAD_BYTES for number in some]
    lengths = [len(MANY[number]) for number in some]
    assert asyncio.run(records.read_run(positions, lengths)) == [MANY[number] for number in some]
    assert len(file.reads) > 10
    announced = list(dict.fromkeys(file.announced))  # Some ranges are prefetched repeatedly.
    assert file.reads[2:] == announced[: len(file.reads) - 2]
    wanted = [
        (n, n + left) for n, left in enumerate((1, 2, 3, 4, 4))
    ]  # The longer the run, the more is prefetched.
    assert file.announced[:14] == [each for n, end in wanted for each in announced[n:end]]
    assert len(announced) <= len(file.reads) + 2


def test_random_reads_are_not_prefetched() -> None:
    records, file = written(Cache(ByteCache(1_000_000)), MANY)

    async def read_at_random() -> None:
        for number in range(0, 180, 7):
            assert await records.body(number) == MANY[number]

    asyncio.run(read_at_random())
    assert not file.announced


@pytest.mark.parametrize("seed", range(20))
def test_entries_of_any_size_are_read_from_their_records(seed: int) -> None:
    """Runs of equal-sized entries, as of one writer, mixed with entries of other sizes."""
    chance = random.Random(seed)
    bodies: list[bytes] = []
    places: list[tuple[int, int, int]] = []  # Record, start in its body, and length.
    for number in range(30):
        at = 0
        while at < 20_000:
            length, gap = chance.choice([(100, 28), (100, 28), (1_000, 30), (3_000, 4), (5, 0)])
            for _ in range(chance.choice([1, 3, 40])):
                places.append((number, at + gap, length))
                at += gap + length
        bodies.append(chance.randbytes(at))
    records, _ = written(Cache(ByteCache(100_000)), bodies)
    positions = array("I", [records.records[n] + HEAD_BYTES + at for n, at, _ in places])
    lengths = array("I", [length for _, _, length in places])
    wanted = [bodies[n][at : at + length] for n, at, length in places]
    assert asyncio.run(records.read_run(positions, lengths)) == wanted
    some = slice(chance.randrange(500), chance.randrange(500, len(places)))
    assert asyncio.run(records.read_run(positions[some], lengths[some])) == wanted[some]


def test_run_ends_before_a_position_outside_records() -> None:
    """A damaged record ends a run in the same way."""
    records, _ = written(Cache(ByteCache(1_000_000)), MANY)
    first, second = (records.records[number] + HEAD_BYTES for number in (3, 4))
    for nowhere in (second - 1, second - HEAD_BYTES):  # Within a record's tail, and within a head.
        run = records.read_run([first, nowhere, second], [100, 100, 100])
        assert asyncio.run(run) == [MANY[3][:100]]
