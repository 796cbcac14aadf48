"""Ranges of ids, compared with a plain set."""

import random
from array import array

import pytest

from rollbook.bookie.core.id_ranges import Ranges, ranges_of


def test_ranges_of_ascending_ids() -> None:
    assert list(ranges_of([])) == []
    assert list(ranges_of(array("q", [5]))) == [(5, 5)]
    assert list(ranges_of(array("q", [0, 1, 2, 4, 7, 8]))) == [(0, 2), (4, 4), (7, 8)]
    assert list(ranges_of(range(10**6))) == [(0, 10**6 - 1)]


@pytest.mark.parametrize("seed", range(50))
def test_ranges_equal_the_set_of_added_ids_in_any_order(seed: int) -> None:
    chance = random.Random(seed)
    ranges, expected = Ranges(), set[int]()
    for _ in range(60):
        first = chance.randrange(200)
        last = first + chance.randrange(8)
        ranges.add(first, last)
        expected.update(range(first, last + 1))
        assert list(ranges) == list(ranges_of(sorted(expected)))
        assert len(ranges) == len(list(ranges))
