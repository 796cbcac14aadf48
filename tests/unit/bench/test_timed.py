"""CPU of a step is counted once: with the step, not with the one that it is made in."""

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
    """And none for the next user."""
    yield
    timed._spent_s.clear()
    timed._within_s[:] = [0.0]


@pytest.mark.parametrize("watch", [timed._watch, timed._watch_anywhere])
def test_a_step_within_another_is_counted_once(watch: object) -> None:
    class Work(_Work):
        pass

    assert callable(watch)
    timed._watch(Work, "outer", "outer")
    watch(Work, "inner", "inner")
    Work().outer()
    assert timed._spent_s["inner"] >= SPUN_S
    assert timed._spent_s["outer"] < SPUN_S


def test_another_thread_s_steps_are_none_of_the_loop_s() -> None:
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
