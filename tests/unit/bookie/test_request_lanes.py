"""Lanes serve the queues of requests that are offered to them."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import cast

import pytest

from rollbook.bookie.loop_budget import StepQueue
from rollbook.bookie.request_lanes import Lane, Queue, QueuedRequest
from rollbook.proto.wire.messages import ReceivedRequest
from tests.support.clocks import StandingClock
from tests.unit.bookie.test_loop_budget import loop_budget_of


async def test_request_offered_as_the_last_task_ends_is_served() -> None:
    """The task has found no further request, but still counts as one of the lane's tasks."""
    served: list[QueuedRequest] = []
    crashes: list[BaseException] = []
    lane = Lane(1, loop_budget_of(), crashes.append)

    async def serve(asked: QueuedRequest) -> None:
        served.append(asked)
        if asked is first:
            asyncio.get_running_loop().call_soon(lane.offer, queues[1])

    first, late = (QueuedRequest(cast(ReceivedRequest, None), heard_ns) for heard_ns in (1, 2))
    queues = [
        Queue(serve=serve, on_change=lambda: None, may_begin=lambda _: True, at_once_max=1)
        for _ in range(2)
    ]
    for queue, asked in zip(queues, (first, late), strict=True):
        queue.asked.append(asked)
    lane.offer(queues[0])
    async with asyncio.timeout(30):
        while len(served) < 2:
            await asyncio.sleep(0)
    assert served == [first, late]
    assert not crashes
    await lane.close()


async def test_connections_take_turns_within_their_limits() -> None:
    served: list[str] = []
    running = {"a": 0, "b": 0}
    most = {"a": 0, "b": 0}
    lane = Lane(8, loop_budget_of(), lambda error: None)

    def queue_of(name: str, calls: int) -> Queue:
        async def serve(asked: QueuedRequest) -> None:
            running[name] += 1
            most[name] = max(most[name], running[name])
            await asyncio.sleep(0)
            running[name] -= 1
            served.append(name)

        queue = Queue(serve, lambda: lane.offer(queue), lambda _: True, at_once_max=2)
        queue.asked.extend(QueuedRequest(cast(ReceivedRequest, None), at) for at in range(calls))
        return queue

    many, few = queue_of("a", 100), queue_of("b", 3)
    lane.offer(many)
    lane.offer(few)
    async with asyncio.timeout(30):
        while len(served) < 103:
            await asyncio.sleep(0)
    assert [at for at, name in enumerate(served) if name == "b"][-1] < 10
    assert most == {"a": 2, "b": 2}
    await lane.close()


async def test_turn_ends_at_its_byte_budget() -> None:
    """The loop runs other tasks even if many requests can be answered from memory."""
    loop_budget = loop_budget_of()
    lane = Lane(4, loop_budget, lambda error: None)
    served = 0

    async def serve(asked: QueuedRequest) -> None:
        nonlocal served
        served += 1
        loop_budget.spend(300_000)

    queue = Queue(serve, lambda: lane.offer(queue), lambda _: True, at_once_max=4)
    queue.asked.extend(QueuedRequest(cast(ReceivedRequest, None), at) for at in range(40))
    lane.offer(queue)
    counts = []
    async with asyncio.timeout(30):
        while served < 40:
            counts.append(served)
            await asyncio.sleep(0)
    steps = [after - before for before, after in pairwise(counts)]
    assert max(steps) <= 8  # Four a turn; two turns may follow each other directly.
    await lane.close()


async def test_at_most_two_tasks_wait_for_the_next_turn() -> None:
    loop_budget = loop_budget_of()
    lane = Lane(16, loop_budget, lambda error: None)
    served = 0

    async def serve(asked: QueuedRequest) -> None:
        nonlocal served
        served += 1
        loop_budget.spend(2_000_000)  # Each of them fills a turn.

    queue = Queue(serve, lambda: lane.offer(queue), lambda _: True, at_once_max=16)
    queue.asked.extend(QueuedRequest(cast(ReceivedRequest, None), at) for at in range(40))
    tasks_max = 0
    async with asyncio.timeout(30):
        while served < 40:
            lane.offer(queue)  # Every event on a connection offers its queue.
            tasks_max = max(tasks_max, len(asyncio.all_tasks()) - 1)
            await asyncio.sleep(0)
    assert tasks_max <= 2  # One task waits, and one may just have been started.
    await lane.close()


