import asyncio
from functools import partial

import pytest

from rollbook.ledger.shared_writer_timer import SharedTimer
from tests.support.clocks import LoopTime

TICK_S = 1000.0


@pytest.fixture
async def time(monkeypatch: pytest.MonkeyPatch) -> LoopTime:
    return LoopTime(monkeypatch)


async def test_callback_is_called_once_at_the_next_tick(time: LoopTime) -> None:
    ticker, called = SharedTimer(TICK_S), list[int]()
    ticker.call_next(partial(called.append, 1))
    await time.pass_by(0.8 * TICK_S)  # A tick may come up to an eighth early.
    assert not called
    await time.pass_by(0.2 * TICK_S)
    assert called == [1]
    await time.pass_by(10 * TICK_S)
    assert called == [1]


async def test_ticks_missed_during_a_stall_count_once(time: LoopTime) -> None:
    """Otherwise all deadlines would expire before a single response was read."""
    ticker, count = SharedTimer(TICK_S), 0

    def tick() -> None:
        nonlocal count
        count += 1
        ticker.call_next(tick)

    ticker.call_next(tick)
    await time.pass_by(20 * TICK_S)
    assert count == 1
    await time.pass_by(0.8 * TICK_S)
    assert count == 1
    await time.pass_by(0.3 * TICK_S)
    assert count == 2
    ticker.close()


async def test_repeating_callbacks_are_called_equally_often(time: LoopTime) -> None:
    ticker, counts = SharedTimer(TICK_S), [0] * 50

    def tick(number: int) -> None:
        counts[number] += 1
        ticker.call_next(partial(tick, number))

    for number in range(50):
        ticker.call_next(partial(tick, number))
    for _ in range(8):
        await time.pass_by(TICK_S / 2)
    assert counts == [counts[0]] * 50
    assert counts[0] in (3, 4)
    ticker.close()


async def ask_twice(time: LoopTime, ticker: SharedTimer, called: list[int], apart_s: float) -> None:
    for number in range(2):
        ticker.call_next(partial(called.append, number))
        await time.pass_by(apart_s)


async def test_long_tick_is_split_into_more_shares(time: LoopTime) -> None:
    ticker, called = SharedTimer(TICK_S, shares=2, share_s_max=TICK_S / 100), list[int]()
    await ask_twice(time, ticker, called, 0.02 * TICK_S)
    await time.pass_by(0.95 * TICK_S)
    assert not called
    await time.pass_by(0.02 * TICK_S)
    assert called == [0]
    await time.pass_by(0.02 * TICK_S)
    assert called == [0, 1]
    ticker.close()


async def test_callbacks_of_one_share_are_called_together(time: LoopTime) -> None:
    ticker, called = SharedTimer(TICK_S, shares=4), list[int]()
    await time.pass_by(0.3 * TICK_S - asyncio.get_running_loop().time() % TICK_S + TICK_S)
    await ask_twice(time, ticker, called, 0.1 * TICK_S)
    await time.pass_by(0.7 * TICK_S)
    assert not called
    await time.pass_by(0.1 * TICK_S)
    assert called == [0, 1]
    ticker.close()


async def test_closed_timer_calls_no_callbacks(time: LoopTime) -> None:
    ticker, called = SharedTimer(TICK_S), list[int]()
    ticker.call_next(partial(called.append, 1))
    ticker.close()
    await time.pass_by(2 * TICK_S)
    assert not called


async def test_failing_callback_does_not_stop_the_timer(time: LoopTime) -> None:
    """WR6: later ticks keep their schedule."""
    bugs: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: bugs.append(context["exception"])
    )
    ticker, counts, bug = SharedTimer(TICK_S), [0, 0], ValueError("a bug")

    def tick(number: int) -> None:
        counts[number] += 1
        ticker.call_next(partial(tick, number))

    def fail() -> None:
        raise bug

    for on_tick in (partial(tick, 0), fail, partial(tick, 1)):
        ticker.call_next(on_tick)
    await time.pass_by(TICK_S)
    assert bugs == [bug]
    assert counts == [1, 1]
    await time.pass_by(1.1 * TICK_S)
    assert counts == [2, 2]
    ticker.close()
