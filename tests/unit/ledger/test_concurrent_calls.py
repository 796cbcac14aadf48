import asyncio

import pytest

from rollbook.ledger.concurrent_calls import BUSY_OR_BROKEN, ConcurrentCalls
from rollbook.proto.errors import Overloaded
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.wire.messages import EntryRead, Reply, Request

B1 = BookieId("b1")
READ = EntryRead(LedgerId(1), EntryId(2))


class Sending:
    """Starts every call at once; the test completes the replies."""

    def __init__(self) -> None:
        self.replies: list[asyncio.Future[Reply]] = []
        self.calls = 0

    def start(
        self, bookie: BookieId, request: Request, *, deadline_s: float, is_high_priority: bool
    ) -> "asyncio.Future[Reply]":
        self.replies.append(asyncio.get_running_loop().create_future())
        return self.replies[-1]

    async def call(
        self,
        bookie: BookieId,
        request: Request,
        *,
        deadline_s: float,
        is_high_priority: bool = False,
    ) -> Reply:
        self.calls += 1
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        return await reply


@pytest.mark.parametrize("is_heard_before", [False, True])
async def test_closed_concurrent_calls_are_not_retried(is_heard_before: bool) -> None:
    """Neither calls awaiting a retry, nor calls refused in the same loop turn as the close."""
    bookies = Sending()
    calls = ConcurrentCalls[int](bookies)
    calls.ask(1, B1, READ, 60.0, passing=BUSY_OR_BROKEN)
    bookies.replies[0].set_exception(Overloaded())
    if is_heard_before:
        await asyncio.sleep(0)
    await calls.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not bookies.calls
    assert not calls.take()
