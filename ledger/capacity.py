"""Room for calls that wait for answers: a number of calls and of bytes. A call without room waits its turn,
until its deadline (CN3).
"""

import asyncio

from rollbook.proto.errors import RollbookError


class Capacity:
    """A piece larger than all the room gets in when it is alone."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._queue: dict[asyncio.Future[None], int] = {}  # In order of coming.

    @property
    def is_empty(self) -> bool:
        return not self._count

    def take(self, size: int) -> bool:
        """Whether there was room, and no earlier caller is waiting for it."""
        if self._queue or not self._has_room(size):
            return False
        self._count += 1
        self._bytes += size
        return True

    async def wait(self, size: int, due: float) -> None:
        """Waits for the room that `take` did not give; it is taken when this returns.

        Raises `TimeoutError` at the loop's time `due`, or the error passed to `fail`. If it is
        cancelled, or after an error, nothing is taken.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue[turn] = size
        try:
            async with asyncio.timeout_at(due):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give(size)  # It came at the last moment.
            else:
                self._queue.pop(turn, None)
            raise

    def give(self, size: int) -> None:
        self._count -= 1
        self._bytes -= size
        while self._queue:
            turn, wanted = next(iter(self._queue.items()))
            if not turn.done() and not self._has_room(wanted):
                break
            del self._queue[turn]
            if not turn.done():  # Otherwise it was cancelled and will not come.
                self._count += 1
                self._bytes += wanted
                turn.set_result(None)

    def fail(self, error: RollbookError) -> None:
        """There will be no room any more."""
        for turn in self._queue:
            if not turn.done():
                turn.set_exception(error)
        self._queue.clear()

    def _has_room(self, size: int) -> bool:
        if not self._count:
            return True
        return self._count < self._count_max and self._bytes + size <= self._bytes_max
