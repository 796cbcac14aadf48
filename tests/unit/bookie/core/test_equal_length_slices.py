"""Cuts equal-length, evenly spaced entries out of a record's body at once, and only those."""

import random
from array import array

import pytest

from rollbook.bookie.core.equal_length_slices import cut_evenly

ORIGIN = 5_000  # Position of the body in its file.


def columns(starts: range, length: int) -> tuple["array[int]", "array[int]"]:
    return array("I", [ORIGIN + start for start in starts]), array("I", [length]) * len(starts)


def test_even_slices_within_the_body_are_cut_at_once() -> None:
    body = random.Random(1).randbytes(4_000)
    starts = range(28, 28 + 100 * 128, 128)  # Most of these lie beyond this body.
    positions, lengths = columns(starts, 100)
    wanted = tuple(body[start : start + 100] for start in starts if start + 100 <= len(body))
    assert cut_evenly(body, ORIGIN, positions, lengths, 0) == wanted
    assert cut_evenly(body, ORIGIN, positions, lengths, 3) == wanted[3:]


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("at", [1, 12, 23])
def test_uneven_position_or_length_cuts_nothing(column: int, at: int) -> None:
    both = columns(range(28, 28 + 24 * 128, 128), 100)
    both[column][at] += 1
    assert cut_evenly(bytes(4_000), ORIGIN, *both, 0) == ()


def test_slices_outside_the_body_are_not_cut() -> None:
    positions, lengths = columns(range(0, 20 * 128, 128), 100)
    assert len(cut_evenly(bytes(20 * 128 - 28), ORIGIN, positions, lengths, 0)) == 20
    assert len(cut_evenly(bytes(20 * 128 - 29), ORIGIN, positions, lengths, 0)) == 19
    assert cut_evenly(bytes(99), ORIGIN, positions, lengths, 0) == ()
    assert cut_evenly(bytes(20 * 128), ORIGIN + 1, positions, lengths, 0) == ()


@pytest.mark.parametrize("step", [0, -128, 64])
def test_backward_or_overlapping_slices_are_not_cut(step: int) -> None:
    positions = array("I", [ORIGIN + 4_000 + n * step for n in range(24)])
    assert cut_evenly(bytes(9_000), ORIGIN, positions, array("I", [100]) * 24, 0) == ()


@pytest.mark.parametrize("seed", range(100))
def test_cut_slices_equal_the_bytes_at_their_positions(seed: int) -> None:
    chance = random.Random(seed)
    body = chance.randbytes(chance.randrange(1, 20_000))
    length = chance.randrange(1, 300)
    step = length + chance.randrange(0, 60)
    first = chance.randrange(0, 100)
    positions, lengths = columns(
        range(first, first + chance.randrange(1, 200) * step, step), length
    )
    if chance.random() < 0.3:
        positions[chance.randrange(len(positions))] += chance.randrange(3)
    start = chance.randrange(len(positions))
    views = memoryview(positions), memoryview(lengths)
    cut = cut_evenly(body, ORIGIN, positions, lengths, start)
    assert cut == cut_evenly(body, ORIGIN, *views, start)
    places = [(position - ORIGIN, length) for position in positions[start : start + len(cut)]]
    assert cut == tuple(body[at : at + size] for at, size in places)
    assert all(len(each) == length for each in cut)
