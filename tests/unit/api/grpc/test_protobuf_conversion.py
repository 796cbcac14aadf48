"""Message classes and protobuf messages have the same fields and convert without loss."""

from dataclasses import fields
from itertools import pairwise
from typing import Any, get_args

import pytest
from google.protobuf.descriptor import FieldDescriptor

from rollbook.api.grpc.protobuf_conversion import (
    event_kinds,
    message_of,
    pack,
    pack_event,
    pack_records,
    unpack,
    unpack_event,
)
from rollbook.api.rpc_methods import METHODS, CallKind
from rollbook.logservice import messages
from rollbook.logservice.ids import Offset
from rollbook.proto.errors import InvalidRequest, RollbookError
from rollbook.proto.v1 import admin_pb2, cluster_pb2, cursor_pb2, error_pb2, log_pb2
from tests.unit.api.grpc.samples import sample

FILES = (log_pb2, cursor_pb2, admin_pb2, cluster_pb2, error_pb2)
SINGLE = [each for each in METHODS if each.kind is not CallKind.APPEND_STREAM]
CLASSES = dict.fromkeys(
    kind
    for method in SINGLE
    for kind in (method.request, *(get_args(method.answer) or (method.answer,)))
)
# Fields for clients that do not frame blocks: see `api/grpc/record_framing.py`.
ONLY_ON_THE_WIRE = {
    messages.Append: {"records", "producer"},
    messages.Read: {"as_records"},
    messages.ReadAnswer: {"records"},
    messages.ReadStream: {"as_records"},
    messages.Records: {"records"},
}


def test_method_table_equals_the_proto_services() -> None:
    declared = {
        (service.name, method.name)
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert declared == {(method.service, method.name) for method in METHODS}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_message_class_and_proto_have_the_same_fields(kind: Any) -> None:
    names = set(message_of(kind).DESCRIPTOR.fields_by_name)
    assert names - {field.name for field in fields(kind)} == ONLY_ON_THE_WIRE.get(kind, set())
    assert {field.name for field in fields(kind)} <= names


@pytest.mark.parametrize("kind", [*CLASSES, messages.AppendResult], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_full", [True, False])
def test_every_message_round_trips_as_protobuf(kind: Any, is_full: bool) -> None:
    if kind is messages.AppendResult:
        told = sample(messages.AppendAck) if is_full else None
        value = messages.AppendResult(7, told, None if is_full else RollbookError("x"))
    else:
        value = sample(kind, is_full=is_full)
    message = type(pack(value)).FromString(pack(value).SerializeToString())
    back = unpack(message, kind)
    if kind is messages.AppendResult and not is_full:
        assert (back.number, back.ack, str(back.error)) == (7, None, "x")
    else:
        assert back == value


@pytest.mark.parametrize("kind", get_args(messages.ReadEvent), ids=lambda kind: kind.__name__)
def test_every_read_event_round_trips_as_protobuf(kind: Any) -> None:
    event = sample(kind)
    told = log_pb2.ReadEvent.FromString(pack_event(event).SerializeToString())
    assert unpack_event(told, event_kinds(messages.ReadEvent)) == event


@pytest.mark.parametrize("sizes", [[], [0], [1], [127, 128], [300_000, 20_000, 0]])
@pytest.mark.parametrize("offsets", [(0, 0), (0, 1), (127, 128), (2**40, 2**63 - 1)])
def test_hand_packed_records_equal_protobuf_encoding(
    sizes: list[int], offsets: tuple[int, int]
) -> None:
    event = messages.Records(tuple(map(bytes, sizes)), *map(Offset, offsets))
    assert pack_records(event) == pack_event(event).SerializeToString()


def test_unknown_read_event_is_unpacked_as_none() -> None:
    assert unpack_event(log_pb2.ReadEvent(), event_kinds(messages.ReadEvent)) is None


@pytest.mark.parametrize(
    ("message", "kind", "field"),
    [
        (log_pb2.GetTailRequest(log="UPPER"), messages.GetTail, "log"),
        (log_pb2.GetTailRequest(log="a", consistency=99), messages.GetTail, "consistency"),  # type: ignore[arg-type]  # An unknown value.
        (log_pb2.ReadRequest(log="a", start="nowhere"), messages.Read, "start"),
        (
            log_pb2.RenewWriterRequest(log="a", writer_epoch=2**63),
            messages.RenewWriter,
            "writer_epoch",
        ),
        (cursor_pb2.GetCursorRequest(log="a", name=""), messages.GetCursor, "name"),
        (admin_pb2.UpdateLogRequest(log="a"), messages.UpdateLog, "config"),
    ],
)
def test_invalid_field_is_rejected_by_name(message: Any, kind: Any, field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}"):
        unpack(message, kind)


def test_every_proto_declaration_has_a_comment() -> None:
    """The comments are the reference of the interface."""
    for file in FILES:
        path = str(file.__file__).replace("_pb2.py", ".proto")
        with open(path, encoding="utf-8") as text:
            lines = text.read().splitlines()
        for before, line in pairwise(lines):
            words_of = line.strip()
            is_declared = words_of.startswith(("rpc ", "message ", "enum ", "service ")) or (
                " = " in words_of
                and words_of.endswith(";")
                and not words_of.startswith(("syntax ", "option "))
            )
            if is_declared:
                assert before.strip().startswith("//"), f"{path}: {words_of}"


def test_offset_epoch_and_time_fields_have_64_bits() -> None:
    for file in FILES:
        for message in file.DESCRIPTOR.message_types_by_name.values():
            for field in message.fields:
                is_producers = message.name.startswith(
                    "Producer"
                )  # A producer's epochs are 32 bits.
                if field.name.endswith(("offset", "epoch", "_us")) and not is_producers:
                    assert field.type in (
                        FieldDescriptor.TYPE_UINT64,
                        FieldDescriptor.TYPE_INT64,
                    ), field.full_name
