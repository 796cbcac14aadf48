"""A frame is `u32 length`, big-endian, and then that many bytes. Both protocols use it in both
directions. The limit includes the length's own four bytes, as in Java, and is checked before
anything is stored: whatever lengths a peer claims, it can make us keep at most one frame of this
size and one chunk (W1).

The first byte of a frame's body shows its protocol: version 3 always begins with the tag of its
header, version 2 with its version number. Java tries to parse the body as version 3 and falls back
to version 2 for the rest of the connection. Deciding for each frame accepts everything that Java
accepts, since no version 2 header that Java accepts begins with that tag.
"""

import struct
from typing import Final

from rollbook.proto.errors import BadFrame

FRAME_BYTES_MAX: Final = 5 * 1024 * 1024  # BookKeeper's nettyMaxFrameSizeBytes.
V3_FIRST_BYTE: Final = 0x0A  # Field 1, length-delimited.

_LENGTH: Final = struct.Struct(">I")
length_at: Final = _LENGTH.unpack_from
pack_length: Final = _LENGTH.pack
LENGTH_BYTES: Final = _LENGTH.size


def pack_frame(body: bytes) -> bytes:
    return pack_length(len(body)) + body


class FrameBuffer:
    """Keeps the beginning of a frame at the end of a chunk for the next chunk.

    A parser reads `join(chunk)` from the start, takes whole frames with `frame_end`, and passes the
    position of the first incomplete frame to `keep`.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        # If a peer sends byte by byte, a list of pieces would cost more memory.
        self._held = bytearray()
        self._needed = 0

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def join(self, chunk: bytes) -> bytes:
        """Returns the bytes from the next frame on, or no bytes while that frame is known to be incomplete."""
        if not self._held:
            return chunk
        if len(self._held) + len(chunk) < self._needed:
            self._held += chunk
            return b""
        buffer = b"".join((self._held, chunk))
        self._held.clear()
        return buffer

    def frame_end(self, buffer: bytes, position: int) -> int:
        """Returns where the frame at `position` ends, or -1 if the frame is incomplete. Raises `BadFrame`."""
        if len(buffer) - position < LENGTH_BYTES:
            return -1
        size = LENGTH_BYTES + length_at(buffer, position)[0]
        if not LENGTH_BYTES < size <= self.frame_bytes_max:
            raise BadFrame(
                f"a frame of {size} bytes is outside 5 … {self.frame_bytes_max}",
                next_step="give both ends of a connection the same frame limit",
            )
        return position + size if position + size <= len(buffer) else -1

    def keep(self, buffer: bytes, position: int) -> None:
        """Keeps the bytes from `position` on, which are the beginning of one frame whose length has
        been checked.
        """
        # This is also the case while `join` returns nothing: kept bytes stay.
        if position == len(buffer):
            return
        self._held += memoryview(buffer)[position:]
        self._needed = LENGTH_BYTES
        if len(self._held) >= LENGTH_BYTES:
            self._needed += length_at(buffer, position)[0]

    def drop(self) -> None:
        """Drops the kept bytes, since no more bytes will arrive."""
        self._held = bytearray()


class FrameDecoder:
    """Splits a stream into frames one by one, for callers that do not need whole chunks."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frames = FrameBuffer(frame_bytes_max)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the bodies of the frames that this chunk completes. After `BadFrame` the stream
        cannot be used any more.
        """
        buffer, position, bodies = self._frames.join(chunk), 0, []
        while (end := self._frames.frame_end(buffer, position)) >= 0:
            bodies.append(buffer[position + LENGTH_BYTES : end])
            position = end
        self._frames.keep(buffer, position)
        return bodies
