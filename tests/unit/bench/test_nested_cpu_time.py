"""The CPU time of a nested step is counted for the inner step only."""

import threading
import time
from collections.abc import Iterator

import pytest

from tests.bench.load import timed

SPUN_S = 0.05


class _Work:
    def outer(self) -> None:
        self.inner()

    def inner(self) -> None:
        until = time.thread_time() + SPUN_S
        while time.thread_time() < until:
            pass


@pytest.fixture(autouse=True)
def _no_steps_yet() -> Iterator[None]:
    """Clears the counters after each test."""
    yield
    timed._spent_s.clear()
    timed._within_s[:] = [0.0]


@pytest.mark.parametrize("watch", [timed._watch, timed._watch_anywhere])
def test_nested_step_is_counted_once(watch: object) -> None:
    class Work(_Work):
        pass

    assert callable(watch)
    timed._watch(Work, "outer", "outer")
    watch(Work, "inner", "inner")
    Work().outer()
    assert timed._spent_s["inner"] >= SPUN_S
    assert timed._spent_s["outer"] < SPUN_S


def test_steps_of_another_thread_are_not_subtracted_from_the_loop() -> None:
    class Work(_Work):
        def outer(self) -> None:
            self.inner()
            thread = threading.Thread(target=self.other)
            thread.start()
            thread.join()

        def other(self) -> None:
            self.inner()

    timed._watch(Work, "outer", "outer")
    timed._watch_anywhere(Work, "other", "other")
    Work().outer()
    assert timed._spent_s["other"] >= SPUN_S
    assert timed._spent_s["outer"] >= SPUN_S
