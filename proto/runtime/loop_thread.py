"""An event loop in a thread of its own, for callers without a loop."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from rollbook.proto.errors import ClientClosed

T = TypeVar("T")


class ClosedByWith:
    """A wrapper of an object that runs on a `LoopThread`. `with` or `close` closes it."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LoopThread:
    """The thread does not keep the process alive; what it owns is ended by `close`."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Starts `work` on the loop. Raises `ClientClosed`."""
        if not self.is_alive:
            work.close()
            raise self._over()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the loop and waits for it. An interrupted caller cancels it."""
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
                "called on the client's own thread, as from a callback: it would wait for itself"
            )

    def start(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts work on the loop soon, unless that has ended; callable from any thread, also its own."""
        if self.is_alive:
            asyncio.run_coroutine_threadsafe(make(), self._loop)

    def soon(self, callback: Callable[[], None]) -> None:
        """Calls `callback` on the loop, in the cheapest way. Raises `ClientClosed`."""
        if not self.is_alive:
            raise self._over()
        self._loop.call_soon_threadsafe(callback)

    def call(self, function: Callable[[], T]) -> T:
        """Like `run`, for a function that does not wait but needs the loop."""

        async def work() -> T:
            return function()

        return self.run(work())

    def _over(self) -> ClientClosed:
        if self._pid != os.getpid():
            return ClientClosed("it belongs to the process that this one was forked from")
        return ClientClosed()

    def close(self) -> None:
        """Ends the thread; tasks that still run are cancelled. Idempotent."""
        if self.is_alive:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()
