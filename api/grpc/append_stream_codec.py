"""Packs and unpacks the messages of append streams, in both directions."""

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from rollbook.api.grpc.status import detail_of, error_of
from rollbook.logservice.ids import INT64_MAX, LogName, Offset, OwnerEpoch, WriterEpoch
from rollbook.logservice.messages import AppendAck, AppendResult, Bind, Condition, StreamAppend
from rollbook.proto.errors import InvalidRequest
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.v1 import log_pb2


def pack_appends(binds: Sequence[Bind], appends: Sequence[StreamAppend]) -> bytes:
    message = log_pb2.AppendStreamRequest()
    for bind in binds:
        message.binds.add(ref=bind.ref, log=str(bind.log), is_ordered=bind.is_ordered, uid=bind.uid)
    for each in appends:
        added = message.appends.add(number=each.number, ref=each.ref, block=each.block)
        if each.condition is not None:
            put_condition(added.condition, each.condition)
    return message.SerializeToString()


def unpack_appends(data: bytes) -> tuple[list[Bind], list[StreamAppend]]:
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


def put_condition(into: log_pb2.Condition, condition: Condition) -> None:
    if condition.expected_offset is not None:
        into.expected_offset = condition.expected_offset
    if condition.writer_epoch is not None:
        into.writer_epoch = condition.writer_epoch
    into.must_be_empty = condition.must_be_empty


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


def pack_results(results: Sequence[AppendResult]) -> bytes:
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


def unpack_results(data: bytes) -> list[AppendResult]:
    return [
        AppendResult(each.number, ack=ack_of(each.ack))
        if each.HasField("ack")
        else AppendResult(each.number, error=error_of(each.error))
        for each in log_pb2.AppendStreamResponse.FromString(data).results
    ]


def ack_of(ack: log_pb2.AppendAck) -> AppendAck:
    return AppendAck(
        Offset(ack.first_offset),
        Offset(ack.next_offset),
        ack.timestamp_us,
        ack.is_duplicate,
        OwnerEpoch(ack.owner_epoch),
        WriterEpoch(ack.writer_epoch),
        LedgerId(ack.ledger_id),
        EntryId(ack.entry_id),
    )
