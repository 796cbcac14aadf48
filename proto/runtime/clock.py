"""The clock of the machine."""

import time


class SystemClock:
    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_us(self) -> int:
        return time.time_ns() // 1000
