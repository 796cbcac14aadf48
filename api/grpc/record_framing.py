"""Serves clients that do not frame blocks: they send `AppendRequest.records`, and set `as_records` to get records in
responses.

The records of these requests are framed as a block here, and the blocks of these responses are split into
records. All other messages are only converted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rollbook.api.grpc.protobuf_conversion import (
    event_kinds,
    pack,
    pack_event,
    pack_records,
    unpack,
    unpack_event,
)
from rollbook.logservice.core.record_block import Block, by_name, pack_block
from rollbook.logservice.ids import Offset, ProducerRef
from rollbook.logservice.messages import Append, ReadAnswer, ReadEvent, Records
from rollbook.proto.errors import InvalidRequest
from rollbook.proto.v1 import log_pb2

EVENTS: Final = event_kinds(ReadEvent)


@dataclass(frozen=True, slots=True)
class Packed:
    """A reader's event, in the bytes that another server sent."""

    data: bytes


def unpack_request(message: Any, kind: Any) -> Any:
    """Converts a request message to an object of the class `kind`. Raises `InvalidRequest`."""
    if kind is Append and message.records:
        return unpack(_framed(message), Append)
    return unpack(message, kind)


def answer_message(request: Any, answer: Any) -> Any:
    packed = pack(answer)
    if isinstance(answer, ReadAnswer) and request.as_records:
        _take_apart(packed, answer.blocks, answer.first_offset, answer.next_offset)
    return packed


def event_bytes(request: Any, event: Any) -> bytes:
    """Serializes a tail, several tails, or a reader's event."""
    if not isinstance(request, log_pb2.ReadStreamRequest):
        return bytes(pack(event).SerializeToString())
    if isinstance(event, Packed):
        if not request.as_records:
            return event.data
        event = unpack_event(log_pb2.ReadEvent.FromString(event.data), EVENTS)
    if isinstance(event, Records) and not request.as_records:
        return pack_records(event)
    packed = pack_event(event)
    if isinstance(event, Records):
        _take_apart(packed.records, event.blocks, event.base_offset, event.next_offset)
    return packed.SerializeToString()


def _framed(message: log_pb2.AppendRequest) -> log_pb2.AppendRequest:
    if message.block:
        raise InvalidRequest("records: the request has a block, too")
    producer = None
    if message.HasField("producer"):
        named = message.producer
        producer = ProducerRef(named.id, named.epoch, named.seq)
    records = message.records
    block = pack_block(
        [each.value for each in records],
        keys=[each.key if each.HasField("key") else None for each in records],
        headers=[by_name(each.headers) for each in records],
        event_times=[
            each.event_time_us if each.HasField("event_time_us") else None for each in records
        ],
        producer=producer,
    )
    framed = log_pb2.AppendRequest(log=message.log, block=block, uid=message.uid)
    if message.HasField("condition"):
        framed.condition.CopyFrom(message.condition)
    return framed


def _take_apart(into: Any, blocks: Sequence[bytes], start: Offset, end: Offset) -> None:
    del into.blocks[:]
    for block in blocks:
        for record in Block(block).records():
            if start <= record.offset < end:
                into.records.add(
                    value=record.value,
                    key=record.key,
                    headers=dict(record.headers),
                    event_time_us=record.event_time_us,
                    offset=record.offset,
                    timestamp_us=record.timestamp_us,
                )
