"""Asks a client's servers which parts of the cluster are unavailable while the client waits for
them.

When a call has waited for a second, the servers are asked, and again every two seconds. An error at
the end of the wait contains their answers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rollbook.logservice.messages import Outage
from rollbook.proto.errors import (
    ConnectionLost,
    OwnerChanging,
    QuorumTimeout,
    ReaderStalled,
    RollbookError,
)
from rollbook.proto.tasks import stop_tasks

_PATIENCE_S: Final = 1.0
_AGAIN_S: Final = 2.0
_FRESH_S: Final = 10.0
_EXPLAINED: Final = (QuorumTimeout, OwnerChanging, ReaderStalled, ConnectionLost)

Ask = Callable[[], Awaitable[Outage | None]]


class Outages:
    def __init__(self) -> None:
        self.ask: Ask | None = None  # None while there is no server to ask.
        # It is called with None if no server reports an outage.
        self.on_look: Callable[[Outage | None], None] = _nobody
        self._known = Outage()
        self._known_s = -_FRESH_S
        self._late = 0  # The number of calls that have waited for longer than `_PATIENCE_S`.
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wraps the wait for a response that should arrive at once."""
        if self.ask is None:
            yield
            return
        is_late = False

        def on_late() -> None:
            nonlocal is_late
            is_late = True
            self._late += 1
            self.look()

        timer = asyncio.get_running_loop().call_later(_PATIENCE_S, on_late)
        try:
            yield
        finally:
            timer.cancel()
            self._late -= is_late

    def look(self) -> None:
        """Checks for outages in the background."""
        if self.ask is not None and self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look(self.ask))
            self._looking.add_done_callback(self._on_looked)

    def explained(self, error: RollbookError) -> RollbookError:
        """Adds the cause of the wait to an error that does not name it."""
        is_fresh = asyncio.get_running_loop().time() < self._known_s + _FRESH_S
        is_vague = isinstance(error, _EXPLAINED) and not _says_why(error)
        if is_fresh and is_vague and self._known.obstacles:
            error.message = f"{error.message or error}: {self._known.cause}"
            error.args = (error.message,)
            error.ids["waits_for"] = tuple(each.name for each in self._known.obstacles)
            error.next_step = error.next_step or self._known.next_step
        return error

    async def close(self) -> None:
        self.ask = None
        await stop_tasks(self._looking)

    async def _look(self, ask: Ask) -> None:
        while True:
            found = await ask()
            self._known, self._known_s = found or Outage(), asyncio.get_running_loop().time()
            self.on_look(found)
            if not self._late:
                return
            await asyncio.sleep(_AGAIN_S)
            if not self._late:
                return

    def _on_looked(self, looking: "asyncio.Task[None]") -> None:
        self._looking = None
        if not looking.cancelled():
            looking.exception()


def _says_why(error: RollbookError) -> bool:
    """Returns whether a server has explained the error, or one of its attempts."""
    cause = error.__cause__
    explained = [error, cause] if isinstance(cause, RollbookError) else [error]
    return any("waits_for" in each.ids and each.ids["waits_for"] for each in explained)


def _nobody(_: Outage | None) -> None:
    pass
