"""Whoever is told much, and of whom nobody knows yet whether he takes it.

Much can lie about untaken: what the systems at both ends have room for. Who takes nothing is told so
much before it shows, as JSON, and when twenty of his kind come at once others wait for all of it. So

    a piece    at a time is what newcomers are told of much, all of them together (`admission_queue.py`)
    no more    is a newcomer whoever was told more than can lie about: he takes it, as fast as he likes
    again      is a follower one who then takes nothing for a while: room was made for as much. A range ends;
               of that a newcomer is whoever asks for one

What one waits in all is less than a turn (`reader_turns.py`): nobody's turn is over while he has yet to be told.
"""

import asyncio
from typing import Final

from rollbook.api.rest.admission_queue import Line

ROUNDS: Final = 4  # An append is served in about 16, but for its waits.
_UNTAKEN_BYTES_MAX: Final = 256 * 1024  # 200,000 over Linux's loopback, with `_UNSENT_BY_SYSTEM`.
_WAITS_S_MAX: Final = 0.25  # Of one newcomer: what holds up a loop that is so slow is not he.


class Newcomer:
    """As long as he is one, and whenever he is one again."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._unproven_bytes = _UNTAKEN_BYTES_MAX
        self._may_wait_s = _WAITS_S_MAX

    async def wait(self) -> None:
        """Until he may be told a piece."""
        if self._unproven_bytes <= 0 or self._may_wait_s <= 0:
            return
        now = asyncio.get_running_loop().time
        begin = now()
        await self._line.wait(self._may_wait_s)
        self._may_wait_s -= now() - begin

    def on_told(self, size: int) -> None:
        self._unproven_bytes -= size

    def on_nothing_taken(self) -> None:
        self._unproven_bytes = _UNTAKEN_BYTES_MAX
        self._may_wait_s = _WAITS_S_MAX
