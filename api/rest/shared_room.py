"""What all followers of a server share, so that they are bounded together, however many they are."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext
from typing import Any, Final

from rollbook.logservice.words import CaughtUp, FellBehind

TURNS: Final = 8
_TURN_S: Final = 1.0


class Turns:
    """Who is behind reads in turns: each is a run of records in memory, with what is read ahead of it.

    First come, first served. A turn ends when what was read is told, or when it has taken long: whoever waits
    for a bookie holds nothing, and nobody up.
    """

    def __init__(self, count: int = TURNS) -> None:
        self._free = asyncio.Semaphore(count)

    async def take(self, events: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        """A reader's. Whoever has caught up needs no turn: what he waits for is in nobody's memory yet."""
        is_behind = True
        async with aclosing(events):
            while True:
                async with self._turn() if is_behind else nullcontext():
                    event = await anext(events, None)
                    if event is None:
                        return
                    if isinstance(event, CaughtUp | FellBehind):
                        is_behind = isinstance(event, FellBehind)
                    yield event
                    del event  # It may be some time until it has the next turn.

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        await self._free.acquire()
        has_ended = False

        def end() -> None:
            nonlocal has_ended
            if not has_ended:
                has_ended = True
                self._free.release()

        timer = asyncio.get_running_loop().call_later(_TURN_S, end)
        try:
            yield
        finally:
            timer.cancel()
            end()


class Rests:
    """Of large records that were told in part."""

    def __init__(self) -> None:
        self.bytes = 0

    @contextmanager
    def hold(self, size: int) -> Iterator["Rests"]:
        self.bytes += size
        try:
            yield self
        finally:
            self.bytes -= size
