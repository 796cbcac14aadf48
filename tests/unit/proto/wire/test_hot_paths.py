"""W2: the hot paths read only a few bytes of a frame, and must return what the full decoder
returns. These tests change every byte of the golden frames.
"""

from collections.abc import Callable

import pytest

from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.wire import v2, v3
from rollbook.proto.wire.messages import Add, BatchReadReply, BookieOperation, EntryRead, ReadReply
from tests.fuzz.wire_targets import hear_reply_twice, hear_request_twice
from tests.golden.bookkeeper import V2_FRAMES, V3_FRAMES
from tests.unit.proto.wire.streams import KEY, packers

LARGE = LedgerId(300), EntryId(70_000)

REQUESTS = [
    *(frame for name, frame in V2_FRAMES.items() if "request" in name),
    *(frame for name, frame in V3_FRAMES.items() if "response" not in name),
    *(packer.pack(LARGE[1], NO_ENTRY, 0, b"x" * 100) for packer in packers(3, LARGE[0], 50_000)),
    v3.pack_request(50_000, EntryRead(*LARGE), is_high_priority=True),
    v3.pack_request(50_000, Add(*LARGE, KEY, b"too short")),
    v2.pack_request(EntryRead(*LARGE), is_high_priority=True),
]
REPLIES = [
    *(frame for name, frame in V2_FRAMES.items() if "response" in name),
    *(frame for name, frame in V3_FRAMES.items() if "request" not in name),
    v3.V3ReplyHeader(3, 50_000, BookieOperation.READ).pack(
        ReadReply(None, *LARGE, b"x" * 200, EntryId(4), 1_700_000_000_000)
    ),
    v3.V3ReplyHeader(3, 50_000, BookieOperation.READ).pack(
        ReadReply(None, *LARGE, b"x" * 4, EntryId(4), following=(b"y" * 32, b"z" * 33))
    ),
    v3.V3ReplyHeader(3, 50_000, BookieOperation.BATCH_READ).pack(
        BatchReadReply(None, *LARGE, 70_000, (b"x" * 40, b"y" * 60))
    ),
]


def _wrong(byte: int) -> list[int]:
    values = {(byte + offset) % 256 for offset in (-8, -4, -2, -1, 1, 2, 4, 8)}
    values |= {byte ^ 1 << bit for bit in range(8)}
    return sorted(values | {0, 0x0A, 0x7F, 0x80, 0xFF})


@pytest.mark.parametrize("index", range(len(REQUESTS)))
def test_requests_with_one_wrong_byte_match_full_decoder(index: int) -> None:
    _try_all(REQUESTS[index], hear_request_twice)


@pytest.mark.parametrize("index", range(len(REPLIES)))
def test_replies_with_one_wrong_byte_match_full_decoder(index: int) -> None:
    _try_all(REPLIES[index], hear_reply_twice)


def _try_all(frame: bytes, hear_twice: Callable[[bytes], None]) -> None:
    """Changes all bytes except the frame's length, which decides where the next frame begins."""
    for at in range(4, min(len(frame), 120)):
        for value in _wrong(frame[at]):
            hear_twice(frame[:at] + bytes([value]) + frame[at + 1 :])
    for size in range(5, len(frame)):
        hear_twice((size - 4).to_bytes(4) + frame[4:size])
