"""Packs and unpacks the messages of BookKeeper's protocol version 2; `v2_layout.py` draws them.

A reply carries the request's version and repeats its ids, by which the client finds the request.
"""

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rollbook.proto.errors import OK, BadFrame, InvalidRequest, error_of_v2
from rollbook.proto.ports import Buffer
from rollbook.proto.wire import v3
from rollbook.proto.wire.digest import ENTRY_HEADER_BYTES, LEDGER_KEY_BYTES
from rollbook.proto.wire.entry_batches import LARGE_BYTES, pack_bodies, unpack_bodies
from rollbook.proto.wire.frames import LENGTH_BYTES, pack_frame, pack_length
from rollbook.proto.wire.messages import (
    Add,
    AddReply,
    Auth,
    AuthReply,
    BatchRead,
    BatchReadReply,
    EntryRead,
    Failure,
    PackedBatch,
    ReadReply,
    ReceivedReply,
    ReceivedRequest,
    Refusal,
    Reply,
    Request,
)
from rollbook.proto.wire.v2_layout import (
    ADD,
    ADD_BODY,
    ADD_ENTRY_AT,
    AUTH,
    BATCH_READ,
    BATCH_READ_BODY,
    BATCH_READ_REPLY_BODY,
    DO_FENCING,
    HIGH_PRIORITY,
    READ,
    READ_BODY,
    READ_FRAME,
    RECOVERY_ADD,
    REPLY_BODY,
    REPLY_FRAME,
    SPARSE,
    VERSION,
    WORD,
    Header,
    pack_header,
    unpack_header,
)

# The word of a reply, and of a request without flags.
_PLAIN_READ_WORD: Final = pack_header(VERSION, READ)


def code_of(error: Failure) -> int:
    if error is None:
        return OK
    assert error.code.v2 is not None, f"{error.__name__} is not an error that a bookie returns"
    return error.code.v2


def failure_of(code: int) -> Failure:
    return None if code == OK else error_of_v2(code)


# --- A bookie's side --------------------------------------------------------------------------


class V2ReplyHeader(NamedTuple):
    """The parts of the request that the reply must repeat."""

    version: int

    @property
    def is_supported(self) -> bool:
        return self.version <= VERSION

    def pack(self, reply: Reply) -> bytes:
        match reply:
            case ReadReply():
                return _pack_read_reply(self.version, reply)
            case AddReply(error, ledger_id, entry_id):
                word = pack_header(self.version, ADD)
                return pack_frame(REPLY_BODY.pack(word, code_of(error), ledger_id, entry_id))
            case BatchReadReply():
                bodies = list(pack_bodies(reply.bodies))
                return b"".join(_pack_batch_read_reply(self.version, reply, bodies))
            case PackedBatch():
                return b"".join(self.pack_in_pieces(reply))
            case AuthReply(plugin, payload):
                header = WORD.pack(pack_header(VERSION, AUTH))
                return pack_frame(header + v3.pack_auth_message(plugin, payload))
            case Refusal():
                return b""
        raise AssertionError(f"{type(reply).__name__} has no form in version 2")

    def pack_in_pieces(self, reply: Reply) -> list[Buffer]:
        match reply:
            case PackedBatch():
                return _pack_batch_read_reply(self.version, reply, reply.pieces)
            case ReadReply(body=body) if body is not None and len(body) >= LARGE_BYTES:
                return [_pack_read_reply_head(self.version, reply, len(body)), body]
        return [self.pack(reply)]


_CURRENT: Final = V2ReplyHeader(VERSION)


def _pack_read_reply(version: int, reply: ReadReply) -> bytes:
    body = b"" if reply.body is None else reply.body
    return b"".join((_pack_read_reply_head(version, reply, len(body)), body))


def _pack_read_reply_head(version: int, reply: ReadReply, body_bytes: int) -> bytes:
    return REPLY_FRAME.pack(
        REPLY_BODY.size + body_bytes,
        pack_header(version, READ),
        code_of(reply.error),
        reply.ledger_id,
        reply.entry_id,
    )


