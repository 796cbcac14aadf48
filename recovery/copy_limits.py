"""Limits that the repairs of many ledgers share: bytes in memory, and bytes per second."""

import asyncio
import math
from collections import deque
from typing import Final

from rollbook.proto.pacing import Pace

_NS_PER_S: Final = 1_000_000_000


class ByteBudget:
    """A limit on bytes in memory. Requests are admitted in order; a request larger than the whole budget is
    admitted alone.
    """

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self._bytes_max = bytes_max
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Wait until the budget admits these bytes. A cancelled call takes nothing from the budget."""
        if not self._waiting and self._admits(size):
            self.used += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(size)  # The cancelled call had already been admitted.
            else:
                self._waiting.remove((size, turn))
                self._admit()
            raise

    def give(self, size: int) -> None:
        self.used -= size
        assert self.used >= 0
        self._admit()

    def _admits(self, size: int) -> bool:
        return not self.used or self.used + size <= self._bytes_max

    def _admit(self) -> None:
        while self._waiting and self._admits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.used += size
                turn.set_result(None)


class Throttle:
    """Limits all copying together to a rate in bytes per second. The rate can be changed at any time; 0 is
    unlimited.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._pace = Pace(bytes_per_s or math.inf)

    @property
    def bytes_per_s(self) -> float:
        rate = self._pace.bytes_per_s
        return 0 if rate == math.inf else rate

    @bytes_per_s.setter
    def bytes_per_s(self, rate: float) -> None:
        assert rate >= 0
        self._pace.bytes_per_s = rate or math.inf

    async def pay(self, size: int) -> None:
        """Block until the rate limit admits this many bytes."""
        now_ns = int(asyncio.get_running_loop().time() * _NS_PER_S)
        if wait_s := self._pace.spend(size, now_ns):
            await asyncio.sleep(wait_s)
