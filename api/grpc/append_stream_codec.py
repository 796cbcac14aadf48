"""Packs and unpacks the messages of append streams, for the side that sends the appends."""

from collections.abc import Sequence

from rollbook.api.grpc.status import error_of
from rollbook.logservice.ids import Offset, OwnerEpoch, WriterEpoch
from rollbook.logservice.messages import AppendAck, AppendResult, Bind, Condition, StreamAppend
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


def unpack_results(data: bytes) -> list[AppendResult]:
    return [
        AppendResult(each.number, ack=ack_of(each.ack))
        if each.HasField("ack")
        else AppendResult(each.number, error=error_of(each.error))
        for each in log_pb2.AppendStreamResponse.FromString(data).results
    ]


def put_condition(into: log_pb2.Condition, condition: Condition) -> None:
    if condition.expected_offset is not None:
        into.expected_offset = condition.expected_offset
    if condition.writer_epoch is not None:
        into.writer_epoch = condition.writer_epoch
    into.must_be_empty = condition.must_be_empty


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
