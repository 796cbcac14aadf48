import random

import pytest

from rollbook.proto.errors import BadFrame
from rollbook.proto.wire.frames import FrameBuffer, FrameDecoder, pack_frame
from rollbook.proto.wire.varint import message_pattern, pack_varint, unpack_varint


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_decoded_however_the_stream_is_cut(seed: int) -> None:
    chance = random.Random(seed)
    bodies = [chance.randbytes(chance.choice((1, 2, 10, 1000))) for _ in range(30)]
    stream = b"".join(map(pack_frame, bodies))
    decoder, heard, at = FrameDecoder(1004), [], 0
    while at < len(stream):
        size = chance.choice((1, 3, 4, 5, 500, 2000))
        heard += decoder.feed(stream[at : at + size])
        at += size
    assert heard == bodies


def test_empty_and_too_long_frames_are_refused() -> None:
    assert FrameDecoder(14).feed(pack_frame(bytes(10))) == [bytes(10)]
    for stream in (pack_frame(b""), pack_frame(bytes(11)), pack_frame(b"ok") + b"\xff\xff\xff\xff"):
        with pytest.raises(BadFrame):
            FrameDecoder(14).feed(stream)


def test_pieces_of_a_long_frame_are_not_joined_repeatedly() -> None:
    """W1: otherwise a frame that arrives byte by byte would be copied once per byte."""
    frame, frames = pack_frame(bytes(1000)), FrameBuffer()
    for at in range(len(frame) - 1):
        buffer = frames.join(frame[at : at + 1])
        assert len(buffer) <= 4
        assert frames.frame_end(buffer, 0) == -1
        frames.keep(buffer, 0)
    assert frames.join(frame[-1:]) == frame


def test_varints_survive_round_trip() -> None:
    edges = [2**bits + offset for bits in range(64) for offset in (-1, 0, 1)]
    for value in [0, *edges, 2**64 - 1]:
        packed = pack_varint(value)
        assert len(packed) == max(1, (value.bit_length() + 6) // 7)
        assert message_pattern(b"U").fullmatch(packed)
        if message_pattern(b"V").fullmatch(packed):
            assert unpack_varint(packed) == value
        else:
            assert value >= 2**63
    assert pack_varint(-1) == b"\xff" * 9 + b"\x01"
    assert unpack_varint(b"\x81\x80\x00") == 1  # In more bytes than necessary.
    assert unpack_varint(b"\x81\x80\x80\x00") == 1
