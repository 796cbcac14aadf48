import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

import pytest

from rollbook.proto.runtime.loop_thread import LoopThread

PATIENCE_S = 60.0


def test_interrupted_run_cancels_its_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Event loops do the same for their own callers, so cleanup runs either way."""
    thread = LoopThread("test")
    has_begun, is_cancelled = threading.Event(), threading.Event()
    submit = thread.submit

    async def work() -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            is_cancelled.set()
            raise

    def interrupted(work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        def result(timeout: float | None = None) -> Any:
            assert has_begun.wait(PATIENCE_S)
            raise KeyboardInterrupt

        future = submit(work)
        monkeypatch.setattr(future, "result", result)
        return future

    monkeypatch.setattr(thread, "submit", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.run(work())
        assert is_cancelled.wait(PATIENCE_S)
    finally:
        thread.close()
