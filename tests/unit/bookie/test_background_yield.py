"""Background work beside other tasks, whose loop turns take a time set by the test."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rollbook.bookie.background_yield import Background
from tests.support.clocks import StandingClock

MS = 1_000_000


@pytest.fixture(autouse=True)
def sleeps_of_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real timers would let the other tasks finish, so a sleep lasts one loop turn."""

    async def sleep(_: float) -> None:
        await as_ever(0)

    as_ever = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", sleep)


class Others:
    """Other tasks: they use `turn_ns` of each loop turn, for `turns` turns."""

    def __init__(self, clock: StandingClock, turn_ns: int, turns: int) -> None:
        self.turns_left = turns
        self._clock = clock
        self._turn_ns = turn_ns

    @contextmanager
    def at_work(self) -> Iterator[None]:
        handle = asyncio.get_running_loop().call_soon(self._work)
        try:
            yield
        finally:
            self.turns_left = 0
            handle.cancel()

    def _work(self) -> None:
        if self.turns_left:
            self.turns_left -= 1
            self._clock.now_ns += self._turn_ns
            asyncio.get_running_loop().call_soon(self._work)


async def test_background_work_resumes_when_the_loop_is_idle() -> None:
    clock = StandingClock()
    background, others = Background(clock), Others(clock, MS, turns=300)
    with others.at_work():
        clock.now_ns += MS  # A step of the background work.
        await background.give_way(4.0, patience=1_000_000.0)
        assert others.turns_left == 0


async def test_background_work_resumes_on_a_loop_that_is_never_idle() -> None:
    clock = StandingClock()
    background, others = Background(clock), Others(clock, MS, turns=10**9)
    with others.at_work():
        clock.now_ns += MS
        began_ns = clock.now_ns
        await background.give_way(4.0, patience=4.0)
        assert clock.now_ns - began_ns >= 16 * MS
        assert others.turns_left


async def test_background_work_does_not_wait_on_an_idle_loop() -> None:
    clock = StandingClock()
    clock.now_ns = MS
    await Background(clock).give_way(4.0, patience=1_000_000.0)
    assert clock.now_ns == MS


async def test_background_work_waits_for_urgent_work() -> None:
    clock = StandingClock()
    background = Background(clock, is_preceded=lambda: clock.now_ns < 50 * MS)
    with Others(clock, MS // 100, turns=10**9).at_work():  # Each of these turns is a lull.
        clock.now_ns += MS
        await background.give_way(4.0, patience=1_000.0)
        assert clock.now_ns >= 50 * MS


async def test_urgent_work_delays_background_work_at_most_the_patience() -> None:
    clock = StandingClock()
    background = Background(clock, is_preceded=lambda: True)
    with Others(clock, MS // 100, turns=10**9).at_work():
        clock.now_ns += MS
        await background.give_way(4.0, patience=4.0)
        assert clock.now_ns >= 17 * MS
