"""Calls of HTTP management to the metadata store.

Each read has a deadline, unless it covers all ledgers. While the metadata store cannot be reached, nothing is
sent to it, and calls fail at once. A change that was sent but not answered has an unknown outcome, as in the
shell.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final, Never, TypeVar

from rollbook.proto.errors import (
    ConnectionLost,
    MetadataUnavailable,
    OutcomeUnknown,
    RollbookError,
    SessionExpired,
)
from rollbook.proto.ports import MetadataStore, SessionState

T = TypeVar("T")

_LOOK_S: Final = 10.0
ACT_S: Final = 20.0  # Shorter than the 30 s that an HTTP exchange may take.


class StoreWatch:
    """Knows whether the metadata store can be reached now. The owner calls `run` in a task."""

    def __init__(self, store: MetadataStore) -> None:
        self.is_connected = True
        self._store = store

    async def run(self) -> Never:
        async for event in self._store.session_events():
            self.is_connected = event.state is SessionState.CONNECTED
        raise AssertionError("the session events ended before the store was closed")


class StoreCalls:
    """Makes calls with a deadline while the store can be reached, and replaces the next steps of their errors with
    HTTP requests.
    """

    def __init__(self, watch: StoreWatch) -> None:
        self._watch = watch

    def require_store(self) -> None:
        if not self._watch.is_connected:
            raise MetadataUnavailable(next_step="check that the metadata store is running")

    async def look(self, question: Coroutine[Any, Any, T], deadline_s: float | None = _LOOK_S) -> T:
        """Reads from the store. Raises `MetadataUnavailable` if the store does not respond, for any reason: it is safe
        to repeat a read.
        """
        # Close the coroutine if it is not awaited because the store is unavailable.
        with closing(question):
            self.require_store()
            try:
                async with asyncio.timeout(deadline_s):
                    with steps_for_http():
                        return await question
            except (TimeoutError, ConnectionLost, SessionExpired) as error:
                raise MetadataUnavailable(
                    "the metadata store does not answer",
                    next_step="check that the metadata store is running",
                ) from error

    async def walk(self, change: Coroutine[Any, Any, T], find_out: str) -> T:
        """Makes a change that reads all ledgers first, and therefore has no deadline."""
        return await self.act(change, find_out, None)

    async def act(
        self,
        change: Coroutine[Any, Any, T],
        find_out: str = "send GET /api/v1/recovery to see the present settings",
        deadline_s: float | None = ACT_S,
    ) -> T:
        """Makes a change. After the deadline, raises `OutcomeUnknown` with `find_out` as the next step."""
        with closing(change):
            self.require_store()
            try:
                async with asyncio.timeout(deadline_s):
                    with steps_for_http():
                        return await change
            except TimeoutError as error:
                raise OutcomeUnknown(
                    f"no response within {ACT_S:g} s", next_step=find_out
                ) from error
            except OutcomeUnknown as error:
                error.next_step = error.next_step or find_out
                raise


@contextmanager
def steps_for_http() -> Iterator[None]:
    """Replaces the shell commands that errors recommend with HTTP requests."""
    try:
        yield
    except RollbookError as error:
        error.next_step = error.http_step or error.next_step
        raise
