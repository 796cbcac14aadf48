"""The gRPC interface as a client in any language sees it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.grpc.record_framing import unpack_request
from rollbook.api.grpc.server import GrpcServer
from rollbook.logservice.core.record_block import Block, pack_block
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.messages import Append
from rollbook.proto.errors import BadConfig
from rollbook.proto.ports import Address
from rollbook.proto.v1 import admin_pb2, error_pb2, log_pb2
from tests.messages import raises_message
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore

LOOPBACK = Address("127.0.0.1", 0)


@dataclass
class Door:
    core: FakeCore
    server: GrpcServer
    channel: grpc.aio.Channel

    async def ask(self, path: str, message: Any, answer: Any, **options: Any) -> Any:
        call = self.channel.unary_unary(
            f"/rollbook.v1.{path}",
            request_serializer=type(message).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await call(message, timeout=30, **options)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    core = FakeCore(FakeCluster())
    server = await GrpcServer.start(core, GrpcConfig(LOOPBACK))
    core.cluster.addresses["a"] = str(server.address)
    async with grpc.aio.insecure_channel(str(server.address)) as channel:
        yield Door(core, server, channel)
    await server.close(0)


async def test_unframed_records_are_appended_and_read(door: Door) -> None:
    door.core.cluster.make("orders")
    records = [
        log_pb2.Record(value=b"one"),
        log_pb2.Record(value=b"two", key=b"k", headers={"h": b"v"}, event_time_us=5),
    ]
    request = log_pb2.AppendRequest(
        log="orders", records=records, producer=log_pb2.ProducerRef(id=b"p", epoch=0, seq=0)
    )
    ack = await door.ask("LogService/Append", request, log_pb2.AppendAck)
    assert (ack.first_offset, ack.next_offset, ack.is_duplicate) == (0, 2, False)
    again = await door.ask("LogService/Append", request, log_pb2.AppendAck)
    assert (again.first_offset, again.next_offset, again.is_duplicate) == (0, 2, True)
    asked = log_pb2.ReadRequest(log="default/orders", start="1", as_records=True)
    answer = await door.ask("LogService/Read", asked, log_pb2.ReadAnswer)
    assert not answer.blocks
    (told,) = answer.records
    assert (told.offset, told.value, told.key, dict(told.headers), told.event_time_us) == (
        1,
        b"two",
        b"k",
        {"h": b"v"},
        5,
    )
    assert (answer.first_offset, answer.next_offset, answer.head, answer.tail) == (1, 2, 0, 2)


async def test_read_stream_returns_unframed_records(door: Door) -> None:
    door.core.cluster.make("orders")
    request = log_pb2.AppendRequest(log="orders", block=pack_block([b"a", b"b"]))
    await door.ask("LogService/Append", request, log_pb2.AppendAck)
    stream = door.channel.unary_stream(
        "/rollbook.v1.LogService/ReadStream",
        request_serializer=log_pb2.ReadStreamRequest.SerializeToString,
        response_deserializer=log_pb2.ReadEvent.FromString,
    )
    asked = log_pb2.ReadStreamRequest(log="orders", start="earliest", as_records=True)
    event: Any = await stream(asked, timeout=30).read()
    assert not event.records.blocks
    assert [(each.offset, each.value) for each in event.records.records] == [(0, b"a"), (1, b"b")]
    assert (event.records.base_offset, event.records.next_offset) == (0, 2)


def test_record_headers_are_framed_in_name_order() -> None:
    """LS6: maps have no fixed order, and a reordered retry must not be rejected as another batch."""
    names = [f"{number:02}" for number in range(12)]
    record = log_pb2.Record(value=b"x", headers=dict.fromkeys(reversed(names), b"v"))
    append = unpack_request(log_pb2.AppendRequest(log="ns/orders", records=[record]), Append)
    (framed,) = Block(append.block).records()
    assert list(framed.headers) == names


async def test_read_stream_returns_stored_blocks_unchanged(door: Door) -> None:
    log = door.core.cluster.make("orders")
    block = pack_block([b"a", b"b"])
    await door.ask(
        "LogService/Append", log_pb2.AppendRequest(log="orders", block=block), log_pb2.AppendAck
    )
    stream = door.channel.unary_stream(
        "/rollbook.v1.LogService/ReadStream",
        request_serializer=log_pb2.ReadStreamRequest.SerializeToString,
        response_deserializer=log_pb2.ReadEvent.FromString,
    )
    call = stream(log_pb2.ReadStreamRequest(log="orders", start="earliest"), timeout=30)
    event: Any = await call.read()
    assert event.records.blocks[0] == log.blocks[0]
    assert Block(event.records.blocks[0]).values() == [b"a", b"b"]
    event = await call.read()
    assert event.caught_up.tail == 2
    assert door.core.readers == 1
    call.cancel()
    async with asyncio.timeout(30):
        while door.core.readers:
            await asyncio.sleep(0.01)


async def test_not_owner_error_has_reason_outcome_and_ids(door: Door) -> None:
    log = door.core.cluster.make("orders")
    log.owner = "elsewhere:7400"
    request = log_pb2.AppendRequest(log="orders", block=pack_block([b"a"]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await door.ask("LogService/Append", request, log_pb2.AppendAck)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (caught.value.details() or "").startswith("NOT_OWNER: ")
    trailers = dict(caught.value.trailing_metadata())
    assert (trailers["log-owner"], trailers["log-owner-epoch"]) == ("elsewhere:7400", "1")
    status = error_pb2.StatusDetails.FromString(trailers["grpc-status-details-bin"])
    detail = error_pb2.ErrorDetail()
    assert status.details[0].Unpack(detail)
    assert (detail.reason, detail.outcome) == ("NOT_OWNER", error_pb2.OUTCOME_NOT_APPLIED)
    assert detail.ids["owner_epoch"].number == 1


async def test_unexpected_error_is_not_shown_to_the_client(door: Door) -> None:
    door.core.failures["get_tail"].append(KeyError("secret"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await door.ask("LogService/GetTail", log_pb2.GetTailRequest(log="x"), log_pb2.LogTail)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    said = repr(caught.value.details()) + repr(caught.value.trailing_metadata())
    assert "secret" not in said
    assert "KeyError" not in said


async def test_health_and_reflection_answer(door: Door) -> None:
    health = health_pb2_grpc.HealthStub(door.channel)
    for service in ("", "rollbook.v1.LogService"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    await door.server.set_serving(is_serving=False)
    answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=30)
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(door.channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="rollbook.v1.LogService"),
    ]
    answers = [each async for each in reflection.ServerReflectionInfo(iter(asked), timeout=30)]
    names = [each.name for each in answers[0].list_services_response.service]
    assert "rollbook.v1.ClusterService" in names
    assert answers[1].file_descriptor_response.file_descriptor_proto


def test_unsecured_listener_off_loopback_is_refused() -> None:
    with raises_message(BadConfig):
        GrpcConfig(Address("0.0.0.0", 7400))
    GrpcConfig(Address("0.0.0.0", 7400), insecure=True)


async def test_a_taken_port_is_refused(door: Door) -> None:
    with raises_message(BadConfig):
        await GrpcServer.start(door.core, GrpcConfig(door.server.address))


async def test_single_limit_update_is_checked_against_the_stored_ones(door: Door) -> None:
    """A client in another language sends one field and its value only."""
    door.core.cluster.make("orders")

    async def change(name: str, value: int) -> admin_pb2.LogConfig:
        request = admin_pb2.UpdateLogRequest(log="orders", fields=[name])
        setattr(request.config, name, value)
        answer = await door.ask("LogAdmin/UpdateLog", request, admin_pb2.LogState)
        found: admin_pb2.LogConfig = answer.config
        return found

    await change("record_bytes_max", 1000)
    config = await change("batch_bytes_max", 2000)  # Less than the default of record_bytes_max.
    assert (config.record_bytes_max, config.batch_bytes_max) == (1000, 2000)
    assert config.roll_entries == LogConfig().roll_entries
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await change("record_bytes_max", 2001)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == (
        "BAD_CONFIG: record_bytes_max is above batch_bytes_max: a record must fit in a batch"
    )
