"""A queue for work that would delay everybody if many callers did it at the same time. It admits one piece of work at
a time, and lets the event loop do everything else in between.

a piece    of work is done for one caller in the queue. Then the loop runs for others: for some rounds, or for a
           moment if the rounds take longer. A burst costs the same in total, but another request that needs as many
           rounds waits for only one piece, however many callers are in the queue
at once    a caller proceeds if the queue is empty and no other caller has just left it
patience   bounds the wait of a caller that holds resources while it waits
"""

import asyncio
from typing import Final

# The longest pause between two pieces: on a busy loop, the rounds alone would last longer.
_REST_S: Final = 0.002


class AdmissionQueue:
    def __init__(self, rounds: int) -> None:
        """`rounds`: iterations of the event loop between two pieces of work."""
        self._rounds = rounds
        # Remaining rounds of the pause; 0: no pause, the next piece may start.
        self._rounds_left = 0
        self._rests_until = 0.0
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def wait(self, patience_s: float | None = None) -> None:
        """Waits until the next piece of work may start, at most `patience_s`."""
        if not self._rounds_left:
            self._rest()
            return
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting[turn] = None
        timer = None if patience_s is None else loop.call_later(patience_s, _let_go, turn)
        try:
            await turn
        finally:
            self._waiting.pop(turn, None)
            if timer is not None:
                timer.cancel()

    def _rest(self) -> None:
        loop = asyncio.get_running_loop()
        self._rounds_left = self._rounds
        self._rests_until = loop.time() + _REST_S
        loop.call_soon(self._on_round)

    def _on_round(self) -> None:
        loop = asyncio.get_running_loop()
        self._rounds_left -= 1
        if self._rounds_left and loop.time() < self._rests_until:
            loop.call_soon(self._on_round)
            return
        self._rounds_left = 0
        if (turn := next(iter(self._waiting), None)) is not None:
            del self._waiting[turn]
            _let_go(turn)
            self._rest()


def _let_go(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # A caller that was cancelled just now removes itself.
        turn.set_result(None)
