"""Ticks for all writers of a client that have entries in flight, or a LAC to report.

Writers need ticks only then, and a timer for each writer would cost a server of many ledgers too
much. Instead a tick is divided into shares. Each share has one timer, and all writers of a share
tick together. A writer waits for a tick at most, its first wait may be shorter by up to a share,
and not all writers tick at once.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

_SHARES: Final = 8


class SharedTimer:
    def __init__(
        self, tick_s: float, shares: int = _SHARES, *, share_s_max: float = math.inf
    ) -> None:
        """A tick has at least `shares` shares, and more if needed to keep each share short, because
        its callbacks block the loop."""
        self._shares = max(shares, math.ceil(tick_s / share_s_max))
        self._share_s = tick_s / self._shares
        # The callbacks of each share, by its number.
        self._due: dict[int, list[Callable[[], None]]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._present: int | None = None  # The share whose callbacks are being called.

    def call_next(self, on_tick: Callable[[], None]) -> None:
        """Calls `on_tick` once, a tick from now. Callers cannot cancel it."""
        loop = asyncio.get_running_loop()
        present = self._present
        if present is None:
            present = int(loop.time() / self._share_s)
        number = present + self._shares
        due = self._due.get(number)
        if due is None:
            due = self._due[number] = []
            self._timers[number] = loop.call_at(number * self._share_s, self._tick, number)
        due.append(on_tick)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._due.clear()

    def _tick(self, number: int) -> None:
        """Calls the share's callbacks. Ticks that were missed while the process paused are not
        repeated: responses that arrived in that time are read before the next tick."""
        del self._timers[number]
        loop = asyncio.get_running_loop()
        self._present = max(number, int(loop.time() / self._share_s))
        for on_tick in self._due.pop(number):
            try:
                on_tick()
            except Exception as bug:  # noqa: BLE001  # Other writers still need their ticks.
                loop.call_exception_handler({"message": "a tick failed", "exception": bug})
        self._present = None
