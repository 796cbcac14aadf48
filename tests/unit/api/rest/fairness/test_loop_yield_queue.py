"""The admission queue admits one waiter at a time, with rounds of the loop in between."""

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise

import pytest

from rollbook.api.rest.fairness import loop_yield_queue as line
from rollbook.api.rest.fairness.loop_yield_queue import AdmissionQueue
from tests.unit.api.rest.loop_rounds import Loop

ROUNDS = 5


@pytest.fixture
async def loop() -> AsyncGenerator[Loop, None]:
    loop = Loop()
    yield loop
    loop.end()


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "_REST_S", 3600)


async def admitted_at(line: AdmissionQueue, loop: Loop, patience_s: float | None = None) -> int:
    await line.wait(patience_s)
    return loop.rounds


@pytest.mark.usefixtures("no_clock")
async def test_waiters_are_admitted_one_per_interval_in_order(loop: Loop) -> None:
    line = AdmissionQueue(ROUNDS)
    found = await asyncio.gather(*(admitted_at(line, loop) for _ in range(20)))
    gaps = [b - a for a, b in pairwise(found)]  # A waiter runs in the round after its admission.
    assert gaps == [ROUNDS + 1, *[ROUNDS] * 18], "first come, first served"


@pytest.mark.usefixtures("no_clock")
async def test_empty_queue_admits_at_once(loop: Loop) -> None:
    line = AdmissionQueue(ROUNDS)
    for _ in range(3):
        before = loop.rounds
        assert await admitted_at(line, loop) == before
        while loop.rounds <= before + ROUNDS:
            await asyncio.sleep(0)
    before = await admitted_at(line, loop)
    assert await admitted_at(line, loop) >= before + ROUNDS - 1, "a caller was admitted just before"


async def test_busy_loop_admits_a_waiter_within_two_rounds(loop: Loop) -> None:
    loop.work_s = line._REST_S
    found = await asyncio.gather(*(admitted_at(one, loop) for one in [AdmissionQueue(ROUNDS)] * 5))
    assert all(b - a <= 2 for a, b in pairwise(found))


async def test_time_out_ends_a_wait_and_leaves_the_queue(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "_REST_S", 3600)
    endless = AdmissionQueue(10**9)
    await endless.wait()
    await endless.wait(0.001)
    assert not endless._waiting


@pytest.mark.usefixtures("no_clock")
async def test_cancelled_waiter_does_not_delay_the_next(loop: Loop) -> None:
    line = AdmissionQueue(ROUNDS)
    await line.wait()
    before = loop.rounds
    first, second, third = (asyncio.create_task(admitted_at(line, loop)) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    async with asyncio.timeout(30):
        assert (await first - before, await third - before) == (ROUNDS + 1, 2 * ROUNDS + 1)
    assert not line._waiting
