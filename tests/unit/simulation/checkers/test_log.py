"""The log checker: the name of each anomaly, and exact verdicts."""

from collections.abc import Callable

import pytest

from tests.simulation.checkers.log import Name, check_log
from tests.simulation.checkers.selftest import compare, time_check
from tests.simulation.history import History


def acked(history: History, value: str, position: int) -> None:
    history.on_applied(history.append("writer", value), position)


def read(history: History, position: int, value: str | None) -> None:
    history.on_read(history.read("reader", position), value)


def length(history: History, told: int) -> None:
    history.on_tail(history.tail("reader"), told)


def lost_write(history: History) -> None:
    acked(history, "a", 0)
    read(history, 0, None)


def lost_write_beyond_a_shorter_length(history: History) -> None:
    acked(history, "a", 0)
    acked(history, "b", 1)
    length(history, 1)


def vanished_read(history: History) -> None:
    history.append("writer", "a")
    read(history, 0, "a")
    read(history, 0, None)


def vanished_delivery(history: History) -> None:
    history.append("writer", "a")
    history.deliver("reader", 0, "a")
    length(history, 0)


def aborted_read(history: History) -> None:
    history.on_refused(history.append("writer", "a"))
    read(history, 0, "a")


def phantom_read(history: History) -> None:
    read(history, 0, "nobody's")


def early_read(history: History) -> None:
    read(history, 0, "a")
    acked(history, "a", 0)


def duplicate(history: History) -> None:
    acked(history, "a", 0)
    read(history, 1, "a")


def inconsistent_offset(history: History) -> None:
    acked(history, "a", 0)
    acked(history, "b", 0)


def hole(history: History) -> None:
    acked(history, "a", 0)
    acked(history, "c", 2)


def hole_below_a_huge_length(history: History) -> None:
    acked(history, "a", 0)
    length(history, 10**15)


def reordered_append(history: History) -> None:
    acked(history, "a", 1)
    acked(history, "b", 0)


def skipped_poll(history: History) -> None:
    for position, value in enumerate("abc"):
        acked(history, value, position)
    history.deliver("reader", 0, "a")
    history.deliver("reader", 2, "c")


def non_monotonic_poll(history: History) -> None:
    acked(history, "a", 0)
    acked(history, "b", 1)
    history.deliver("reader", 1, "b")
    history.deliver("reader", 0, "a")


@pytest.mark.parametrize(
    ("story", "name"),
    [
        (lost_write, Name.LOST_WRITE),
        (lost_write_beyond_a_shorter_length, Name.LOST_WRITE),
        (vanished_read, Name.VANISHED),
        (vanished_delivery, Name.VANISHED),
        (aborted_read, Name.ABORTED_READ),
        (phantom_read, Name.PHANTOM_READ),
        (early_read, Name.EARLY_READ),
        (duplicate, Name.DUPLICATE),
        (inconsistent_offset, Name.INCONSISTENT_OFFSET),
        (hole, Name.HOLE),
        (hole_below_a_huge_length, Name.HOLE),
        (reordered_append, Name.REORDERED),
        (skipped_poll, Name.SKIPPED_POLL),
        (non_monotonic_poll, Name.NON_MONOTONIC_POLL),
    ],
)
def test_each_anomaly_has_its_name(story: Callable[[History], None], name: Name) -> None:
    history = History()
    story(history)
    assert {anomaly.name for anomaly in check_log(history)} == {name}


def test_unknown_appends_fill_holes_and_may_take_effect_late() -> None:
    history = History()
    for value in ("first", "second"):
        history.on_unknown(history.append("writer", value), "connection lost")
    length(history, 0)
    acked(history, "a", 1)
    read(history, 0, "second")
    length(history, 2)
    assert check_log(history) == []


def test_reader_may_lag() -> None:
    history = History()
    acked(history, "a", 0)
    acked(history, "b", 1)
    history.deliver("reader", 0, "a")
    history.deliver("other reader", 1, "b")
    assert check_log(history) == []


def test_verdicts_match_exhaustive_search() -> None:
    agreement = compare(histories=20_000, seed=0)
    assert 0.15 < agreement.illegal / agreement.histories < 0.6


def test_a_hundred_thousand_operations_take_at_most_1_5_s() -> None:
    """The goal is a million in ten seconds; half of that is slack for a busy machine."""
    assert time_check(100_000) < 1.5
