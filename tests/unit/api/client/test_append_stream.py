"""The messages that one append stream sends."""

import asyncio
import gc
import weakref
from typing import Any, cast

import grpc
import pytest

from rollbook.api.client import append_stream
from rollbook.api.client.append_stream import AppendStreamPool, ClientAppendStream
from rollbook.api.client.channels import Channels
from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.log_append import Appender, PlainBatch
from rollbook.api.client.owner_cache import OwnerCache
from rollbook.api.client.relay_routes import RelayRoutes
from rollbook.api.grpc.status import LISTENS_KEY
from rollbook.logservice.ids import LogName, WriterEpoch
from rollbook.logservice.messages import Condition
from rollbook.proto.errors import Outcome, RollbookError, ServerUnreachable
from rollbook.proto.v1 import log_pb2

KIB = 1024


class Stream:
    """Takes each message and never responds."""

    def __init__(self) -> None:
        self.messages: list[log_pb2.AppendStreamRequest] = []
        self.headers = asyncio.Event()
        self.headers.set()
        self.greeting = grpc.aio.Metadata((LISTENS_KEY, "1"))

    async def wait_for_connection(self) -> None: ...

    async def initial_metadata(self) -> grpc.aio.Metadata:
        await self.headers.wait()
        return self.greeting

    async def code(self) -> grpc.StatusCode:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def write(self, data: bytes) -> None:
        self.messages.append(log_pb2.AppendStreamRequest.FromString(data))

    async def read(self) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    def cancel(self) -> None: ...


class OneChannel:
    routes = RelayRoutes()

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def require_own_loop(self) -> None:
        """The test has only one event loop."""

    def to(self, address: str) -> Any:
        return self

    def shown_to(self, _address: str) -> tuple[()]:
        return ()

    def stream_stream(self, path: str) -> Any:
        return lambda metadata: self._stream


async def sent(logs: int, block_bytes: int) -> list[log_pb2.AppendStreamRequest]:
    """Submits one append to each log in one turn of the loop; returns the messages sent."""
    stream = Stream()
    line = ClientAppendStream(cast(Channels, OneChannel(stream)), "127.0.0.1:7400")
    for number in range(logs):
        ref = line.bind(LogName.parse(f"log-{number}"), is_ordered=True)
        line.submit(ref, b"x" * block_bytes, None, lambda ack, error: None)
    async with asyncio.timeout(30):
        while sum(len(each.appends) for each in stream.messages) < logs:
            await asyncio.sleep(0)
    await line.close()
    return stream.messages


async def test_appends_to_many_logs_are_sent_in_several_messages() -> None:
    """The server can start on the first message while the client still sends the others."""
    messages = await sent(1000, 100)
    assert max(len(each.appends) for each in messages) == 128
    assert len(messages) == 8
    numbers = [each.number for message in messages for each in message.appends]
    assert numbers == [*range(1, 1001)]


async def test_message_has_about_one_mebibyte() -> None:
    messages = await sent(8, 300 * KIB)
    assert [len(each.appends) for each in messages] == [3, 3, 2]


async def test_logs_are_bound_before_their_appends() -> None:
    bound = set[int]()
    for message in await sent(300, 10):
        bound.update(each.ref for each in message.binds)
        assert {each.ref for each in message.appends} <= bound


async def test_nothing_is_sent_before_the_server_listens() -> None:
    """A refusal during a write would look like a broken stream and leave the append in doubt."""
    stream = Stream()
    stream.headers.clear()
    line = ClientAppendStream(cast(Channels, OneChannel(stream)), "127.0.0.1:7400")
    results = list[RollbookError | None]()
    ref = line.bind(LogName.parse("orders"), is_ordered=True)
    line.submit(ref, b"x", None, lambda ack, error: results.append(error))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not stream.messages
    await line.close()
    assert [error and error.outcome for error in results] == [Outcome.NOT_APPLIED]


async def test_unexpected_exception_ends_the_stream_and_is_reported() -> None:
    """The pool must not reuse a stream whose task has ended."""
    stream, told = Stream(), list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(type(context["exception"])))
    pool = AppendStreamPool(cast(Channels, OneChannel(stream)))
    line = pool.to("127.0.0.1:7400")
    heard: asyncio.Future[RollbookError | None] = loop.create_future()
    ref = line.bind(LogName.parse("orders"), is_ordered=True)
    bad = Condition(writer_epoch=WriterEpoch(-1))  # The client's checks would refuse it.
    line.submit(ref, b"x", bad, lambda ack, error: heard.set_result(error))
    async with asyncio.timeout(30):
        assert (await heard) is not None
    assert told == [ValueError]
    assert pool.to("127.0.0.1:7400") is not line
    await pool.close()


@pytest.mark.parametrize("says_something", [False, True])
async def test_stream_without_a_server_greeting_is_dropped(
    says_something: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of an earlier release sends nothing before it receives something: without a time-out
    both sides would wait forever, and later users of the stream, too.
    """
    monkeypatch.setattr(append_stream, "_GREETING_S", 0.05)
    stream = Stream()
    stream.greeting = grpc.aio.Metadata()
    if not says_something:
        stream.headers.clear()
    pool = AppendStreamPool(cast(Channels, OneChannel(stream)))
    line = pool.to("127.0.0.1:7400")
    heard: asyncio.Future[RollbookError | None] = asyncio.get_running_loop().create_future()
    ref = line.bind(LogName.parse("orders"), is_ordered=True)
    line.submit(ref, b"x", None, lambda ack, error: heard.set_result(error))
    async with asyncio.timeout(30):
        error = await heard
    assert isinstance(error, ServerUnreachable)
    assert error.outcome is Outcome.NOT_APPLIED
    assert "earlier release" in error.message
    assert not stream.messages
    assert pool.to("127.0.0.1:7400") is not line
    await pool.close()


async def test_append_without_a_server_greeting_names_an_earlier_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error has the cause of the last attempt's failure and not only the time-out."""
    monkeypatch.setattr(append_stream, "_GREETING_S", 0.05)
    stream = Stream()
    stream.headers.clear()
    pool = AppendStreamPool(cast(Channels, OneChannel(stream)))
    owners = OwnerCache(["127.0.0.1:7400"])
    appender = Appender(LogName.parse("orders"), pool, owners, LogClientConfig())
    with pytest.raises(RollbookError, match="earlier release") as caught:
        await appender.append(PlainBatch([b"x"]), None, 1.0)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    await pool.close()


async def test_unbind_releases_unsent_appends() -> None:
    """Otherwise a closed writer's records would stay in memory as long as the shared stream."""
    stream = Stream()
    line = ClientAppendStream(cast(Channels, OneChannel(stream)), "127.0.0.1:7400")

    def on_result(ack: object, error: object) -> None: ...

    kept = weakref.ref(on_result)
    ref = line.bind(LogName.parse("orders"), is_ordered=True)
    line.submit(ref, b"x", None, on_result)
    del on_result
    assert line.unbind(ref) == 1
    gc.collect()
    assert kept() is None
    await line.close()
    assert not stream.messages
