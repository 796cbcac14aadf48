"""Threads that wait for the disk, so that the event loop need not wait."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread


class Job:
    """A system call in one of the disk's threads, requested by a loop.

    To report its end, a thread has to wait for the interpreter; so it wakes the loop only if a
    caller waits there.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self.has_ended = False
        self.took_s = 0.0  # The seconds that the work took, without the way to the thread and back.
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None

    async def wait(self) -> None:
        """Waits until the call has ended, even if the waiting task is cancelled, since the
        descriptor must outlive the call. Only one caller may wait at a time.
        """
        cancelled: asyncio.CancelledError | None = None
        while not self.has_ended:
            self._waiter = self._loop.create_future()
            if self.has_ended:  # A call that ended before the waiter was set does not wake it.
                break
            try:
                await self._waiter
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled:
            raise cancelled
        if self._error:
            raise self._error

    def run(self) -> None:
        """Does the work. This runs in the thread."""
        began = time.perf_counter()
        try:
            self._work()
        except BaseException as raised:  # noqa: BLE001  `wait` raises it.
            self._error = raised
        self.took_s = time.perf_counter() - began
        del self._work  # The work may refer to this job and its result.
        self.has_ended = True
        if self._waiter is not None:
            with suppress(RuntimeError):  # If the loop was closed, there is no waiter any more.
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)


class Threads:
    """Threads with a simple queue. A hop to them costs half as much as a hop through an executor."""

    def __init__(self, name: str, count: int) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, work: Callable[[], object]) -> Job:
        job = Job(work)
        self._jobs.put(job)
        return job

    async def run(self, work: Callable[[], object]) -> float:
        """Runs work in a thread. Returns how many seconds it took, without the way to the thread and back."""
        job = self.start(work)
        await job.wait()
        return job.took_s

    def close(self) -> None:
        """Returns when all requested work is done."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while job := self._jobs.get():
            job.run()
