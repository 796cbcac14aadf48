"""Hostile input is rejected or ends its connection; unread responses use bounded memory."""

import asyncio
import contextlib
import queue
import random
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import grpc
import pytest

from rollbook.api.grpc import server as server_module
from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.grpc.protobuf_conversion import pack
from rollbook.api.grpc.server import CALLS_OF_ONE_MAX, GrpcServer
from rollbook.api.grpc.status import error_of_call
from rollbook.api.rpc_methods import MESSAGE_BYTES_MAX, METHODS, CallKind
from rollbook.logservice.core.record_block import pack_block
from rollbook.logservice.messages import Append, ReadEvent, Records
from rollbook.proto.errors import (
    BadChecksum,
    EntryTooLarge,
    Invalid,
    InvalidRequest,
    Missing,
    Outcome,
    RollbookError,
    Superseded,
)
from rollbook.proto.ports import Address
from rollbook.proto.v1 import log_pb2
from tests.hostile.grpc_attacks import IDLE
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore
from tests.unit.api.grpc.samples import LOG, sample

Pair = tuple[FakeCore, Any]

_PING_ANSWER: Final = b"\0\0\x08\x06\x01" + bytes(4)  # The payload of the ping follows.


@pytest.fixture
def core() -> FakeCore:
    core = FakeCore(FakeCluster())
    core.cluster.make(str(LOG))
    return core


@pytest.fixture
async def address(core: FakeCore) -> AsyncIterator[Address]:
    server = await GrpcServer.start(core, GrpcConfig(Address("127.0.0.1", 0)))
    yield server.address
    await server.close(0)


@pytest.fixture
async def pair(core: FakeCore, address: Address) -> AsyncIterator[Pair]:
    options = (
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.http2.bdp_probe", 0),  # With it, a client that does not read buffers 500 MB.
    )
    channel: Any = grpc.aio.insecure_channel(str(address), options=options)
    yield core, channel
    answer = await channel.unary_unary("/rollbook.v1.LogAdmin/GetLimits")(b"", timeout=30)
    assert answer  # The server still serves other calls.
    await channel.close()


async def answer_of(
    channel: Any, path: str, kind: CallKind, *messages: bytes
) -> RollbookError | None:
    try:
        async with asyncio.timeout(30):
            if kind is CallKind.CALL:
                await channel.unary_unary(path)(messages[0])
            elif kind is CallKind.WATCH:
                call = channel.unary_stream(path)(messages[0])
                await call.read()
                call.cancel()
            else:
                stream = channel.stream_stream(path)()
                for message in messages:
                    await stream.write(message)
                await stream.done_writing()
                while await stream.read() is not grpc.aio.EOF:
                    pass
    except grpc.aio.AioRpcError as error:
        return error_of_call(error.code(), error.details() or "", error.trailing_metadata())
    return None


def mutations(data: bytes, count: int) -> list[bytes]:
    chance = random.Random(len(data))
    found = [chance.randbytes(chance.randrange(1, 60)) for _ in range(count)]
    for _ in range(count if data else 0):
        bent = bytearray(data)
        bent[chance.randrange(len(bent))] ^= 1 << chance.randrange(8)
        found.append(bytes(bent[: chance.randrange(len(bent) + 1)]))
    return found


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_malformed_message_is_rejected(pair: Pair, method: Any) -> None:
    core, channel = pair
    if method.kind is CallKind.APPEND_STREAM:
        message = log_pb2.AppendStreamRequest()
        message.binds.add(ref=1, log=str(LOG))
        message.appends.add(number=1, ref=1, block=pack_block([b"x"]))
        data = message.SerializeToString()
    else:
        data = pack(sample(method.request)).SerializeToString()
    for bent in [b"", *mutations(data, 15)]:
        error = await answer_of(channel, method.path, method.kind, bent)
        expected = (Invalid, Missing, Superseded)
        assert error is None or isinstance(error, expected), (bent, error)
    unreadable = await answer_of(channel, method.path, method.kind, b"\xff\xff\xff")
    assert isinstance(unreadable, InvalidRequest)
    assert "cannot be read" in unreadable.message
    assert not core.cluster.logs or LOG in core.cluster.logs or method.name == "DeleteLog"


