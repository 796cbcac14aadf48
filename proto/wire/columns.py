"""Frames that look alike, read by columns instead of one by one.

In a row of frames of one size, what stands at one place in all of them is one slice of the buffer. So
that all agree with the first one is proven place by place, at a fraction of the price of taking each
of them apart; so are the varints that may differ, as long as they are of the same length.
"""

from typing import Final

from rollbook.proto.wire.varint import unpack_varint

_MORE_FOLLOW: Final = bytes(range(0x80, 0x100))  # Of a varint, all bytes but the last.
_LAST: Final = bytes(range(0x80))


def count_alike(
    buffer: bytes, position: int, size: int, rows: int, varints: tuple[range, ...]
) -> int:
    """How many frames of `size`, from the one at `position` on and at most `rows`, are like that one.

    Alike in everything but the varints, which lie at these places of a frame, and in how long those
    are. All the rows are within the buffer.
    """
    ends = [places[-1] for places in varints]
    free = {place for places in varints for place in places}
    for place in range(size):
        column = buffer[position + place : position + rows * size : size]
        if place not in free:
            if column != column[:1] * rows:
                rows -= len(column.lstrip(column[:1]))
        elif place in ends:
            if not column.isascii():
                rows -= len(column.lstrip(_LAST))
        elif column.translate(None, _MORE_FOLLOW):
            rows -= len(column.lstrip(_MORE_FOLLOW))
    return rows


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
