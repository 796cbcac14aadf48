"""Serves append streams: one task reads the messages, another one writes the results.

While the maximum of a stream's appends is in flight, the stream is not read, so that gRPC's flow control stops
the client. A client that closes its side still gets the results of all appends that it has sent.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from rollbook.api.access.authorized_service import AuthorizedService
from rollbook.api.grpc.append_stream_codec import pack_results, unpack_appends
from rollbook.api.grpc.status import LISTENS_KEY
from rollbook.logservice.core.record_block import OPENED_BYTES_MAX, opened_bytes_of
from rollbook.logservice.messages import AppendStream, CoreStream, StreamAppend

Context = Any  # grpc.aio.ServicerContext, of bytes.


async def serve_append_stream(
    core: AuthorizedService, context: Context, relayed: CoreStream | None = None
) -> None:
    """Serves one stream. `relayed`: a stream to the server that gets the appends in place of this one."""
    stream = core.open_append_stream(relayed)
    sides: list[asyncio.Future[None]] = []
    try:
        # The header shows the client that the call is accepted, and that it may send appends. If appends were
        # sent earlier, a refusal would leave them in doubt.
        await context.send_initial_metadata(((LISTENS_KEY, "1"),))
        call = _AppendCall(stream, context)
        sides += (asyncio.ensure_future(side) for side in (call.listen(), call.answer()))
        await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        next(side for side in sides if side.done()).result()
    finally:
        for side in sides:
            side.cancel()
        try:
            await asyncio.gather(*sides, return_exceptions=True)
        finally:  # If the client leaves while the server stops, the call is cancelled twice.
            await stream.close()


class _AppendCall:
    def __init__(self, stream: AppendStream, context: Context) -> None:
        self._stream = stream
        self._context = context
        self._unanswered = 0
        self._is_answered = asyncio.Event()

    async def listen(self) -> None:
        """Returns when the client has closed its side, and all results have been sent."""
        while True:
            await self._stream.ready()
            data = await self._context.read()
            if data is grpc.aio.EOF:
                break
            binds, appends = unpack_appends(data)
            self._unanswered += len(appends)
            async for run in _in_turns(appends):
                self._stream.submit(binds, run)
                binds = []
        while self._unanswered:
            self._is_answered.clear()
            await self._is_answered.wait()

    async def answer(self) -> None:
        while True:
            results = await self._stream.results()
            if results:
                await self._context.write(pack_results(results))
            self._unanswered -= len(results)
            if not self._unanswered:
                self._is_answered.set()


async def _in_turns(appends: list[StreamAppend]) -> AsyncIterator[list[StreamAppend]]:
    """Yields the appends in parts that unpack to a bounded size, so that other work runs in between (LB3).

    A message of a few hundred KiB can hold blocks that unpack to gigabytes, and checking a block unpacks it.
    """
    start, opened = 0, 0
    for index, append in enumerate(appends):
        opened += opened_bytes_of(append.block)
        if opened > OPENED_BYTES_MAX and index > start:
            yield appends[start:index]
            await asyncio.sleep(0)
            start, opened = index, opened_bytes_of(append.block)
    yield appends[start:] if start else appends
