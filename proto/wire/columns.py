"""Frames that look alike, compared as one and read by columns, instead of one by one.

That all frames of a row agree with the first one is a question to one large number: what they differ
by, under a mask that leaves out their varints but for the bits that say how long these are. Then what
stands at one place in all of them is one slice of the buffer.
"""

from functools import lru_cache
from typing import Final

from rollbook.proto.wire.varint import unpack_varint

_ROWS: Final = 32  # Compared at once. Larger numbers cost more for each of their bytes.


def count_alike(
    buffer: bytes, position: int, size: int, rows: int, varints: tuple[range, ...]
) -> int:
    """How many frames of `size`, from the one at `position` on and at most `rows`, are like that one.

    Alike in everything but the varints, which lie at these places of a frame, and in how long those
    are. All the rows are within the buffer.
    """
    model = buffer[position : position + size]
    for first in range(0, rows, _ROWS):
        count = min(_ROWS, rows - first)
        start = position + first * size
        found = int.from_bytes(buffer[start : start + count * size], "little")
        difference = (found ^ int.from_bytes(model * count, "little")) & _mask(size, count, varints)
        if difference:
            lowest_bit = (difference & -difference).bit_length() - 1
            return first + lowest_bit // (8 * size)
    return rows


@lru_cache(maxsize=512)
def _mask(size: int, rows: int, varints: tuple[range, ...]) -> int:
    mask = bytearray(b"\xff" * size)
    for places in varints:
        for place in places:
            mask[place] = 0x80
    return int.from_bytes(mask * rows, "little")


def unpack_column(buffer: bytes, position: int, size: int, rows: int, length: int) -> list[int]:
    """The varints of this length at this place of a frame and of those behind it.

    Their high bytes seldom change from row to row, since as a rule these are numbers in order.
    """
    end = position + rows * size
    low = buffer[position:end:size]
    if length == 1:
        return [*low]
    high = [buffer[position + place : end : size] for place in range(1, length)]
    values: list[int] = []
    start = 0
    while start < rows:
        stretch = rows - start
        for column in high:
            first = column[start : start + 1]
            if column[start : start + stretch] != first * stretch:
                stretch -= len(column[start : start + stretch].lstrip(first))
        base = (unpack_varint(bytes(column[start] for column in high)) << 7) - 0x80
        values += [base + byte for byte in low[start : start + stretch]]
        start += stretch
    return values
