"""Bounds the bytes that all relayed readers of a server hold together (RY4).

An event is held from the time when it arrives from the owner until the reader has taken it. The next event is
requested only when there is room for another event of the same size; readers wait for room in turn.
While a reader waits, others give up room that they do not use: a reservation is released if no event
arrives for a second, and a reader that does not take its event for a quarter of a second is disconnected.
A disconnected reader resumes at its position, as after any broken connection.
"""

import asyncio
from typing import Final

from rollbook.proto.errors import Overloaded

_MIB: Final = 1024 * 1024
# The most bytes that relayed readers reserve for events. If events are larger than their reservations, the readers hold
# up to half more. gRPC holds a copy of each event, which is not counted. Larger: more memory, and fewer slow readers
# are disconnected.
BYTES_MAX: Final = 4 * _MIB
# The assumed size of a reader's first event.
_EVENT_BYTES: Final = 512 * 1024
# An idle reservation is released after this long. Shorter: on a busy machine, more events arrive after
# their reservation was released.
_IDLE_S: Final = 1.0
_LOOK_S: Final = 0.05  # The next reader checks for room this often.
_TAKING_S: Final = 0.25  # A reader that takes nothing for this long may be disconnected.
_AGAIN_MS: Final = 250


class RelayedBytes:
    """The bytes that one reader holds or has reserved."""

    __slots__ = ("is_held", "last_bytes", "since", "size", "task")

    def __init__(self, task: "asyncio.Task[object]") -> None:
        self.task = task
        self.size = 0
        self.last_bytes = _EVENT_BYTES
        self.is_held = False
        self.since = 0.0


class RelayMemory:
    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes = 0
        self.hung_up_on = 0
        self._bytes_max = bytes_max
        self._relayed: dict[RelayedBytes, None] = {}  # Readers with held or reserved bytes.
        self._turn = asyncio.Lock()
        self._has_changed = asyncio.Event()

    async def reserve(self, relayed: RelayedBytes) -> None:
        """Waits until there is room for an event as large as the reader's last one, and reserves it. If the
        call is cancelled, nothing is reserved."""
        if self._turn.locked() or not self._has_room(relayed.last_bytes):
            async with self._turn:
                while not self._has_room(relayed.last_bytes):
                    self._make_room()
                    if self._has_room(relayed.last_bytes):
                        break
                    self._has_changed.clear()
                    try:
                        async with asyncio.timeout(_LOOK_S):
                            await self._has_changed.wait()
                    except TimeoutError:
                        continue
        self._put(relayed, relayed.last_bytes, is_held=False)

    def hold(self, relayed: RelayedBytes, size: int) -> None:
        """Counts an arrived event in place of its reservation.

        Raises `Overloaded` if other readers have bytes, and the sum would exceed the bound by more than half.
        """
        relayed.last_bytes = size
        if (
            self.bytes - relayed.size + size > self._bytes_max * 3 // 2
            and self.bytes > relayed.size
        ):
            self.release(relayed)
            raise Overloaded("the memory for relayed readers is used up", retry_after_ms=_AGAIN_MS)
        self._put(relayed, size, is_held=True)

    def release(self, relayed: RelayedBytes) -> None:
        """Frees the reader's bytes: the event was taken, or the reader has left. Idempotent."""
        if relayed in self._relayed:
            del self._relayed[relayed]
            self.bytes -= relayed.size
            self._has_changed.set()
        relayed.size = 0

    def _put(self, relayed: RelayedBytes, size: int, *, is_held: bool) -> None:
        self._relayed.pop(relayed, None)
        self.bytes += size - relayed.size
        relayed.size, relayed.is_held = size, is_held
        relayed.since = asyncio.get_running_loop().time()
        self._relayed[relayed] = None

    def _has_room(self, size: int) -> bool:
        return not self.bytes or self.bytes + size <= self._bytes_max

    def _make_room(self) -> None:
        now = asyncio.get_running_loop().time()
        for relayed in list(self._relayed):
            if relayed.is_held and relayed.since + _TAKING_S <= now:
                self.hung_up_on += 1
                relayed.task.cancel()
                self.release(relayed)
                return  # Disconnecting one reader makes enough room for another one.
            if not relayed.is_held and relayed.since + _IDLE_S <= now:
                self.release(relayed)
