"""Work on the loop that nobody waits for: in steps, with rests in which others' adds are answered."""

import asyncio
from typing import Final

from rollbook.bookie.core.pace import Rests
from rollbook.proto.ports import Clock

_TIMES: Final = 2.0  # So a third of the loop's time is taken at most.


class Background:
    """One for each piece of work."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rests = Rests(clock.monotonic_ns())

    async def give_way(self, times: float = _TIMES, at_least_s: float = 0.0) -> None:
        """Call it between steps of less than a millisecond. Rests so many times as long as they took."""
        rest_s = self._rests.on_paused(self._clock.monotonic_ns(), times)
        await asyncio.sleep(max(rest_s, at_least_s))
        self._rests.on_resumed(self._clock.monotonic_ns())
