"""Concurrent readers share one request for the tail."""

import asyncio

import pytest

from rollbook.api.wal.shared_tail_request import SharedBarrier
from rollbook.logservice.ids import Offset
from rollbook.proto.errors import QuorumTimeout, RollbookError
from tests.messages import raises_message


class Log:
    """A log whose requests wait until the test completes them."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Offset]] = []

    async def ask(self) -> Offset:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_barrier_during_a_request_waits_for_the_next_request() -> None:
    """The response to a request that was sent before the call could be too old."""
    log = Log()
    barrier = SharedBarrier(log.ask)
    first = [asyncio.create_task(barrier.tail()) for _ in range(3)]
    await turns()
    second = [asyncio.create_task(barrier.tail()) for _ in range(3)]
    await turns()
    assert len(log.asked) == 1
    log.asked[0].set_result(Offset(5))
    assert await asyncio.gather(*first) == [5, 5, 5]
    await turns()
    assert len(log.asked) == 2
    assert not any(each.done() for each in second)
    log.asked[1].set_result(Offset(7))
    assert await asyncio.gather(*second) == [7, 7, 7]


async def test_failed_request_fails_only_its_own_waiters() -> None:
    log = Log()
    barrier = SharedBarrier(log.ask)
    asking = [asyncio.create_task(barrier.tail()) for _ in range(2)]
    await turns()
    late = asyncio.create_task(barrier.tail())
    await turns()
    log.asked[0].set_exception(QuorumTimeout("too late"))
    for task in asking:
        with raises_message(RollbookError):
            await task
    await turns()
    log.asked[1].set_result(Offset(1))
    assert await late == 1


async def test_cancelled_waiter_does_not_affect_others() -> None:
    log = Log()
    barrier = SharedBarrier(log.ask)
    asking = [asyncio.create_task(barrier.tail()) for _ in range(2)]
    await turns()
    asking[0].cancel()
    await turns()
    log.asked[0].set_result(Offset(1))
    assert await asking[1] == 1
    asyncio.get_running_loop().call_soon(asking[0].cancel)
    waiting = asyncio.create_task(barrier.tail())
    await turns()
    await barrier.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
