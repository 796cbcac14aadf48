"""What is done at the end of a turn of the loop, when all that it asks for is known: writers hand out
what was appended in it, then each connection writes what it has gathered.

One callback for all of them: with one for each, a lone add would cost four, of its writer and three
connections, and one more round of the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable

_Step = Callable[[], None]


class TickFlush:
    def __init__(self) -> None:
        self.is_shared = False  # Several hand out in it: what the first one brings has company.
        self._loop = asyncio.get_running_loop()
        self._hand_outs = deque[_Step]()
        self._write_outs = deque[_Step]()
        self._is_due = False

    def hand_out(self, step: _Step) -> None:
        """Once, before what that brings and all else is written."""
        self._hand_outs.append(step)
        self._plan()

    def write_out(self, step: _Step) -> None:
        """Once, behind all that is handed out."""
        self._write_outs.append(step)
        self._plan()

    def _plan(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        try:
            self.is_shared = len(self._hand_outs) > 1
            self._do(self._hand_outs)
            self.is_shared = False
            self._do(self._write_outs)
        finally:  # An interrupt ends the round, and the loop may be run again behind it.
            self.is_shared = self._is_due = False
            if self._hand_outs or self._write_outs:  # Of the next turn, or not come to.
                self._plan()

    def _do(self, steps: deque[_Step]) -> None:
        """Those that are there by now."""
        for _ in range(len(steps)):
            step = steps.popleft()
            try:
                step()
            except Exception as bug:  # noqa: BLE001  # One writer's, or one connection's.
                self._loop.call_exception_handler({"message": f"{step!r} failed", "exception": bug})
