"""Decodes the bytes that a client receives on one connection into replies. Replies to adds become columns."""

from rollbook.proto.wire import v2, v2_adds, v3, v3_adds, v3_reads
from rollbook.proto.wire.add_columns import AddReplies
from rollbook.proto.wire.frames import FRAME_BYTES_MAX, LENGTH_BYTES, V3_FIRST_BYTE, FrameBuffer
from rollbook.proto.wire.messages import AddReply, ReceivedReply


class ReplyDecoder:
    """Decodes the bytes of one connection as they arrive. After `BadFrame` the connection must be closed.

    The bodies of entries are views of the received bytes, so one body that is kept keeps all these
    bytes in memory.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frames = FrameBuffer(frame_bytes_max)

    def feed(self, chunk: bytes) -> list[AddReplies | ReceivedReply]:
        frames = self._frames
        buffer, position = frames.join(chunk), 0
        heard: list[AddReplies | ReceivedReply] = []
        while True:
            start = position
            if len(buffer) > position + LENGTH_BYTES:
                if buffer[position + LENGTH_BYTES] == V3_FIRST_BYTE:
                    adds, position = v3_adds.take_add_replies(buffer, position)
                    # This is the usual case: the chunk has no replies to reads.
                    if position == len(buffer):
                        return heard + adds
                    reads, position = v3_reads.take_read_replies(
                        buffer, position, frames.frame_bytes_max
                    )
                else:
                    adds, position = v2_adds.take_add_replies(buffer, position)
                    reads, position = v2.take_read_replies(buffer, position, frames.frame_bytes_max)
                heard += adds
                heard += reads
            if start < position < len(buffer):  # Adds may follow reads.
                continue
            end = frames.frame_end(buffer, position)
            if end < 0:
                break
            heard.append(_unpack(buffer, position + LENGTH_BYTES, end))
            position = end
        frames.keep(buffer, position)
        return heard


def _unpack(buffer: bytes, position: int, end: int) -> AddReplies | ReceivedReply:
    """Unpacks one frame that is in an unusual form; its body is at `[position:end]`."""
    if buffer[position] == V3_FIRST_BYTE:
        batch = v3_reads.unpack_batch_reply(buffer, position, end)
        answer = batch or v3.unpack_reply(buffer[position:end])
    else:
        answer = v2.unpack_reply(buffer, position, end)
    if isinstance(answer.reply, AddReply):
        return AddReplies(answer.reply.error, answer.reply.ledger_id, [answer.reply.entry_id])
    return answer
