"""Counts the rounds of the event loop."""

import asyncio
import time


class Loop:
    """Counts the rounds of the running loop."""

    def __init__(self) -> None:
        self.rounds = 0
        self.work_s = 0.0  # Busy time added to each round.
        self._is_over = False
        self._go_round()

    def _go_round(self) -> None:
        self.rounds += 1
        time.sleep(self.work_s)
        if not self._is_over:
            asyncio.get_running_loop().call_soon(self._go_round)

    def end(self) -> None:
        self._is_over = True
