"""CK1, CK2: which clocks are trusted, and which time a server uses."""

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
        (
            {"a": FAR},
            "a",
        ),  # One of two clocks is wrong and it is unknown which, so the server owns nothing.
        ({"a": -FAR}, "a"),
        ({"a": 0, "b": FAR}, "b"),
        ({"a": DAY, "b": DAY + S}, ""),  # The store's clock is the odd one.
        ({"a": DAY, "b": -DAY}, "ab"),
        ({"a": 0, "b": S, "c": -40 * DAY}, "c"),
        (
            {"a": DAY, "b": DAY, "c": 0},
            "ab",
        ),  # Two of four clocks; the store's agrees with the others.
        ({"a": DAY, "b": DAY, "c": DAY, "d": 0}, "d"),
    ],
)
def test_clock_that_differs_from_most_is_odd(apart_us: dict[str, int], odd: str) -> None:
    assert odd_clocks(apart_us) == frozenset(odd)


def test_time_follows_the_monotonic_clock_between_comparisons() -> None:
    time = ServerTime(1000 * S, 7 * MS_NS)
    assert time.apart_us is None
    assert time.time_us(8 * MS_NS) == 1000 * S + 1000
    assert not time.has_jumped(1000 * S + 1000, 8 * MS_NS)
    assert time.has_jumped(1000 * S + DAY, 8 * MS_NS)
    assert time.has_jumped(1000 * S - DAY, 8 * MS_NS)
    time.on_compared(2000 * S, 1990 * S, 9 * MS_NS)
    assert time.apart_us == 10 * S
    assert time.time_us(9 * MS_NS) == 2000 * S


def test_server_with_an_odd_clock_uses_the_others_time() -> None:
    time = ServerTime(0, 0)
    time.on_compared(40 * DAY, DAY, 0)
    time.on_odd(DAY, {}, 0)
    assert time.time_us(0) == DAY
    time.on_odd(DAY, {"b": 5 * S, "c": 7 * S}, 0)  # The store's clock counts, too.
    assert time.time_us(0) == DAY + 5 * S
    assert time.has_jumped(40 * DAY, 0)  # A jump makes the server compare clocks again soon.
