"""Remembers outages of bookies and of the metadata store (SV8): those that the server notices in its normal
work, and those that a check finds while a request waits.
"""

import asyncio
from datetime import UTC, datetime
from typing import Final

from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.core.dependency_outages import KnownOutages, advice_on, cause_in_words
from rollbook.logservice.log_metadata import LogMetadataStore
from rollbook.logservice.messages import ObstacleKind, Outage
from rollbook.proto.errors import OwnerChanging, QuorumTimeout, RollbookError
from rollbook.proto.ports import Clock
from rollbook.proto.tasks import stop_tasks

_LOOK_S: Final = 0.5  # The time limit for a response of a bookie or the metadata store.
_FRESH_S: Final = 1.0  # The age up to which the results of a check serve further requests.
_BOOKIES_MAX: Final = 64  # The most bookies that one check asks.


class OutageWatch:
    def __init__(self, ledgers: Ledgers, nodes: LogMetadataStore, clock: Clock) -> None:
        self._ledgers, self._nodes, self._clock = ledgers, nodes, clock
        self._outages = KnownOutages()
        self._looking: asyncio.Task[None] | None = None
        self._looked_s = -_FRESH_S
        self._hearing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._hearing = asyncio.get_running_loop().create_task(self._hear())

    async def close(self) -> None:
        await stop_tasks(self._hearing, self._looking)

    @property
    def known(self) -> Outage:
        found = self._outages.found
        return Outage(found, cause_in_words(found, _time_of), advice_on(found))

    @property
    def store_is_away(self) -> bool:
        return any(each.kind is ObstacleKind.METADATA for each in self._outages.found)

    def on_store(self, *, answers: bool) -> None:
        self._outages.on_store(self._clock.wall_us(), answers=answers)

    def begin_look(self) -> None:
        """For a request that waits too long, begin a check in the background, unless there is a fresh result."""
        now_s = asyncio.get_running_loop().time()
        if self._looking is None and now_s >= self._looked_s + _FRESH_S:
            self._looking = asyncio.get_running_loop().create_task(self._look())
            self._looking.add_done_callback(self._on_looked)

    async def look(self) -> Outage:
        """Return what is unavailable, after a check unless there is a fresh result. Takes half a second at most."""
        self.begin_look()
        if self._looking is not None:
            await asyncio.gather(asyncio.shield(self._looking), return_exceptions=True)
        return self.known

    def explained(self, error: RollbookError) -> RollbookError:
        """Add the known outages to a `QuorumTimeout` or `OwnerChanging`, which does not say by itself what
        the request waited for. Return other errors unchanged.
        """
        outage = self.known
        if not isinstance(error, QuorumTimeout | OwnerChanging) or not outage.obstacles:
            return error
        if "waits_for" not in error.ids:
            error.message = (
                f"{error.message or 'the request was not completed in time'}: {outage.cause}"
            )
            error.args = (error.message,)
            error.ids["waits_for"] = tuple(each.name for each in outage.obstacles)
            error.next_step = error.next_step or outage.next_step
        return error

    # ------------------------------------------------------------------------------------------

    async def _hear(self) -> None:
        """Take note of changes of the registered bookies as soon as the metadata store reports them."""
        live = self._ledgers.live()
        while True:
            before = {*live.writable, *live.read_only}
            live = await self._ledgers.changed(live)
            now = {*live.writable, *live.read_only}
            now_us = self._clock.wall_us()
            self._outages.on_left(now_us, sorted(before - now))
            self._outages.on_bookies(
                now_us, writable=tuple(live.writable), read_only=tuple(live.read_only)
            )

    async def _look(self) -> None:
        silent, away, answers = await asyncio.gather(
            self._ledgers.find_silent(_LOOK_S, _BOOKIES_MAX), self._find_away(), self._asks_store()
        )
        live, now_us = self._ledgers.live(), self._clock.wall_us()
        self._outages.on_store(now_us, answers=answers)
        self._outages.on_bookies(
            now_us,
            writable=tuple(live.writable),
            read_only=tuple(live.read_only),
            silent=silent,
            away=away,
        )

    async def _asks_store(self) -> bool:
        try:
            async with asyncio.timeout(_LOOK_S):
                await self._nodes.namespaces()
        except (RollbookError, TimeoutError):
            return False
        return True

    async def _find_away(self) -> list[str]:
        """The bookies of the cluster that are not registered."""
        try:
            async with asyncio.timeout(_LOOK_S):
                known = await self._ledgers.known_bookies()
        except (RollbookError, TimeoutError):
            return []
        live = self._ledgers.live()
        return [name for name in known if live.find(name) is None]

    def _on_looked(self, looking: "asyncio.Task[None]") -> None:
        self._looking = None
        self._looked_s = looking.get_loop().time()
        if not looking.cancelled():
            looking.exception()


def _time_of(time_us: int) -> str:
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%H:%M:%S UTC")
