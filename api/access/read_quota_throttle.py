"""Makes a stream of records wait until its principal's quota has paid for earlier reads of all the principal's streams.

Readers take turns; the reader that has waited longest is next. A turn ends when the reader has taken an event, or
after 10 ms. So the next reader usually begins only when the size of that event is known and charged. A reader that
has caught up usually has nothing to take, so its turn ends immediately; otherwise the turns of many such readers
would add up. An event that arrives after the turn is charged, too, and all readers wait longer. While a stream
waits, it sends its position at each heartbeat (RL3). If several heartbeats in a row cannot find the position,
the stream fails, and its client should try another server.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rollbook.api.access.core.quotas import PrincipalAccount
from rollbook.api.access.core.turn_queue import Waiter
from rollbook.logservice.messages import CaughtUp, FellBehind, ReadEvent
from rollbook.proto.errors import NotOwner, RollbookError

MISSES_MAX: Final = 2  # This many heartbeats in a row may fail to find the position.

_NS_PER_S: Final = 1_000_000_000
_TAKES_S: Final = 0.01  # A reader that takes nothing for this long loses its turn.


class ReadThrottle:
    def __init__(
        self, account: PrincipalAccount, heartbeat_s: float, now_ns: Callable[[], int]
    ) -> None:
        self._account, self._heartbeat_s, self._now_ns = account, heartbeat_s, now_ns
        self._loop = asyncio.get_running_loop()
        self._is_first = asyncio.Event()
        self._place: Waiter | None = None
        self._due = 0.0
        self._is_behind = True
        self._ending: asyncio.Handle | None = None

    def begin(self) -> bool:
        """Returns whether the stream has to wait. If so, puts it into the queue, and schedules the first heartbeat."""
        self.end()
        line, reads = self._account.line, self._account.reads
        if line.is_empty and not reads.wait_ns(self._now_ns()):
            return False
        self._place = line.join(self._is_first.set)
        self._due = self._loop.time() + self._heartbeat_s
        return True

    async def step(self) -> bool:
        """Waits at most until the next heartbeat. Returns whether the stream may take an event. If True,
        the caller takes one and calls `end`. If False, it calls `take_heartbeat`, and then this method again."""
        assert self._place is not None
        if not self._account.line.is_first(self._place):
            self._is_first.clear()
            try:
                async with asyncio.timeout_at(self._due):
                    await self._is_first.wait()
            except TimeoutError:
                pass
        elif wait_ns := self._account.reads.wait_ns(self._now_ns()):
            left_s = max(self._due - self._loop.time(), 0)
            await asyncio.sleep(min(wait_ns / _NS_PER_S, left_s))
        else:
            if self._is_behind:
                self._ending = self._loop.call_later(_TAKES_S, self.end)
            else:
                self._ending = self._loop.call_soon(self.end)
            return True
        return False

    def on_sent(self, event: ReadEvent) -> None:
        """Notes whether the reader has caught up."""
        if isinstance(event, CaughtUp | FellBehind):
            self._is_behind = isinstance(event, FellBehind)

    def take_heartbeat(self) -> bool:
        """Returns whether a heartbeat is due, and if so schedules the next one."""
        now = self._loop.time()
        if now < self._due:
            return False
        self._due = now + self._heartbeat_s
        return True

    @contextmanager
    def away(self) -> Iterator[None]:
        """Gives up the turn while a position is fetched and sent, since the client may take arbitrarily long to read
        it."""
        assert self._place is not None
        self._account.line.leave(self._place)
        try:
            yield
        finally:
            self._account.line.come_back(self._place)

    def end(self) -> None:
        """Ends the turn, or the wait for it. Idempotent."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self._place is not None:
            self._account.line.leave(self._place)
            self._place = None


def may_pass(error: RollbookError) -> bool:
    """Whether the error may be temporary, so that the next heartbeat may find the reader's position."""
    return error.retryable and not isinstance(error, NotOwner)
