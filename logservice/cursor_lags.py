"""How far cursors are behind, for operators of readers: for the logs that are owned here, and for
ownerless ones that this server looks after. So one server reports those of each log, also when the log
is idle.

Cursors are in the metadata store, one read for each. So a request for the lags gets what is known, and a
background task updates it, of each log the first `_READ_MAX` cursors by name (the others are counted):

owned     by `look`: at most twice a minute, as many logs as that has time for, beginning with those that were
          not looked at for longest
idle      the sweep (`retention.py`) passes logs that nobody owns, and waits for nothing: it has read their lists,
          their cursors are read in that order. Of one whose owner died the tail is where its last closed
          segment ends, and the lag is at least that
"""

import asyncio
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import Final, Protocol

from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.messages import Cursor
from rollbook.logservice.stats import LAGS_MAX
from rollbook.proto.errors import Missing, RollbookError
from rollbook.proto.tasks import stop_tasks

_INTERVAL_S: Final = 30.0
# After this long without a request, idle logs are not read any more.
_WATCHED_S: Final = 600.0
# Per log: its readers may make any number of cursors, and those of other logs are reported, too.
_READ_MAX: Final = 1000
_PASSED_MAX: Final = 10_000  # Idle logs to be read; the ones beyond keep what was known.
# Idle logs whose cursors lag, those that lag most. More than are reported, so that finding them is seldom needed.
_IDLE_MAX: Final = 2 * LAGS_MAX

_Cursors = Sequence[tuple[str, Offset]]  # Those furthest behind first.
_End = tuple[LogName, Offset, _Cursors]  # The tail of a log.


class HasTail(Protocol):
    @property
    def tail(self) -> Offset: ...


class OwnedLogs(Protocol):
    """The parts of a log server that are used here."""

    @property
    def owned_logs(self) -> Sequence[LogName]: ...

    def find(self, name: LogName) -> HasTail | None: ...


class Nodes(Protocol):
    async def first_cursors(self, log: LogName, at_most: int) -> tuple[Sequence[Cursor], int]: ...


