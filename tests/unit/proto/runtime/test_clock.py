"""The processor is yielded to other processes, often if they give it back quickly."""

import os
import time
from itertools import count

import pytest

from rollbook.proto.runtime.clock import SystemClock


@pytest.mark.parametrize("took_ns", [0, 200_000])
def test_processor_is_always_yielded_while_others_are_quick(
    took_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = turns_of(monkeypatch, [took_ns])
    clock = SystemClock()
    for done in range(300):
        clock.let_others_run()
        assert len(turns) == done + 1


def test_processor_is_yielded_less_often_to_slow_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = turns_of(monkeypatch, [*[200_001] * 10, 0, 200_001, 0])
    clock = SystemClock()

    def times_to_the_next() -> int:
        before = len(turns)
        for times in count(1):
            clock.let_others_run()
            if len(turns) > before:
                return times
        raise AssertionError

    assert times_to_the_next() == 1
    kept = [times_to_the_next() - 1 for _ in range(10)]
    assert kept == [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 12_800, 12_800]
    assert times_to_the_next() == 1  # The turn before was short; this one is long.
    assert times_to_the_next() == 101  # After a first long turn, 100 are skipped.
    assert times_to_the_next() == 1


def turns_of(monkeypatch: pytest.MonkeyPatch, took_ns: list[int]) -> list[int]:
    """Returns the times of the yields; the last duration repeats."""
    now_ns = 0
    turns: list[int] = []

    def give_away() -> None:
        nonlocal now_ns
        turns.append(now_ns)
        now_ns += took_ns[min(len(turns), len(took_ns)) - 1]

    monkeypatch.setattr(os, "sched_yield", give_away)
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    return turns


def test_let_others_run_returns() -> None:
    SystemClock().let_others_run()
