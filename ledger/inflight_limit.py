"""Limits the calls that wait for answers, by their number and their bytes. A call that finds no
room waits in a queue, until its deadline at most (CN3).
"""

import asyncio

from rollbook.proto.errors import RollbookError


class Capacity:
    """A limit on the number and the bytes of outstanding calls. A call that exceeds the whole limit
    is admitted when no other call is outstanding."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        # Waiting callers and their sizes, in order of arrival.
        self._queue: dict[asyncio.Future[None], int] = {}

    @property
    def is_empty(self) -> bool:
        return not self._count

    def take(self, size: int) -> bool:
        """Takes room if there is enough and no earlier caller waits. Returns whether it did."""
        if self._queue or not self._has_room(size):
            return False
        self._count += 1
        self._bytes += size
        return True

    async def wait(self, size: int, due: float) -> None:
        """Waits for the room that `take` did not give; when this returns, the room is taken.

        Raises `TimeoutError` at the loop's time `due`, or the error passed to `fail`. After a
        cancellation or an error, no room is taken.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue[waiter] = size
        try:
            async with asyncio.timeout_at(due):
                await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give(size)  # The room was given just before the cancellation.
            else:
                self._queue.pop(waiter, None)
            raise

    def give(self, size: int) -> None:
        self._count -= 1
        self._bytes -= size
        while self._queue:
            waiter, wanted = next(iter(self._queue.items()))
            if not waiter.done() and not self._has_room(wanted):
                break
            del self._queue[waiter]
            if not waiter.done():  # A waiter that was cancelled gets no room.
                self._count += 1
                self._bytes += wanted
                waiter.set_result(None)

    def fail(self, error: RollbookError) -> None:
        """Ends all waits with this error, because there will be no more room."""
        for waiter in self._queue:
            if not waiter.done():
                waiter.set_exception(error)
        self._queue.clear()

    def _has_room(self, size: int) -> bool:
        if not self._count:
            return True
        return self._count < self._count_max and self._bytes + size <= self._bytes_max