def _pack_batch_read_reply(
    version: int, reply: BatchReadReply | PackedBatch, bodies: Sequence[Buffer]
) -> list[Buffer]:
    head = BATCH_READ_REPLY_BODY.pack(
        pack_header(version, BATCH_READ),
        code_of(reply.error),
        reply.ledger_id,
        reply.first_entry,
        reply.request_id,
    )
    return [pack_length(len(head) + sum(map(len, bodies))) + head, *bodies]


def unpack_request(buffer: bytes, position: int, end: int) -> ReceivedRequest:
    """Returns the request in the frame whose body is at `[position:end]`."""
    header = unpack_header(*_unpack(WORD, buffer, position, end))
    request = _unpack_request(header, buffer, position, end)
    return ReceivedRequest(
        request, bool(header.flags & HIGH_PRIORITY), V2ReplyHeader(header.version)
    )


def _unpack_request(header: Header, buffer: bytes, position: int, end: int) -> Request:
    fence = bool(header.flags & DO_FENCING)
    if header.operation == READ:
        _, ledger_id, entry_id = _unpack(READ_BODY, buffer, position, end)
        key = _unpack_fence_key(header, buffer, position + READ_BODY.size, end)
        return EntryRead(ledger_id, entry_id, key, fence)
    if header.operation == ADD:
        return _unpack_add(header, buffer, position, end)
    if header.operation == BATCH_READ:
        _, ledger_id, first, request_id, count, size = _unpack(
            BATCH_READ_BODY, buffer, position, end
        )
        key = _unpack_fence_key(header, buffer, position + BATCH_READ_BODY.size, end)
        is_sparse = bool(header.flags & SPARSE)
        return BatchRead(ledger_id, first, request_id, count, size, key, fence, is_sparse)
    if header.operation == AUTH and header.is_supported:  # Version 2 has no negative reply to AUTH.
        return Auth(*v3.unpack_auth_message(buffer[position + WORD.size : end]))
    raise BadFrame(f"version 2 has no operation {header.operation}")


def take_reads(buffer: bytes, position: int) -> tuple[list[ReceivedRequest], int]:
    """Returns the plain reads from `position` on that have arrived completely, and where they end."""
    calls: list[ReceivedRequest] = []
    size = len(buffer)
    while position + READ_FRAME.size <= size:
        length, word, ledger_id, entry_id = READ_FRAME.unpack_from(buffer, position)
        if length != READ_BODY.size or word != _PLAIN_READ_WORD:
            break
        calls.append(ReceivedRequest(EntryRead(ledger_id, entry_id), False, _CURRENT))
        position += READ_FRAME.size
    return calls, position


def _unpack_add(header: Header, buffer: bytes, position: int, end: int) -> Add:
    """Unpacks an add that the fast path did not take. Raises `BadFrame` if the add is too short to have ids."""
    _, key, ledger_id, entry_id = _unpack(ADD_BODY, buffer, position, end)
    body = buffer[position - LENGTH_BYTES + ADD_ENTRY_AT : end]
    if len(body) < ENTRY_HEADER_BYTES:
        raise cut_short(end - position)
    return Add(ledger_id, entry_id, key, body, bool(header.flags & RECOVERY_ADD))


def _unpack(layout: struct.Struct, buffer: bytes, position: int, end: int) -> tuple[Any, ...]:
    if position + layout.size > end:
        raise cut_short(end - position)
    return layout.unpack_from(buffer, position)


def cut_short(size: int) -> BadFrame:
    return BadFrame(f"{size} bytes are too few for a message of this kind")


def _unpack_fence_key(header: Header, buffer: bytes, position: int, end: int) -> bytes | None:
    """Returns the key of a fencing read. Reads in versions 0 and 1 carry no key, so they are
    refused and cannot fence.
    """
    if header.version != VERSION or not header.flags & DO_FENCING:
        return None
    if position + LEDGER_KEY_BYTES > end:
        raise cut_short(end - position)
    return buffer[position : position + LEDGER_KEY_BYTES]


