"""What one append stream sends, message by message."""

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
    """Takes each message when it is let; says nothing."""

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
        """There is but one."""

    def to(self, address: str) -> Any:
        return self

    def shown_to(self, _address: str) -> tuple[()]:
        return ()

    def stream_stream(self, path: str) -> Any:
        return lambda metadata: self._stream


async def sent(logs: int, block_bytes: int) -> list[log_pb2.AppendStreamRequest]:
    """One append to each log, all of them in one turn."""
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


async def test_appends_to_many_logs_go_in_several_messages() -> None:
    """So that the server has begun with the first while others are still on their way."""
    messages = await sent(1000, 100)
    assert max(len(each.appends) for each in messages) == 128
    assert len(messages) == 8
    numbers = [each.number for message in messages for each in message.appends]
    assert numbers == [*range(1, 1001)]


async def test_a_message_has_about_a_mebibyte() -> None:
    messages = await sent(8, 300 * KIB)
    assert [len(each.appends) for each in messages] == [3, 3, 2]


async def test_what_is_bound_is_bound_before_it_is_used() -> None:
    bound = set[int]()
    for message in await sent(300, 10):
        bound.update(each.ref for each in message.binds)
        assert {each.ref for each in message.appends} <= bound


async def test_nothing_is_sent_before_the_server_listens() -> None:
    """A refusal that met a write was reported as a broken stream, and left the append in doubt."""
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


async def test_a_defect_ends_the_line_and_is_told() -> None:
    """Its task ended, and the line was taken for one that works."""
    stream, told = Stream(), list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(type(context["exception"])))
    pool = AppendStreamPool(cast(Channels, OneChannel(stream)))
    line = pool.to("127.0.0.1:7400")
    heard: asyncio.Future[RollbookError | None] = loop.create_future()
    ref = line.bind(LogName.parse("orders"), is_ordered=True)
    bad = Condition(writer_epoch=WriterEpoch(-1))  # As nobody gives it who is checked.
    line.submit(ref, b"x", bad, lambda ack, error: heard.set_result(error))
    async with asyncio.timeout(30):
        assert (await heard) is not None
    assert told == [ValueError]
    assert pool.to("127.0.0.1:7400") is not line
    await pool.close()


@pytest.mark.parametrize("says_something", [False, True])
async def test_a_server_that_does_not_say_that_it_listens_is_left(
    says_something: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an earlier release says nothing before it is sent something: both waited for ever, and so
    did later users of that stream.
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
    """The error named the time-out only, and not what the last attempt met."""
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


async def test_what_was_never_sent_is_not_kept_for_a_result() -> None:
    """A writer that left kept its records for as long as the stream of others went on."""
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
