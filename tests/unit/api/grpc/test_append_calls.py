"""The server's side of a stream of appends: how it ends."""

import asyncio
from typing import Any

from rollbook.api.grpc.append_calls import serve_append_stream


class SilentContext:
    """Of a client that says nothing."""

    async def send_initial_metadata(self, headers: object) -> None: ...

    async def read(self) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError


class Opened:
    """A core with one stream, on which nothing happens."""

    def __init__(self) -> None:
        self.is_closed = False

    def open_append_stream(self) -> "Opened":
        return self

    async def ready(self) -> None:
        pass

    async def results(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.is_closed = True


async def test_a_call_that_is_cancelled_while_it_ends_gives_its_stream_back() -> None:
    """The client leaves, and the server stops: each cancels the call."""
    core: Any = Opened()
    before = asyncio.all_tasks()
    call = asyncio.ensure_future(serve_append_stream(core, SilentContext()))
    await asyncio.sleep(0)  # It waits for both of its sides,
    call.cancel()
    await asyncio.sleep(0)  # and now for both to end.
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert call.cancelled()
    assert core.is_closed
    assert asyncio.all_tasks() == before
