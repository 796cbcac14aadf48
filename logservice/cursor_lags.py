"""How far cursors are behind, for whoever watches over readers: of the logs that are owned here, and of those that
nobody owns and this server looks after. So each log's are told by one server, and go on being told when it is idle.

Where cursors are is in the metadata store, a read for each, so whoever asks for the lags gets what is
known by then, and `look` has it found out in the background: at most twice a minute, as many logs as
that has time for, beginning with those that were not looked at for longest. Logs that nobody owns are passed by
the sweep (`retention.py`), which has read their lists; of one whose owner died the tail is where its last closed
segment ends, and the lag so much at least.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.stats import largest
from rollbook.logservice.words import Cursor
from rollbook.proto.errors import Missing, RollbookError

_INTERVAL_S: Final = 30.0
_WATCHED_S: Final = (
    600.0  # Whoever has not looked for so long looks no more, and idle logs are not read for him.
)
_IDLE_MAX: Final = 10_000  # Logs that nobody owns with a cursor that lags: so many are known.

_Cursors = Sequence[tuple[str, Offset]]


class HasTail(Protocol):
    @property
    def tail(self) -> Offset: ...


class Owners(Protocol):
    """A log server, as far as this concerns it."""

    @property
    def owned_logs(self) -> Sequence[LogName]: ...

    def find(self, name: LogName) -> HasTail | None: ...


class Nodes(Protocol):
    async def cursors(self, log: LogName) -> Sequence[Cursor]: ...


class CursorLags:
    """`close` it at the end."""

    def __init__(self, nodes: Nodes, owners: Owners) -> None:
        self._nodes, self._owners = nodes, owners
        self._loop = asyncio.get_running_loop()
        self._cursors: dict[LogName, _Cursors] = {}  # Those looked at longest ago first.
        # Of logs that nobody owns, those with cursors that lag: as they were when the sweep passed.
        self._idle: dict[LogName, tuple[Offset, _Cursors]] = {}
        self._passed: dict[LogName, tuple[Offset, _Cursors]] = {}  # By this sweep.
        self._looking: asyncio.Task[None] | None = None
        self._look_again_s = 0.0
        self._watched_until_s = 0.0

    def look(self) -> None:
        """Begins to, if it is time."""
        self._watched_until_s = self._loop.time() + _WATCHED_S
        is_looking = self._looking is not None and not self._looking.done()
        if self._loop.time() >= self._look_again_s and not is_looking:
            self._look_again_s = self._loop.time() + _INTERVAL_S
            self._looking = self._loop.create_task(self._look())

    async def on_idle(self, log: LogName, listed: LedgerList) -> None:
        """Nobody owns it. What fails leaves what was known."""
        if self._loop.time() >= self._watched_until_s:
            return
        tail = _tail_at_least(listed)
        with suppress(RollbookError):
            lagging = [each for each in await self._cursors_of(log) if each[1] < tail]
            self._idle.pop(log, None)
            if lagging and len(self._passed) < _IDLE_MAX:
                self._idle[log] = self._passed[log] = tail, lagging

    def on_swept(self) -> None:
        """What was not passed is owned by somebody, gone, or looked after elsewhere."""
        self._idle, self._passed = self._passed, {}

    async def close(self) -> None:
        """Idempotent."""
        self._look_again_s = math.inf
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def lags(self) -> Mapping[str, float]:
        """In records, by log:cursor, of those that lag most."""
        owned = {log: owner.tail for log in self._cursors if (owner := self._owners.find(log))}
        ends = [(log, tail, self._cursors[log]) for log, tail in owned.items()]
        ends += [(log, *each) for log, each in self._idle.items() if self._owners.find(log) is None]
        return largest(
            (f"{log}:{name}", max(tail - offset, 0))
            for log, tail, cursors in ends
            for name, offset in cursors
        )

    async def _look(self) -> None:
        """What fails leaves what was known."""
        with suppress(RollbookError, TimeoutError):
            async with asyncio.timeout_at(self._look_again_s):
                for log in self._in_turn():
                    # First, so that one that cannot be read holds nobody up the next time.
                    self._cursors[log] = self._cursors.pop(log, ())
                    self._cursors[log] = await self._cursors_of(log)

    def _in_turn(self) -> list[LogName]:
        owned = dict.fromkeys(self._owners.owned_logs)
        self._cursors = {log: each for log, each in self._cursors.items() if log in owned}
        return [*(log for log in owned if log not in self._cursors), *self._cursors]

    async def _cursors_of(self, log: LogName) -> _Cursors:
        try:
            return [(each.name, each.offset) for each in await self._nodes.cursors(log)]
        except Missing:
            return ()


def _tail_at_least(listed: LedgerList) -> Offset:
    ends = (each.next_offset for each in reversed(listed.segments))
    return next((end for end in ends if end is not None), listed.head)
