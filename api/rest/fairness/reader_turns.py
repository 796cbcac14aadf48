"""Bounds what all followers of a server hold in memory, however many there are: those that are behind take turns, and
unsent records are counted."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final, TypeVar

from rollbook.api.access.read_quota_throttle import MISSES_MAX, may_pass
from rollbook.logservice.ids import Offset
from rollbook.logservice.messages import CaughtUp, FellBehind, Gap, Progress, ReadStream, Records
from rollbook.logservice.position_syntax import AtOffset, Position
from rollbook.proto.errors import RollbookError

TURNS: Final = 8
_TURN_S: Final = 1.0
# Bytes of a turn. Fewer: more is spent on seeking to the reader's position.
_TURN_BYTES: Final = 2 * 1024 * 1024
_RETRY_S: Final = 1.0  # A reader that cannot be served waits this long, or until its heartbeat.

T = TypeVar("T")
Events = AsyncGenerator[Any, None]
Read = Callable[[ReadStream], Events]
Through = Callable[[Read, ReadStream], Events]
Stand = Callable[[Position], Awaitable[Progress]]


class ReaderTurns:
    """Gives turns to followers that are behind. During a turn, a follower has some runs of records in memory, which are
    sent or read ahead.

    Turns are given in order of arrival. A waiting follower has no reader, hence nothing in memory, and gets
    its position with each heartbeat (RL3). A turn begins only for a follower that waits for it; one that is being
    sent an event keeps its place in the queue. A turn ends after `_TURN_BYTES` or `_TURN_S`, or when the follower
    does not continue at once. So a follower that waits for a bookie, or for its quota, delays no other.
    """

    def __init__(self, count: int = TURNS) -> None:
        self._free = count
        self._queue: dict[_ReaderTurn, None] = {}

    async def take(
        self, watch: Callable[[Through], Events], stand: Stand, stands: Offset | None = None
    ) -> Events:
        """Yields the events of `watch`, which reads through its argument, in turns. `stand`: finds the progress at a
        position. `stands`: the position of a follower that resumes.
        """
        turn = _ReaderTurn(self)

        def through(read: Read, asked: ReadStream) -> Events:
            return _in_turns(turn, read, asked, stand, stands)

        try:
            async with aclosing(watch(through)) as events:
                async for event in events:
                    yield event
                    turn.on_sent(_size_of(event))
                    del event  # The event would be kept in memory until the next turn.
        finally:
            turn.give_up()

    def try_take(self, turn: "_ReaderTurn") -> bool:
        if not self._free:
            return False
        self._free -= 1
        self.leave(turn)
        return True

    def enter(self, turn: "_ReaderTurn") -> None:
        self._queue[turn] = None  # A turn that is queued keeps its place.
        self._hand_out()

    def leave(self, turn: "_ReaderTurn") -> None:
        self._queue.pop(turn, None)

    def release(self) -> None:
        self._free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free:
            turn = next((each for each in self._queue if each.is_waiting), None)
            if turn is None:
                return
            self._free -= 1
            self.leave(turn)
            turn.begin()


async def _in_turns(
    turn: "_ReaderTurn", read: Read, asked: ReadStream, stand: Stand, stands: Offset | None
) -> Events:
    """Yields events in turns. A follower that has caught up needs no turn: its next records are not in
    memory yet. Once the follower has a position, a failed open is retried; it fails if the position could not be
    found out for `MISSES_MAX` heartbeats in a row.
    """
    heartbeat_s, misses = asked.heartbeat_ms / 1000, 0
    is_behind = True
    events: Events | None = None
    try:
        while True:
            if is_behind and not turn.try_continue():
                if events is not None:
                    await events.aclose()
                    events = None
                async with aclosing(_wait(turn, asked, stand, stands)) as wait:
                    async for progress in wait:
                        stands = progress.position
                        yield progress
            is_opening = events is None
            if events is None:  # Continue at the position, wherever the tail is by now.
                events = read(asked if stands is None else asked.resumed_at(stands))
            try:
                event = await anext(events, None)
            except RollbookError as error:
                if not is_opening or stands is None or not may_pass(error):
                    raise
                if misses == MISSES_MAX:
                    raise
                events, is_behind = None, True
                turn.end()
                await asyncio.sleep(min(heartbeat_s, _RETRY_S))
                event = await _known(stand, stands)
                misses = misses + 1 if event is None else 0
            else:
                if event is None:
                    return
            if isinstance(event, CaughtUp | FellBehind):
                is_behind = isinstance(event, FellBehind)
            stands = _behind(event, stands)
            if event is not None:
                yield event
            del event
    finally:
        if events is not None:
            await events.aclose()


async def _wait(
    turn: "_ReaderTurn", asked: ReadStream, stand: Stand, stands: Offset | None
) -> Events:
    """Yields the follower's position at each heartbeat until its turn begins."""
    now, heartbeat_s, misses = asyncio.get_running_loop().time, asked.heartbeat_ms / 1000, 0
    while not await turn.wait_until(now() + heartbeat_s):
        if stands is None:
            progress = await turn.race(stand(asked.start))
        elif misses == MISSES_MAX:
            progress = await turn.race(stand(AtOffset(stands)))
        else:  # The tail may still be unknown; a later heartbeat tries again.
            progress = await turn.race(_known(stand, stands))
        if progress is None:
            misses += 1
            continue
        stands, misses = progress.position, 0
        yield progress


