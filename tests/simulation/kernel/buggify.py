"""Turns of the code that are right but rare, taken often: `if node.buggify("busy.slow_append"): …`

In each seed a quarter of the points are on, and fire at odds. Each point has a name of its own, and is asked
once per batch at most. Each point draws from a stream of its own, so that a new one in the code does not shift the others.
"""

import random
from collections.abc import Callable
from typing import Final

ACTIVE_SHARE: Final = 0.25


class SeededBuggify:
    def __init__(self, stream: Callable[[str], random.Random]) -> None:
        self._stream = stream
        self._active: dict[str, random.Random | None] = {}
        self.fired: dict[str, int] = {}
        """How often each point that was asked has fired; zero for those that are off."""

    def __call__(self, point: str, odds: float = 0.1) -> bool:
        if point not in self._active:
            chance = self._stream(f"buggify:{point}")
            self._active[point] = chance if chance.random() < ACTIVE_SHARE else None
            self.fired[point] = 0
        active = self._active[point]
        if active is None or active.random() >= odds:
            return False
        self.fired[point] += 1
        return True
