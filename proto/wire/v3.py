"""Packs and unpacks the messages of BookKeeper's protocol version 3, which is protobuf. No other
module uses the generated code.

A frame's body is a Request or a Response (`schema/bookkeeper_protocol.proto`). The operation in the
header determines which field has the data. A reply has its status twice: in the Response, and in
the operation's own message, which is present even if there is an error. The exceptions are
`Refusal` and a refused StartTls. A client uses the outer status; if that is EOK, it uses the inner
one.

Protobuf bounds the depth of what it parses; if it rejects a message, that is a `BadFrame`.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from rollbook.proto.errors import OK, BadFrame, InvalidRequest, error_of_v3
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.ports import Buffer
from rollbook.proto.wire.entry_batches import LARGE_BYTES, pack_bodies, unpack_bodies
from rollbook.proto.wire.entry_list import pack_entry_list, unpack_entry_list
from rollbook.proto.wire.frames import pack_frame, pack_length
from rollbook.proto.wire.messages import (
    Add,
    AddReply,
    Auth,
    AuthReply,
    BatchRead,
    BatchReadReply,
    BookieInfoReply,
    BookieOperation,
    EntryRead,
    Failure,
    ForceLedger,
    ForceLedgerReply,
    GetBookieInfo,
    ListEntries,
    ListEntriesReply,
    PackedBatch,
    ReadLac,
    ReadLacReply,
    ReadReply,
    ReceivedReply,
    ReceivedRequest,
    Refusal,
    Reply,
    Request,
    StartTls,
    StartTlsReply,
    Unknown,
    WriteLac,
    WriteLacReply,
)
from rollbook.proto.wire.schema import bookkeeper_protocol_pb2 as pb
from rollbook.proto.wire.v3_fast_path_layout import (
    BATCH_ENTRIES_TAG,
    BATCH_READ_HEADER,
    BATCH_READ_TAG,
    BATCH_REQUEST_ID_TAG,
    ENTRY_TAG,
    HEADER_TAG,
    LEDGER_TAG,
    READ_BODY_TAG,
    READ_FOLLOWING_TAG,
    READ_HEADER,
    READ_LAC_TAG,
    READ_LAC_UPDATED_TAG,
    READ_TAG,
    RESPONSE_STATUS_TAG,
    STATUS_TAG,
)
from rollbook.proto.wire.varint import pack_varint

VERSION: Final = pb.VERSION_THREE
HIGH_PRIORITY: Final = 100  # Java sends this value; all values above 0 have the same meaning.
DEFERRED_SYNC: Final = 0x1  # This is a bit in the writeFlags of an add.

_STATUSES: Final = frozenset(pb.StatusCode.values())


def code_of(error: Failure) -> pb.StatusCode.ValueType:
    if error is None:
        return pb.EOK
    assert error.code.v3 is not None, f"{error.__name__} is not an error that a bookie returns"
    return pb.StatusCode.ValueType(error.code.v3)


def failure_of(status: int) -> Failure:
    return None if status == OK else error_of_v3(status)


def is_status(number: int) -> bool:
    """Returns whether the status is known. Protobuf drops an unknown status and then rejects the
    message, which requires one.
    """
    return number in _STATUSES


def pack_auth_message(plugin: str, payload: bytes) -> bytes:
    return pb.AuthMessage(authPluginName=plugin, payload=payload).SerializeToString()


def unpack_auth_message(data: bytes) -> tuple[str, bytes]:
    return _auth_fields(_parse(pb.AuthMessage, data))


def _auth_fields(message: pb.AuthMessage) -> tuple[str, bytes]:
    # Depending on its version, protobuf returns invalid UTF-8 unchanged or raises an error.
    try:
        plugin = message.authPluginName
    except UnicodeDecodeError as error:
        raise BadFrame("the name of an authentication plugin is not UTF-8") from error
    if not isinstance(plugin, str):
        raise BadFrame("the name of an authentication plugin is not UTF-8")
    return plugin, message.payload


_Message = TypeVar("_Message", bound=Message)


def _parse(kind: type[_Message], data: bytes) -> _Message:
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise BadFrame(f"{len(data)} bytes are not a valid {kind.__name__} of version 3") from error
    if not message.IsInitialized():
        raise BadFrame(f"a {kind.__name__} of version 3 lacks a required field")
    return message


# --- A bookie's side --------------------------------------------------------------------------


class V3ReplyHeader(NamedTuple):
    """The parts of the request that the reply must repeat."""

    version: int
    txn_id: int
    operation: BookieOperation

    @property
    def is_supported(self) -> bool:
        return self.version == VERSION

    def pack(self, reply: Reply) -> bytes:
        if isinstance(reply, ReadReply):
            return b"".join(_pack_read_reply(self.txn_id, reply))
        if isinstance(reply, BatchReadReply):
            bodies = list(pack_bodies(reply.bodies))
            return b"".join(_pack_batch_reply(self.txn_id, reply, bodies))
        if isinstance(reply, PackedBatch):
            return b"".join(self.pack_in_pieces(reply))
        return pack_frame(_response(self, reply).SerializeToString())

    def pack_in_pieces(self, reply: Reply) -> list[Buffer]:
        if isinstance(reply, PackedBatch):
            return _pack_batch_reply(self.txn_id, reply, reply.pieces)
        if isinstance(reply, ReadReply) and reply.body and len(reply.body) >= LARGE_BYTES:
            return _pack_read_reply(self.txn_id, reply)
        return [self.pack(reply)]


def _pack_read_reply(txn_id: int, reply: ReadReply) -> list[Buffer]:
    """Packs the reply to a read without protobuf, which would copy the body two more times."""
    status = pack_varint(code_of(reply.error))
    ids = (LEDGER_TAG, pack_varint(reply.ledger_id), ENTRY_TAG, pack_varint(reply.entry_id))
    parts: list[Buffer] = [STATUS_TAG, status, *ids]
    if reply.body is not None:
        parts += (READ_BODY_TAG, pack_varint(len(reply.body)), reply.body)
    if reply.last_add_confirmed is not None:
        parts += (READ_LAC_TAG, pack_varint(reply.last_add_confirmed))
    if reply.lac_updated_ms is not None:
        parts += (READ_LAC_UPDATED_TAG, pack_varint(reply.lac_updated_ms))
    if reply.following:
        following = b"".join(pack_bodies(reply.following))
        parts += (READ_FOLLOWING_TAG, pack_varint(len(following)), following)
    return _pack_by_hand(READ_HEADER, txn_id, status, READ_TAG, parts)


def _pack_batch_reply(
    txn_id: int, reply: BatchReadReply | PackedBatch, bodies: Sequence[Buffer]
) -> list[Buffer]:
    """Packs the reply to a batch read without protobuf, for the same reason as `_pack_read_reply`."""
    status = pack_varint(code_of(reply.error))
    parts: list[Buffer] = [
        STATUS_TAG,
        status,
        LEDGER_TAG,
        pack_varint(reply.ledger_id),
        ENTRY_TAG,
        pack_varint(reply.first_entry),
        BATCH_REQUEST_ID_TAG,
        pack_varint(reply.request_id),
    ]
    if bodies:
        parts += (BATCH_ENTRIES_TAG, pack_varint(sum(map(len, bodies))), *bodies)
    return _pack_by_hand(BATCH_READ_HEADER, txn_id, status, BATCH_READ_TAG, parts)


def _pack_by_hand(
    header_start: bytes, txn_id: int, status: bytes, field: bytes, parts: list[Buffer]
) -> list[Buffer]:
    """Returns the frame of a reply. `field` is the tag of its own message, and the parts are the
    contents of that message.
    """
    size = sum(map(len, parts))
    header = header_start + pack_varint(txn_id)
    header_size = pack_varint(len(header))
    head = b"".join(
        (HEADER_TAG, header_size, header, RESPONSE_STATUS_TAG, status, field, pack_varint(size))
    )
    return [pack_length(len(head) + size), head, *parts]


def _response(origin: V3ReplyHeader, reply: Reply) -> pb.Response:
    status = code_of(None if isinstance(reply, AuthReply) else reply.error)
    return pb.Response(
        header=_header(origin.txn_id, origin.operation),
        status=status,
        **_reply_message(reply, status),
    )


def _header(
    txn_id: int, operation: BookieOperation, priority: int | None = None
) -> pb.BKPacketHeader:
    return pb.BKPacketHeader(
        version=VERSION,
        operation=pb.OperationType.ValueType(operation),
        txnId=txn_id,
        priority=priority,
    )


def _reply_message(reply: Reply, status: pb.StatusCode.ValueType) -> dict[str, Any]:
    """Returns the operation's own message by the name of its field, or nothing if there is no such message."""
    match reply:
        case AddReply(_, ledger_id, entry_id):
            added = pb.AddResponse(status=status, ledgerId=ledger_id, entryId=entry_id)
            return {"addResponse": added}
        case AuthReply(plugin, payload):
            return {"authResponse": pb.AuthMessage(authPluginName=plugin, payload=payload)}
        case WriteLacReply(_, ledger_id):
            return {"writeLacResponse": pb.WriteLacResponse(status=status, ledgerId=ledger_id)}
        case ReadLacReply(_, ledger_id, packet, last_entry):
            lac = pb.ReadLacResponse(
                status=status, ledgerId=ledger_id, lacBody=packet, lastEntryBody=last_entry
            )
            return {"readLacResponse": lac}
        case ForceLedgerReply(_, ledger_id):
            forced = pb.ForceLedgerResponse(status=status, ledgerId=ledger_id)
            return {"forceLedgerResponse": forced}
        case BookieInfoReply(_, total_bytes, free_bytes):
            info = pb.GetBookieInfoResponse(
                status=status, totalDiskCapacity=total_bytes, freeDiskSpace=free_bytes
            )
            return {"getBookieInfoResponse": info}
        case ListEntriesReply(_, ledger_id, entries):
            packed = None if entries is None else pack_entry_list(entries)
            listed = pb.GetListOfEntriesOfLedgerResponse(
                status=status, ledgerId=ledger_id, availabilityOfEntriesOfLedger=packed
            )
            return {"getListOfEntriesOfLedgerResponse": listed}
        case StartTlsReply(None):
            return {"startTLSResponse": pb.StartTLSResponse()}
        case StartTlsReply() | Refusal():
            return {}
    raise AssertionError(f"{type(reply).__name__} has no form in version 3")


