"""The processor is given away for moments, where those who get it are quick."""

import os
import time

import pytest

from rollbook.proto.runtime.clock import SystemClock


@pytest.mark.parametrize("took_ns", [0, 200_000])
def test_others_run_whenever_they_are_quick(took_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = turns_of(monkeypatch, [took_ns])
    clock = SystemClock()
    for done in range(300):
        clock.let_others_run()
        assert len(turns) == done + 1


def test_others_who_keep_the_processor_get_it_once_in_a_hundred_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = turns_of(monkeypatch, [200_001, 0])
    clock = SystemClock()
    for _ in range(101):
        clock.let_others_run()
    assert len(turns) == 1
    for _ in range(100):  # The second turn was short again.
        clock.let_others_run()
    assert len(turns) == 101


def turns_of(monkeypatch: pytest.MonkeyPatch, took_ns: list[int]) -> list[int]:
    """Those of others, of whom the last goes on to take as long."""
    now_ns = 0
    turns: list[int] = []

    def give_away() -> None:
        nonlocal now_ns
        turns.append(now_ns)
        now_ns += took_ns[min(len(turns), len(took_ns)) - 1]

    monkeypatch.setattr(os, "sched_yield", give_away)
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    return turns


def test_the_processor_comes_back() -> None:
    SystemClock().let_others_run()