# --- A client's side --------------------------------------------------------------------------


def pack_request(request: Request, *, is_high_priority: bool = False) -> bytes:
    priority = HIGH_PRIORITY if is_high_priority else 0
    match request:
        case EntryRead(ledger_id, entry_id, key, fence):
            header = pack_header(VERSION, READ, priority | _fence_flag(key, fence))
            return pack_frame(READ_BODY.pack(header, ledger_id, entry_id) + (key or b""))
        case BatchRead():
            flags = priority | _fence_flag(request.ledger_key, request.fence)
            flags |= SPARSE if request.is_sparse else 0
            body = BATCH_READ_BODY.pack(
                pack_header(VERSION, BATCH_READ, flags),
                request.ledger_id,
                request.first_entry,
                request.request_id,
                request.count_max,
                request.bytes_max,
            )
            return pack_frame(body + (request.ledger_key or b""))
        case Auth(plugin, payload):
            header = pack_header(VERSION, AUTH)
            return pack_frame(WORD.pack(header) + v3.pack_auth_message(plugin, payload))
    raise InvalidRequest(
        f"{type(request).__name__} has no form in version 2",
        next_step="send it on a connection of version 3",
    )


def _fence_flag(key: bytes | None, fence: bool) -> int:
    """Returns the flag of a fencing read. The flag means that a key follows, so it is sent only
    with a key.
    """
    assert fence == (key is not None)
    assert key is None or len(key) == LEDGER_KEY_BYTES
    return DO_FENCING if fence else 0


def unpack_reply(buffer: bytes, position: int, end: int) -> ReceivedReply:
    """Returns the reply in the frame whose body is at `[position:end]`."""
    header = unpack_header(*_unpack(WORD, buffer, position, end))
    return ReceivedReply(None, _unpack_reply(header, buffer, position, end))


def _unpack_reply(header: Header, buffer: bytes, position: int, end: int) -> Reply:
    if header.operation in (ADD, READ):
        _, code, ledger_id, entry_id = _unpack(REPLY_BODY, buffer, position, end)
        if header.operation == ADD:
            return AddReply(failure_of(code), ledger_id, entry_id)
        body = memoryview(buffer)[position + REPLY_BODY.size : end] if code == OK else None
        return ReadReply(failure_of(code), ledger_id, entry_id, body)
    if header.operation == BATCH_READ:
        _, code, ledger_id, first, request_id = _unpack(
            BATCH_READ_REPLY_BODY, buffer, position, end
        )
        bodies = tuple(unpack_bodies(buffer, position + BATCH_READ_REPLY_BODY.size, end))
        return BatchReadReply(failure_of(code), ledger_id, first, request_id, bodies)
    if header.operation == AUTH:
        return AuthReply(*v3.unpack_auth_message(buffer[position + WORD.size : end]))
    raise BadFrame(f"version 2 has no reply to operation {header.operation}")


def take_read_replies(
    buffer: bytes, position: int, frame_bytes_max: int
) -> tuple[list[ReceivedReply], int]:
    """Returns the replies with a found entry from `position` on that have arrived completely, and
    where they end.
    """
    answers: list[ReceivedReply] = []
    view, size = memoryview(buffer), len(buffer)
    while position + REPLY_FRAME.size <= size:
        length, word, code, ledger_id, entry_id = REPLY_FRAME.unpack_from(buffer, position)
        end = position + LENGTH_BYTES + length
        if word != _PLAIN_READ_WORD or code != OK or end > size or length < REPLY_BODY.size:
            break
        if end - position > frame_bytes_max:
            break
        body = view[position + REPLY_FRAME.size : end]
        answers.append(ReceivedReply(None, ReadReply(None, ledger_id, entry_id, body)))
        position = end
    return answers, position
