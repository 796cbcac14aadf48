"""The tags and headers written by hand in `v3_fast_path_layout.py` match the schema."""

import pytest
from google.protobuf.descriptor import FieldDescriptor

from rollbook.proto.wire import v3_fast_path_layout
from rollbook.proto.wire.digest import LEDGER_KEY_BYTES
from rollbook.proto.wire.frames import LENGTH_BYTES
from rollbook.proto.wire.schema import bookkeeper_protocol_pb2 as pb
from rollbook.proto.wire.varint import pack_varint

_BYTES = {FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING}


def tag(field: FieldDescriptor) -> bytes:
    return pack_varint(field.number << 3 | (2 if field.type in _BYTES else 0))


@pytest.mark.parametrize(
    ("drawn", "message", "field"),
    [
        (v3_fast_path_layout.HEADER_TAG, pb.Request, "header"),
        (v3_fast_path_layout.HEADER_TAG, pb.Response, "header"),
        (v3_fast_path_layout.PRIORITY_TAG, pb.BKPacketHeader, "priority"),
        (v3_fast_path_layout.READ_TAG, pb.Request, "readRequest"),
        (v3_fast_path_layout.READ_TAG, pb.Response, "readResponse"),
        (v3_fast_path_layout.ADD_TAG, pb.Request, "addRequest"),
        (v3_fast_path_layout.ADD_TAG, pb.Response, "addResponse"),
        (v3_fast_path_layout.BATCH_READ_TAG, pb.Response, "batchReadResponse"),
        (v3_fast_path_layout.RESPONSE_STATUS_TAG, pb.Response, "status"),
        (v3_fast_path_layout.ADD_LEDGER_TAG, pb.AddRequest, "ledgerId"),
        (v3_fast_path_layout.ADD_ENTRY_TAG, pb.AddRequest, "entryId"),
        (v3_fast_path_layout.ADD_KEY_TAG[:1], pb.AddRequest, "masterKey"),
        (v3_fast_path_layout.ADD_BODY_TAG, pb.AddRequest, "body"),
        (v3_fast_path_layout.DEFERRED_SYNC[:1], pb.AddRequest, "writeFlags"),
        (v3_fast_path_layout.FLAG_RECOVERY[:2], pb.AddRequest, "flag"),
        *(
            (drawn, message, field)
            for message in (pb.AddResponse, pb.ReadResponse)
            for drawn, field in (
                (v3_fast_path_layout.STATUS_TAG, "status"),
                (v3_fast_path_layout.LEDGER_TAG, "ledgerId"),
                (v3_fast_path_layout.ENTRY_TAG, "entryId"),
            )
        ),
        (v3_fast_path_layout.READ_BODY_TAG, pb.ReadResponse, "body"),
        (v3_fast_path_layout.READ_LAC_TAG, pb.ReadResponse, "maxLAC"),
        (v3_fast_path_layout.READ_LAC_UPDATED_TAG, pb.ReadResponse, "lacUpdateTimestamp"),
        (v3_fast_path_layout.READ_FOLLOWING_TAG, pb.ReadResponse, "following"),
        (v3_fast_path_layout.STATUS_TAG, pb.BatchReadResponse, "status"),
        (v3_fast_path_layout.LEDGER_TAG, pb.BatchReadResponse, "ledgerId"),
        (v3_fast_path_layout.ENTRY_TAG, pb.BatchReadResponse, "firstEntry"),
        (v3_fast_path_layout.BATCH_REQUEST_ID_TAG, pb.BatchReadResponse, "requestId"),
        (v3_fast_path_layout.BATCH_ENTRIES_TAG, pb.BatchReadResponse, "entries"),
    ],
)
def test_tag_has_the_number_of_its_field(drawn: bytes, message: type, field: str) -> None:
    assert drawn == tag(message.DESCRIPTOR.fields_by_name[field])  # type: ignore[attr-defined]  # All messages have a DESCRIPTOR.


@pytest.mark.parametrize(
    ("drawn", "operation"),
    [
        (v3_fast_path_layout.READ_HEADER, pb.READ_ENTRY),
        (v3_fast_path_layout.ADD_HEADER, pb.ADD_ENTRY),
        (v3_fast_path_layout.BATCH_READ_HEADER, pb.BATCH_READ_ENTRY),
    ],
)
def test_header_matches_bytes_of_protobuf(
    drawn: bytes, operation: pb.OperationType.ValueType
) -> None:
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=operation, txnId=5)
    assert drawn + pack_varint(5) == header.SerializeToString()


def test_flags_and_key_of_an_add_match_bytes_of_protobuf() -> None:
    flags = pb.AddRequest(writeFlags=1, flag=pb.AddRequest.RECOVERY_ADD)
    assert (
        flags.SerializePartialToString()
        == v3_fast_path_layout.DEFERRED_SYNC + v3_fast_path_layout.FLAG_RECOVERY
    )
    key = pb.AddRequest(masterKey=bytes(LEDGER_KEY_BYTES)).SerializePartialToString()
    assert key == v3_fast_path_layout.ADD_KEY_TAG + bytes(LEDGER_KEY_BYTES)


def test_positions_of_entry_span_shortest_to_longest_add_header() -> None:
    short, nine = b"\x01", b"\xff" * 8 + b"\x01"
    heads = [
        b"".join(
            (
                v3_fast_path_layout.HEADER_TAG
                + b"\x00"
                + v3_fast_path_layout.ADD_HEADER
                + txn_id
                + priority,
                v3_fast_path_layout.ADD_TAG + varint + flag,
                v3_fast_path_layout.ADD_LEDGER_TAG
                + varint
                + v3_fast_path_layout.ADD_ENTRY_TAG
                + varint,
                v3_fast_path_layout.ADD_KEY_TAG
                + bytes(LEDGER_KEY_BYTES)
                + v3_fast_path_layout.ADD_BODY_TAG
                + varint,
            )
        )
        for txn_id, priority, flag, varint in (
            (short, b"", b"", short),
            (
                b"\xff" * 9 + b"\x01",
                v3_fast_path_layout.PRIORITY_TAG + b"\xff" * 3 + b"\x01",
                v3_fast_path_layout.FLAG_RECOVERY,
                nine,
            ),
        )
    ]
    ends = [match.end() for match in map(v3_fast_path_layout.ADD_REQUEST.match, heads) if match]
    possible = v3_fast_path_layout.ADD_ENTRY_AT
    assert [LENGTH_BYTES + end for end in ends] == [possible[0], possible[-1]]
