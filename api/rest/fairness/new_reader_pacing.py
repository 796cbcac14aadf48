"""Paces new readers until they have shown that they read what they are sent.

The buffers of the systems at both ends can hold much unread data. A client that reads nothing is sent that
much, as JSON, before this is noticed, and when twenty such clients arrive at once, others wait for all of it.
Therefore:

    pieces     new clients are sent one piece at a time, all of them together (`loop_yield_queue.py`)
    readers    a client that was sent more than can be buffered is no longer new: it reads, and is sent data as fast
               as it reads
    again      a follower that then reads nothing for a while counts as new again, since its buffers may have been
               emptied. A range ends instead; each request for one starts as new

The total wait is less than a turn (`reader_turns.py`): no turn is over before its first event is sent.
"""

import asyncio
from typing import Final

from rollbook.api.rest.fairness.loop_yield_queue import AdmissionQueue

ROUNDS: Final = 4  # An append takes about 16 rounds, without its waits.
_UNTAKEN_BYTES_MAX: Final = 256 * 1024  # Linux's loopback holds 200,000, with `_UNSENT_BY_SYSTEM`.
# The longest time that a new client waits in all: if the loop is slower, new clients are not the cause.
_WAITS_S_MAX: Final = 0.25


class Newcomer:
    """Paces one new client."""

    def __init__(self, line: AdmissionQueue) -> None:
        self._line = line
        self._unproven_bytes = _UNTAKEN_BYTES_MAX
        self._may_wait_s = _WAITS_S_MAX

    async def wait(self) -> None:
        """Waits until the client may be sent a piece."""
        if self._unproven_bytes <= 0 or self._may_wait_s <= 0:
            return
        now = asyncio.get_running_loop().time
        begin = now()
        await self._line.wait(self._may_wait_s)
        self._may_wait_s -= now() - begin

    def on_sent(self, size: int) -> None:
        self._unproven_bytes -= size

    def on_nothing_taken(self) -> None:
        self._unproven_bytes = _UNTAKEN_BYTES_MAX
        self._may_wait_s = _WAITS_S_MAX
