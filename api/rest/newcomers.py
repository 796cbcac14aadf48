"""Followers of whom nobody knows yet whether they take what they are told.

Much can lie about untaken: what the systems at both ends have room for. Who takes nothing is told so
much before it shows, as JSON, and when twenty of his kind come at once others wait for all of it. So

    a piece    at a time is what a newcomer is told of much, and before each the loop goes round for everybody
               else: some times, or for a little while, or once if that takes longer
    no more    is a newcomer whoever was told more than can lie about: he takes it, as fast as he likes
    again      is one who then takes nothing for a while: room was made for as much

No newcomer waits for another one: those who are behind read in turns, so many at a time (`shared_room.py`),
and what all of them wait is less than a turn. Hence nobody's turn is over while he has yet to be told.
"""

import asyncio
from typing import Final

_UNTAKEN_BYTES_MAX: Final = 256 * 1024  # 200,000 over Linux's loopback, with `_UNSENT_BY_SYSTEM`.
_ROUNDS: Final = 16  # In about as many an append is served, but for its waits.
_WAIT_S: Final = 0.002  # Before a piece: a loop with work takes long for as many rounds.
_WAITS_S_MAX: Final = 0.25  # Of one newcomer: what holds up a loop that is so slow is not he.


class Newcomer:
    """A follower, as long as he is one and whenever he is one again."""

    def __init__(self) -> None:
        self._unproven_bytes = _UNTAKEN_BYTES_MAX
        self._waited_s = 0.0

    async def wait(self) -> None:
        """Until he may be told a piece."""
        if self._unproven_bytes <= 0 or self._waited_s >= _WAITS_S_MAX:
            return
        now = asyncio.get_running_loop().time
        begin = now()
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
            if now() - begin >= _WAIT_S:
                break
        self._waited_s += now() - begin

    def on_told(self, size: int) -> None:
        self._unproven_bytes -= size

    def on_nothing_taken(self) -> None:
        self._unproven_bytes = _UNTAKEN_BYTES_MAX
        self._waited_s = 0.0
