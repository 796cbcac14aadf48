"""Detects that this process stood still for so long that other servers may have taken it for dead.

Appends that this process confirms after a stall were on disk before its ledgers were fenced, so those acks
would be true. But by then, the server that took over its logs may have reported that no append of an older
writer will be acked any more. So an owner whose process has missed a lease opens its logs again before
it confirms anything (LS9).

A lease is missed if it has passed on the monotonic clock or on the wall clock: the monotonic clock stands
still while a machine sleeps.
"""

import asyncio
from typing import Final

from rollbook.proto.ports import Clock

_BEATS: Final = 6  # The number of beats in a lease.


class StallDetector:
    """Detects stalls, for all logs of a server. Call `start` first, and `close` at the end."""

    def __init__(self, clock: Clock, lease_s: float) -> None:
        self.lease_s: Final = lease_s
        self._now_ns, self._wall_us = clock.monotonic_ns, clock.wall_us
        self._lease_ns, self._lease_us = int(lease_s * 1e9), int(lease_s * 1e6)
        self._stalls = 0
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def start(self) -> None:
        self._look()
        self._beat()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def stalls(self) -> int:
        """How often the process has missed a lease so far."""
        if self._now_ns() > self._ends_ns or self._wall_us() > self._ends_us:
            self._stalls += 1
            self._look()
        return self._stalls

    def _beat(self) -> None:
        self.stalls()
        self._look()
        self._timer = asyncio.get_running_loop().call_later(self.lease_s / _BEATS, self._beat)

    def _look(self) -> None:
        self._ends_ns = self._now_ns() + self._lease_ns
        self._ends_us = self._wall_us() + self._lease_us
