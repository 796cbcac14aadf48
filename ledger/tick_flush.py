"""Runs steps at the end of a turn of the loop, when all requests of the turn are known: first the
writers hand out the entries of the turn, then each connection writes the bytes that it has
gathered.

One callback serves all writers and connections. With a callback for each, a single add would need
four (for its writer and three connections) and one more turn of the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable

_Step = Callable[[], None]


class TickFlush:
    def __init__(self) -> None:
        # Whether several writers hand out entries in this turn: then the entries of the first one
        # share a write with others.
        self.is_shared = False
        self._loop = asyncio.get_running_loop()
        self._hand_outs = deque[_Step]()
        self._write_outs = deque[_Step]()
        self._is_due = False

    def hand_out(self, step: _Step) -> None:
        """Calls `step` once in this turn, before its results and everything else are written."""
        self._hand_outs.append(step)
        self._plan()

    def write_out(self, step: _Step) -> None:
        """Calls `step` once in this turn, after everything is handed out."""
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
        finally:  # After an interrupt, the loop may run again.
            self.is_shared = self._is_due = False
            # Steps that belong to the next turn, or were not reached in this one.
            if self._hand_outs or self._write_outs:
                self._plan()

    def _do(self, steps: deque[_Step]) -> None:
        """Runs the steps that exist now, but not those that these steps add."""
        for _ in range(len(steps)):
            step = steps.popleft()
            try:
                step()
            except Exception as bug:  # noqa: BLE001  # One writer's, or one connection's.
                self._loop.call_exception_handler({"message": f"{step!r} failed", "exception": bug})
