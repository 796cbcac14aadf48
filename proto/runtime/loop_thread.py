"""An event loop in a separate thread, for callers that have no loop."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from rollbook.proto.errors import ClientClosed

T = TypeVar("T")


class ClosedByWith:
    """A wrapper around an object that runs on a `LoopThread`. `with` or `close` closes the object."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LoopThread:
    """A thread with an event loop. The thread does not keep the process alive; `close` ends its tasks."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Starts the coroutine `work` on the loop. Raises `ClientClosed`."""
        if not self.is_alive:
            work.close()
            raise self._over()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the loop and waits for it. If the caller is interrupted, the work is cancelled."""
        self._require_other_thread(work)
        future = self.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def _require_other_thread(self, work: Coroutine[Any, Any, T]) -> None:
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "this was called on the client's own thread, as in a callback, and would wait for itself"
            )

    def start(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts work on the loop soon, unless the loop has ended. It can be called from any
        thread, even from that of the loop.
        """
        if self.is_alive:
            asyncio.run_coroutine_threadsafe(make(), self._loop)

    def soon(self, callback: Callable[[], None]) -> None:
        """Calls `callback` on the loop, in the cheapest way. Raises `ClientClosed`."""
        if not self.is_alive:
            raise self._over()
        self._loop.call_soon_threadsafe(callback)

    def call(self, function: Callable[[], T]) -> T:
        """Runs a function on the loop, as `run` does with a coroutine, if the function needs the
        loop but does not wait.
        """

        async def work() -> T:
            return function()

        return self.run(work())

    def _over(self) -> ClientClosed:
        if self._pid != os.getpid():
            return ClientClosed("the client belongs to the process from which this one was forked")
        return ClientClosed()

    def close(self) -> None:
        """Ends the thread, and cancels the tasks that still run. Idempotent."""
        if self.is_alive:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()
