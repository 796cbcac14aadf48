"""One question for many readers."""

import asyncio

import pytest

from rollbook.api.wal.shared_barrier import SharedBarrier
from rollbook.logservice.ids import Offset
from rollbook.proto.errors import QuorumTimeout, RollbookError
from tests.messages import raises_message


class Log:
    """Answers on command."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Offset]] = []

    async def ask(self) -> Offset:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_who_comes_while_one_is_under_way_shares_the_next() -> None:
    """The answer to a question that was sent before the call could be too old for it."""
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


async def test_a_failure_is_everybodys_and_the_next_question_is_another() -> None:
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


async def test_one_who_gives_up_is_no_loss_to_others() -> None:
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
