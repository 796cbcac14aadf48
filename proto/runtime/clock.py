"""The clock of the machine.

A process that yields the processor for a moment gets it back when the others yield. On a machine
where all processors are busy that takes up to milliseconds, so it is not tried again for a
while, twice as long each time it is slow again.
"""

import os
import time
from typing import Final

_MOMENT_NS: Final = 200_000
_TIMES_KEPT: Final = 100  # After a slow yield, the loop is kept this many times,
_TIMES_KEPT_MAX: Final = 12_800  # doubled with each further slow one, up to this many.


class SystemClock:
    def __init__(self) -> None:
        self._times_kept = 0  # How often it is kept from now on,
        self._times_next = _TIMES_KEPT  # and how often after the next slow hand-over.

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def let_others_run(self) -> None:
        if self._times_kept:
            self._times_kept -= 1
            return
        began_ns = time.monotonic_ns()
        os.sched_yield()
        if time.monotonic_ns() - began_ns > _MOMENT_NS:
            self._times_kept = self._times_next
            self._times_next = min(2 * self._times_next, _TIMES_KEPT_MAX)
        else:
            self._times_next = _TIMES_KEPT
