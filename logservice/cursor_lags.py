"""Computes how far cursors are behind the tails of their logs. A server does this for the logs that it owns,
and for ownerless logs that it looks after. So the cursors of each log are reported by one server, even if the
log is idle.

Cursors are in the metadata store, and reading a cursor takes one request. A request for the lags therefore
gets the known values, and background tasks update them. They read the first `_READ_MAX` cursors of each log, by
name, and count the others:

owned     `look` starts an update, at most twice a minute. It begins with the logs that were read longest ago, and
          stops after half a minute
idle      the sweep (`log_sweeper.py`) puts ownerless logs into a queue, and does not wait. A task reads their cursors
          in the order of the queue. If the owner of a log died, the log's tail is taken to be the end of its last
          closed segment, and the real lag may be larger
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
# The cursors of idle logs are not read if the lags were not requested for this long.
_WATCHED_S: Final = 600.0
# The most cursors that are read for each log, so that one log does not displace the others.
_READ_MAX: Final = 1000
_PASSED_MAX: Final = 10_000  # The most idle logs in the queue. Further logs keep their last lags.
# The most idle logs with lags that are kept. If there are more, only the `LAGS_MAX` logs with the largest
# lags are kept, so this search is rare.
_IDLE_MAX: Final = 2 * LAGS_MAX

_Cursors = Sequence[tuple[str, Offset]]  # Cursors with their offsets, the largest lags first.
_TailAndCursors = tuple[LogName, Offset, _Cursors]  # A log, its tail, and its cursors.


class HasTail(Protocol):
    @property
    def tail(self) -> Offset: ...


class OwnedLogs(Protocol):
    """The parts of a log server that this file uses."""

    @property
    def owned_logs(self) -> Sequence[LogName]: ...

    def find(self, name: LogName) -> HasTail | None: ...


class Nodes(Protocol):
    async def first_cursors(self, log: LogName, at_most: int) -> tuple[Sequence[Cursor], int]: ...


class CursorLags:
    """The lags of cursors. Call `close` at the end."""

    def __init__(self, nodes: Nodes, owners: OwnedLogs) -> None:
        self._nodes, self._owners = nodes, owners
        self._loop = asyncio.get_running_loop()
        # The cursors of owned logs. The log that was read longest ago is first.
        self._cursors: dict[LogName, _Cursors] = {}
        # For each ownerless log, the cursors that had a lag at the last read.
        self._idle: dict[LogName, _TailAndCursors] = {}
        # The number of cursors that are not read, for each owned log and for each idle log.
        self._beyond: dict[LogName, int] = {}
        self._beyond_idle: dict[LogName, int] = {}
        # Known idle logs that this sweep has not reached.
        self._not_passed: dict[LogName, None] = {}
        self._passed: dict[LogName, Offset] = {}  # Idle logs with their tails, to be read.
        self._looking: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._look_again_s = 0.0
        self._watched_until_s = 0.0
        self._is_closed = False

    def look(self) -> None:
        """Begin an update of the owned logs' lags, if it is due."""
        self._watched_until_s = self._loop.time() + _WATCHED_S
        if self._loop.time() >= self._look_again_s and self._may_begin(self._looking):
            self._look_again_s = self._loop.time() + _INTERVAL_S
            self._looking = self._loop.create_task(self._look())

    def on_sweep(self) -> None:
        """Take note that a sweep begins, whether or not the previous one ended."""
        self._not_passed = dict.fromkeys((*self._idle, *self._beyond_idle))

    def on_idle(self, log: LogName, listed: LedgerList) -> None:
        """Queue an ownerless log. If the read of its cursors fails, the log keeps its last lags."""
        if self._loop.time() >= self._watched_until_s:
            return
        self._not_passed.pop(log, None)
        if len(self._passed) < _PASSED_MAX:
            self._passed[log] = _tail_at_least(listed)
        if self._may_begin(self._reading):
            self._reading = self._loop.create_task(self._read_passed())

    def on_unknown(self, log: LogName) -> None:
        """Keep the lags of a log that may or may not be idle."""
        self._not_passed.pop(log, None)

    def on_swept(self) -> None:
        """Forget idle logs that the complete sweep did not reach: they were deleted, or another server owns
        them or looks after them.
        """
        for log in self._not_passed:
            self._idle.pop(log, None)
            self._beyond_idle.pop(log, None)

    async def close(self) -> None:
        """Stop the background tasks. Idempotent."""
        self._is_closed = True
        await stop_tasks(self._looking, self._reading)

    def lags(self) -> Mapping[str, float]:
        """The largest lags in records, by `log:cursor`."""
        ends = [
            (log, owner.tail, cursors)
            for log, cursors in self._cursors.items()
            if cursors and (owner := self._owners.find(log))
        ]
        ends += [end for log, end in self._idle.items() if self._owners.find(log) is None]
        # Only the logs with the largest lags can be reported, so the merge has few inputs.
        lags = heapq.merge(*map(_lags_of, _furthest(ends)), key=itemgetter(0), reverse=True)
        return dict(sorted((f"{log}:{name}", lag) for lag, log, name in islice(lags, LAGS_MAX)))

    def without_lag(self) -> int:
        """The number of cursors whose lags are not known, because their logs have too many cursors."""
        find = self._owners.find
        owned = sum(more for log, more in self._beyond.items() if find(log) is not None)
        idle = sum(more for log, more in self._beyond_idle.items() if find(log) is None)
        return owned + idle

    def _may_begin(self, task: asyncio.Task[None] | None) -> bool:
        return not self._is_closed and (task is None or task.done())

    async def _look(self) -> None:
        """Read the cursors of owned logs. After a failure, the last known lags are kept."""
        with suppress(RollbookError, TimeoutError):
            async with asyncio.timeout_at(self._look_again_s):
                for log in self._in_turn():
                    # Move the log to the end, so that a failing log does not delay others next time.
                    self._cursors[log] = self._cursors.pop(log, ())
                    self._cursors[log] = await self._cursors_of(log, self._beyond)

    async def _read_passed(self) -> None:
        """Read the cursors of queued idle logs. After a failure, the last known lags are kept."""
        while self._passed:
            log = next(iter(self._passed))
            tail = self._passed.pop(log)
            if self._owners.find(log) is not None:
                continue  # This server owns the log by now, and `_look` reads it.
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
        """Read the log's first cursors, and return those with the largest lags. `beyond` gets the number of
        cursors that are not read.
        """
        try:
            found, more = await self._nodes.first_cursors(log, _READ_MAX)
        except Missing:
            found, more = (), 0
        beyond.pop(log, None)
        if more:
            beyond[log] = more
        return heapq.nsmallest(LAGS_MAX, ((c.name, c.offset) for c in found), key=itemgetter(1))


def _furthest(ends: Iterable[_TailAndCursors]) -> list[_TailAndCursors]:
    """The logs with the largest lags."""
    return heapq.nlargest(LAGS_MAX, ends, key=lambda end: end[1] - end[2][0][1])


def _lags_of(end: _TailAndCursors) -> Iterator[tuple[int, LogName, str]]:
    log, tail, cursors = end
    return ((max(tail - offset, 0), log, name) for name, offset in cursors)


def _tail_at_least(listed: LedgerList) -> Offset:
    ends = (each.next_offset for each in reversed(listed.segments))
    return next((end for end in ends if end is not None), listed.head)
