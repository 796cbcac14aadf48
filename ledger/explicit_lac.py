"""Reports the explicit LAC, so that readers learn that the last entry is confirmed although none
follows it (WR7).

An entry carries the LAC that its writer knew when it sent the entry, so bookies always lag by one
confirmation. Once a writer has confirmed nothing for a moment, and no entry in flight carries the
newest LAC, it reports the LAC to the whole ensemble. If fewer than an ack quorum of bookies accept
the report, readers may not find the LAC. Then the report is repeated, at a slower pace.

A log server has thousands of writers that append now and then, and are idle in between. One ticker
serves all of them; writers of the same share of a tick report together. A report needs no timer of
its own, and a task only if it has to wait for a connection.
"""

import asyncio
from collections.abc import Callable, Sequence

from rollbook.ledger.bookie_pool import Bookies
from rollbook.ledger.core.add_pipeline import AddPipeline
from rollbook.ledger.core.ensemble_change import OpenEnsemble
from rollbook.proto.errors import RollbookError
from rollbook.proto.ids import EntryId
from rollbook.proto.wire.messages import Reply, WriteLac, WriteLacReply

_SLOWER_TICKS = 10


class ExplicitLac:
    def __init__(
        self,
        pipeline: AddPipeline,
        open_ensemble: OpenEnsemble,
        bookies: Bookies,
        make_request: Callable[[EntryId], WriteLac],
        may_send: Callable[[], bool],
        *,
        ack_quorum: int,
        is_wanted: bool,
        deadline_s: float,
    ) -> None:
        self._pipeline, self._open_ensemble, self._bookies = pipeline, open_ensemble, bookies
        self._make_request, self._may_send = make_request, may_send
        self._ack_quorum = ack_quorum
        self._is_wanted = is_wanted
        self._deadline_s = deadline_s
        self._loop = asyncio.get_running_loop()
        # Ticks until the next check of whether the writer is idle; 0 if no check is planned.
        self._ticks_left = 0
        self._seen = self._reported = pipeline.acks.last_add_confirmed
        # The LAC that is being reported, and the number of replies so far.
        self._reporting, self._heard = self._reported, 0
        self._replies: dict[asyncio.Future[Reply], None] = {}

    @property
    def tasks(self) -> Sequence["asyncio.Task[Reply]"]:
        return [each for each in self._replies if isinstance(each, asyncio.Task)]

    def on_confirmed(self) -> None:
        if not self._ticks_left and self._is_wanted:
            self._plan(1)

    def stop(self) -> None:
        """Cancels reports in progress; the caller awaits their tasks."""
        self._is_wanted = False
        for reply in self._replies:
            reply.cancel()

    def _plan(self, ticks: int) -> None:
        self._seen = self._pipeline.acks.last_add_confirmed
        self._ticks_left = ticks
        self._bookies.rests.call_next(self._on_tick)

    def _on_tick(self) -> None:
        if not self._is_wanted:
            return
        self._ticks_left -= 1
        lac = self._pipeline.acks.last_add_confirmed
        if self._ticks_left:
            self._bookies.rests.call_next(self._on_tick)
        elif lac > self._seen or self._replies:
            self._plan(1)
        elif lac > max(self._pipeline.sent_lac, self._reported) and self._may_send():
            self._tell(lac)

    def _tell(self, lac: EntryId) -> None:
        request, deadline_s = self._make_request(lac), self._deadline_s
        self._reporting, self._heard = lac, 0
        for bookie in self._open_ensemble.ensemble:
            reply = self._bookies.start(
                bookie, request, deadline_s=deadline_s, is_high_priority=False
            )
            if reply is None:
                call = self._bookies.call(bookie, request, deadline_s=deadline_s)
                reply = self._loop.create_task(call)
            self._replies[reply] = None
            reply.add_done_callback(self._on_reply)

    def _on_reply(self, reply: "asyncio.Future[Reply]") -> None:
        del self._replies[reply]
        if reply.cancelled():
            return
        error = reply.exception()
        if error is None:
            answer = reply.result()
            self._heard += isinstance(answer, WriteLacReply) and answer.error is None
        if not self._replies:
            if self._heard >= self._ack_quorum:
                self._reported = self._reporting
            elif not self._ticks_left and self._is_wanted:
                self._plan(_SLOWER_TICKS)
        if error is not None and not isinstance(error, RollbookError):
            raise error
