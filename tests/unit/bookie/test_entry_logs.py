"""Entry logs are opened by their first reader, while others read or remove them."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rollbook.bookie import entry_log_reader
from rollbook.bookie.cached_record_reader import Cache
from rollbook.bookie.core.byte_cache import ByteCache
from rollbook.bookie.core.record_format import ID_BYTES, FileHeader, Purpose
from rollbook.bookie.entry_log_reader import EntryLogs

STORE_ID = bytes(ID_BYTES)


class SlowFile:
    """An open file with only a header; every operation takes some loop turns."""

    def __init__(self, disk: "SlowDisk", number: int) -> None:
        self._disk = disk
        self._header = FileHeader(Purpose.LOG, number, STORE_ID, STORE_ID).pack()
        disk.open_files += 1

    async def read_at(self, position: int, length: int) -> bytes:
        await self._disk.rest()
        return self._header[position : position + length]

    async def close(self) -> None:
        header, self._header = self._header, b""
        await self._disk.rest()
        self._disk.open_files -= bool(header)


class SlowDisk:
    def __init__(self, chance: random.Random) -> None:
        self.open_files = 0
        self._chance = chance

    async def open(self, path: str, _: Any) -> SlowFile:
        await self.rest()
        return SlowFile(self, int(path))

    async def rest(self) -> None:
        for _ in range(self._chance.randint(0, 3)):
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(200))
async def test_opened_logs_are_closed_under_concurrent_readers(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A file that stays open keeps its disk space and its descriptor."""
    monkeypatch.setattr(entry_log_reader, "_OPEN_MAX", 2)
    chance = random.Random(seed)
    disk, there = SlowDisk(chance), {1, 2, 3}

    def path_of(number: int) -> str:
        if number not in there:
            raise FileNotFoundError
        return str(number)

    logs = EntryLogs(disk, STORE_ID, path_of, Cache(ByteCache(0)))  # type: ignore[arg-type]  # It has the methods needed.

    async def read() -> None:
        number = chance.randint(1, 3)
        try:
            async with logs.use(number):
                await disk.rest()
        except FileNotFoundError:
            assert number not in there

    async def remove() -> None:
        there.discard(3)
        await logs.remove(3)

    acts: list[Callable[[], Awaitable[None]]] = [*[read] * 12, remove]
    chance.shuffle(acts)

    async def act(do: Callable[[], Awaitable[None]]) -> None:
        await disk.rest()
        await do()

    await asyncio.gather(*map(act, acts))
    there.discard(3)
    await logs.remove(3)
    assert 3 not in logs._open
    assert disk.open_files == len(logs._open) <= 2
    await logs.close()
    assert disk.open_files == 0
