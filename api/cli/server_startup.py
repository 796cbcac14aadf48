"""Starts a server: waits for its cluster, and reports when the server is ready, also to systemd (SU1, SU2)."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Final, TypeVar

import click
import structlog

from rollbook.proto.cluster.cluster_root import Cluster, open_cluster
from rollbook.proto.errors import (
    ConnectionLost,
    MetadataUnavailable,
    NoSuchCluster,
    SessionExpired,
)
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import MetadataStore

logger = structlog.get_logger()

_PAUSES_S: Final = (0.5, 2.0)  # The first and the longest pause between attempts.
_REPORT_EVERY_S: Final = 10.0
_MANAGER: Final = "NOTIFY_SOCKET"  # The variable that systemd sets for `Type=notify`.

# Before a server has started, only its session is in the store, so an attempt can be repeated.
_PASSING: Final = (MetadataUnavailable, NoSuchCluster, SessionExpired, ConnectionLost)

T = TypeVar("T")


async def open_with_cluster(
    url: MetadataUrl, open_store: Callable[[], Awaitable[MetadataStore]]
) -> tuple[MetadataStore, Cluster]:
    """Opens the metadata store and the cluster at `url`. On an error or a cancellation it leaves no store
    open.
    """
    store = await open_store()
    try:
        return store, await open_cluster(store, url.ledgers_root, url=url)
    except BaseException:
        await store.close()
        raise


@asynccontextmanager
async def starting(
    start: Callable[[], AbstractAsyncContextManager[T]], startup_s: float
) -> AsyncIterator[T]:
    """Enters the context that `start` returns. Each attempt enters a new context; a failed attempt must leave
    nothing open.

    If the session expires during a start, only the attempt fails and not the server (SU1).
    """
    async with AsyncExitStack() as stack:
        yield await retry_while_missing(lambda: stack.enter_async_context(start()), startup_s)


async def retry_while_missing(attempt: Callable[[], Awaitable[T]], startup_s: float) -> T:
    loop = asyncio.get_running_loop()
    until = loop.time() + startup_s
    report_at, pause_s = loop.time(), _PAUSES_S[0]
    while True:
        try:
            return await attempt()
        except _PASSING as error:
            left_s = until - loop.time()
            if left_s <= 0:
                raise
            if loop.time() >= report_at:
                report_at = loop.time() + _REPORT_EVERY_S
                logger.warning(
                    "startup_waits",
                    reason=error.code.reason,
                    detail=str(error),
                    gives_up_after_s=round(left_s, 1),
                )
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _PAUSES_S[1])


def say_ready(*lines: str) -> None:
    """Reports readiness on standard output, for people and scripts, and to systemd."""
    with suppress(OSError):  # Standard output may be closed.
        for line in lines:
            click.echo(line)
        sys.stdout.flush()
    notify_manager("READY=1")


def notify_manager(state: str) -> None:
    """Notifies the service manager if one started this process."""
    path = os.environ.get(_MANAGER, "")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(address)
        sender.sendall(state.encode())
