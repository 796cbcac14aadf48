"""`array_of` fills an array by columns and has the same result as `array`."""

from array import array
from typing import Literal

import pytest

from rollbook.proto.arange import array_of
from rollbook.proto.wire.add_columns import RUN_MAX


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 1_000, RUN_MAX, RUN_MAX + 1])
@pytest.mark.parametrize(("typecode", "end"), [("I", 2**32), ("q", 2**63)])
def test_array_of_a_range_equals_array(typecode: Literal["I", "q"], end: int, count: int) -> None:
    for step in (1, 132, 65_537):
        for start in (0, 7, end - 1 - count * step):
            values = range(start, start + count * step, step)
            assert array_of(typecode, values) == array(typecode, values)


@pytest.mark.parametrize(("typecode", "end"), [("I", 2**32), ("q", 2**63)])
def test_array_of_too_large_numbers_raises_overflow_error(
    typecode: Literal["I", "q"], end: int
) -> None:
    values = range(end - 99, end + 1)
    with pytest.raises(OverflowError):
        array(typecode, values)
    with pytest.raises(OverflowError):
        array_of(typecode, values)
