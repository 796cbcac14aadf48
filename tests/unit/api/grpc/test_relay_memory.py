"""The memory that all relayed readers of a server hold together."""

import asyncio

import pytest

from rollbook.api.grpc.relay_memory import RelayedBytes, RelayMemory
from rollbook.proto.errors import Overloaded

SIZE = 512 * 1024


async def share_of(*, slow: bool = False) -> RelayedBytes:
    """Makes a reader's share; with `slow` its task runs until it is cancelled."""
    task: asyncio.Task[object] = asyncio.ensure_future(asyncio.sleep(60 if slow else 0))
    await asyncio.sleep(0)
    return RelayedBytes(task)


async def test_stalled_readers_are_cancelled_to_make_room() -> None:
    """RY4: a thousand slow readers hold no more than the bound."""
    memory = RelayMemory(bytes_max=2 * SIZE)
    slow = [await share_of(slow=True) for _ in range(6)]
    for each in slow:
        await memory.reserve(each)
        memory.hold(each, SIZE)
        assert memory.bytes <= 2 * SIZE
    assert memory.hung_up_on == 4
    await asyncio.sleep(0)
    assert [each.task.cancelled() for each in slow] == [True] * 4 + [False] * 2
    for each in slow:
        memory.release(each)
        each.task.cancel()
    assert memory.bytes == 0


async def test_idle_reader_gives_its_reservation_back() -> None:
    """RY4: readers at the tail wait for records that may never come."""
    memory = RelayMemory(bytes_max=SIZE)
    first, second = await share_of(), await share_of()
    await memory.reserve(first)
    async with asyncio.timeout(5):
        await memory.reserve(second)
    assert memory.hung_up_on == 0
    memory.release(second)
    memory.release(first)
    assert memory.bytes == 0


async def test_events_for_idle_readers_beyond_the_limit_are_refused() -> None:
    """RY4: the refused readers retry later."""
    memory = RelayMemory(bytes_max=SIZE)
    shares = [await share_of() for _ in range(4)]
    memory.hold(shares[0], SIZE)
    memory.hold(shares[1], SIZE // 2)
    with pytest.raises(Overloaded):
        memory.hold(shares[2], SIZE // 2)
    assert memory.bytes == SIZE * 3 // 2


async def test_event_larger_than_the_limit_is_accepted_alone() -> None:
    """RY4: else a log with large events could not be read."""
    memory = RelayMemory(bytes_max=SIZE)
    share = await share_of()
    await memory.reserve(share)
    memory.hold(share, 8 * SIZE)
    memory.release(share)
    async with asyncio.timeout(5):
        await memory.reserve(share)
    memory.release(share)


async def test_cancelled_reader_reserves_nothing() -> None:
    """RY4: after a waiting reader is cancelled, the next one can reserve."""
    memory = RelayMemory(bytes_max=SIZE)
    holder, leaver, last = [await share_of(slow=True) for _ in range(3)]
    memory.hold(holder, SIZE)
    waiting = asyncio.ensure_future(memory.reserve(leaver))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    memory.release(holder)
    async with asyncio.timeout(5):
        await memory.reserve(last)
    assert memory.bytes == SIZE
    for each in (holder, leaver, last):
        each.task.cancel()
