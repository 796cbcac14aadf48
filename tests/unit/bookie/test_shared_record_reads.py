"""Concurrent readers of one file share what each of them reads from disk."""

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar, cast

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
from rollbook.proto.errors import TornRecord
from rollbook.proto.ports import Buffer, File
from tests.simulation.kernel.filesystem import lend

T = TypeVar("T")

FILE_ID = bytes(range(16))
BODIES = [random.Random(n).randbytes(40_000) for n in range(64)]


class SlowFile:
    """A file in memory; reads wait until `gate` is open."""

    def __init__(self) -> None:
        self.contents = bytearray(FILE_HEADER_BYTES)
        self.reads: list[tuple[int, int]] = []
        self.gate = asyncio.Event()

    async def read_with(self, position: int, length: int, use: Callable[[Buffer], T]) -> T:
        return lend(await self.read_at(position, length), use)

    def prefetch(self, position: int, length: int) -> None:
        """Does nothing: reads wait for the gate anyway."""

    async def read_at(self, position: int, length: int) -> bytes:
        self.reads.append((position, length))
        await self.gate.wait()
        return bytes(self.contents[position : position + length])


def written(cache_bytes: int = 2**24) -> tuple[RecordFile, SlowFile]:
    packer, file = RecordPacker(FILE_ID, FILE_HEADER_BYTES, 1, 0), SlowFile()
    header = FileHeader(Purpose.JOURNAL, 1, bytes(16), FILE_ID)
    records = RecordFile(cast(File, file), header, Cache(ByteCache(cache_bytes)))
    for body in BODIES:
        write = packer.pack_body(RecordKind.ENTRIES, body)
        file.contents += b"".join(write.buffers)
        records.records.append(write.position)
        records.end = write.end
    return records, file


async def until_reads(file: SlowFile, count: int) -> None:
    async with asyncio.timeout(30):
        while len(file.reads) < count:
            await asyncio.sleep(0)


async def test_several_readers_of_one_record_read_it_once() -> None:
    records, file = written()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        readers = [group.create_task(records.body(7)) for _ in range(5)]
        await until_reads(file, 1)
        file.gate.set()
    assert [reader.result() for reader in readers] == [BODIES[7]] * 5
    assert len(file.reads) == 1


async def test_sequential_reader_reads_ahead_and_nothing_twice() -> None:
    """The reader requests the next records before it has received the previous ones."""
    records, file = written()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        readers = []
        for at in range(4):
            readers.append(group.create_task(records.body(at)))
            await asyncio.sleep(0)
        await until_reads(file, 2)
        assert file.reads[1][1] > 10 * len(BODIES[0])
        file.gate.set()
    assert [reader.result() for reader in readers] == BODIES[:4]
    positions = [each + HEAD_BYTES for each in records.records]
    assert await records.read_run(positions, [len(BODIES[0])] * len(BODIES)) == BODIES
    assert sum(length for _, length in file.reads) == records.end - FILE_HEADER_BYTES


async def test_several_requests_of_one_reader_are_read_in_order() -> None:
    """Each request begins beyond what the previous ones have read so far."""
    records, file = written()
    file.gate.set()

    async def request(first: int) -> list[bytes]:
        positions = [each + HEAD_BYTES for each in records.records[first : first + 16]]
        return [
            bytes(body)
            for body in await records.read_run(positions, [len(BODIES[0])] * len(positions))
        ]

    async with asyncio.timeout(30):
        assert await request(0) == BODIES[:16]
        pieces = await asyncio.gather(*(request(first) for first in (16, 32, 48)))
    assert [body for piece in pieces for body in piece] == BODIES[16:]
    assert sum(length for _, length in file.reads) == records.end - FILE_HEADER_BYTES
    assert len(file.reads) <= 2 + -(-records.end // (512 * 1024))


async def test_uncached_or_damaged_record_is_read_by_each_waiter() -> None:
    records, file = written(cache_bytes=10)
    file.gate.set()
    assert await asyncio.gather(*(records.body(3) for _ in range(3))) == [BODIES[3]] * 3
    records, file = written()
    file.contents[records.records[3] + 100] ^= 1
    file.gate.set()
    found = await asyncio.gather(*(records.body(3) for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in found] == [TornRecord] * 3


async def test_cancelled_reader_does_not_fail_the_others() -> None:
    records, file = written()
    first, second = (asyncio.create_task(records.body(5)) for _ in range(2))
    await until_reads(file, 1)
    first.cancel()
    file.gate.set()
    async with asyncio.timeout(30):
        assert await second == BODIES[5]
    with pytest.raises(asyncio.CancelledError):
        await first
