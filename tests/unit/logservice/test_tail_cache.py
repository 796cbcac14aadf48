"""LS11: the newest blocks in memory, which stays bounded whoever reads or does not."""

import asyncio
from typing import Final

import pytest

from rollbook.logservice.ids import Offset
from rollbook.logservice.tail_cache import Subscription, TailCache, TailMemory
from rollbook.proto.errors import OwnerChanging

MIB: Final = 1024 * 1024


def add(cache: TailCache, *sizes: int) -> None:
    kept = []
    tail = cache.tail
    for size in sizes:
        kept.append((tail, Offset(tail + 1), bytes(size)))
        tail = Offset(tail + 1)
    cache.add(kept)


def test_a_log_keeps_so_much_and_no_more() -> None:
    memory = TailMemory(10 * MIB)
    cache = TailCache(Offset(5), MIB, memory)
    for _ in range(100):
        add(cache, 100_000)
        assert memory.bytes <= MIB
    assert cache.tail == 105
    assert cache.start == 95
    assert cache.read(Offset(94), MIB) is None
    assert cache.read(Offset(105), MIB) == ([], 105)


def test_all_logs_together_keep_so_much_and_no_more() -> None:
    """The one that was appended to the longest ago gives first."""
    memory = TailMemory(MIB)
    caches = [TailCache(Offset(0), MIB, memory) for _ in range(5)]
    for cache in caches:
        add(cache, *[1000] * 400)
    assert memory.bytes <= MIB
    assert [cache.start == cache.tail for cache in caches[:2]] == [True, True]
    assert 0 < caches[2].start < 400
    assert caches[3].start == 0
    assert caches[4].start == 0
    add(caches[0], 500_000)
    assert caches[0].start == 400
    for cache in caches:
        cache.close(OwnerChanging())
    assert memory.bytes == 0


def test_a_block_larger_than_all_is_not_kept() -> None:
    cache = TailCache(Offset(0), 1000, TailMemory(MIB))
    add(cache, 2000)
    assert (cache.start, cache.tail) == (1, 1)
    assert cache.read(Offset(0), 10) is None


def test_blocks_come_whole_as_many_as_fit_but_at_least_one() -> None:
    cache = TailCache(Offset(0), MIB, TailMemory(MIB))
    cache.add([(Offset(0), Offset(10), b"a" * 10), (Offset(10), Offset(12), b"b" * 10)])
    assert cache.read(Offset(0), 1) == ([b"a" * 10], 10)
    assert cache.read(Offset(7), 15) == ([b"a" * 10], 10)
    assert cache.read(Offset(7), 20) == ([b"a" * 10, b"b" * 10], 12)
    assert cache.read(Offset(10), 20) == ([b"b" * 10], 12)


async def test_a_subscription_waits_reads_and_falls_behind() -> None:
    cache = TailCache(Offset(0), 1000, TailMemory(MIB))
    reader = Subscription(cache, Offset(0))
    assert await reader.next(0, 100) == []
    waiting = asyncio.ensure_future(reader.next(30, 100))
    await asyncio.sleep(0)
    add(cache, 10)
    assert await waiting == [bytes(10)]
    assert (reader.offset, reader.tail) == (1, 1)
    add(cache, 400, 400, 400)
    assert await reader.next(30, 1000) is None


async def test_who_waits_is_told_of_the_end() -> None:
    cache = TailCache(Offset(0), 1000, TailMemory(MIB))
    waiting = asyncio.ensure_future(Subscription(cache, Offset(0)).next(30, 100))
    await asyncio.sleep(0)
    cache.close(OwnerChanging("handed over", log="a/b"))
    with pytest.raises(OwnerChanging, match="handed over"):
        await waiting


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    cache = TailCache(Offset(0), 1000, TailMemory(MIB))
    waiting = asyncio.ensure_future(cache.grown(Offset(0), 30))
    await asyncio.sleep(0)
    assert cache.waiting == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert cache.waiting == 0
