"""An append stream to one server, which all logs and writers that append there share.

Waiting appends are sent as one message, up to `_MESSAGE_BYTES` and `_MESSAGE_APPENDS`. While one
message is being sent, appends gather for the next one. When the stream ends, every append without a
result fails with the reason.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from rollbook.api.client.channels import Channels
from rollbook.api.client.core.retries_and_outcomes import again
from rollbook.api.grpc.append_stream_codec import ack_of, put_condition
from rollbook.api.grpc.status import LISTENS_KEY, error_of, error_of_call, hung_up
from rollbook.api.rpc_methods import APPEND_STREAM
from rollbook.logservice.ids import LogName
from rollbook.logservice.messages import AppendAck, Condition
from rollbook.proto.errors import (
    ClientClosed,
    ConnectionLost,
    Invalid,
    Outcome,
    RollbookError,
    ServerUnreachable,
    Unauthorized,
    UnsupportedVersion,
)
from rollbook.proto.v1 import log_pb2

OnResult = Callable[[AppendAck | None, RollbookError | None], None]

_MESSAGE_BYTES: Final = 1024 * 1024
# With a thousand logs in one message, the client, the server and its bookies would take turns
# instead of working at the same time.
_MESSAGE_APPENDS: Final = 128
_APPEND_BYTES: Final = 32  # The bytes of framing around a block.
# Without a greeting after this time, another server is tried. The time is shorter than an attempt,
# because the error of an attempt says less.
_GREETING_S: Final = 2.5


class _Bind(NamedTuple):
    ref: int
    log: LogName
    is_ordered: bool
    uid: str


class _Append(NamedTuple):
    ref: int
    number: int
    block: bytes
    condition: Condition | None


class ClientAppendStream:
    """An append stream, which lives until it breaks or is closed."""

    def __init__(self, channels: Channels, address: str) -> None:
        self.address = address
        # The reason why the stream ended; None while it is open.
        self.failure: RollbookError | None = None
        self._routes = channels.routes
        # The server or relay that the stream is connected to.
        self._asked = channels.routes.entry_to(address) or address
        make = channels.to(address).stream_stream(APPEND_STREAM.path)
        self._call = make(metadata=channels.shown_to(address))
        self._queue: deque[_Bind | _Append] = deque()
        self._waiting: dict[int, OnResult] = {}
        self._numbers = 0
        self._refs = 0
        self._free_refs: list[int] = []
        self._wake: asyncio.Future[None] | None = None
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._send()), loop.create_task(self._receive())]
        for task in self._tasks:
            task.add_done_callback(self._on_task_over)

    def bind(self, log: LogName, *, is_ordered: bool, uid: str = "") -> int:
        """Returns a new ref for the caller. `uid` is that of `messages.Bind`."""
        if self._free_refs:
            ref = self._free_refs.pop()
        else:
            self._refs += 1
            ref = self._refs
        self._put(_Bind(ref, log, is_ordered, uid))
        return ref

    def unbind(self, ref: int) -> int:
        """Stops sending appends of `ref`, and ignores its results. Returns how many appends were
        not sent."""
        unsent = [each for each in self._queue if isinstance(each, _Append) and each.ref == ref]
        for append in unsent:  # No result will come for unsent appends.
            self._waiting.pop(append.number, None)
        self._queue = deque(each for each in self._queue if each.ref != ref)
        self._free_refs.append(ref)
        return len(unsent)

    def submit(
        self, ref: int, block: bytes, condition: Condition | None, on_result: OnResult
    ) -> int:
        """Queues an append. Returns its number, for `withdraw`. `on_result` is never called before
        the call returns."""
        assert self.failure is None
        self._numbers += 1
        self._waiting[self._numbers] = on_result
        self._put(_Append(ref, self._numbers, block, condition))
        return self._numbers

    def withdraw(self, number: int) -> bool:
        """Ignores the append's result. Returns True if the append was not sent, and will not be."""
        self._waiting.pop(number, None)
        for each in self._queue:
            if isinstance(each, _Append) and each.number == number:
                self._queue.remove(each)
                return True
        return False

    async def close(self) -> None:
        self._end(ConnectionLost("the stream was closed"))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _put(self, each: _Bind | _Append) -> None:
        self._queue.append(each)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            if not await self._server_listens():
                return
            while True:
                if not self._queue:
                    self._wake = loop.create_future()
                    await self._wake
                await self._call.write(self._next_message())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # The receiving task reports the reason.
        except grpc.aio.UsageError:
            pass  # The call had already ended.

    async def _server_listens(self) -> bool:
        """Waits until the server says that it accepts appends. Nothing is sent before: if a write
        meets the end of a stream, gRPC reports that instead of the server's error.
        """
        try:
            async with asyncio.timeout(_GREETING_S):
                if LISTENS_KEY in (await self._call.initial_metadata() or ()):
                    self._routes.on_answered(self._asked)
                    return True
                # The stream was refused, and the receiving task reports the reason.
                await self._call.code()
        except TimeoutError:
            self._end(
                ServerUnreachable(
                    f"{self.address} has not said within {_GREETING_S:g} s that it listens: "
                    "it hangs, or is of an earlier release than this client"
                )
            )
        return False

    def _next_message(self) -> bytes:
        """Builds the next message. In a message, binds precede appends; therefore it ends before a
        bind whose ref its appends use."""
        message = log_pb2.AppendStreamRequest()
        size, used = 0, set[int]()
        while self._queue:
            first = self._queue[0]
            if isinstance(first, _Bind):
                if first.ref in used:
                    break
                message.binds.add(
                    ref=first.ref, log=str(first.log), is_ordered=first.is_ordered, uid=first.uid
                )
            else:
                size += len(first.block) + _APPEND_BYTES
                is_full = size > _MESSAGE_BYTES or len(message.appends) == _MESSAGE_APPENDS
                if used and is_full:
                    break
                used.add(first.ref)
                added = message.appends.add(number=first.number, ref=first.ref, block=first.block)
                if first.condition is not None:
                    put_condition(added.condition, first.condition)
            self._queue.popleft()
        return message.SerializeToString()

    async def _receive(self) -> None:
        error: RollbookError = ConnectionLost("the server ended the stream")
        try:
            while (data := await self._call.read()) is not grpc.aio.EOF:
                self._on_response(data)
            status = await self._call.code()
            if status is not grpc.StatusCode.OK:
                error = await self._status()
        except grpc.aio.AioRpcError as failed:
            error = error_of_call(failed.code(), failed.details() or "", _trailers(failed))
        except asyncio.CancelledError:
            error = hung_up()
        except (RollbookError, DecodeError) as failed:
            error = ConnectionLost(f"the server sent an invalid response: {failed}")
        self._end(error)

    async def _status(self) -> RollbookError:
        call = self._call
        trailers = await call.trailing_metadata()
        return error_of_call(await call.code(), await call.details() or "", trailers)

    def _on_response(self, data: bytes) -> None:
        for result in log_pb2.AppendStreamResponse.FromString(data).results:
            on_result = self._waiting.pop(result.number, None)
            if on_result is None:
                continue
            if result.HasField("ack"):
                on_result(ack_of(result.ack), None)
            else:
                on_result(None, error_of(result.error))

    def _on_task_over(self, task: "asyncio.Task[None]") -> None:
        """Ends the stream after a bug here or in a callback, so that no caller waits forever."""
        if task.cancelled():  # A loop that ends cancels its tasks, even unstarted ones.
            self._end(ConnectionLost("the stream was cancelled"))
        elif (bug := task.exception()) is not None:
            self._end(ConnectionLost(f"the stream broke: {bug!r}"))
            context = {"message": f"the stream to {self.address} broke", "exception": bug}
            task.get_loop().call_exception_handler(context)

    def _end(self, error: RollbookError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._call.cancel()
        never_sent = {each.number for each in self._queue if isinstance(each, _Append)}
        self._queue.clear()
        waiting, self._waiting = self._waiting, {}
        for number, on_result in waiting.items():
            on_result(None, _error_of_append(error, was_sent=number not in never_sent))


def _error_of_append(error: RollbookError, *, was_sent: bool) -> RollbookError:
    """Returns an append's error when the stream ends; each append gets an error object of its own."""
    if isinstance(error, Unauthorized | UnsupportedVersion | ServerUnreachable):
        return again(error, Outcome.NOT_APPLIED)  # The server read none of the appends.
    if not was_sent:
        return ServerUnreachable(error.message, **error.ids)
    if isinstance(error, Invalid):
        return again(error, Outcome.UNKNOWN)
    return ConnectionLost(error.message, **error.ids)


def _trailers(failed: grpc.aio.AioRpcError) -> Any:
    return failed.trailing_metadata()


class AppendStreamPool:
    """Holds one stream to each server that gets appends."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._streams: dict[
            tuple[str, str], ClientAppendStream
        ] = {}  # The key is the server, and its relay or "".
        self._is_closed = False

    def to(self, address: str) -> ClientAppendStream:
        """Raises `ClientClosed`, `InvalidRequest`."""
        self._channels.require_own_loop()
        if self._is_closed:
            raise ClientClosed
        way = address, self._channels.routes.entry_to(address)
        stream = self._streams.get(way)
        if stream is None or stream.failure is not None:
            stream = self._streams[way] = ClientAppendStream(self._channels, address)
        return stream

    async def close(self) -> None:
        self._is_closed = True
        for stream in list(self._streams.values()):
            await stream.close()
