"""One client's stream of appends to many logs. Appends to one log are decided in the order in which they
arrive.

If this server owns the log, the owner gets an append in the loop turn in which it arrives, without a task.
An append that cannot be decided immediately, because the log must be opened first or its owner has no room,
waits in a queue. All later appends to the same log wait there, too. Each queue has one task (SV5).

    submit ──► owner.submit ────► settled ────┐
        │                                     ├──► results, as they come
        └────► bound log ──► owner_of ──► … ──┘
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from rollbook.logservice.core.record_block import check_block
from rollbook.logservice.log_ownership import LogServer
from rollbook.logservice.messages import AppendAck, AppendResult, Bind, StreamAppend
from rollbook.logservice.owner import Owner
from rollbook.logservice.stats import AppendLaps, LogStats
from rollbook.proto.errors import (
    EarlierFailed,
    InvalidRequest,
    Overloaded,
    OwnerChanging,
    RollbookError,
)
from rollbook.proto.tasks import stop_tasks

_REFS_MAX: Final = 100_000
_OVERHEAD_BYTES: Final = 500  # Counted for each append in flight, in addition to its block.
_OPEN_S: Final = 30.0  # The time limit for opening a log.


class _Pending(AppendLaps):
    """An append and its result."""

    __slots__ = ("_on_settled", "append", "bound_log", "result")

    def __init__(
        self,
        append: StreamAppend,
        bound_log: "_BoundLog",
        came_s: float,
        on_settled: "Callable[[_Pending, AppendAck | RollbookError], None]",
    ) -> None:
        super().__init__(came_s)
        self.append = append
        self.bound_log = bound_log
        self.result: AppendResult | None = None
        self._on_settled = on_settled

    def settle(self, answer: AppendAck | RollbookError) -> None:
        number = self.append.number
        if isinstance(answer, AppendAck):
            self.result = AppendResult(number, answer)
        else:
            self.bound_log.on_failed(number)
            self.result = AppendResult(number, None, answer)
        self._on_settled(self, answer)


class _BoundLog:
    """The log that a ref means, until the ref is bound again."""

    __slots__ = ("failed_number", "is_ordered", "log", "owner", "pending", "task", "uid", "waiting")

    def __init__(self, bind: Bind) -> None:
        self.log = bind.log
        self.uid = bind.uid
        self.is_ordered = bind.is_ordered
        self.owner: Owner | None = None  # The owner as last found. It may have lost the log since.
        # Appends whose results were not handed over yet, in order.
        self.pending: deque[_Pending] = deque()
        # The last part of `pending`: appends that are not decided yet.
        self.waiting: deque[_Pending] = deque()
        self.task: asyncio.Task[None] | None = None
        # The number of the first failed append. An ordered log accepts no append after it.
        self.failed_number: int | None = None

    def on_failed(self, number: int) -> None:
        if self.is_ordered and self.failed_number is None:
            self.failed_number = number


class ServerAppendStream:
    def __init__(self, server: LogServer, bytes_max: int, stats: LogStats) -> None:
        self._server = server
        self._stats = stats
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._bound_logs: dict[int, _BoundLog] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._bytes = 0  # Bytes of appends in flight, and of results that were not yet taken.
        self._results: list[AppendResult] = []
        self._freed = 0  # Bytes that are freed when the waiting results are taken.
        self._news: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._is_closed = False

    # --- Interface --------------------------------------------------------------------------

    def submit(self, binds: Sequence[Bind], appends: Sequence[StreamAppend]) -> None:
        for bind in binds:
            if bind.ref not in self._bound_logs and len(self._bound_logs) >= _REFS_MAX:
                raise InvalidRequest(f"a stream has up to {_REFS_MAX} refs")
            self._bound_logs[bind.ref] = _BoundLog(bind)
        came_s = self._loop.time()
        for append in appends:
            bound_log = self._bound_logs.get(append.ref)
            if bound_log is None:
                raise InvalidRequest(f"ref {append.ref} was never bound", ref=append.ref)
            self._bytes += len(append.block) + _OVERHEAD_BYTES
            pending = _Pending(append, bound_log, came_s, self._on_settled)
            bound_log.pending.append(pending)
            if bound_log.waiting or not self._try(pending):
                bound_log.waiting.append(pending)
                if bound_log.task is None:
                    bound_log.task = self._loop.create_task(self._work_off(bound_log))
                    self._tasks[bound_log.task] = None
                    bound_log.task.add_done_callback(self._tasks.pop)

    def tell(self, results: Sequence[AppendResult]) -> None:
        self._results += results
        self._wake()

    async def ready(self) -> None:
        while self._bytes >= self._bytes_max and not self._is_closed:
            if self._room is None:
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)

    async def results(self) -> Sequence[AppendResult]:
        while not self._results:
            self._news = self._loop.create_future()
            await self._news
        results, self._results = self._results, []
        self._bytes -= self._freed
        self._freed = 0
        if self._bytes < self._bytes_max:
            self._let_in()
        return results

    async def close(self) -> None:
        self._is_closed = True
        self._let_in()
        await stop_tasks(*self._tasks)
        self._bound_logs.clear()
        self._results.clear()

    def _let_in(self) -> None:
        if self._room is not None:
            self._room.set_result(None)
            self._room = None

    # --- Deciding ---------------------------------------------------------------------------

    def _try(self, pending: _Pending) -> bool:
        """Return whether the append was decided now: accepted or refused."""
        append, bound_log = pending.append, pending.bound_log
        if bound_log.failed_number is not None:
            pending.settle(EarlierFailed(failed_number=bound_log.failed_number))
            return True
        owner = bound_log.owner
        if owner is None or owner.failure is not None:
            owner = self._server.find(bound_log.log)
            if owner is None or (bound_log.uid and bound_log.uid != owner.uid):
                return False
            bound_log.owner = owner
        pending.began_s = self._loop.time()
        try:
            info = check_block(append.block, owner.limits)
            is_taken = owner.submit(append.block, info, append.condition, pending.settle)
        except Overloaded:
            return False
        except OwnerChanging:
            # Another server may own the log by now, so the owner is looked up again.
            bound_log.owner = None
            return False
        except RollbookError as error:
            pending.settle(error)
            return True
        if pending.result is None:  # `submit` did not settle the append immediately.
            pending.taken_s = self._loop.time()
        if not is_taken:  # Refused. The reason follows when all that it depends on is settled.
            bound_log.on_failed(append.number)
        return True

    async def _work_off(self, bound_log: _BoundLog) -> None:
        """Open the log, wait until its owner has room, and decide the waiting appends in order."""
        while bound_log.waiting:
            pending = bound_log.waiting[0]
            try:
                due = self._loop.time() + _OPEN_S
                owner = await self._server.owner_of(bound_log.log, due, uid=bound_log.uid)
                await owner.ready(len(pending.append.block))
            except RollbookError as error:
                waiting, bound_log.waiting = bound_log.waiting, deque()
                for each in waiting:
                    each.settle(error)
                break
            while bound_log.waiting and self._try(bound_log.waiting[0]):
                bound_log.waiting.popleft()
        bound_log.task = None

    # --- Results ----------------------------------------------------------------------------

    def _on_settled(self, pending: _Pending, answer: AppendAck | RollbookError) -> None:
        """Hand over results in order. A result waits for the results of earlier appends to the log."""
        size, now_s = len(pending.append.block), self._loop.time()
        self._stats.on_answered(answer, size, pending, now_s)
        waiting = pending.bound_log.pending
        while waiting and (result := waiting[0].result) is not None:
            self._results.append(result)
            self._freed += len(waiting.popleft().append.block) + _OVERHEAD_BYTES
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and self._results and not self._news.done():
            self._news.set_result(None)
