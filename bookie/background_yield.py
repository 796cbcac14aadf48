"""Paces background work on the loop: the work runs in steps, with rests in which adds are answered."""

import asyncio
from collections.abc import Callable
from typing import Final

from rollbook.bookie.core.background_pacing import Lull, StepPauses
from rollbook.proto.ports import Clock

# A rest is this many times as long as the steps before it: background work takes a third of the
# loop's time.
_TIMES: Final = 2.0
_LOOK_AGAIN_S: Final = 0.002  # Pause between two checks for a lull; one check costs 50 µs.


class Background:
    """Paces one piece of background work."""

    def __init__(self, clock: Clock, is_preceded: Callable[[], bool] = lambda: False) -> None:
        """`is_preceded` says whether other background work goes first; this work waits for it only
        up to a limit."""
        self._clock = clock
        self._is_preceded = is_preceded
        self._rests = StepPauses(clock.monotonic_ns())

    async def give_way(
        self, times: float = _TIMES, at_least_s: float = 0.0, *, patience: float = 0.0
    ) -> None:
        """Rests if a rest is due. Callers call this between steps of less than a millisecond. A
        rest takes `times` as long as the steps took. After that, the work waits until the loop has
        little to do, at most `patience` times as long again.
        """
        rest_s = self._rests.on_paused(self._clock.monotonic_ns(), times)
        await asyncio.sleep(max(rest_s, at_least_s))
        if rest_s and patience:
            await self._come_to_a_lull(rest_s * patience)
        self._rests.on_resumed(self._clock.monotonic_ns())

    async def _come_to_a_lull(self, patience_s: float) -> None:
        lull = Lull(self._clock.monotonic_ns(), patience_s)
        while True:
            turn_began_ns = self._clock.monotonic_ns()
            await asyncio.sleep(0)
            now_ns = self._clock.monotonic_ns()
            if lull.has_come(turn_began_ns, now_ns, is_preceded=self._is_preceded()):
                return
            await asyncio.sleep(_LOOK_AGAIN_S)
