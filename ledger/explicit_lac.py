"""The explicit LAC: readers learn that the last entry is confirmed though none follows it (WR7).

An entry carries the LAC that its writer knew when it sent it, so bookies are always one confirmation
behind. Once a writer has confirmed nothing for a moment, and no entry is on its way that would carry
the news, it tells the whole ensemble. If fewer than an ack quorum take it, readers that ask around may
not hear of it, and it is told again, at a slower pace.
"""

import asyncio
from collections.abc import Callable

from rollbook.ledger.bookies import Bookies
from rollbook.ledger.core.append import Pipeline
from rollbook.ledger.core.ensemble_change import Seating
from rollbook.proto.ids import EntryId
from rollbook.proto.wire.messages import WriteLac, WriteLacReply


class ExplicitLac:
    def __init__(
        self,
        pipeline: Pipeline,
        seating: Seating,
        bookies: Bookies,
        make_request: Callable[[EntryId], WriteLac],
        may_send: Callable[[], bool],
        *,
        ack_quorum: int,
        idle_s: float,
        deadline_s: float,
    ) -> None:
        """`idle_s` 0: never."""
        self.task: asyncio.Task[None] | None = None
        self._pipeline, self._seating, self._bookies = pipeline, seating, bookies
        self._make_request, self._may_send = make_request, may_send
        self._ack_quorum = ack_quorum
        self._idle_s, self._deadline_s = idle_s, deadline_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._seen = self._told = pipeline.acks.last_add_confirmed

    def on_confirmed(self) -> None:
        if self._timer is None and self._idle_s:
            self._plan(self._idle_s)

    def stop(self) -> None:
        """The task is cancelled; the caller awaits it."""
        self._idle_s = 0.0
        if self._timer is not None:
            self._timer.cancel()
        if self.task is not None:
            self.task.cancel()

    def _plan(self, after_s: float) -> None:
        self._seen = self._pipeline.acks.last_add_confirmed
        self._timer = self._loop.call_later(after_s, self._on_idle)

    def _on_idle(self) -> None:
        self._timer = None
        lac = self._pipeline.acks.last_add_confirmed
        if lac > self._seen or self.task is not None:
            self._plan(self._idle_s)
        elif lac > max(self._pipeline.told_lac, self._told) and self._may_send():
            self.task = self._loop.create_task(self._tell(lac))

    async def _tell(self, lac: EntryId) -> None:
        request = self._make_request(lac)
        calls = [
            self._bookies.call(bookie, request, deadline_s=self._deadline_s)
            for bookie in self._seating.ensemble
        ]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        self.task = None
        heard = sum(isinstance(each, WriteLacReply) and each.error is None for each in replies)
        if heard >= self._ack_quorum:
            self._told = lac
        elif self._timer is None and self._idle_s:
            self._plan(10 * self._idle_s)