def unpack_request(body: bytes) -> ReceivedRequest:
    message = _parse(pb.Request, body)
    header = message.header
    operation = BookieOperation(header.operation)
    origin = V3ReplyHeader(header.version, header.txnId, operation)
    return ReceivedRequest(_request(message, operation), header.priority > 0, origin)


def _request(message: pb.Request, operation: BookieOperation) -> Request:
    match operation:
        case BookieOperation.READ if message.HasField("readRequest"):
            return _read(message.readRequest)
        case BookieOperation.ADD if message.HasField("addRequest"):
            add = message.addRequest
            return Add(
                ledger_id=LedgerId(add.ledgerId),
                entry_id=EntryId(add.entryId),
                ledger_key=add.masterKey,
                body=add.body,
                is_recovery=add.HasField("flag"),  # The flag has only one value.
                is_sync_deferred=bool(add.writeFlags & DEFERRED_SYNC),
            )
        case BookieOperation.AUTH if message.HasField("authRequest"):
            return Auth(*_auth_fields(message.authRequest))
        case BookieOperation.WRITE_LAC if message.HasField("writeLacRequest"):
            lac = message.writeLacRequest
            return WriteLac(LedgerId(lac.ledgerId), EntryId(lac.lac), lac.masterKey, lac.body)
        case BookieOperation.READ_LAC if message.HasField("readLacRequest"):
            return ReadLac(LedgerId(message.readLacRequest.ledgerId))
        case BookieOperation.GET_BOOKIE_INFO if message.HasField("getBookieInfoRequest"):
            requested = message.getBookieInfoRequest.requested
            return GetBookieInfo(
                total_bytes=bool(requested & pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY),
                free_bytes=bool(requested & pb.GetBookieInfoRequest.FREE_DISK_SPACE),
            )
        case BookieOperation.BATCH_READ if message.HasField("batchReadRequest"):
            return _batch_read(message.batchReadRequest)
        case BookieOperation.START_TLS if message.HasField("startTLSRequest"):
            return StartTls()
        case BookieOperation.FORCE_LEDGER if message.HasField("forceLedgerRequest"):
            return ForceLedger(LedgerId(message.forceLedgerRequest.ledgerId))
        case BookieOperation.LIST_ENTRIES if message.HasField("getListOfEntriesOfLedgerRequest"):
            return ListEntries(LedgerId(message.getListOfEntriesOfLedgerRequest.ledgerId))
    return Unknown()


