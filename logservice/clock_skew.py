"""The clock that a log server's owners use. `core/clock_agreement.py` has its rules.

It is a `Clock`: its monotonic time is the machine's, and its wall time is the server's (CK2).
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from rollbook.logservice.core.clock_agreement import CLOCKS_APART_US_MAX, ServerTime, odd_clocks
from rollbook.logservice.ids import ServerId
from rollbook.logservice.log_metadata import LogMetadataStore
from rollbook.proto.errors import ClockDisagrees
from rollbook.proto.ports import Clock
from rollbook.proto.tasks import joined, stop_tasks

logger = structlog.get_logger()

# The shortest pause between comparisons of a clock that is not trusted.
_AGAIN_NS: Final = 1_000_000_000
# The longest round trip of a comparison; a slower response says little about the time.
_SLOW_NS: Final = 60 * 1_000_000_000
_RETRY_MS: Final = 1000
_OURS: Final = ""  # The key of this server. Other servers have their names as keys.


class ServerClock:
    def __init__(
        self,
        server_id: ServerId,
        clock: Clock,
        nodes: LogMetadataStore,
        others: Callable[[], Mapping[str, int]],
    ) -> None:
        """`others` returns, for each other server, how many µs its clock is ahead of the metadata store's."""
        self.monotonic_ns: Final = clock.monotonic_ns
        self.let_others_run: Final = clock.let_others_run
        self._server_id, self._clock, self._nodes, self._others = server_id, clock, nodes, others
        self._time = ServerTime(clock.wall_us(), clock.monotonic_ns())
        self._compared_ns = 0
        self._comparing: asyncio.Task[None] | None = None
        self._was_odd = False

    def wall_us(self) -> int:
        """The wall clock's time at the last comparison, plus the time that has passed since."""
        return self._time.time_us(self.monotonic_ns())

    @property
    def apart_us(self) -> int | None:
        """The microseconds by which the wall clock is ahead of the metadata store's, or None before the
        first comparison.
        """
        return self._time.apart_us

    @property
    def is_odd(self) -> bool:
        """Return whether the clock disagrees with most others (CK1)."""
        ours = self._time.apart_us
        return ours is not None and _OURS in odd_clocks({**self._others(), _OURS: ours})

    def require(self) -> None:
        """Raises `ClockDisagrees` if the clock is odd."""
        if self.is_odd:
            raise self.refusal()

    def refusal(self) -> ClockDisagrees:
        apart_s = (self._time.apart_us or 0) / 1e6
        side = "ahead of" if apart_s > 0 else "behind"
        return ClockDisagrees(
            f"this server's clock is {abs(apart_s):.0f} s {side} the metadata store's, and most "
            f"clocks disagree with it: at most {CLOCKS_APART_US_MAX // 1_000_000} s are accepted",
            next_step="set the clocks (NTP); the server takes logs again by itself within a minute",
            server=self._server_id,
            apart_s=round(apart_s, 3),
            retry_after_ms=_RETRY_MS,
        )

    async def check(self) -> bool:
        """Compare the clock again if it was set since the last comparison, or if it was odd and the last
        comparison is at least a second old. Returns whether it was compared. Raises `MetadataUnavailable`,
        `ConnectionLost`, `SessionExpired`.
        """
        now_ns = self.monotonic_ns()
        if self._was_odd:
            is_due = now_ns - self._compared_ns >= _AGAIN_NS
        else:
            is_due = self._time.has_jumped(self._clock.wall_us(), now_ns)
        if is_due:
            await self.compare()
        return is_due

    async def compare(self) -> None:
        """Compare the clock now. One comparison serves all concurrent callers. Raises
        `MetadataUnavailable`, `ConnectionLost`, `SessionExpired`.
        """
        if self._comparing is None:
            self._comparing = asyncio.get_running_loop().create_task(self._compare())
            self._comparing.add_done_callback(self._on_compared)
        await joined(self._comparing, self.refusal)

    async def close(self) -> None:
        await stop_tasks(self._comparing)

    async def _compare(self) -> None:
        began_ns = self.monotonic_ns()
        store_us = await self._nodes.store_time_us()
        now_ns = self.monotonic_ns()
        if now_ns - began_ns > _SLOW_NS and self._time.apart_us is not None:
            return
        # The store is assumed to read its clock half way through the round trip.
        store_us += (now_ns - began_ns) // 2000
        self._time.on_compared(self._clock.wall_us(), store_us, now_ns)
        self._compared_ns = now_ns
        is_odd = self.is_odd
        if is_odd:
            self._time.on_odd(store_us, self._others(), now_ns)
        if is_odd != self._was_odd:
            self._was_odd = is_odd
            apart_s = (self._time.apart_us or 0) / 1e6
            if is_odd:
                logger.error("clock_disagrees", server=self._server_id, apart_s=apart_s)
            else:
                logger.info("clock_agrees", server=self._server_id, apart_s=apart_s)

    def _on_compared(self, comparing: "asyncio.Task[None]") -> None:
        self._comparing = None
        if not comparing.cancelled():
            comparing.exception()  # Marks the exception as retrieved; each caller gets it from `joined`.
