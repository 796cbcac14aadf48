"""Makes one stream of records wait until its principal has paid for its earlier reads, by this stream or others.

The longest waiting reader takes next, and no other one before its amount is known: until it has
taken, or a moment has passed. A reader that has caught up usually has nothing to take, and such
moments must not add up: it takes what is there, if anything is, and later events are added to
what the next one takes, which all pay for. In the meantime no stream is silent for longer than
its heartbeat (RL3); if its position cannot be found out repeatedly, the client should ask
another server.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rollbook.api.access.core.fair_queue import Waiter
from rollbook.api.access.core.quotas import PrincipalAccount
from rollbook.logservice.messages import CaughtUp, FellBehind, ReadEvent
from rollbook.proto.errors import NotOwner, RollbookError

MISSES_MAX: Final = 2  # Heartbeats in a row that may report no progress.

_NS_PER_S: Final = 1_000_000_000
_TAKES_S: Final = 0.01  # A reader that takes nothing for this long gives up its turn.


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
        """Starts the heartbeat's clock; returns whether the stream must wait."""
        self.end()
        line, reads = self._account.line, self._account.reads
        if line.is_empty and not reads.wait_ns(self._now_ns()):
            return False
        self._place = line.join(self._is_first.set)
        self._due = self._loop.time() + self._heartbeat_s
        return True

    async def step(self) -> bool:
        """Waits for a while; returns whether the stream may take, after which it must call `end`. If not,
        see `take_heartbeat`."""
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
        """Gives up the turn while an event is fetched and sent, since the client may read it at any time."""
        assert self._place is not None
        self._account.line.leave(self._place)
        try:
            yield
        finally:
            self._account.line.come_back(self._place)

    def end(self) -> None:
        """Idempotent."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self._place is not None:
            self._account.line.leave(self._place)
            self._place = None


def may_pass(error: RollbookError) -> bool:
    """Whether the reader's position may be known a heartbeat later."""
    return error.retryable and not isinstance(error, NotOwner)