class CursorLags:
    """`close` it at the end."""

    def __init__(self, nodes: Nodes, owners: OwnedLogs) -> None:
        self._nodes, self._owners = nodes, owners
        self._loop = asyncio.get_running_loop()
        self._cursors: dict[LogName, _Cursors] = {}  # Those looked at longest ago first.
        # For ownerless logs, the cursors that lag, as they were when they were read.
        self._idle: dict[LogName, _End] = {}
        # Of logs that have more cursors than are read, how many more: while they are owned here, and idle ones.
        self._beyond: dict[LogName, int] = {}
        self._beyond_idle: dict[LogName, int] = {}
        self._not_passed: dict[LogName, None] = {}  # Of those that are known, by this sweep.
        self._passed: dict[LogName, Offset] = {}  # Not read yet, and their tails.
        self._looking: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._look_again_s = 0.0
        self._watched_until_s = 0.0
        self._is_closed = False

    def look(self) -> None:
        """Begins if it is due."""
        self._watched_until_s = self._loop.time() + _WATCHED_S
        if self._loop.time() >= self._look_again_s and self._may_begin(self._looking):
            self._look_again_s = self._loop.time() + _INTERVAL_S
            self._looking = self._loop.create_task(self._look())

    def on_sweep(self) -> None:
        """A pass begins, whatever happened to the previous one."""
        self._not_passed = dict.fromkeys((*self._idle, *self._beyond_idle))

    def on_idle(self, log: LogName, listed: LedgerList) -> None:
        """Nobody owns it. A failure leaves what was known."""
        if self._loop.time() >= self._watched_until_s:
            return
        self._not_passed.pop(log, None)
        if len(self._passed) < _PASSED_MAX:
            self._passed[log] = _tail_at_least(listed)
        if self._may_begin(self._reading):
            self._reading = self._loop.create_task(self._read_passed())

    def on_unknown(self, log: LogName) -> None:
        """It could not be found out whether it is idle: the known lags stay."""
        self._not_passed.pop(log, None)

    def on_swept(self) -> None:
        """To the end. Logs that the pass did not reach are owned elsewhere, gone, or looked
        after elsewhere."""
        for log in self._not_passed:
            self._idle.pop(log, None)
            self._beyond_idle.pop(log, None)

    async def close(self) -> None:
        """Idempotent."""
        self._is_closed = True
        await stop_tasks(self._looking, self._reading)

    def lags(self) -> Mapping[str, float]:
        """In records, by log:cursor, for those that lag most."""
        ends = [
            (log, owner.tail, cursors)
            for log, cursors in self._cursors.items()
            if cursors and (owner := self._owners.find(log))
        ]
        ends += [end for log, end in self._idle.items() if self._owners.find(log) is None]
        # Of each log in turn, up to a number of logs: each one's lag is larger than those of the
        # rest.
        lags = heapq.merge(*map(_lags_of, _furthest(ends)), key=itemgetter(0), reverse=True)
        return dict(sorted((f"{log}:{name}", lag) for lag, log, name in islice(lags, LAGS_MAX)))

    def untold(self) -> int:
        """Cursors of which no lag is known, because their logs have too many."""
        find = self._owners.find
        owned = sum(more for log, more in self._beyond.items() if find(log) is not None)
        idle = sum(more for log, more in self._beyond_idle.items() if find(log) is None)
        return owned + idle

    def _may_begin(self, task: asyncio.Task[None] | None) -> bool:
        return not self._is_closed and (task is None or task.done())

    async def _look(self) -> None:
        """A failure leaves what was known."""
        with suppress(RollbookError, TimeoutError):
            async with asyncio.timeout_at(self._look_again_s):
                for log in self._in_turn():
                    # First, so that one that cannot be read does not delay the others next time.
                    self._cursors[log] = self._cursors.pop(log, ())
                    self._cursors[log] = await self._cursors_of(log, self._beyond)

    async def _read_passed(self) -> None:
        """A failure leaves what was known."""
        while self._passed:
            log = next(iter(self._passed))
            tail = self._passed.pop(log)
            if self._owners.find(log) is not None:
                continue  # Since then, by this server, and its owner knows better.
            with suppress(RollbookError, TimeoutError):
                async with asyncio.timeout(_INTERVAL_S):
                    cursors = await self._cursors_of(log, self._beyond_idle)
                self._idle.pop(log, None)
                if lagging := [each for each in cursors if each[1] < tail]:
                    self._idle[log] = log, tail, lagging
            if len(self._idle) > _IDLE_MAX:
                self._idle = {end[0]: end for end in _furthest(self._idle.values())}

    def _in_turn(self) -> list[LogName]:
        owned = dict.fromkeys(self._owners.owned_logs)
        self._cursors = {log: each for log, each in self._cursors.items() if log in owned}
        self._beyond = {log: each for log, each in self._beyond.items() if log in owned}
        return [*(log for log in owned if log not in self._cursors), *self._cursors]

    async def _cursors_of(self, log: LogName, beyond: dict[LogName, int]) -> _Cursors:
        """`beyond` gets the number of further cursors."""
        try:
            found, more = await self._nodes.first_cursors(log, _READ_MAX)
        except Missing:
            found, more = (), 0
        beyond.pop(log, None)
        if more:
            beyond[log] = more
        return heapq.nsmallest(LAGS_MAX, ((c.name, c.offset) for c in found), key=itemgetter(1))


def _furthest(ends: Iterable[_End]) -> list[_End]:
    """The logs with the largest lags."""
    return heapq.nlargest(LAGS_MAX, ends, key=lambda end: end[1] - end[2][0][1])


def _lags_of(end: _End) -> Iterator[tuple[int, LogName, str]]:
    log, tail, cursors = end
    return ((max(tail - offset, 0), log, name) for name, offset in cursors)


def _tail_at_least(listed: LedgerList) -> Offset:
    ends = (each.next_offset for each in reversed(listed.segments))
    return next((end for end in ends if end is not None), listed.head)
