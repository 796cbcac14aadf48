"""Shares one client in each process among all users of the same connection options, and retries calls.

Spark does not retry on the driver: an exception there ends the query. Calls that may be repeated are
therefore retried here. A worker process runs many tasks; its client stays open between them.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from rollbook.api.client.async_client import DEFAULTS
from rollbook.api.client.core.retries_and_outcomes import may_retry
from rollbook.api.client.sync import SyncClient, connect
from rollbook.api.spark.core.options import ServerAccess
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import BadConfig, RollbookError

T = TypeVar("T")
_DELAY_S_MAX: Final = 5.0
_channels: "dict[tuple[int, ServerAccess], ServerChannel]" = {}
_making: Final = threading.Lock()


class ServerChannel:
    """The connection of a driver or a task to the servers."""

    def __init__(self, access: ServerAccess) -> None:
        self.access = access
        timeout_s = min(DEFAULTS.timeout_s, access.fetch_timeout_s)
        self.client: SyncClient = connect(
            access.endpoint,
            replace(DEFAULTS, timeout_s=timeout_s, connect_s=timeout_s),
            token=_token_of(access),
            authorities=_file(access.authorities),
            certificate=_file(access.certificate),
            key=_file(access.key),
            wait_s=timeout_s,
        )

    def ask(self, request: Any) -> Any:
        """Sends a request of `rollbook.logservice.messages` that may be repeated."""
        return self.patiently(lambda: self.client.ask(request))

    def patiently(self, call: Callable[[], T]) -> T:
        """Repeats a call after temporary failures, as often and as long as the options allow."""
        access, began_s = self.access, time.monotonic()
        for attempt in range(access.retries + 1):
            try:
                return call()
            except RollbookError as error:
                pause_s = min(access.retry_delay_s * 2**attempt, _DELAY_S_MAX)
                waited_s = time.monotonic() - began_s
                is_over = attempt == access.retries or waited_s + pause_s > access.fetch_timeout_s
                if is_over or not may_retry(error):
                    raise
            time.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    def tail_of(self, log: LogName, uid: str = "") -> messages.LogTail:
        found: messages.LogTail = self.ask(messages.GetTail(log, uid=uid))
        return found


def channel_of(access: ServerAccess) -> ServerChannel:
    """Returns the channel of this process, and creates it on first use. Each process has its own, since a client does
    not survive a fork.
    """
    key = (os.getpid(), access)
    with _making:
        if key not in _channels:
            _channels[key] = ServerChannel(access)
        return _channels[key]


def _token_of(access: ServerAccess) -> str:
    if not access.token_file:
        return ""
    with open(_file(access.token_file), encoding="ascii") as file:
        return file.read().strip()


def _file(path: str) -> str:
    """Resolves a path on this machine, or the name of a file that Spark distributed."""
    if not path or os.path.exists(path):
        return path
    from pyspark import SparkFiles

    found = str(SparkFiles.get(path))
    if not os.path.exists(found):
        raise BadConfig(
            f"there is no file {path!r} on this machine, and SparkFiles has none of this name",
            next_step="distribute it with spark.sparkContext.addFile, and pass its name",
        )
    return found
