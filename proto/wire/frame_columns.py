"""Compares frames that look alike all at once, and reads them by columns instead of one by one.

The bytes at one place in all frames are one slice of the buffer, and comparing this slice with the
expected bytes costs almost nothing for each frame. Frames without a payload are compared with the
first frame as large numbers. A mask removes the values of their varints from the difference, but
keeps the bits that give the varints' lengths.
"""

import struct
import sys
from array import array
from collections.abc import Iterable
from functools import lru_cache
from itertools import compress, count
from operator import ne
from typing import Final

from rollbook.proto.wire.varint import unpack_varint

# Frames compared at once. Larger: the numbers get larger, and cost more per byte.
_ROWS: Final = 32


def count_alike(
    buffer: bytes, position: int, size: int, rows: int, varints: tuple[range, ...]
) -> int:
    """Returns how many of `rows` frames of `size` bytes, of which the first is at `position`, are
    like the first.

    Frames are alike if they agree in everything except the values of the varints at these places;
    the lengths of the varints must agree. All rows must be within the buffer.
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
    """Returns the varints of this length that are at the same place of consecutive frames, from the
    one at `position` on.

    As a rule the numbers are consecutive, so their high bytes seldom change from row to row.
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


# --- Frames with a payload ------------------------------------------------------------------------
# Each of these functions looks at `rows` whole frames of `size` bytes; the first begins at `position`.

_BYTES: Final = bytes(range(0x100))
_LOW_BITS: Final = _BYTES[:0x80]
_CONTINUED: Final = _BYTES[0x80:]
_INT64_MAX: Final = 2**63 - 1
_INT64_BYTES: Final = 8
_IS_LITTLE: Final = sys.byteorder == "little"

_int64_at: Final = struct.Struct(">q").unpack_from


def count_same(buffer: bytes, position: int, size: int, rows: int, places: Iterable[int]) -> int:
    """Returns how many of the frames agree with the first one at all of these places."""
    end = position + rows * size
    for place in places:
        column = buffer[position + place : end : size]
        if column != column[:1] * rows:
            rows = _alike(column, column[:1] * rows)
            end = position + rows * size
    return rows


def unpack_int64s(buffer: bytes, position: int, size: int, rows: int) -> "array[int]":
    """Returns the big-endian numbers at the beginning of each frame."""
    end = position + rows * size
    numbers = bytearray(_INT64_BYTES * rows)
    for place in range(_INT64_BYTES):
        numbers[place::_INT64_BYTES] = buffer[position + place : end : size]
    column = array("q", numbers)
    if _IS_LITTLE:
        column.byteswap()
    return column


def count_int64s_on(buffer: bytes, position: int, size: int, rows: int) -> int:
    """Returns how many of the numbers at the beginning of each frame are consecutive, from the first on."""
    (first,) = _int64_at(buffer, position)
    rows = min(rows, _INT64_MAX - first + 1)
    expected = pack_int64s_on(first, rows)
    # The low bytes are compared first, since they differ first.
    for place in reversed(range(_INT64_BYTES)):
        column = buffer[position + place : position + rows * size : size]
        if column != expected[place][:rows]:
            rows = _alike(column, expected[place])
    return rows


def pack_int64s_on(first: int, rows: int) -> list[bytes]:
    """Returns consecutive big-endian numbers from `first` on, as one column for each of their bytes."""
    changed = first ^ first + rows - 1
    # The number of low bytes that change, usually one or two.
    moving = -(-changed.bit_length() // 8)
    still = first.to_bytes(_INT64_BYTES, "big")[: _INT64_BYTES - moving]
    columns = [still[place : place + 1] * rows for place in range(len(still))]
    columns += [_digits(first, rows, 8 * place, _BYTES) for place in reversed(range(moving))]
    return columns


def count_varints_on(
    buffer: bytes, position: int, size: int, rows: int, length: int, first: int
) -> int:
    """Returns how many frames begin with consecutive varints of this length, of which the first is `first`."""
    rows = min(rows, (1 << 7 * length) - first)
    for place in range(length):
        column = buffer[position + place : position + rows * size : size]
        expected = _varint_column(first, rows, place, length)
        if column != expected:
            rows = _alike(column, expected)
    return rows


def pack_varints_on(first: int, rows: int, length: int) -> list[bytes]:
    """Returns consecutive varints of this length from `first` on, as one column for each of their bytes."""
    return [_varint_column(first, rows, place, length) for place in range(length)]


def _varint_column(first: int, rows: int, place: int, length: int) -> bytes:
    return _digits(first, rows, 7 * place, _CONTINUED if place < length - 1 else _LOW_BITS)


def _digits(first: int, rows: int, shift: int, words: bytes) -> bytes:
    """Returns the bits at `shift` of consecutive numbers from `first` on. Equal values follow one
    another, and each such run takes one look-up.
    """
    values = len(words)
    at = first >> shift & values - 1
    if not shift:
        return (words * (rows // values + 2))[at : at + rows]
    unchanged = ((first >> shift) + 1 << shift) - first
    column = words[at : at + 1] * min(rows, unchanged)
    while len(column) < rows:
        at = (at + 1) % values
        column += words[at : at + 1] * min(rows - len(column), 1 << shift)
    return column


def varint_columns(
    buffer: bytes, position: int, size: int, rows: int, length: int
) -> tuple[list[bytes], int]:
    """Returns the columns of a varint of this length at the beginning of the frames, one for each
    byte, and how many frames have a varint of this length there.
    """
    end = position + rows * size
    columns = [buffer[position + place : end : size] for place in range(length)]
    for column in columns[:-1]:
        if column.translate(None, _CONTINUED):
            rows = min(rows, next(at for at, byte in enumerate(column) if byte < 0x80))
    if not columns[-1].isascii():
        rows = min(rows, next(at for at, byte in enumerate(columns[-1]) if byte >= 0x80))
    return columns, rows


def _alike(column: bytes, expected: bytes) -> int:
    """Returns how many bytes at the beginning of both texts are equal."""
    return next(compress(count(), map(ne, column, expected)), min(len(column), len(expected)))
