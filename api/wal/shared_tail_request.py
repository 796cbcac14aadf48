"""Requests the log's present tail with one request for many readers.

A response is valid for all callers that asked before the request was sent. One request is in flight at a
time, and all later callers share the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable

from rollbook.api.client.core.retries_and_outcomes import again
from rollbook.logservice.ids import Offset
from rollbook.proto.errors import RollbookError
from rollbook.proto.tasks import stop_tasks


class SharedBarrier:
    def __init__(self, ask: Callable[[], Awaitable[Offset]]) -> None:
        self._ask = ask
        self._sent: asyncio.Task[Offset] | None = None
        # The next barrier, which has not been sent yet.
        self._next: asyncio.Task[Offset] | None = None

    async def tail(self) -> Offset:
        """Returns the log's tail from a barrier that the callers share. Cancelling a waiter does not cancel the
        barrier.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._send(self._sent))
            self._next.add_done_callback(_look_at)
        try:
            return await asyncio.shield(self._next)
        except RollbookError as error:
            raise again(error, error.outcome) from None

    async def close(self) -> None:
        await stop_tasks(self._sent, self._next)

    async def _send(self, before: "asyncio.Task[Offset] | None") -> Offset:
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        self._sent, self._next = self._next, None
        return await self._ask()


def _look_at(task: "asyncio.Task[Offset]") -> None:
    """Retrieves the task's error, so that asyncio does not log it if no caller waits for the task any more."""
    if not task.cancelled():
        task.exception()
