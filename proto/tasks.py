"""Helpers for tasks: groups that end together and in a fixed order, work that is not interrupted,
and waits for the first of several tasks to end or to fail.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, MutableSet
from typing import Any, TypeVar

T = TypeVar("T")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Waits for work that must not be left half done: even a cancelled caller waits until it ends."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


async def joined(work: "asyncio.Future[T]", lost: Callable[[], Exception]) -> T:
    """Waits for work that other tasks may cancel. If they do, this raises `lost()`: otherwise the
    caller would end as if it had been cancelled itself. If the caller is cancelled, the work
    continues.
    """
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        waiter = asyncio.current_task()
        if not work.cancelled() or (waiter is not None and waiter.cancelling()):
            raise
        raise lost() from None


async def stop_tasks(*tasks: "asyncio.Future[Any] | None") -> None:
    """Cancels the tasks in the given order, and returns when all of them have ended."""
    stopped = [task for task in tasks if task is not None]
    for task in stopped:
        task.cancel()
    if stopped:  # If there are no tasks, this needs no event loop.
        await asyncio.gather(*stopped, return_exceptions=True)


async def first_of(*works: Coroutine[Any, Any, T]) -> T:
    """Returns the result of the work that ends first; the rest is cancelled, and ends before this returns."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work) for work in works]
    is_over = asyncio.Event()
    for task in tasks:
        task.add_done_callback(lambda _: is_over.set())
    try:
        await is_over.wait()
        return next(task for task in tasks if task.done()).result()
    finally:
        await stop_tasks(*tasks)


async def first_failure(tasks: "Iterable[asyncio.Task[None]]") -> BaseException:
    """Waits until one of the tasks fails. A task that is cancelled or finishes does not count as failed."""
    failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def on_done(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error and not failure.done():
            failure.set_result(error)

    for task in tasks:
        task.add_done_callback(on_done)
    return await failure


def unwrapped(error: BaseException) -> BaseException:
    """Returns the only error of a group, even if groups are nested; otherwise returns what it was given."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class TaskGroup(asyncio.TaskGroup):
    """An `asyncio.TaskGroup` that cancels its children in the order in which they were made. The
    standard class keeps them in a set, which is ordered by memory addresses, so the same program
    would behave differently from run to run, even in simulations.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tasks = _InOrder()  # type: ignore[assignment]  # All that is asked of a set there.


class _InOrder(MutableSet["asyncio.Task[Any]"]):
    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[asyncio.Task[Any], None] = {}

    def add(self, value: "asyncio.Task[Any]") -> None:
        self._members[value] = None

    def discard(self, value: "asyncio.Task[Any]") -> None:
        self._members.pop(value, None)

    def __contains__(self, value: object) -> bool:
        return value in self._members

    def __iter__(self) -> Iterator["asyncio.Task[Any]"]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)
