"""Makes an array of equidistant numbers in one step, for the columns of a journal index and of
adds that look alike.
"""

import sys
from array import array
from functools import cache
from itertools import repeat
from typing import Final, Literal

from rollbook.proto.wire.add_columns import RUN_MAX

_COUNT_MIN: Final = 32  # With fewer values, a loop is cheaper.
_COUNT_MAX: Final = RUN_MAX  # The large numbers are prepared for at most this many values.
_IS_LITTLE: Final = sys.byteorder == "little"


def array_of(typecode: Literal["I", "q"], values: range) -> "array[int]":
    """Returns `array(typecode, values)` at a fifth of the cost. The numbers must not be negative.

    All of them are side by side in one large number, which is made by one multiplication and one
    addition.
    """
    count = len(values)
    if not _COUNT_MIN <= count <= _COUNT_MAX:
        return array(typecode, values)
    ones, numbers, item_bytes = _side_by_side(typecode)
    mask = (1 << 8 * item_bytes * count) - 1
    found = (ones & mask) * values.start + (numbers & mask) * values.step
    is_signed = typecode == "q"
    column = array(typecode, found.to_bytes(item_bytes * count, "little", signed=is_signed))
    if not _IS_LITTLE:
        column.byteswap()
    return column


@cache
def _side_by_side(typecode: str) -> tuple[int, int, int]:
    """Returns a large number of ones side by side, another one with the numbers from 0 on, and how
    many bytes each of these takes.
    """
    item_bytes = array(typecode).itemsize
    ones, numbers = (
        b"".join(each.to_bytes(item_bytes, "little") for each in column)
        for column in (repeat(1, _COUNT_MAX), range(_COUNT_MAX))
    )
    return int.from_bytes(ones, "little"), int.from_bytes(numbers, "little"), item_bytes