def _read(read: pb.ReadRequest) -> EntryRead:
    return EntryRead(
        LedgerId(read.ledgerId),
        EntryId(read.entryId),
        ledger_key=read.masterKey if read.HasField("masterKey") else None,
        fence=read.flag == pb.ReadRequest.FENCE_LEDGER and read.HasField("flag"),
        previous_lac=EntryId(read.previousLAC) if read.HasField("previousLAC") else None,
        timeout_ms=read.timeOut if read.HasField("timeOut") else None,
        piggyback=read.flag == pb.ReadRequest.ENTRY_PIGGYBACK,
        following_bytes_max=read.followingBytesMax,
    )


def _batch_read(batch: pb.BatchReadRequest) -> BatchRead:
    return BatchRead(
        LedgerId(batch.ledgerId),
        EntryId(batch.firstEntry),
        batch.requestId,
        batch.countMax,
        batch.bytesMax,
        ledger_key=batch.masterKey if batch.HasField("masterKey") else None,
        fence=batch.fence,
        is_sparse=batch.isSparse,
    )


# --- A client's side --------------------------------------------------------------------------


def pack_request(txn_id: int, request: Request, *, is_high_priority: bool = False) -> bytes:
    """Packs a frame. Packs a request. Requests that wait for replies on the same connection must
    have different `txn_id`s.
    """
    operation, own = _request_message(request)
    header = _header(txn_id, operation, HIGH_PRIORITY if is_high_priority else None)
    return pack_frame(pb.Request(header=header, **own).SerializeToString())


