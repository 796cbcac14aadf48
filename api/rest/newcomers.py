"""Followers of whom nobody knows yet whether they take what they are told.

Much can lie about untaken: what the systems at both ends have room for. Who takes nothing is told so
much before it shows, as JSON, and when twenty of his kind come at once others wait for all of it. So

    a line     newcomers of a server are told one piece at a time, in the order of their coming, and before
               each of them the loop goes round for everybody else. On an idle loop that is no time. Where
               several wait, a moment passes: others need the processor, too, and not the loop alone
    no more    is a newcomer whoever was told more than can lie about: he takes it, as fast as he likes
    again      is one who then takes nothing for a while: room was made for as much
"""

import asyncio
from typing import Final

_UNTAKEN_BYTES_MAX: Final = 256 * 1024  # 200,000 over Linux's loopback, with `_UNSENT_BY_SYSTEM`.
_ROUNDS: Final = 16  # In about as many an append is served, but for its waits.
_MOMENT_S: Final = 0.001  # What the system's poll can tell from nothing.


class Line:
    """Of one server."""

    def __init__(self) -> None:
        self._first = asyncio.Lock()  # First come, first served.
        self._waiting = 0

    async def pass_through(self) -> None:
        self._waiting += 1
        try:
            async with self._first:
                if self._waiting > 1:
                    await asyncio.sleep(_MOMENT_S)
                for _ in range(_ROUNDS):
                    await asyncio.sleep(0)
        finally:
            self._waiting -= 1


class Newcomer:
    """A follower, as long as he is one and whenever he is one again."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._unproven_bytes = _UNTAKEN_BYTES_MAX

    async def wait(self) -> None:
        """Until he may be told a piece."""
        if self._unproven_bytes > 0:
            await self._line.pass_through()

    def on_told(self, size: int) -> None:
        self._unproven_bytes -= size

    def on_nothing_taken(self) -> None:
        self._unproven_bytes = _UNTAKEN_BYTES_MAX