async def _known(stand: Stand, stands: Offset) -> Progress | None:
    """The follower's progress; None: it is not known now."""
    try:
        return await stand(AtOffset(stands))
    except RollbookError as error:
        if not may_pass(error):
            raise
        return None


def _behind(event: Any, stands: Offset | None) -> Offset | None:
    match event:
        case Records(next_offset=place) | Gap(end=place) | Progress(position=place):
            return place
        case CaughtUp(tail):
            return tail
    return stands


def _size_of(event: Any) -> int:
    return sum(map(len, event.blocks)) if isinstance(event, Records) else 0


class _ReaderTurn:
    """The turn of one follower, which begins and ends repeatedly."""

    def __init__(self, turns: ReaderTurns) -> None:
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Timeout | None = None  # Ends the wait when the turn begins.
        self._timer: asyncio.TimerHandle | None = None  # Set while the turn lasts.
        self._ending: asyncio.Handle | None = None
        self._room = 0  # Bytes that may still be sent in the turn.

    @property
    def is_waiting(self) -> bool:
        return self._waiting is not None

    def try_continue(self) -> bool:
        """Continues the turn, or begins it if no other follower waits for one; returns whether
        it is on."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self._timer is None and self._turns.try_take(self):
            self.begin()
        return self._timer is not None

    async def wait_until(self, due: float) -> bool:
        """Waits for the turn; returns whether it has begun. If not, or if the wait is cancelled, the place in the
        queue is kept.
        """
        if self._timer is None:
            await self.race(asyncio.sleep(max(due - self._loop.time(), 0)))
        return self._timer is not None

    async def race(self, doing: Awaitable[T]) -> T | None:
        """The result of `doing`; None: it was abandoned because the turn began."""
        try:
            async with asyncio.timeout(None) as self._waiting:
                self._turns.enter(self)
                found = await doing
        except TimeoutError:
            if self._waiting is None or not self._waiting.expired():
                raise
            return None
        finally:
            self._waiting = None
        return found if self._timer is None else None

    def begin(self) -> None:
        assert self._timer is None, "one at a time"
        self._timer = self._loop.call_later(_TURN_S, self.end)
        self._room = _TURN_BYTES
        if self._waiting is not None:
            self._waiting.reschedule(self._loop.time())

    def on_sent(self, size: int) -> None:
        """Ends the turn, unless the follower continues at once."""
        self._room -= size
        if self._room <= 0:
            self.end()
        elif self._timer is not None:
            self._ending = self._loop.call_soon(self.end)

    def end(self) -> None:
        """Idempotent."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._turns.release()

    def give_up(self) -> None:
        """Gives up the turn or the place in the queue, without an await that could be cancelled."""
        self._turns.leave(self)
        self.end()


class UnsentRecords:
    """Counts the bytes of the unsent rests of large records."""

    def __init__(self) -> None:
        self.bytes = 0

    @contextmanager
    def hold(self, size: int) -> Iterator["UnsentRecords"]:
        self.bytes += size
        try:
            yield self
        finally:
            self.bytes -= size