def _request_message(request: Request) -> tuple[BookieOperation, dict[str, Any]]:
    match request:
        case EntryRead():
            return BookieOperation.READ, {"readRequest": _read_message(request)}
        case Add():
            add = pb.AddRequest(
                ledgerId=request.ledger_id,
                entryId=request.entry_id,
                masterKey=request.ledger_key,
                body=request.body,
                writeFlags=DEFERRED_SYNC if request.is_sync_deferred else None,
                flag=pb.AddRequest.RECOVERY_ADD if request.is_recovery else None,
            )
            return BookieOperation.ADD, {"addRequest": add}
        case Auth(plugin, payload):
            auth = pb.AuthMessage(authPluginName=plugin, payload=payload)
            return BookieOperation.AUTH, {"authRequest": auth}
        case WriteLac(ledger_id, lac, key, packet):
            written = pb.WriteLacRequest(ledgerId=ledger_id, lac=lac, masterKey=key, body=packet)
            return BookieOperation.WRITE_LAC, {"writeLacRequest": written}
        case ReadLac(ledger_id):
            return BookieOperation.READ_LAC, {
                "readLacRequest": pb.ReadLacRequest(ledgerId=ledger_id)
            }
        case GetBookieInfo(total_bytes, free_bytes):
            bits = (
                pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY * total_bytes
                | pb.GetBookieInfoRequest.FREE_DISK_SPACE * free_bytes
            )
            info = pb.GetBookieInfoRequest(requested=bits)
            return BookieOperation.GET_BOOKIE_INFO, {"getBookieInfoRequest": info}
        case StartTls():
            return BookieOperation.START_TLS, {"startTLSRequest": pb.StartTLSRequest()}
        case ForceLedger(ledger_id):
            force = pb.ForceLedgerRequest(ledgerId=ledger_id)
            return BookieOperation.FORCE_LEDGER, {"forceLedgerRequest": force}
        case ListEntries(ledger_id):
            entries = pb.GetListOfEntriesOfLedgerRequest(ledgerId=ledger_id)
            return BookieOperation.LIST_ENTRIES, {"getListOfEntriesOfLedgerRequest": entries}
        case BatchRead():
            batch = pb.BatchReadRequest(
                ledgerId=request.ledger_id,
                firstEntry=request.first_entry,
                requestId=request.request_id,
                countMax=request.count_max,
                bytesMax=request.bytes_max,
                masterKey=request.ledger_key,
                fence=request.fence or None,
                isSparse=request.is_sparse or None,
            )
            return BookieOperation.BATCH_READ, {"batchReadRequest": batch}
    raise InvalidRequest(f"{type(request).__name__} has no form in version 3")


