"""Threads that wait for the disk, so that the loop need not."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread


class Job:
    """A system call in one of the disk's threads, awaited on the loop that asked for it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.took_s = 0.0  # Without the way to the thread and back.
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._has_ended = False
        self._is_given_up = False  # Nobody wants to hear how it ended, only when.

    async def wait(self) -> None:
        """To the end, however often cancelled: the descriptor must outlive the system call."""
        try:
            await self._ended
        except asyncio.CancelledError:
            self._is_given_up = True
            while not self._has_ended:
                self._ended = self._loop.create_future()
                with suppress(asyncio.CancelledError):
                    await self._ended
            raise

    def run(self) -> None:
        """In the thread."""
        error: BaseException | None = None
        began = time.perf_counter()
        try:
            self._work()
        except BaseException as raised:  # noqa: BLE001  Whoever waits is told.
            error = raised
        self.took_s = time.perf_counter() - began
        del self._work  # It may know this job, and what it has read.
        try:
            self._loop.call_soon_threadsafe(self._end, error)
        except RuntimeError:
            pass  # The loop was closed: nobody waits any more.

    def _end(self, error: BaseException | None) -> None:
        self._has_ended = True
        if self._ended.done():
            return
        if error and not self._is_given_up:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)


class Threads:
    """They have a bare queue: that is half of what a hop through an executor costs."""

    def __init__(self, name: str, count: int) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, work: Callable[[], None]) -> Job:
        job = Job(work)
        self._jobs.put(job)
        return job

    async def run(self, work: Callable[[], None]) -> float:
        """Returns how many seconds it took there, without the way."""
        job = self.start(work)
        await job.wait()
        return job.took_s

    def close(self) -> None:
        """Returns when everything that was asked for is done."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while job := self._jobs.get():
            job.run()
