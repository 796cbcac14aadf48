"""Each method returns to the client every error that the service raises."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from rollbook.api.client.append_stream import ClientAppendStream
from rollbook.api.client.channels import Channels, Security
from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.grpc.protobuf_conversion import pack
from rollbook.api.grpc.server import GrpcServer
from rollbook.api.grpc.status import detail_of, error_of, error_of_call, failure_of
from rollbook.api.rpc_methods import METHODS, CallKind, Method, late
from rollbook.logservice.core.record_block import pack_block
from rollbook.logservice.messages import AppendAck
from rollbook.proto import errors
from rollbook.proto.errors import Outcome, RollbookError, every_error
from rollbook.proto.ports import Address
from rollbook.proto.v1 import error_pb2
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore
from tests.unit.api.grpc.samples import LOG, sample

OURS = [error for error in every_error() if error.__module__ == errors.__name__]
IDS = {"head": 5, "log": "ns/log", "is_last": True, "uid": b"\x00\xff", "marks": ("a", "b")}


class StatusClient:
    """A client that returns raw statuses."""

    def __init__(self, core: FakeCore, channels: Channels, address: str) -> None:
        self.core = core
        self.channels = channels
        self.address = address

    async def heard(self, method: Method, request: Any) -> tuple[grpc.StatusCode, RollbookError]:
        data = pack(request).SerializeToString()
        channel = self.channels.to(self.address)
        if method.kind is CallKind.CALL:
            call = channel.unary_unary(method.path)(data, timeout=30)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
        else:
            call = channel.unary_stream(method.path)(data, timeout=30)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _all_of(call)
        error = caught.value
        trailers = error.trailing_metadata()
        return error.code(), error_of_call(error.code(), error.details() or "", trailers)


async def _all_of(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


@pytest.fixture
async def line() -> AsyncIterator[StatusClient]:
    core = FakeCore(FakeCluster())
    core.cluster.make(str(LOG))
    server = await GrpcServer.start(core, GrpcConfig(Address("127.0.0.1", 0)))
    channels = Channels(Security())
    yield StatusClient(core, channels, str(server.address))
    await channels.close()
    await server.close(0)


def raised(error: type[RollbookError]) -> RollbookError:
    return error("what happened", next_step="do something", **IDS)


def assert_same(heard: RollbookError, said: RollbookError) -> None:
    assert heard.code.reason == said.code.reason
    assert type(heard) is errors.error_of_reason(said.code.reason)
    assert (heard.outcome, heard.retryable) == (said.outcome, said.retryable)
    assert (heard.message, heard.next_step) == (said.message, said.next_step)
    assert heard.ids == said.ids


@pytest.mark.parametrize(
    "method", [m for m in METHODS if m.kind is not CallKind.APPEND_STREAM], ids=lambda m: m.name
)
async def test_every_call_returns_every_error(line: StatusClient, method: Method) -> None:
    request = sample(method.request)
    for kind in OURS:
        said = raised(kind)
        line.core.failures[method.core_name].append(said)
        status, heard = await line.heard(method, request)
        assert status.name == kind.code.grpc, kind
        assert_same(heard, said)


@pytest.mark.parametrize(
    "method", [m for m in METHODS if m.kind is CallKind.CALL], ids=lambda m: m.name
)
async def test_deadline_error_is_equal_on_client_and_server(
    line: StatusClient, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a writer whose own deadline ended got the raw `Deadline Exceeded`."""
    never = asyncio.Event()

    async def wait(*_: Any) -> None:
        await never.wait()

    monkeypatch.setattr(line.core, method.core_name, wait)
    data = pack(sample(method.request)).SerializeToString()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await line.channels.to(line.address).unary_unary(method.path)(data, timeout=0.05)
    assert_same(failure_of(method, caught.value), late(method))
    nothing = grpc.aio.Metadata()
    own = grpc.aio.AioRpcError(caught.value.code(), nothing, nothing, "Deadline Exceeded")
    assert_same(failure_of(method, own), late(method))


async def test_append_stream_returns_every_error_of_an_append(line: StatusClient) -> None:
    results: asyncio.Queue[tuple[AppendAck | None, RollbookError | None]] = asyncio.Queue()
    stream = ClientAppendStream(line.channels, line.address)
    ref = stream.bind(LOG, is_ordered=False)
    for kind in OURS:
        said = raised(kind)
        line.core.failures["append_stream"].append(said)
        stream.submit(ref, pack_block([b"x"]), None, lambda *told: results.put_nowait(told))
        async with asyncio.timeout(30):
            ack, heard = await results.get()
        assert ack is None
        assert heard is not None
        assert_same(heard, said)
    await stream.close()


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
async def test_append_on_a_refused_stream_is_not_applied(
    line: StatusClient, kind: type[RollbookError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has sent nothing on the stream when it is refused."""
    results: asyncio.Queue[RollbookError | None] = asyncio.Queue()
    line.core.failures["open_append_stream"].append(raised(kind))
    stream = ClientAppendStream(line.channels, line.address)
    next_message, sent = stream._next_message, list[bytes]()

    def send() -> bytes:
        sent.append(next_message())
        return sent[-1]

    monkeypatch.setattr(stream, "_next_message", send)
    ref = stream.bind(LOG, is_ordered=False)
    stream.submit(ref, pack_block([b"x"]), None, lambda _, error: results.put_nowait(error))
    async with asyncio.timeout(30):
        heard = await results.get()
    assert heard is not None
    assert not sent
    assert heard.outcome is Outcome.NOT_APPLIED
    await stream.close()


async def test_read_stream_returns_every_error_after_records(line: StatusClient) -> None:
    method = next(m for m in METHODS if m.name == "ReadStream")
    line.core.cluster.logs[LOG].append(pack_block([b"x"] * 10), None)
    for kind in OURS:
        said = raised(kind)
        line.core.failures["read_stream_later"].append(said)
        _, heard = await line.heard(method, sample(method.request))
        assert_same(heard, said)


def test_error_details_beyond_the_limit_are_left_out() -> None:
    """A peer refuses too long headers and would lose the whole error."""
    said = RollbookError("m" * 100_000, next_step="n" * 100_000, big="x" * 100_000, small=7)
    for index in range(1000):
        said.ids[f"id{index}"] = tuple(range(100))
    detail = detail_of(said)
    assert detail.ByteSize() < 7000
    heard = error_of(detail)
    assert heard.message.startswith("mmm")
    assert heard.ids["small"] == 7


def test_unknown_error_reason_keeps_its_outcome() -> None:
    detail = error_pb2.ErrorDetail(
        reason="NEWER_THAN_US", outcome=error_pb2.OUTCOME_NOT_APPLIED, retryable=True
    )
    heard = error_of(detail)
    assert (heard.outcome, heard.retryable) == (Outcome.NOT_APPLIED, True)
    assert heard.ids["reason"] == "NEWER_THAN_US"
