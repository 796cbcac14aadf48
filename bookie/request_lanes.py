"""Runs calls that have to wait for the disk, a limited number at a time; connections take turns.

Neither connections nor calls have tasks: a lane starts tasks while there is work, up to its bound.
Urgent calls have a lane of their own, so that a recovery does not wait for other reads.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from rollbook.bookie.loop_budget import LoopBudget
from rollbook.proto.tasks import stop_tasks
from rollbook.proto.wire.messages import ReceivedRequest


class QueuedRequest(NamedTuple):
    call: ReceivedRequest
    heard_ns: int
    news_ms: int | None = None  # The wall time at which a long poll got its news.


class Queue:
    """The calls of one connection that no lane has begun."""

    __slots__ = ("_at_once_max", "_may_begin", "asked", "on_change", "running", "serve")

    def __init__(
        self,
        serve: Callable[[QueuedRequest], Awaitable[None]],
        on_change: Callable[[], None],  # May offer the queue to its lane again.
        # Returns whether one more call may begin; the argument says that no other call is running.
        may_begin: Callable[[bool], bool],
        at_once_max: int,
    ) -> None:
        self.serve = serve
        self.on_change = on_change
        self.asked: deque[QueuedRequest] = deque()
        self.running = 0
        self._may_begin = may_begin
        self._at_once_max = at_once_max

    @property
    def is_ready(self) -> bool:
        return (
            bool(self.asked)
            and self.running < self._at_once_max
            and self._may_begin(not self.running)
        )

    @property
    def is_idle(self) -> bool:
        return not self.asked and not self.running


class Lane:
    def __init__(
        self, tasks_max: int, loop_budget: LoopBudget, on_crash: Callable[[BaseException], None]
    ) -> None:
        self._tasks_max = tasks_max
        self._loop_budget = loop_budget
        self._on_crash = on_crash
        self._ready: dict[Queue, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        # Whether a task was started that has not checked the queues yet.
        self._has_newcomer = False
        # Whether a task waits for the next turn; a second one would be no quicker.
        self._has_waiter = False
        self._has_begun = False  # Whether this lane has begun a call since another lane could.
        self._is_closed = False

    def offer(self, queue: Queue) -> None:
        """Called when the queue may have become ready."""
        if queue.is_ready:
            self._ready[queue] = None
            self._start()

    def _start(self) -> None:
        if self._has_newcomer or self._has_waiter:
            return  # That task will see all ready queues, and start more tasks.
        if self._ready and len(self._tasks) < self._tasks_max and not self._is_closed:
            self._has_newcomer = True
            task = asyncio.get_running_loop().create_task(self._work())
            self._tasks[task] = None
            task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._start()  # A call may have arrived after the task's last check.
        if not task.cancelled() and (error := task.exception()):
            self._on_crash(error)

    async def close(self) -> None:
        self._is_closed = True
        self._ready.clear()
        for task in list(self._tasks):
            await stop_tasks(task)

    async def _work(self) -> None:
        self._has_newcomer = False
        while self._ready:
            has_time = self._loop_budget.check_time()
            if not has_time or (self._has_begun and self._loop_budget.lanes_waiting):
                if self._has_waiter:
                    return
                # The lane that ended a turn would also run first in the next turn, which is for
                # others.
                self._has_begun &= not has_time
                await self._wait()
                continue
            self._has_begun = True
            queue = next(iter(self._ready))
            del self._ready[queue]
            if not queue.is_ready:  # The queue was ready only when it was offered.
                queue.on_change()
                continue
            asked = queue.asked.popleft()
            queue.running += 1
            if queue.is_ready:
                self._ready[queue] = None  # The queue goes to the end.
            self._start()  # Another task serves ready work while this one waits for the disk.
            try:
                await queue.serve(asked)
            finally:
                queue.running -= 1
            queue.on_change()

    async def _wait(self) -> None:
        self._has_waiter = True
        self._loop_budget.lanes_waiting += 1
        try:
            await asyncio.sleep(0)
        finally:
            self._has_waiter = False
            self._loop_budget.lanes_waiting -= 1
