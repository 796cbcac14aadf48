"""The memory budget and the bandwidth limit that repairs share."""

import asyncio

import pytest

from rollbook.recovery.copy_limits import ByteBudget, Throttle


async def test_budget_blocks_until_bytes_are_given_back() -> None:
    budget = ByteBudget(100)
    await budget.take(60)
    second = asyncio.create_task(budget.take(60))
    await asyncio.sleep(0)
    assert not second.done()
    budget.give(60)
    await second
    assert budget.used == 60


async def test_budget_is_granted_in_request_order() -> None:
    budget = ByteBudget(100)
    await budget.take(60)
    large = asyncio.create_task(budget.take(90))
    small = asyncio.create_task(budget.take(10))
    await asyncio.sleep(0)
    assert not small.done()
    budget.give(60)
    await asyncio.gather(large, small)
    assert budget.used == 100


async def test_request_larger_than_the_budget_is_admitted_alone() -> None:
    budget = ByteBudget(100)
    await budget.take(1_000)
    assert budget.used == 1_000
    budget.give(1_000)


@pytest.mark.parametrize("is_admitted_first", [False, True])
async def test_cancelled_wait_takes_no_budget(is_admitted_first: bool) -> None:
    budget = ByteBudget(100)
    await budget.take(100)
    waiting = asyncio.create_task(budget.take(50))
    behind = asyncio.create_task(budget.take(50))
    await asyncio.sleep(0)
    if is_admitted_first:
        budget.give(100)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    if not is_admitted_first:
        budget.give(100)
    await behind
    assert budget.used == 50


async def test_throttle_limits_concurrent_payers_and_can_be_changed() -> None:
    loop = asyncio.get_running_loop()
    throttle = Throttle(10_000)
    began = loop.time()
    await asyncio.gather(*(throttle.pay(500) for _ in range(5)))
    assert loop.time() - began >= 0.15
    throttle.bytes_per_s = 1e9
    assert throttle.bytes_per_s == 1e9
