"""Runs a server until SIGTERM or SIGINT, which shut it down in order and within a limited time."""

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from rollbook.api.cli.server_startup import notify_manager
from rollbook.proto.runtime.accept_errors import survive_full_file_table

# Seconds for the shutdown. Longer: slow work can still finish, but a stuck server is killed later.
_STOP_S_MAX: Final = 20


async def until_stopped(serving: Coroutine[Any, Any, None], stop_s_max: int = _STOP_S_MAX) -> None:
    """Runs `serving` to its end, or cancels it when a signal asks the process to stop."""
    loop = asyncio.get_running_loop()
    survive_full_file_table(loop)
    task = loop.create_task(serving)
    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        if not is_stopping:  # A second signal must not interrupt the shutdown.
            is_stopping = True
            signal.alarm(stop_s_max)  # The kernel's alarm ends the process even if a disk hangs.
            notify_manager("STOPPING=1")
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    with suppress(asyncio.CancelledError):
        await task
