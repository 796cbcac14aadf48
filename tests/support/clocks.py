"""Clocks that tests advance."""

import asyncio
from typing import Final

import pytest

_TURNS: Final = 50  # Iterations of the loop in which due timers and their consequences run.


class StandingClock:
    """A clock that only the test advances."""

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_us(self) -> int:
        return 0

    def let_others_run(self) -> None:
        pass


class LoopTime:
    """The event loop's clock, which tests can advance so that long deadlines pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self._real, self._ahead_s = loop.time, 0.0
        monkeypatch.setattr(loop, "time", self._now)

    def _now(self) -> float:
        return self._real() + self._ahead_s

    async def pass_by(self, seconds: float) -> None:
        """Advances the clock at once, as for a stopped process, then runs the loop many times."""
        self._ahead_s += seconds
        for _ in range(_TURNS):
            await asyncio.sleep(0)
