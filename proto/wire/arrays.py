"""Makes arrays of equidistant numbers at once: the columns of a memtable, and of adds that look alike."""

import sys
from array import array
from functools import cache
from itertools import repeat
from typing import Final, Literal

from rollbook.proto.wire.adds import RUN_MAX

_COUNT_MIN: Final = 32  # The number of values from which this is cheaper than a loop.
_COUNT_MAX: Final = RUN_MAX  # The most values for which large numbers are prepared.
_IS_LITTLE: Final = sys.byteorder == "little"


def array_of(typecode: Literal["I", "q"], values: range) -> "array[int]":
    """Like `array(typecode, values)`, of numbers that are not negative, at a fifth of the cost.

    They are side by side in one large number, which is made by one multiplication and one
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
    """Ones, and the numbers from 0 on, as many as there may be; and the bytes of each."""
    item_bytes = array(typecode).itemsize
    ones, numbers = (
        b"".join(each.to_bytes(item_bytes, "little") for each in column)
        for column in (repeat(1, _COUNT_MAX), range(_COUNT_MAX))
    )
    return int.from_bytes(ones, "little"), int.from_bytes(numbers, "little"), item_bytes
