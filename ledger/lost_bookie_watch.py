"""Checks once a second whether bookies with slots in this client's open ledgers are lost
(`core/lost_bookie_rules.py`), and lets the writers replace them, at most 500 slots a second.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from rollbook.ledger.core.lost_bookie_rules import LostMembers, reason_to_leave
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.cluster.bookie_watcher import LiveBookies
from rollbook.proto.errors import BookieUnreachable
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import Clock
from rollbook.proto.tasks import stop_tasks

_LOOK_S: Final = 1.0
_STEP_S: Final = 0.1
_SLOTS_PER_STEP: Final = 50  # Each slot costs a metadata write.


class LostBookieWatch:
    def __init__(
        self,
        live: Callable[[], LiveBookies],
        writers: Callable[[], Iterable[LedgerWriter]],
        pardon: Callable[[], Awaitable[object]],
        clock: Clock,
    ) -> None:
        """`pardon` ends the quarantine of bookies that respond, so that they may take slots again."""
        self._live = live
        self._pardon = pardon
        self._writers = writers
        self._clock = clock
        self._absences = LostMembers()
        self._looked_at: LiveBookies | None = (
            None  # The registered bookies at the last check in which no slot needed a change.
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the watch. The first writer calls this. Idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        await stop_tasks(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Checks once. Returns when every affected writer has been informed."""
        live = self._live()
        if live is self._looked_at:
            return
        writers = list(self._writers())
        members = {
            bookie for writer in writers for bookie in writer.metadata.fragments[-1].ensemble
        }
        registered = {bookie for bookie in members if live.find(bookie) is not None}
        lost = self._absences.on_look(members, registered, self._clock.monotonic_ns())
        is_at_rest = len(registered) == len(members)
        moved, is_stuck = 0, False
        for writer in writers:
            gone: dict[BookieId, str] = {}
            for bookie in writer.metadata.fragments[-1].ensemble:
                reason = reason_to_leave(bookie, writer.ledger_id, live, lost)
                if reason is None:
                    continue
                is_at_rest = False
                if not writer.leave(BookieUnreachable(reason, bookie=bookie), bookie):
                    is_stuck = True
                    gone[bookie] = reason
                    continue
                moved += 1
                if moved >= _SLOTS_PER_STEP:
                    await asyncio.sleep(_STEP_S)
                    moved = 0
            writer.on_gone(gone)
        self._looked_at = live if is_at_rest else None
        if is_stuck:  # One request serves all writers; the next check uses its result.
            await self._pardon()
