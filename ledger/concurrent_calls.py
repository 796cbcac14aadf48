"""Concurrent calls to bookies, whose responses are handled in the order of their arrival.

calls.ask(question, bookie, request, deadline_s)     sends a call; any number of times
await calls.news(timeout_s)                          waits for a response, or until time is up
for question, answer in calls.take(): …              gets each reply, or the error that came instead

A call that can be sent at once needs no task, because a recovery of a thousand ledgers makes ten
thousand calls. A call that has to wait for a connection, for room, or for a retry has a task.
"""

import asyncio
from collections import deque
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, Self, TypeVar

from rollbook.proto.errors import (
    BookieUnreachable,
    ConnectionLost,
    Overloaded,
    RollbookError,
    Throttled,
)
from rollbook.proto.ids import BookieId
from rollbook.proto.tasks import stop_tasks
from rollbook.proto.wire.messages import AuthReply, Reply, Request

Question = TypeVar("Question")

Passing = tuple[type[RollbookError], ...]
BUSY_OR_BROKEN: Final[Passing] = (ConnectionLost, Overloaded, Throttled)
UNTIL_HEARD: Final[Passing] = (*BUSY_OR_BROKEN, BookieUnreachable)
"""Errors to retry for bookies that must be asked even while they start."""

# The pause before a bookie that was busy or hung up is asked again. It doubles each time.
_PAUSE_S: Final = 0.02
_PAUSE_S_MAX: Final = 0.5
# The shortest wait. Rounding might turn a shorter one into no wait, so that the simulated clock
# never moves.
_MOMENT_S: Final = 1e-6


class Caller(Protocol):
    """The methods of `Bookies` that are used here."""

    async def call(
        self,
        bookie: BookieId,
        request: Request,
        *,
        deadline_s: float,
        is_high_priority: bool = False,
    ) -> Reply: ...

    def start(
        self, bookie: BookieId, request: Request, *, deadline_s: float, is_high_priority: bool
    ) -> asyncio.Future[Reply] | None: ...


class _Asked(NamedTuple, Generic[Question]):
    question: Question
    bookie: BookieId
    request: Request
    due: float
    is_high_priority: bool
    passing: Passing


class ConcurrentCalls(Generic[Question]):
    """Concurrent calls. When the context ends, calls without an answer are dropped."""

    def __init__(self, bookies: Caller) -> None:
        self._bookies = bookies
        self._loop = asyncio.get_running_loop()
        self._replies: dict[asyncio.Future[Reply], None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        # The number of calls without an answer. Tasks are not counted, because they outlive their
        # answers a little.
        self._unanswered = 0
        self._answers: deque[tuple[Question, Reply | RollbookError]] = deque()
        self._has_news = False
        # The future of the task that waits for news.
        self._waiter: asyncio.Future[None] | None = None
        self._is_closed = False

    def ask(
        self,
        question: Question,
        bookie: BookieId,
        request: Request,
        deadline_s: float,
        *,
        is_high_priority: bool = False,
        passing: Passing = (),
    ) -> bool:
        """Sends a call, and retries errors in `passing` until the deadline. Returns whether the
        call was sent at once."""
        due = self._loop.time() + deadline_s
        asked = _Asked(question, bookie, request, due, is_high_priority, passing)
        self._unanswered += 1
        reply = self._bookies.start(
            bookie, request, deadline_s=deadline_s, is_high_priority=is_high_priority
        )
        if reply is None:
            self._begin(asked, after_s=0.0)
        else:
            self._replies[reply] = None
            reply.add_done_callback(partial(self._on_reply, asked))
        return reply is not None

    def _on_reply(self, asked: _Asked[Question], reply: "asyncio.Future[Reply]") -> None:
        del self._replies[reply]
        if reply.cancelled():
            return
        error = reply.exception()
        if error is not None and not isinstance(error, RollbookError):
            raise error
        if self._is_closed:
            return  # The call already has its result, which the caller has not taken yet.
        answer = reply.result() if error is None else error
        if error_of(answer) in asked.passing and self._loop.time() + _PAUSE_S < asked.due:
            self._begin(asked, after_s=_PAUSE_S)
        else:
            self._on_answer(asked, answer)

    def _begin(self, asked: _Asked[Question], after_s: float) -> None:
        task = self._loop.create_task(self._call(asked, after_s))
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    async def _call(self, asked: _Asked[Question], after_s: float) -> None:
        pause_s = after_s
        while True:
            if pause_s:
                await asyncio.sleep(pause_s)
            pause_s = min(max(2 * pause_s, _PAUSE_S), _PAUSE_S_MAX)
            answer: Reply | RollbookError
            try:
                answer = await self._bookies.call(
                    asked.bookie,
                    asked.request,
                    deadline_s=asked.due - self._loop.time(),
                    is_high_priority=asked.is_high_priority,
                )
            except RollbookError as error:
                answer = error
            if error_of(answer) not in asked.passing or self._loop.time() + pause_s >= asked.due:
                break
        self._on_answer(asked, answer)

    def _on_answer(self, asked: _Asked[Question], answer: Reply | RollbookError) -> None:
        self._unanswered -= 1
        self._answers.append((asked.question, answer))
        self.wake()

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (bug := task.exception()) is not None:
            raise bug

    def wake(self) -> None:
        """Ends a wait in `news`, so that the caller can handle another kind of event."""
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def news(self, timeout_s: float) -> None:
        """Waits until there is news, or until `timeout_s` have passed."""
        if not self._has_news:
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(max(timeout_s, _MOMENT_S), self._on_time_up)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        self._has_news = False

    def _on_time_up(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> list[tuple[Question, Reply | RollbookError]]:
        answers = list(self._answers)
        self._answers.clear()
        return answers

    @property
    def is_waiting(self) -> bool:
        """Whether a response is outstanding, or has arrived and was not taken yet."""
        return bool(self._unanswered or self._answers)

    async def close(self) -> None:
        self._is_closed = True
        for reply in list(self._replies):
            reply.cancel()
        if self._tasks:
            await stop_tasks(*self._tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def error_of(answer: Reply | RollbookError) -> type[RollbookError] | None:
    """Returns the error of a failed call, whether the bookie reported it or did not respond; None
    if the call succeeded."""
    if isinstance(answer, RollbookError):
        return type(answer)
    return None if isinstance(answer, AuthReply) else answer.error
