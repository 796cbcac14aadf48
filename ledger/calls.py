"""Several calls under way at once, whose answers are worked through in the order in which they come.

calls.ask(question, bookie, request, deadline_s)     any number of times
await calls.news(timeout_s)                          until there is something, or time is up
for question, answer in calls.take(): …              a reply, or the error that came instead
"""

import asyncio
from collections import deque
from types import TracebackType
from typing import Final, Generic, Protocol, Self, TypeVar

from rollbook.proto.errors import (
    BookieUnreachable,
    ConnectionLost,
    Overloaded,
    RollbookError,
    Throttled,
)
from rollbook.proto.ids import BookieId
from rollbook.proto.wire.messages import AuthReply, Reply, Request

Question = TypeVar("Question")

Passing = tuple[type[RollbookError], ...]
BUSY_OR_BROKEN: Final[Passing] = (ConnectionLost, Overloaded, Throttled)
UNTIL_HEARD: Final[Passing] = (*BUSY_OR_BROKEN, BookieUnreachable)
"""For those who have to be asked, also if they are just being started."""

_PAUSE_S: Final = 0.02  # Before a bookie that was busy, or broke the line, is asked again; doubled.
_PAUSE_S_MAX: Final = 0.5
_MOMENT_S: Final = (
    1e-6  # A wait that rounding has made too short to move the clock would never end.
)


class Caller(Protocol):
    """What is needed of `Bookies`."""

    async def call(
        self,
        bookie: BookieId,
        request: Request,
        *,
        deadline_s: float,
        is_high_priority: bool = False,
    ) -> Reply: ...


class Calls(Generic[Question]):
    """Leaving the context drops what has not been answered."""

    def __init__(self, bookies: Caller) -> None:
        self._bookies = bookies
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._unanswered = 0  # A task lives on for a moment after its answer has come.
        self._answers: deque[tuple[Question, Reply | RollbookError]] = deque()
        self._news = asyncio.Event()

    def ask(
        self,
        question: Question,
        bookie: BookieId,
        request: Request,
        deadline_s: float,
        *,
        is_high_priority: bool = False,
        passing: Passing = (),
    ) -> None:
        """After errors that may pass it is tried again, until the deadline."""
        due = self._loop.time() + deadline_s
        self._unanswered += 1
        task = self._loop.create_task(
            self._call(question, bookie, request, due, is_high_priority, passing)
        )
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    async def _call(
        self,
        question: Question,
        bookie: BookieId,
        request: Request,
        due: float,
        is_high_priority: bool,
        passing: Passing,
    ) -> None:
        pause_s = _PAUSE_S
        while True:
            answer: Reply | RollbookError
            left_s = due - self._loop.time()
            try:
                answer = await self._bookies.call(
                    bookie, request, deadline_s=left_s, is_high_priority=is_high_priority
                )
            except RollbookError as error:
                answer = error
            if error_of(answer) not in passing or self._loop.time() + pause_s >= due:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        self._unanswered -= 1
        self._answers.append((question, answer))
        self._news.set()

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (bug := task.exception()) is not None:
            raise bug

    def wake(self) -> None:
        """There is news of another kind."""
        self._news.set()

    async def news(self, timeout_s: float) -> None:
        """Returns, too, when `timeout_s` have passed."""
        if not self._news.is_set():
            try:
                async with asyncio.timeout(max(timeout_s, _MOMENT_S)):
                    await self._news.wait()
            except TimeoutError:
                return
        self._news.clear()

    def take(self) -> list[tuple[Question, Reply | RollbookError]]:
        answers = list(self._answers)
        self._answers.clear()
        return answers

    @property
    def is_waiting(self) -> bool:
        """For an answer, or to be asked for one that has come."""
        return bool(self._unanswered or self._answers)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def error_of(answer: Reply | RollbookError) -> type[RollbookError] | None:
    """How it failed, whether the bookie said so or nobody did."""
    if isinstance(answer, RollbookError):
        return type(answer)
    return None if isinstance(answer, AuthReply) else answer.error
