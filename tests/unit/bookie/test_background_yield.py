"""Work in the background beside others on the loop, whose turns take the time that a test says."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rollbook.bookie.background_yield import Background
from tests.support.clocks import StandingClock

MS = 1_000_000


@pytest.fixture(autouse=True)
def sleeps_of_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is the test's: a timer of the machine's would give others all the turns they want."""

    async def sleep(_: float) -> None:
        await as_ever(0)

    as_ever = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", sleep)


class Others:
    """They take as much of each turn of the loop, until they have had that many."""

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
        clock.now_ns += MS  # A step.
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
    with Others(clock, MS // 100, turns=10**9).at_work():  # Lulls, one after the other.
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
