"""What all followers of a server share, so that they are bounded together, however many they are."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final

from rollbook.logservice.ids import AtOffset, Offset, Position
from rollbook.logservice.words import CaughtUp, FellBehind, Gap, Progress, ReadStream, Records
from rollbook.proto.errors import RollbookError

TURNS: Final = 8
_TURN_S: Final = 1.0
_TURN_BYTES: Final = 2 * 1024 * 1024  # Fewer: more is spent on going to where he stands.

Events = AsyncGenerator[Any, None]
Read = Callable[[ReadStream], Events]
Through = Callable[[Read, ReadStream], Events]
Stand = Callable[[Position], Awaitable[Progress]]


class Turns:
    """Who is behind reads in turns: each is some runs of records in memory, told and read ahead.

    First come, first served; whoever has to wait has no reader, hence nothing in memory, and is told with
    each heartbeat where he stands (RL3). A turn begins when something is to be read. It ends when so much
    is told, when it has taken long, or when nothing is asked for at once: whoever waits for a bookie, or
    for his quota, holds nobody up.
    """

    def __init__(self, count: int = TURNS) -> None:
        self._free = asyncio.Semaphore(count)

    async def take(self, watch: Callable[[Through], Events], stand: Stand) -> Events:
        """The events of a `watch` that reads through what it is given. `stand`: where a position is."""
        turn = _Turn(self._free)

        def through(read: Read, asked: ReadStream) -> Events:
            return _in_turns(turn, read, asked, stand)

        try:
            async with aclosing(watch(through)) as events:
                async for event in events:
                    yield event
                    turn.on_told(_size_of(event))
                    del event  # It may be some time until it has the next turn.
        finally:
            await turn.give_up()


async def _in_turns(turn: "_Turn", read: Read, asked: ReadStream, stand: Stand) -> Events:
    """Whoever has caught up needs no turn: what he waits for is in nobody's memory yet."""
    now, heartbeat_s = asyncio.get_running_loop().time, asked.heartbeat_ms / 1000
    is_behind = True
    stands: Offset | None = None  # As he was told.
    events: Events | None = None
    try:
        while True:
            if is_behind and not await turn.goes_on():
                if events is not None:
                    await events.aclose()
                    events = None
                while not await turn.begins_by(now() + heartbeat_s):
                    try:
                        progress = await stand(asked.start if stands is None else AtOffset(stands))
                    except RollbookError:
                        if stands is None:
                            raise
                        continue  # The next heartbeat may know.
                    stands = progress.position
                    yield progress
            if events is None:  # From there, wherever the log has come to meanwhile.
                events = read(asked if stands is None else asked.resumed_at(stands))
            event = await anext(events, None)
            if event is None:
                return
            if isinstance(event, CaughtUp | FellBehind):
                is_behind = isinstance(event, FellBehind)
            stands = _behind(event, stands)
            yield event
            del event
    finally:
        if events is not None:
            await events.aclose()


def _behind(event: Any, stands: Offset | None) -> Offset | None:
    match event:
        case Records(next_offset=place) | Gap(end=place) | Progress(position=place):
            return place
        case CaughtUp(tail):
            return tail
    return stands


def _size_of(event: Any) -> int:
    return sum(map(len, event.blocks)) if isinstance(event, Records) else 0


class _Turn:
    """Of one follower; he has it for a while, time and again."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._loop = asyncio.get_running_loop()
        self._place: asyncio.Task[Any] | None = None  # In the queue.
        self._timer: asyncio.TimerHandle | None = None  # While he has it.
        self._ending: asyncio.Handle | None = None
        self._room = 0  # Bytes that may yet be told in it.

    async def goes_on(self) -> bool:
        """Whether it does, or begins since nobody else waits for one."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self._timer is None and not self._free.locked():
            await self._free.acquire()  # Without waiting.
            self._begin()
        return self._timer is not None

    async def begins_by(self, due: float) -> bool:
        """Whether it has begun. If not, or if this is cancelled, the place in the queue is kept."""
        if self._place is None:
            self._place = asyncio.ensure_future(self._free.acquire())
        await asyncio.wait((self._place,), timeout=max(due - self._loop.time(), 0))
        if not self._place.done():
            return False
        self._place = None
        self._begin()
        return True

    def _begin(self) -> None:
        assert self._timer is None, "one at a time"
        self._timer = self._loop.call_later(_TURN_S, self._end)
        self._room = _TURN_BYTES

    def on_told(self, size: int) -> None:
        """It ends, unless it goes on at once."""
        self._room -= size
        if self._room <= 0:
            self._end()
        elif self._timer is not None:
            self._ending = self._loop.call_soon(self._end)

    def _end(self) -> None:
        """Idempotent."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._free.release()

    async def give_up(self) -> None:
        """It, or the place in the queue."""
        self._end()
        place, self._place = self._place, None
        if place is not None:
            place.cancel()
            await asyncio.gather(place, return_exceptions=True)
            if not place.cancelled():
                self._free.release()


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
