"""LS11: the newest blocks are kept in memory, which is bounded with and without readers."""

import asyncio
from typing import Final

from rollbook.logservice.ids import Offset
from rollbook.logservice.tail_cache import Subscription, TailCache, TailMemory
from rollbook.proto.errors import OwnerChanging
from tests.messages import raises_message

MIB: Final = 1024 * 1024


def add(cache: TailCache, *sizes: int) -> None:
    kept = []
    tail = cache.tail
    for size in sizes:
        kept.append((tail, Offset(tail + 1), bytes(size)))
        tail = Offset(tail + 1)
    cache.add(kept)


def test_cache_of_one_log_is_bounded() -> None:
    memory = TailMemory(10 * MIB)
    cache = TailCache(Offset(5), MIB, memory)
    for _ in range(100):
        add(cache, 100_000)
        assert memory.bytes <= MIB
    assert cache.tail == 105
    assert cache.start == 95
    assert cache.read(Offset(94), MIB) is None
    assert cache.read(Offset(105), MIB) == ([], 105)


def test_caches_of_all_logs_together_are_bounded() -> None:
    """Among logs with at most a sixteenth, the one whose last append is oldest is evicted first."""
    memory = TailMemory(MIB)
    caches = [TailCache(Offset(0), MIB, memory) for _ in range(20)]
    for cache in caches:
        add(cache, *[1000] * 50)  # 60,000 of 65,536 bytes.
        assert memory.bytes <= MIB
    assert [cache.start == cache.tail for cache in caches] == [True] * 2 + [False] * 18
    assert 0 < caches[2].start < 50
    assert [cache.start for cache in caches[3:]] == [0] * 17
    add(caches[2], 100)
    add(caches[0], *[1000] * 20)
    assert caches[2].start > 0
    assert 0 < caches[3].start < 50
    for cache in caches:
        cache.close(OwnerChanging())
    assert memory.bytes == 0


def test_busy_logs_evict_no_blocks_of_quiet_logs() -> None:
    memory = TailMemory(MIB)
    busy = [TailCache(Offset(0), MIB // 2, memory) for _ in range(2)]
    quiet = [TailCache(Offset(0), MIB // 2, memory) for _ in range(8)]
    for _ in range(40):
        for cache in quiet:
            add(cache, 1000)
        for cache in busy:
            add(cache, *[10_000] * 10)
        assert memory.bytes <= MIB
    assert [cache.start for cache in quiet] == [0] * 8
    assert sum(cache.bytes for cache in busy) > MIB // 2
    assert abs(busy[0].bytes - busy[1].bytes) <= 102_000  # The bytes that one log adds at a time.
    for cache in (*busy, *quiet):
        cache.close(OwnerChanging())
    assert memory.bytes == 0


def test_oldest_blocks_are_evicted_first_down_to_a_sixteenth() -> None:
    """Evicting from the largest log would let two idle logs keep a third each for ever."""
    memory = TailMemory(MIB)
    idle = [TailCache(Offset(0), MIB, memory) for _ in range(2)]
    for cache in idle:
        add(cache, *[10_000] * 45)
    active = TailCache(Offset(0), MIB, memory)
    add(active, *[10_000] * 40)
    assert active.start == 0
    assert (idle[0].start > 0, idle[1].start) == (True, 0)
    for _ in range(50):
        add(active, 10_000)
    assert active.start == 0
    share = MIB // 16
    assert all(share - 20_000 < cache.bytes <= share for cache in idle)


def test_log_over_its_own_limit_evicts_no_blocks_of_other_logs() -> None:
    memory = TailMemory(MIB)
    idle = TailCache(Offset(0), MIB, memory)
    add(idle, *[10_000] * 50)
    fast = TailCache(Offset(0), MIB // 2, memory)
    for _ in range(100):
        add(fast, *[10_000] * 3)
    assert idle.start == 0
    assert fast.bytes <= MIB // 2


def test_single_active_log_uses_the_whole_memory() -> None:
    memory = TailMemory(MIB)
    first, second = (TailCache(Offset(0), MIB, memory) for _ in range(2))
    add(first, *[10_000] * 200)
    assert memory.bytes > MIB - 20_000
    add(second, *[10_000] * 20)
    assert second.start == 0
    first.close(OwnerChanging())
    add(second, *[10_000] * 200)
    assert second.bytes == memory.bytes > MIB - 20_000


def test_block_larger_than_the_cache_is_not_kept() -> None:
    cache = TailCache(Offset(0), 1000, TailMemory(MIB))
    add(cache, 2000)
    assert (cache.start, cache.tail) == (1, 1)
    assert cache.read(Offset(0), 10) is None


def test_read_returns_whole_blocks_and_at_least_one() -> None:
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


async def test_closing_the_cache_fails_waiting_readers() -> None:
    cache = TailCache(Offset(0), 1000, TailMemory(MIB))
    waiting = asyncio.ensure_future(Subscription(cache, Offset(0)).next(30, 100))
    await asyncio.sleep(0)
    cache.close(OwnerChanging("handed over", log="a/b"))
    with raises_message(OwnerChanging):
        await waiting


async def test_cancelled_wait_is_removed() -> None:
    cache = TailCache(Offset(0), 1000, TailMemory(MIB))
    waiting = asyncio.ensure_future(cache.grown(Offset(0), 30))
    await asyncio.sleep(0)
    assert cache.waiting == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert cache.waiting == 0
