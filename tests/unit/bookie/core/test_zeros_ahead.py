"""Which writes take zeros along for those that follow them."""

import random

import pytest

from rollbook.bookie.core.zeros_ahead import ZEROED_BYTES, ZerosAhead

_KIB = 1024
_FILE = 4 * _KIB * _KIB


def test_one_small_write_in_many_takes_zeros_along() -> None:
    ahead = ZerosAhead(_FILE)
    taken = [ahead.take(at, at + 16 * _KIB) for at in range(_KIB, 512 * _KIB, 16 * _KIB)]
    assert taken == [ZEROED_BYTES, *[0] * 16, ZEROED_BYTES, *[0] * 14]


@pytest.mark.parametrize("size", [512, 4 * _KIB, 32 * _KIB + 512, 2048 * _KIB])
def test_writes_within_a_block_and_large_ones_take_none(size: int) -> None:
    ahead = ZerosAhead(_FILE)
    assert not ahead.is_due(_KIB, _KIB + size)
    assert ahead.take(_KIB, _KIB + size) == 0


def test_zeros_end_with_what_is_allocated() -> None:
    ahead = ZerosAhead(64 * _KIB)
    assert ahead.take(_KIB, 9 * _KIB) == 55 * _KIB
    assert ahead.take(56 * _KIB, 64 * _KIB) == 0
    assert ahead.take(64 * _KIB, 80 * _KIB) == 0  # The file has grown for one large item.


@pytest.mark.parametrize("seed", range(50))
def test_each_byte_is_zeroed_at_most_once_and_never_after_it_was_written(seed: int) -> None:
    """B2: what is durable is never written again."""
    chance = random.Random(seed)
    ahead, end, zeroed_up_to, taken_in_all = ZerosAhead(_FILE), _KIB, 0, 0
    while end < _FILE:
        start, end = end, end + 512 * chance.choice([1, 9, 20, 64, 65, 300])
        is_due = ahead.is_due(start, end)
        taken = ahead.take(start, end)
        assert is_due == (taken > 0)
        if taken:
            assert zeroed_up_to < end
            zeroed_up_to = end + taken
            assert zeroed_up_to <= _FILE
        taken_in_all += taken
    assert 0 < taken_in_all <= _FILE