async def test_hostile_blocks_are_refused(pair: Pair) -> None:
    _, channel = pair
    block = pack_block([b"abc", b"de"], keys=[b"k", None], headers=[{"h": b"v"}, None])
    path = "/rollbook.v1.LogService/Append"
    request = sample(Append, is_full=False)
    for bent in mutations(block, 100):
        data = pack(replace(request, log=LOG, block=bent)).SerializeToString()
        error = await answer_of(channel, path, CallKind.CALL, data)
        is_untouched = error is None and bent[:8] == block[:8] and bent[40:] == block[40:]
        assert is_untouched or isinstance(error, Invalid), bent
    damaged = block[:-1] + b"?"
    data = pack(replace(request, log=LOG, block=damaged)).SerializeToString()
    assert isinstance(await answer_of(channel, path, CallKind.CALL, data), BadChecksum)


async def test_a_message_that_is_too_large_is_refused(pair: Pair) -> None:
    core, channel = pair
    data = log_pb2.AppendRequest(log=str(LOG), block=bytes(MESSAGE_BYTES_MAX)).SerializeToString()
    error = await answer_of(channel, "/rollbook.v1.LogService/Append", CallKind.CALL, data)
    assert isinstance(error, EntryTooLarge)
    assert not core.asked


@pytest.mark.usefixtures("pair")
async def test_non_grpc_bytes_close_the_connection(address: Address) -> None:
    for garbage in (
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(100_000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff",
    ):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(garbage)
        writer.close()
        async with asyncio.timeout(30):
            await reader.read()


@pytest.mark.usefixtures("pair")
async def test_thousands_of_pings_are_answered(address: Address) -> None:
    """Answering costs less than closing the connection, as gRPC does beyond its own limit."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(IDLE.first + b"".join(_ping(number) for number in range(5_000)))
    heard = b""
    async with asyncio.timeout(30):
        while heard.count(_PING_ANSWER) < 5_000:
            told = await reader.read(1 << 20)
            assert told, "the server closed the connection"
            heard += told
    assert [heard.count(_PING_ANSWER + struct.pack(">Q", each)) for each in (0, 4_999)] == [1, 1]
    writer.write(_ping(5_000))
    async with asyncio.timeout(30):
        await reader.readuntil(_PING_ANSWER + struct.pack(">Q", 5_000))
    writer.close()


async def test_client_that_never_reads_has_bounded_buffers(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC's flow control stops the server at its window; the server holds one more event."""
    core, channel = pair
    block = pack_block([bytes(1 << 20)])
    told = 0

    async def flood(_: Any) -> AsyncIterator[ReadEvent]:
        nonlocal told
        while True:
            told += 1
            yield Records((block,), 0, 1)  # type: ignore[arg-type]  # Plain integers will do.

    core.events = flood
    request = log_pb2.ReadStreamRequest(log=str(LOG), start="0").SerializeToString()
    path = "/rollbook.v1.LogService/ReadStream"
    calls = [channel.unary_stream(path)(request) for _ in range(8)]
    for call in calls:
        await call.initial_metadata()
    quiet = 0
    async with asyncio.timeout(60):
        while quiet < 20:
            before = told
            await asyncio.sleep(0.02)
            quiet = quiet + 1 if told == before else 0
            assert told <= 8 * 24
    assert core.readers == 8
    monkeypatch.setattr("rollbook.api.grpc.handlers._TAKING_S", 0.05)
    before = told
    calls.append(channel.unary_stream(path)(request))
    async with asyncio.timeout(30):  # The peer is admitted, sent what it reads, and disconnected.
        while core.readers > 8 or told == before:
            await asyncio.sleep(0.01)
    for call in calls:
        call.cancel()
    async with asyncio.timeout(30):
        while core.readers:
            await asyncio.sleep(0.01)


async def test_server_stops_reading_appends_without_results(pair: Pair) -> None:
    core, channel = pair
    core.holds.add("append_stream")
    stream = channel.stream_stream("/rollbook.v1.LogService/AppendStream")()
    message = log_pb2.AppendStreamRequest()
    message.binds.add(ref=1, log=str(LOG))
    await stream.write(message.SerializeToString())
    message = log_pb2.AppendStreamRequest()
    for number in range(100):
        message.appends.add(number=number, ref=1, block=pack_block([bytes(1000)]))
    data = message.SerializeToString()
    sent = 0

    async def send() -> None:
        nonlocal sent
        while True:
            await stream.write(data)
            sent += 1

    sending = asyncio.ensure_future(send())
    quiet = 0
    async with asyncio.timeout(60):
        while quiet < 20:
            before = sent
            await asyncio.sleep(0.02)
            quiet = quiet + 1 if sent == before else 0
            assert sent < 1000
    assert len(core.cluster.logs[LOG].blocks) <= 500
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


async def test_thousands_of_concurrent_calls_are_all_answered(pair: Pair) -> None:
    """The calls of one connection are bounded; those beyond the bound wait."""
    _, channel = pair
    ask = channel.unary_unary("/rollbook.v1.LogAdmin/GetLimits")
    told = await asyncio.gather(*(ask(b"", timeout=120) for _ in range(CALLS_OF_ONE_MAX + 1500)))
    assert all(told)


async def test_call_beyond_the_pending_limit_has_outcome_unknown(
    core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC ends it like a call that was started and cancelled; a client cannot tell them apart."""
    options = dict(server_module._OPTIONS)
    bounded = {each: 8 for each in options if "max_pending_requests" in each}
    assert len(bounded) == 2
    monkeypatch.setattr(server_module, "_OPTIONS", tuple({**options, **bounded}.items()))
    server = await GrpcServer.start(core, GrpcConfig(Address("127.0.0.1", 0)))
    with grpc.insecure_channel(str(server.address)) as channel:
        limits: Any = channel.unary_unary("/rollbook.v1.LogAdmin/GetLimits")
        grpc.channel_ready_future(channel).result(timeout=30)
        calls = [limits.future(b"", timeout=60) for _ in range(60)]
        ended: queue.Queue[Any] = queue.Queue()
        for each in calls:
            each.add_done_callback(ended.put)
        beyond = [ended.get(timeout=30) for _ in range(40)]  # This blocks the loop.
        assert {each.code() for each in beyond} == {grpc.StatusCode.CANCELLED}
        call = beyond[0]
        error = error_of_call(call.code(), call.details(), call.trailing_metadata())
        assert error.outcome is Outcome.UNKNOWN
        served = [each for each in calls if each not in beyond]
        answers = await asyncio.gather(*(asyncio.to_thread(each.exception) for each in served))
        assert answers.count(None) >= 8
    await server.close(0)


async def test_excess_and_silent_connections_are_closed(
    core: FakeCore,
) -> None:
    """Else connections use up the file descriptors of the process."""
    config = GrpcConfig(Address("127.0.0.1", 0), connections_max=3)
    server = await GrpcServer.start(core, config)
    host, port = server.address.host, server.address.port
    silent = [await asyncio.open_connection(host, port) for _ in range(8)]
    waiting = [asyncio.create_task(_ended(reader)) for reader, _ in silent]
    async with asyncio.timeout(30):  # This is well below gRPC's own time-out.
        while sum(each.done() for each in waiting) < len(silent) - config.connections_max:
            await asyncio.sleep(0.01)
        await asyncio.gather(*waiting)
    for _, writer in silent:
        writer.close()
    async with grpc.aio.insecure_channel(str(server.address)) as channel:
        limits: Any = channel.unary_unary("/rollbook.v1.LogAdmin/GetLimits")
        assert await limits(b"", timeout=30, wait_for_ready=True)
        beyond = [await asyncio.open_connection(host, port) for _ in range(8)]
        refused = [asyncio.create_task(_ended(reader)) for reader, _ in beyond]
        async with asyncio.timeout(30):
            while sum(each.done() for each in refused) <= len(beyond) - config.connections_max:
                await asyncio.sleep(0.01)
        assert await limits(b"", timeout=30)  # An admitted connection is still served.
        for _, writer in beyond:
            writer.close()
        await asyncio.gather(*refused)
    await server.close(0)


def _ping(number: int) -> bytes:
    return b"\0\0\x08\x06\0" + bytes(4) + struct.pack(">Q", number)


async def _ended(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        await reader.read()
