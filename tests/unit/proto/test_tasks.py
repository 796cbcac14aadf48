"""Task groups like those of asyncio, but with a fixed order, and other helpers for tasks."""

import asyncio

import pytest

from rollbook.proto.tasks import TaskGroup, first_failure, first_of, joined, stop_tasks, unwrapped


async def test_failure_cancels_children_in_order_of_creation() -> None:
    ended: list[int] = []

    async def child(number: int) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(number)

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("one of them")

    async def body() -> None:
        async with TaskGroup() as group:
            for number in range(200):
                group.create_task(child(number))
            group.create_task(failing())

    with pytest.raises(ExceptionGroup) as caught:
        await body()
    assert [str(error) for error in caught.value.exceptions] == ["one of them"]
    assert ended == list(range(200))


async def test_group_waits_for_all_its_children() -> None:
    done: list[int] = []

    async def child(number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)
        done.append(number)
        if number == 3:
            group.create_task(child(7))

    async with TaskGroup() as group:
        tasks = [group.create_task(child(number)) for number in (5, 3, 1)]
    assert done == [1, 3, 5, 7]
    assert all(task.done() for task in tasks)


async def test_cancelled_body_cancels_children_in_order() -> None:
    ended: list[int] = []

    async def child(number: int) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(number)

    async def body() -> None:
        async with TaskGroup() as group:
            for number in range(100):
                group.create_task(child(number))

    task = asyncio.get_running_loop().create_task(body())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == list(range(100))


async def test_first_failure_ignores_other_ends() -> None:
    async def end() -> None:
        pass

    async def fail(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        raise ValueError(turns)

    async def hang() -> None:
        await asyncio.sleep(100)

    tasks = [asyncio.create_task(work) for work in (end(), hang(), hang(), fail(9), fail(5))]
    tasks[1].cancel()
    async with asyncio.timeout(30):
        assert (await first_failure(tasks)).args == (5,)
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_first_of_returns_first_result_and_cancels_the_rest() -> None:
    ended: list[str] = []

    async def work(name: str, seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
            return name
        finally:
            ended.append(name)

    async def failing() -> str:
        raise ValueError("at once")

    assert await first_of(work("long", 100), work("short", 0), work("longer", 200)) == "short"
    assert ended == ["short", "long", "longer"]
    ended.clear()
    with pytest.raises(ValueError, match="at once"):
        await first_of(work("long", 100), failing())
    assert ended == ["long"]
    ended.clear()
    waiting = asyncio.create_task(first_of(work("one", 100), work("two", 100)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == ["one", "two"]


async def test_joined_raises_given_error_if_the_work_is_cancelled() -> None:
    work = asyncio.create_task(asyncio.sleep(100))
    waiting = asyncio.create_task(joined(work, lambda: ValueError("it is over")))
    leaving = asyncio.create_task(joined(work, lambda: ValueError("it is over")))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert leaving.cancelled()
    assert not work.done()
    work.cancel()
    with pytest.raises(ValueError, match="it is over"):
        await waiting


def test_unwrapped_group_of_one_error_is_that_error() -> None:
    error, other = ValueError("a"), ValueError("b")
    both = ExceptionGroup("", [error, other])
    assert unwrapped(ExceptionGroup("", [ExceptionGroup("", [error])])) is error
    assert unwrapped(ExceptionGroup("", [both])) is both
    assert unwrapped(error) is error


async def test_stop_tasks_ends_tasks_in_order() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async def fail() -> None:
        raise ValueError

    tasks = [asyncio.ensure_future(work(name)) for name in "ba"]
    failed = asyncio.ensure_future(fail())
    await asyncio.sleep(0)
    await stop_tasks(*tasks, None, failed)
    assert ended == ["b", "a"]
    assert all(task.cancelled() for task in tasks)
    await stop_tasks()  # Nothing to stop.


def test_stop_tasks_without_tasks_needs_no_event_loop() -> None:
    """Programs without a loop open and close stores, e.g. the one that tries every crash image."""
    with pytest.raises(StopIteration):
        stop_tasks(None).send(None)
