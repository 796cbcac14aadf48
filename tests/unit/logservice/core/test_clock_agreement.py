"""CK1, CK2: whose clock is believed, and what time it is then."""

import pytest

from rollbook.logservice.core.clock_agreement import CLOCKS_APART_US_MAX, ServerTime, odd_clocks

S = 1_000_000
MS_NS = 1_000_000
DAY = 86_400 * S
FAR = CLOCKS_APART_US_MAX + 1


@pytest.mark.parametrize(
    ("apart_us", "odd"),
    [
        ({}, ""),
        ({"a": 0}, ""),
        ({"a": CLOCKS_APART_US_MAX}, ""),
        ({"a": FAR}, "a"),  # One of two: nobody can tell which, so it owns nothing.
        ({"a": -FAR}, "a"),
        ({"a": 0, "b": FAR}, "b"),
        ({"a": DAY, "b": DAY + S}, ""),  # The store's is the odd one.
        ({"a": DAY, "b": -DAY}, "ab"),
        ({"a": 0, "b": S, "c": -40 * DAY}, "c"),
        ({"a": DAY, "b": DAY, "c": 0}, "ab"),  # Two of four, and the store's is with the others.
        ({"a": DAY, "b": DAY, "c": DAY, "d": 0}, "d"),
    ],
)
def test_a_clock_is_believed_by_most(apart_us: dict[str, int], odd: str) -> None:
    assert odd_clocks(apart_us) == frozenset(odd)


def test_time_goes_by_the_monotonic_clock_between_comparisons() -> None:
    time = ServerTime(1000 * S, 7 * MS_NS)
    assert time.apart_us is None
    assert time.time_us(8 * MS_NS) == 1000 * S + 1000
    assert not time.has_jumped(1000 * S + 1000, 8 * MS_NS)
    assert time.has_jumped(1000 * S + DAY, 8 * MS_NS)
    assert time.has_jumped(1000 * S - DAY, 8 * MS_NS)
    time.on_compared(2000 * S, 1990 * S, 9 * MS_NS)
    assert time.apart_us == 10 * S
    assert time.time_us(9 * MS_NS) == 2000 * S


def test_a_server_with_an_odd_clock_goes_by_the_others() -> None:
    time = ServerTime(0, 0)
    time.on_compared(40 * DAY, DAY, 0)
    time.on_odd(DAY, {}, 0)
    assert time.time_us(0) == DAY
    time.on_odd(DAY, {"b": 5 * S, "c": 7 * S}, 0)  # And the store's.
    assert time.time_us(0) == DAY + 5 * S
    assert time.has_jumped(40 * DAY, 0)  # So it is compared again before long.