async def test_one_offer_starts_all_requests_within_the_limit() -> None:
    lane = Lane(8, loop_budget_of(), lambda error: None)
    begun = 0
    may_end = asyncio.Event()

    async def serve(asked: QueuedRequest) -> None:
        nonlocal begun
        begun += 1
        await may_end.wait()

    queue = Queue(serve, lambda: lane.offer(queue), lambda _: True, at_once_max=6)
    queue.asked.extend(QueuedRequest(cast(ReceivedRequest, None), at) for at in range(10))
    lane.offer(queue)
    async with asyncio.timeout(30):
        while begun < 6:
            await asyncio.sleep(0)
        may_end.set()
        while begun < 10:
            await asyncio.sleep(0)
    await lane.close()


async def test_closed_lane_starts_no_request() -> None:
    lane = Lane(4, loop_budget_of(), lambda error: None)
    never = asyncio.Event()

    async def serve(asked: QueuedRequest) -> None:
        await never.wait()

    queue = Queue(serve, lambda: lane.offer(queue), lambda _: True, at_once_max=4)
    queue.asked.extend(QueuedRequest(cast(ReceivedRequest, None), at) for at in range(10))
    lane.offer(queue)
    await asyncio.sleep(0)
    await lane.close()
    lane.offer(queue)
    await asyncio.sleep(0)
    assert queue.running == 0


async def test_owner_is_notified_if_its_queue_is_not_ready() -> None:
    """A queue that is no longer ready when its turn comes must be offered again by its owner."""
    lane = Lane(1, loop_budget_of(), lambda error: None)
    told = 0
    is_open = True

    async def serve(asked: QueuedRequest) -> None:
        raise AssertionError

    def on_change() -> None:
        nonlocal told
        told += 1

    queue = Queue(serve, on_change, lambda _: is_open, at_once_max=1)
    queue.asked.append(QueuedRequest(cast(ReceivedRequest, None), 1))
    lane.offer(queue)
    is_open = False
    async with asyncio.timeout(30):
        while not told:
            await asyncio.sleep(0)
    await lane.close()


async def test_request_starts_soon_despite_many_writers() -> None:
    loop_budget = loop_budget_of()
    step_queue, lane = StepQueue(loop_budget), Lane(4, loop_budget, lambda error: None)
    written: list[int] = []

    def writer(number: int) -> Callable[[], None]:
        def go_on() -> None:
            written.append(number)
            step_queue.join(go_on)
            loop_budget.spend(2_000_000)  # Each of them fills a turn.

        return go_on

    async def serve(asked: QueuedRequest) -> None:
        begun.set()

    begun = asyncio.Event()
    for number in range(100):
        step_queue.join(writer(number))
    async with asyncio.timeout(30):
        while len(written) < 250:
            await asyncio.sleep(0)
        queue = Queue(serve, lambda: None, lambda _: True, at_once_max=1)
        queue.asked.append(QueuedRequest(cast(ReceivedRequest, None), 1))
        lane.offer(queue)
        turns = 0
        while not begun.is_set():
            await asyncio.sleep(0)
            turns += 1
    assert turns <= 4
    assert written[:250] == [*range(100), *range(100), *range(50)]
    await lane.close()


@pytest.mark.parametrize("is_beside_adds", [False, True])
async def test_busy_lane_leaves_every_other_turn_to_the_other_lane(
    is_beside_adds: bool,
) -> None:
    """Requests answered from memory never wait for the disk."""
    clock = StandingClock(10**9)
    loop_budget = loop_budget_of(clock=clock)
    if is_beside_adds:
        loop_budget.on_adds(clock.now_ns)
    served: list[Queue] = []
    lanes = [Lane(64, loop_budget, lambda error: None) for _ in range(2)]
    queues: list[Queue] = []

    def add_queue(lane: Lane, calls: int) -> None:
        async def serve(asked: QueuedRequest) -> None:
            served.append(queue)
            loop_budget.spend(600_000)

        queue = Queue(serve, lambda: lane.offer(queue), lambda _: True, at_once_max=16)
        queue.asked.extend(QueuedRequest(cast(ReceivedRequest, None), at) for at in range(calls))
        queues.append(queue)
        lane.offer(queue)

    add_queue(lanes[0], 200)
    async with asyncio.timeout(30):
        while len(served) < 20:
            await asyncio.sleep(0)
        add_queue(lanes[1], 10)
        before = len(served)
        while served.count(queues[1]) < 10:
            await asyncio.sleep(0)
    assert len(served) - before <= 24
    for lane in lanes:
        await lane.close()
