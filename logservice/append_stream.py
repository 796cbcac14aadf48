"""One client's stream of appends to many logs: decided in the order in which they come, log by log.

An append for a log that is owned here is handed to its owner in the turn in which it comes, without a
task. What cannot be decided at once (the log has to be opened first, or its owner has no room) waits
in line, and so does whatever comes after it for the same log: one task for each line.

    submit ──► owner.append ──► future ──┐
        │                                ├──► results, as they come
        └────► line ──► owner_of ──► … ──┘
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from rollbook.logservice.core.block import Limits, check_block
from rollbook.logservice.ids import LogName
from rollbook.logservice.owner import Owner
from rollbook.logservice.server import LogServer
from rollbook.logservice.words import AppendAck, AppendResult, Bind, StreamAppend
from rollbook.proto.errors import (
    AppendUnsettled,
    EarlierFailed,
    InvalidRequest,
    Overloaded,
    OwnerChanging,
    RollbookError,
)

_REFS_MAX: Final = 100_000
_OVERHEAD_BYTES: Final = 500  # Of an append in flight, over its block.
_OPEN_S: Final = 30.0  # For a log to be opened.
_REFUSED: Final = EarlierFailed()


class _Line:
    """A log under one ref."""

    __slots__ = (
        "generation",
        "is_ordered",
        "limits",
        "log",
        "owner",
        "task",
        "waiting",
        "why_refused",
    )

    def __init__(self, log: LogName, is_ordered: bool, generation: int) -> None:
        self.log = log
        self.is_ordered = is_ordered
        self.generation = generation  # Counts how often it was bound.
        self.owner: Owner | None = None  # Whose limits these are.
        self.limits: Limits | None = None
        self.waiting: deque[StreamAppend] = deque()
        self.task: asyncio.Task[None] | None = None
        self.why_refused: RollbookError | None = None


class AppendStream:
    def __init__(self, server: LogServer, bytes_max: int) -> None:
        self._server = server
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._lines: dict[int, _Line] = {}
        self._bytes = 0  # In flight, or answered and not taken.
        self._results: list[AppendResult] = []
        self._freed = 0  # By the results that lie there.
        self._news: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._is_closed = False

    # --- For the door -----------------------------------------------------------------------

    def submit(self, binds: Sequence[Bind], appends: Sequence[StreamAppend]) -> None:
        for bind in binds:
            self._bind(bind)
        for append in appends:
            line = self._lines.get(append.ref)
            if line is None:
                raise InvalidRequest(f"ref {append.ref} was never bound", ref=append.ref)
            self._bytes += len(append.block) + _OVERHEAD_BYTES
            if line.why_refused is not None:
                self._refuse(append, EarlierFailed(next_step="bind the ref anew"))
            elif line.waiting or not self._try_append(line, append):
                line.waiting.append(append)
                if line.task is None:
                    line.task = self._loop.create_task(self._work_off(line))

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
        if self._room is not None and self._bytes < self._bytes_max:
            self._room.set_result(None)
            self._room = None
        return results

    async def close(self) -> None:
        self._is_closed = True
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lines.clear()
        self._results.clear()

    # ----------------------------------------------------------------------------------------

    def _bind(self, bind: Bind) -> None:
        line = self._lines.get(bind.ref)
        if line is None:
            if len(self._lines) >= _REFS_MAX:
                raise InvalidRequest(f"a stream has up to {_REFS_MAX} refs")
            self._lines[bind.ref] = _Line(bind.log, bind.is_ordered, 0)
        elif line.waiting and line.why_refused is None:
            raise InvalidRequest(f"ref {bind.ref} is bound anew while appends wait", ref=bind.ref)
        else:
            self._lines[bind.ref] = _Line(bind.log, bind.is_ordered, line.generation + 1)

    def _try_append(self, line: _Line, append: StreamAppend) -> bool:
        """Whether it was decided, or refused for good."""
        owner = self._server.find(line.log)
        if owner is None:
            return False
        if owner is not line.owner or line.limits is None:
            line.owner, line.limits = owner, Limits.of(owner.config)
        try:
            info = check_block(append.block, line.limits)
            answer, is_refused = owner.append(append.block, info, append.condition)
        except (Overloaded, OwnerChanging):
            return False
        except RollbookError as error:
            self._fail(line, append, error)
            return True
        if is_refused and line.is_ordered:  # Why is told when all that it rests on is settled.
            line.why_refused = _REFUSED
        answer.add_done_callback(partial(self._on_answered, line, append))
        return True

    def _on_answered(
        self, line: _Line, append: StreamAppend, future: "asyncio.Future[AppendAck]"
    ) -> None:
        error = _error_of(future)
        if error is not None:
            self._fail(line, append, error)
        else:
            self._tell(append, AppendResult(append.number, ack=future.result()))

    async def _work_off(self, line: _Line) -> None:
        """Whatever waits, in its order; for as long as it takes to open the log, and to find room."""
        while line.waiting:
            append = line.waiting[0]
            try:
                owner = await self._server.owner_of(line.log, self._loop.time() + _OPEN_S)
                await owner.ready(len(append.block))
            except RollbookError as error:
                waiting, line.waiting = line.waiting, deque()
                for each in waiting:
                    self._fail(line, each, error)
                break
            if line.why_refused is not None:
                line.waiting.popleft()
                self._refuse(append, EarlierFailed(next_step="bind the ref anew"))
            elif self._try_append(line, append):
                line.waiting.popleft()
        line.task = None

    def _fail(self, line: _Line, append: StreamAppend, error: RollbookError) -> None:
        if line.is_ordered and line.why_refused is None:
            line.why_refused = error
        self._refuse(append, error)

    def _refuse(self, append: StreamAppend, error: RollbookError) -> None:
        self._tell(append, AppendResult(append.number, error=error))

    def _tell(self, append: StreamAppend, result: AppendResult) -> None:
        if self._is_closed:
            return
        self._results.append(result)
        self._freed += len(append.block) + _OVERHEAD_BYTES
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


def _error_of(future: "asyncio.Future[AppendAck]") -> RollbookError | None:
    if future.cancelled():
        return AppendUnsettled("the server is being stopped")
    error = future.exception()
    if error is None:
        return None
    if isinstance(error, RollbookError):
        return error
    raise error
