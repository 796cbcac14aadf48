"""How far the cursors of the logs that are owned here are behind, for whoever watches over their readers.

Where cursors are is in the metadata store, a read for each, so whoever asks for the lags gets what is
known by then, and `look` has it found out in the background: at most twice a minute, as many logs as
that has time for, beginning with those that were not looked at for longest.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.stats import largest
from rollbook.logservice.words import Cursor
from rollbook.proto.errors import Missing, RollbookError

_INTERVAL_S: Final = 30.0

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
        self._looking: asyncio.Task[None] | None = None
        self._look_again_s = 0.0

    def look(self) -> None:
        """Begins to, if it is time."""
        is_looking = self._looking is not None and not self._looking.done()
        if self._loop.time() >= self._look_again_s and not is_looking:
            self._look_again_s = self._loop.time() + _INTERVAL_S
            self._looking = self._loop.create_task(self._look())

    async def close(self) -> None:
        """Idempotent."""
        self._look_again_s = math.inf
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def lags(self) -> Mapping[str, float]:
        """In records, by log:cursor, of those that lag most."""
        tails = [(log, self._owners.find(log), each) for log, each in self._cursors.items()]
        return largest(
            (f"{log}:{name}", max(owner.tail - offset, 0))
            for log, owner, cursors in tails
            if owner is not None
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
