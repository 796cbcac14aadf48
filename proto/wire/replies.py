"""What a client hears on one connection: bytes to replies, adds' replies in columns."""

from typing import NamedTuple

from rollbook.proto.wire import v2, v2_adds, v3, v3_adds
from rollbook.proto.wire.adds import AddReplies
from rollbook.proto.wire.frames import FRAME_BYTES_MAX, LENGTH_BYTES, V3_FIRST_BYTE, FrameBuffer
from rollbook.proto.wire.messages import AddReply, Reply


class Answer(NamedTuple):
    """`txn_id` finds the request; in version 2, where it is None, the reply's ids do."""

    txn_id: int | None
    reply: Reply


class ReplyDecoder:
    """One connection's bytes, taken up as they arrive. After `BadFrame` it must be closed.

    Bodies of entries are views of the bytes that came: whoever keeps one keeps them all.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frames = FrameBuffer(frame_bytes_max)

    def feed(self, chunk: bytes) -> list[AddReplies | Answer]:
        frames = self._frames
        buffer, position, heard = frames.join(chunk), 0, list[AddReplies | Answer]()
        while True:
            replies, position = _take_add_replies(buffer, position)
            heard += replies
            end = frames.frame_end(buffer, position)
            if end < 0:
                break
            heard.append(_unpack(buffer, position + LENGTH_BYTES, end))
            position = end
        frames.keep(buffer, position)
        return heard


def _take_add_replies(buffer: bytes, position: int) -> tuple[list[AddReplies], int]:
    if len(buffer) <= position + LENGTH_BYTES:
        return [], position
    if buffer[position + LENGTH_BYTES] == V3_FIRST_BYTE:
        return v3_adds.take_add_replies(buffer, position)
    return v2_adds.take_add_replies(buffer, position)


def _unpack(buffer: bytes, position: int, end: int) -> AddReplies | Answer:
    txn_id: int | None = None
    if buffer[position] == V3_FIRST_BYTE:
        txn_id, reply = v3.unpack_reply(buffer, position, end)
    else:
        reply = v2.unpack_reply(buffer, position, end)
    if isinstance(reply, AddReply):
        return AddReplies(reply.error, reply.ledger_id, [reply.entry_id])
    return Answer(txn_id, reply)
