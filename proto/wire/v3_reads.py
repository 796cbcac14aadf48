"""Unpacks reads and their replies in version 3, several at a time, if they are in the usual form.

The usual forms are a plain read, without a key or a flag, and a reply with a found entry or a
batch. All other messages, and messages with fields in another order, are decoded one by one by
protobuf.
"""

from typing import Final

from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.wire import v3, v3_fast_path_layout
from rollbook.proto.wire.entry_batches import unpack_bodies
from rollbook.proto.wire.frames import LENGTH_BYTES, length_at
from rollbook.proto.wire.messages import (
    BatchReadReply,
    BookieOperation,
    EntryRead,
    ReadReply,
    ReceivedReply,
    ReceivedRequest,
)
from rollbook.proto.wire.v3_fast_path_layout import (
    HEADER_AT,
    HEADER_SIZE_AT,
    OWN_SIZE_AT,
    READ_TAG,
    is_urgent,
)
from rollbook.proto.wire.varint import unpack_varint

_READ: Final = BookieOperation.READ

_match_read: Final = v3_fast_path_layout.READ_REQUEST.match
_match_reply: Final = v3_fast_path_layout.READ_REPLY.match
_match_reply_tail: Final = v3_fast_path_layout.READ_REPLY_TAIL.match
_match_batch: Final = v3_fast_path_layout.BATCH_READ_REPLY.match


def take_reads(buffer: bytes, position: int) -> tuple[list[ReceivedRequest], int]:
    """Returns the plain reads from `position` on that have arrived completely, and where they end."""
    calls: list[ReceivedRequest] = []
    while match := _match_read(buffer, position + LENGTH_BYTES):
        txn_id, priority, size, ledger_id, entry_id = match.groups()
        end = match.end()
        if (
            position + LENGTH_BYTES + length_at(buffer, position)[0] != end
            or match.end(3) + size[0] != end
            or match.start(3) != position + OWN_SIZE_AT + buffer[position + HEADER_SIZE_AT]
        ):
            break
        read = EntryRead(LedgerId(unpack_varint(ledger_id)), EntryId(unpack_varint(entry_id)))
        is_high_priority = priority != READ_TAG and is_urgent(priority)
        calls.append(
            ReceivedRequest(
                read, is_high_priority, v3.V3ReplyHeader(v3.VERSION, unpack_varint(txn_id), _READ)
            )
        )
        position = end
    return calls, position


def take_read_replies(
    buffer: bytes, position: int, frame_bytes_max: int
) -> tuple[list[ReceivedReply], int]:
    """Returns the replies with a found entry, in the usual form, from `position` on that have
    arrived completely, and where they end.
    """
    answers: list[ReceivedReply] = []
    view = memoryview(buffer)
    while match := _match_reply(buffer, position + LENGTH_BYTES):
        txn_id, size, ledger_id, entry_id, body_size = match.groups()
        end = position + LENGTH_BYTES + length_at(buffer, position)[0]
        body_start = match.end()
        body_end = body_start + unpack_varint(body_size)
        if (
            not body_end <= end <= len(buffer)
            or end - position > frame_bytes_max
            or match.end(2) + unpack_varint(size) != end
            or match.end(1) != position + HEADER_AT + buffer[position + HEADER_SIZE_AT]
            or (tail := _match_reply_tail(buffer, body_end, end)) is None
        ):
            break
        lac, updated_ms, following_size = tail.groups()
        following: tuple[memoryview, ...] = ()
        if following_size is not None and tail.end() + unpack_varint(following_size) == end:
            following = tuple(unpack_bodies(buffer, tail.end(), end))
        elif tail.end() != end:
            break
        reply = ReadReply(
            None,
            LedgerId(unpack_varint(ledger_id)),
            EntryId(unpack_varint(entry_id)),
            view[body_start:body_end],
            None if lac is None else EntryId(unpack_varint(lac)),
            None if updated_ms is None else unpack_varint(updated_ms),
            following,
        )
        answers.append(ReceivedReply(unpack_varint(txn_id), reply))
        position = end
    return answers, position


def unpack_batch_reply(buffer: bytes, position: int, end: int) -> ReceivedReply | None:
    """Returns the batch in the frame whose body is at `[position:end]`, or None if it is not in the
    usual form.

    A batch may have megabytes, of which protobuf would make two more copies. Raises `BadFrame`.
    """
    if (match := _match_batch(buffer, position, end)) is None:
        return None
    txn_id, size, ledger_id, first_entry, request_id, entries_size = match.groups()
    start = position - LENGTH_BYTES
    if (
        match.end() + unpack_varint(entries_size) != end
        or match.end(2) + unpack_varint(size) != end
        or match.end(1) != start + HEADER_AT + buffer[start + HEADER_SIZE_AT]
    ):
        return None
    reply = BatchReadReply(
        None,
        LedgerId(unpack_varint(ledger_id)),
        EntryId(unpack_varint(first_entry)),
        unpack_varint(request_id),
        tuple(unpack_bodies(buffer, match.end(), end)),
    )
    return ReceivedReply(unpack_varint(txn_id), reply)
