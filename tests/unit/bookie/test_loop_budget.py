"""Steps of long answers are spaced, take turns, and leave time for adds."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

from rollbook.bookie.loop_budget import LoopBudget, StepQueue
from rollbook.proto.ports import Clock
from tests.support.clocks import StandingClock


def loop_budget_of(
    adds_wait: Callable[[], bool] = lambda: False, clock: Clock | None = None
) -> LoopBudget:
    return LoopBudget(clock or StandingClock(10**9), adds_wait)


async def test_long_responses_take_steps_in_turn() -> None:
    loop_budget = loop_budget_of()
    steps: list[str] = []

    async def make(name: str, count: int) -> None:
        for _ in range(count):
            await loop_budget.come()
            steps.append(name)
            loop_budget.spend(2_000_000)  # Each of them fills a turn.

    beats = 0

    async def beat() -> None:
        nonlocal beats
        while len(steps) < 13:
            beats += 1
            await asyncio.sleep(0)

    async with asyncio.timeout(30):
        await asyncio.gather(make("a", 6), make("b", 6), make("c", 1), beat())
    assert "".join(steps) == "aabcababababb"  # The first task began before the others arrived.
    assert beats >= 13  # Other tasks ran between the steps.


async def test_cancelled_wait_for_a_step_blocks_no_other() -> None:
    loop_budget = loop_budget_of()
    first, second = (asyncio.create_task(loop_budget.come()) for _ in range(2))
    loop_budget.spend(2_000_000)
    await asyncio.sleep(0)
    first.cancel()
    async with asyncio.timeout(30):
        await second
    assert first.cancelled()


async def test_steps_are_small_and_spaced_during_adds() -> None:
    clock = StandingClock(10**9)
    loop_budget = loop_budget_of(clock=clock)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def steps(count: int) -> tuple[list[int], list[int]]:
        """The size of each step, and the loop turn in which it began."""
        sizes, began = [], []
        for _ in range(count):
            sizes.append(await loop_budget.come())
            began.append(turns)
            loop_budget.spend(sizes[-1])
        last = turns
        while turns < last + 1_000:  # By then the budget is restored.
            await asyncio.sleep(0)
        return sizes, began

    counting = asyncio.create_task(count())
    async with asyncio.timeout(30):
        alone, began_alone = await steps(6)
        loop_budget.on_adds(clock.now_ns)
        beside, began_beside = await steps(6)
        clock.now_ns += 10**9  # No client adds any more.
        afterwards, _ = await steps(6)
    counting.cancel()
    assert max(beside) <= min(alone) // 4
    assert min(after - before for before, after in pairwise(began_beside)) >= 2
    assert began_alone[-1] - began_alone[0] < began_beside[-1] - began_beside[0]
    assert afterwards == alone


async def test_reads_wait_for_adds_to_be_written_but_not_forever() -> None:
    adds_wait = True
    loop_budget = loop_budget_of(lambda: adds_wait)
    step = asyncio.create_task(loop_budget.come())
    for _ in range(8):
        await asyncio.sleep(0)
        assert not step.done()
    adds_wait = False
    async with asyncio.timeout(30):
        await step
        loop_budget.spend(1)
        adds_wait = True  # Adds wait from now on.
        await loop_budget.come()


async def test_step_queue_survives_a_failing_or_leaving_member() -> None:
    step_queue = StepQueue(loop_budget_of())
    gone_on: list[str] = []
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: failures.append(context["exception"])
    )
    error = ValueError()

    def fail() -> None:
        raise error

    def leave() -> None:
        gone_on.append("left")

    step_queue.join(fail)
    step_queue.join(leave)
    step_queue.join(lambda: gone_on.append("last"))
    step_queue.leave(leave)
    async with asyncio.timeout(30):
        while not gone_on:
            await asyncio.sleep(0)
        step_queue.join(
            lambda: gone_on.append("late")
        )  # By now the queue may have stopped running.
        while len(gone_on) < 2:
            await asyncio.sleep(0)
    assert gone_on == ["last", "late"]
    assert failures == [error]
