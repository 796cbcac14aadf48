"""Clocks that tests move on."""

import asyncio
from typing import Final

import pytest

_TURNS: Final = 50  # Of the loop, for what becomes due to be done, and what follows from it.


class StandingClock:
    """It stands until a test moves it."""

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_us(self) -> int:
        return 0

    def let_others_run(self) -> None:
        pass


class LoopTime:
    """The loop's own, which can be moved on: long deadlines pass when a test says so, and by nothing else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self._real, self._ahead_s = loop.time, 0.0
        monkeypatch.setattr(loop, "time", self._now)

    def _now(self) -> float:
        return self._real() + self._ahead_s

    async def pass_by(self, seconds: float) -> None:
        """At once, as for a process that stood still; then many turns of the loop."""
        self._ahead_s += seconds
        for _ in range(_TURNS):
            await asyncio.sleep(0)