def _read_message(read: EntryRead) -> pb.ReadRequest:
    assert not (read.fence and read.piggyback), "a read can have only one flag"
    flag = None
    if read.fence:
        flag = pb.ReadRequest.FENCE_LEDGER
    elif read.piggyback:
        flag = pb.ReadRequest.ENTRY_PIGGYBACK
    return pb.ReadRequest(
        ledgerId=read.ledger_id,
        entryId=read.entry_id,
        masterKey=read.ledger_key,
        previousLAC=read.previous_lac,
        timeOut=read.timeout_ms,
        flag=flag,
        followingBytesMax=read.following_bytes_max or None,
    )


def unpack_reply(body: bytes) -> ReceivedReply:
    response = _parse(pb.Response, body)
    return ReceivedReply(response.header.txnId, _reply(response))


def _reply(response: pb.Response) -> Reply:
    outer = failure_of(response.status)

    def failure(status: int) -> Failure:
        return outer or failure_of(status)

    # This is a table with one case for each operation and its fields in the order of the schema.
    match response.header.operation:
        case pb.READ_ENTRY if response.HasField("readResponse"):
            read = response.readResponse
            return ReadReply(
                failure(read.status),
                LedgerId(read.ledgerId),
                EntryId(read.entryId),
                read.body if read.HasField("body") else None,
                EntryId(read.maxLAC) if read.HasField("maxLAC") else None,
                read.lacUpdateTimestamp if read.HasField("lacUpdateTimestamp") else None,
                tuple(unpack_bodies(read.following, 0, len(read.following))),
            )
        case pb.ADD_ENTRY if response.HasField("addResponse"):
            add = response.addResponse
            return AddReply(failure(add.status), LedgerId(add.ledgerId), EntryId(add.entryId))
        case pb.AUTH if response.HasField("authResponse") and outer is None:
            return AuthReply(*_auth_fields(response.authResponse))
        case pb.WRITE_LAC if response.HasField("writeLacResponse"):
            written = response.writeLacResponse
            return WriteLacReply(failure(written.status), LedgerId(written.ledgerId))
        case pb.READ_LAC if response.HasField("readLacResponse"):
            lac = response.readLacResponse
            return ReadLacReply(
                failure(lac.status),
                LedgerId(lac.ledgerId),
                lac.lacBody if lac.HasField("lacBody") else None,
                lac.lastEntryBody if lac.HasField("lastEntryBody") else None,
            )
        case pb.FORCE_LEDGER if response.HasField("forceLedgerResponse"):
            forced = response.forceLedgerResponse
            return ForceLedgerReply(failure(forced.status), LedgerId(forced.ledgerId))
        case pb.GET_BOOKIE_INFO if response.HasField("getBookieInfoResponse"):
            info = response.getBookieInfoResponse
            return BookieInfoReply(
                failure(info.status),
                info.totalDiskCapacity if info.HasField("totalDiskCapacity") else None,
                info.freeDiskSpace if info.HasField("freeDiskSpace") else None,
            )
        case pb.GET_LIST_OF_ENTRIES_OF_LEDGER if response.HasField(
            "getListOfEntriesOfLedgerResponse"
        ):
            listed = response.getListOfEntriesOfLedgerResponse
            error = failure(listed.status)
            entries = unpack_entry_list(listed.availabilityOfEntriesOfLedger) if not error else None
            return ListEntriesReply(error, LedgerId(listed.ledgerId), entries)
        case pb.BATCH_READ_ENTRY if response.HasField("batchReadResponse"):
            batch = response.batchReadResponse
            return BatchReadReply(
                failure(batch.status),
                LedgerId(batch.ledgerId),
                EntryId(batch.firstEntry),
                batch.requestId,
                tuple(unpack_bodies(batch.entries, 0, len(batch.entries))),
            )
        case pb.START_TLS:
            return StartTlsReply(outer)
    if outer is None:
        raise BadFrame("a reply of version 3 has the status EOK but no message")
    return Refusal(outer)
