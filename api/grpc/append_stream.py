"""Serves append streams: one task reads the messages, another one writes the results.

While the maximum of a stream's appends is in flight, the stream is not read, so that gRPC's flow control stops
the client. A client that closes its side still gets the results of all appends that it has sent.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from rollbook.api.access.authorized_service import AuthorizedService
from rollbook.api.grpc.status import LISTENS_KEY, detail_of
from rollbook.logservice.core.record_block import OPENED_BYTES_MAX, opened_bytes_of
from rollbook.logservice.ids import INT64_MAX, LogName, Offset, WriterEpoch
from rollbook.logservice.messages import (
    AppendResult,
    AppendStream,
    Bind,
    Condition,
    CoreStream,
    StreamAppend,
)
from rollbook.proto.errors import InvalidRequest
from rollbook.proto.v1 import log_pb2

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
        line = _AppendCall(stream, context)
        sides += (asyncio.ensure_future(side) for side in (line.listen(), line.answer()))
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
            binds, appends = _unpacked(data)
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
                await self._context.write(_packed(results))
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


def _unpacked(data: bytes) -> tuple[list[Bind], list[StreamAppend]]:
    try:
        message = log_pb2.AppendStreamRequest.FromString(data)
    except DecodeError:
        raise InvalidRequest("the message cannot be read as AppendStreamRequest") from None
    binds = [
        Bind(each.ref, LogName.parse(each.log), each.is_ordered, each.uid) for each in message.binds
    ]
    appends = [
        StreamAppend(
            each.number,
            each.ref,
            each.block,
            _condition(each.condition) if each.HasField("condition") else None,
        )
        for each in message.appends
    ]
    return binds, appends


def _condition(message: log_pb2.Condition) -> Condition:
    """Raises `InvalidRequest` for an offset or epoch above 2^63-1, which no log reaches."""
    expected = message.expected_offset if message.HasField("expected_offset") else None
    epoch = message.writer_epoch if message.HasField("writer_epoch") else None
    if max(expected or 0, epoch or 0) > INT64_MAX:
        raise InvalidRequest("a number in a condition is above 2^63-1")
    return Condition(
        None if expected is None else Offset(expected),
        message.must_be_empty,
        None if epoch is None else WriterEpoch(epoch),
    )


def _packed(results: Sequence[AppendResult]) -> bytes:
    response = log_pb2.AppendStreamResponse()
    for result in results:
        if (ack := result.ack) is not None:
            packed = log_pb2.AppendAck(
                first_offset=ack.first_offset,
                next_offset=ack.next_offset,
                timestamp_us=ack.timestamp_us,
                is_duplicate=ack.is_duplicate,
                owner_epoch=ack.owner_epoch,
                writer_epoch=ack.writer_epoch,
                ledger_id=ack.ledger_id,
                entry_id=ack.entry_id,
            )
            response.results.add(number=result.number, ack=packed)
        else:
            assert result.error is not None
            response.results.add(number=result.number, error=detail_of(result.error))
    return response.SerializeToString()
