"""Decodes the bytes that a bookie receives on one connection into adds and calls, in the order of arrival.

The protocols may alternate from frame to frame. Their order is kept, because a fence must cut off
all adds after it and none before it. The result does not depend on how the bytes were cut (W2).
"""

from typing import NamedTuple

from rollbook.proto.errors import InvalidRequest, UnsupportedVersion
from rollbook.proto.ids import FIRST_ENTRY
from rollbook.proto.wire import v2, v2_adds, v3, v3_adds, v3_reads
from rollbook.proto.wire.add_columns import Adds
from rollbook.proto.wire.digest import ENTRY_HEADER_BYTES, LEDGER_KEY_BYTES, entry_ids_at
from rollbook.proto.wire.frames import FRAME_BYTES_MAX, LENGTH_BYTES, V3_FIRST_BYTE, FrameBuffer
from rollbook.proto.wire.messages import Add, ReceivedRequest, Unknown


class Refused(NamedTuple):
    """A request that the protocol itself forbids; the bookie only has to send this reply."""

    reply: bytes


Heard = Adds | ReceivedRequest | Refused


class RequestDecoder:
    """Decodes the bytes of one connection as they arrive. After `BadFrame` the connection must be closed."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frames = FrameBuffer(frame_bytes_max)

    @property
    def begun_bytes(self) -> int:
        """The number of received bytes of an incomplete request."""
        return self._frames.held_bytes

    def feed(self, chunk: bytes) -> list[Heard]:
        frames = self._frames
        buffer, position = frames.join(chunk), 0
        heard: list[Heard] = []
        while True:
            start = position
            if len(buffer) > position + LENGTH_BYTES:
                if buffer[position + LENGTH_BYTES] == V3_FIRST_BYTE:
                    take_adds, take_reads = v3_adds.take_adds, v3_reads.take_reads
                else:
                    take_adds, take_reads = v2_adds.take_adds, v2.take_reads
                adds, position = take_adds(buffer, position, frames.frame_bytes_max)
                if adds is not None:
                    heard.append(adds)
                    if position == len(buffer):
                        break
                reads, position = take_reads(buffer, position)
                heard += reads
            if position > start:  # Adds may follow reads.
                continue
            end = frames.frame_end(buffer, position)
            if end < 0:
                break
            heard.append(_unpack(buffer, position + LENGTH_BYTES, end))
            position = end
        frames.keep(buffer, position)
        return heard

    def drop(self) -> None:
        """Drops an incomplete request, since no more bytes will arrive."""
        self._frames.drop()


def _unpack(buffer: bytes, position: int, end: int) -> Heard:
    """Unpacks one frame that is in an unusual form; its body is at `[position:end]`."""
    if buffer[position] == V3_FIRST_BYTE:
        call = v3.unpack_request(buffer[position:end])
    else:
        call = v2.unpack_request(buffer, position, end)
    request, is_high_priority, origin = call
    if not origin.is_supported:
        return Refused(call.refuse(UnsupportedVersion))
    if isinstance(request, Unknown):
        return Refused(call.refuse(InvalidRequest))
    if not isinstance(request, Add):
        return call
    if not _is_sound(request):
        return Refused(call.refuse(InvalidRequest))
    assert isinstance(origin, v3.V3ReplyHeader), "version 2 has only one form of adds"
    frame = v3.pack_request(origin.txn_id, request, is_high_priority=is_high_priority)
    adds, taken = v3_adds.take_adds(frame, 0, len(frame))
    assert adds is not None
    assert taken == len(frame)
    return adds


def _is_sound(add: Add) -> bool:
    """Returns whether the ids in the entry equal the ids before it. A bookie stores the entry under
    the former, and replies with the latter.
    """
    return (
        len(add.ledger_key) == LEDGER_KEY_BYTES
        and len(add.body) >= ENTRY_HEADER_BYTES
        and add.ledger_id >= 0
        and add.entry_id >= FIRST_ENTRY
        and entry_ids_at(add.body) == (add.ledger_id, add.entry_id)
    )
