"""The clock of the machine.

A process that yields the processor gets it back when the other processes yield. If all processors
of the machine are busy, this may take milliseconds. After a slow yield the clock skips a number of
yields, and this number doubles with each further slow yield.
"""

import os
import time
from typing import Final

_MOMENT_NS: Final = 200_000
_TIMES_KEPT: Final = 100  # The number of yields that are skipped after the first slow one.
_TIMES_KEPT_MAX: Final = 12_800  # At most this many yields are skipped after a slow one.


class SystemClock:
    def __init__(self) -> None:
        self._times_kept = 0  # The number of yields that are still to be skipped.
        self._times_next = _TIMES_KEPT  # The number of yields to skip after the next slow one.

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
