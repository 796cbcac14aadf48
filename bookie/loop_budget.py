"""Limits the bytes that are made for readers in one turn of the event loop, so that adds and other work run in between.

Long answers, and connections with much to write, take turns.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from rollbook.proto.ports import Clock

# Bytes that are made for readers in one turn of the loop, possibly all in one step: they take about
# half a millisecond, and hold one stretch of a sequential reader and a part of the next. The second
# limit holds while adds arrive.
_TURN_BYTES: Final = 544 * 1024
_BYTES_BESIDE_ADDS: Final = 64 * 1024
_BESIDE_NS: Final = 100_000_000  # The time after an add in which more adds are expected.
_TURNS_GIVEN_MAX: Final = 16
_ANSWER_BYTES: Final = 768  # The size that a small answer counts as, because it takes time, too.


class LoopBudget:
    """The bytes that were made for readers since the loop last checked its sockets.

    Answers from memory never yield to the loop by themselves. When the bytes of a turn
    are used up, further answers wait for the next turn, so that other work runs in between. The
    steps of long answers wait in the same way, and the long answers take turns.

    Adds go first, since each add takes several turns. While adds arrive, steps are small, and each
    step is followed by a turn without a step, in which new requests are read; their adds are
    written before the next step. Therefore an add is delayed by only one step, and not by a step in
    each of its turns.
    """

    def __init__(self, clock: Clock, adds_wait: Callable[[], bool]) -> None:
        """`adds_wait` says whether adds will be written in the next turn."""
        self._clock = clock
        self._adds_wait = adds_wait
        self._heard_adds_ns = clock.monotonic_ns() - _BESIDE_NS
        self._spent = 0
        self._bytes_max = _TURN_BYTES
        # The number of turns that were left to adds since the last step for readers.
        self._turns_given = 0
        self._is_giving = False
        self._lock = asyncio.Lock()  # A fair lock: first come, first served.
        self.lanes_waiting = 0

    def on_adds(self, now_ns: int) -> None:
        self._heard_adds_ns = now_ns

    @property
    def is_over(self) -> bool:
        return self._spent >= self._bytes_max

    def check_time(self) -> bool:
        """Returns whether the turn has time for work that can wait. If adds are waiting, it leaves
        the turn to them."""
        return not self.is_over and not self._try_give_way()

    async def come(self) -> int:
        """Waits until there is time for a step. Returns how many bytes the step may take."""
        async with self._lock:
            while not self.check_time():  # noqa: ASYNC110  An event would be noticed a turn later.
                await asyncio.sleep(0)
        return self.step_bytes

    @property
    def step_bytes(self) -> int:
        """The number of bytes that a step may take if it begins now."""
        return _BYTES_BESIDE_ADDS if self._is_beside_adds else _TURN_BYTES

    def spend(self, size: int) -> None:
        if not self._spent:
            is_beside_adds = self._is_beside_adds
            self._bytes_max = _BYTES_BESIDE_ADDS if is_beside_adds else _TURN_BYTES
            asyncio.get_running_loop().call_soon(self._rest if is_beside_adds else self._begin)
        self._spent += _ANSWER_BYTES + size
        self._turns_given = 0

    @property
    def _is_beside_adds(self) -> bool:
        return self._clock.monotonic_ns() - self._heard_adds_ns < _BESIDE_NS

    def _rest(self) -> None:
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._spent = 0

    def _try_give_way(self) -> bool:
        """Leaves the turn to waiting adds, unless it has left too many turns in a row; returns
        whether it does."""
        if self._turns_given >= _TURNS_GIVEN_MAX or not self._adds_wait():
            return False
        if not self._is_giving:
            self._is_giving = True
            asyncio.get_running_loop().call_soon(self._on_given)
        return True

    def _on_given(self) -> None:
        self._is_giving = False
        self._turns_given += 1


class StepQueue:
    """Connections with more to write than one turn allows, in the order in which they joined.

    Together they count as one waiter for a turn.
    """

    def __init__(self, loop_budget: LoopBudget) -> None:
        self._loop_budget = loop_budget
        self._waiting: dict[Callable[[], None], None] = {}
        self._is_looking = False  # A callback waits for a turn that has time.

    def join(self, go_on: Callable[[], None]) -> None:
        """Calls `go_on` once, when there is time for a step; after that, the connection may join
        again."""
        self._waiting[go_on] = None
        if not self._is_looking:
            self._look_soon()

    def leave(self, go_on: Callable[[], None]) -> None:
        self._waiting.pop(go_on, None)

    def _look_soon(self) -> None:
        self._is_looking = True
        asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_looking = False
        if not self._waiting:
            return
        # The next check is scheduled before the writes below use up this turn's budget. It then
        # runs before the budget is reset, so the next turn is left to other work, if there is any.
        self._look_soon()
        while self._waiting and self._loop_budget.check_time():
            go_on = next(iter(self._waiting))
            del self._waiting[go_on]
            go_on()
