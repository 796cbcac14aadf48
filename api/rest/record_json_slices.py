"""Encodes records as JSON in pieces. Only the block of the present piece is unpacked.

a piece    has `PIECE_BYTES` of values, keys and headers, and at most one record more. Each record counts
           `_FRAME_BYTES` in addition. So a piece has at most 256 empty records, or one large record, which cannot be
           encoded in parts
between    two pieces, the blocks are held as they are stored; of one packed block, the unpacked body is held, too
wanted     a block's header shows whether the block has wanted records; blocks outside the range are not opened
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rollbook.api.rest.record_json import Encoding, records_json
from rollbook.logservice.core.record_block import Block, Record, span_of
from rollbook.logservice.ids import Offset

PIECE_BYTES: Final = 16 * 1024
_FRAME_BYTES: Final = 64  # JSON bytes around each value: field names, offset, time.


class RecordSlice(NamedTuple):
    start: Offset
    next_offset: Offset
    records: bytes  # A JSON array.


def pieces(
    blocks: Sequence[bytes], start: Offset, end: Offset, encoding: Encoding
) -> Iterator[RecordSlice]:
    """Yields the pieces of a range. Raises the error of a damaged block when it reaches the block."""
    held: list[Record] = []
    room, sent_below = PIECE_BYTES, start
    rest = wanted(blocks, start, end)
    rest.reverse()
    del blocks
    while rest:  # Each block is dropped after it is sent.
        block = Block(rest.pop())
        index = max(start - block.base_offset, 0)
        last = min(end - block.base_offset, block.count)
        while index < last:
            behind, size = _run(block, index, last, room)
            held += block.records(index, behind)
            index, room = behind, room - size
            if room <= 0:
                next_offset = Offset(block.base_offset + behind)
                yield _made(sent_below, next_offset, held, encoding)
                sent_below, room = next_offset, PIECE_BYTES
    if held:
        yield _made(sent_below, Offset(held[-1].offset + 1), held, encoding)


def _made(
    start: Offset, next_offset: Offset, held: list[Record], encoding: Encoding
) -> RecordSlice:
    """Encodes a piece and drops its records, because the piece may wait for a long time."""
    piece = RecordSlice(start, next_offset, records_json(held, encoding))
    held.clear()
    return piece


def wanted(blocks: Sequence[bytes], start: Offset, end: Offset) -> list[bytes]:
    """The blocks that have a part of the range. They are in order, and found by bisection because there can be as many
    blocks as records.
    """
    first = bisect_right(blocks, start, key=lambda block: span_of(block)[1])
    behind = bisect_left(blocks, end, key=lambda block: span_of(block)[0])
    return list(blocks[first:behind])


def _run(block: Block, index: int, last: int, room: int) -> tuple[int, int]:
    """The end of the records from `index` on that fit, including the one that fills the room, and their size."""

    def size_up_to(behind: int) -> int:
        return block.bytes_before(behind) - before + (behind - index) * _FRAME_BYTES

    before = block.bytes_before(index)
    most = min(last, index + room // _FRAME_BYTES + 1)  # Each record takes at least `_FRAME_BYTES`.
    candidates = range(index + 1, most)
    behind = index + 1 + bisect_left(candidates, room, key=size_up_to)
    return behind, size_up_to(behind)
