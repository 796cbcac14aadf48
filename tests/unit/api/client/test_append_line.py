"""What one append stream sends, message by message."""

import asyncio
import gc
import weakref
from typing import Any, cast

from rollbook.api.client.append_line import AppendLine
from rollbook.api.client.channels import Channels
from rollbook.logservice.ids import LogName
from rollbook.proto.v1 import log_pb2

KIB = 1024


class Stream:
    """Takes each message when it is let; says nothing."""

    def __init__(self) -> None:
        self.messages: list[log_pb2.AppendStreamRequest] = []

    async def wait_for_connection(self) -> None: ...

    async def write(self, data: bytes) -> None:
        self.messages.append(log_pb2.AppendStreamRequest.FromString(data))

    async def read(self) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    def cancel(self) -> None: ...


class OneChannel:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def to(self, address: str) -> Any:
        return self

    def shown_to(self, _address: str) -> tuple[()]:
        return ()

    def stream_stream(self, path: str) -> Any:
        return lambda metadata: self._stream


async def sent(logs: int, block_bytes: int) -> list[log_pb2.AppendStreamRequest]:
    """One append to each log, all of them in one turn."""
    stream = Stream()
    line = AppendLine(cast(Channels, OneChannel(stream)), "127.0.0.1:7400")
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


async def test_what_was_never_sent_is_not_kept_for_a_result() -> None:
    """A writer that left kept its records for as long as the stream of others went on."""
    stream = Stream()
    line = AppendLine(cast(Channels, OneChannel(stream)), "127.0.0.1:7400")

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
