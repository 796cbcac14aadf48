"""Paces background work: it runs in small, even steps, so that requests do not wait for it."""

from typing import Final

_STEP_NS_MIN: Final = 500_000
_STEP_NS_MAX: Final = 5_000_000  # A step that took longer than this waited for the disk.
# A turn of the loop that is shorter than this did almost no parsing, packing or answering.
_IDLE_TURN_NS: Final = 100_000


class StepPauses:
    """The pauses of background work between its steps. An add takes several turns of the loop, and
    must not be delayed by a step in each of them.

    Several short steps are followed by one rest, because no timer is finer than a millisecond.
    """

    def __init__(self, now_ns: int) -> None:
        self._began_ns = now_ns
        self._worked_ns = 0

    def on_paused(self, now_ns: int, times: float) -> float:
        """Called when a step ends. Returns the seconds to rest: `times` as long as the work took,
        or 0 if no rest is due."""
        self._worked_ns += now_ns - self._began_ns
        if self._worked_ns < _STEP_NS_MIN:
            return 0.0
        worked_ns, self._worked_ns = min(self._worked_ns, _STEP_NS_MAX), 0
        return worked_ns * times / 1e9

    def on_resumed(self, now_ns: int) -> None:
        self._began_ns = now_ns


class Lull:
    """Finds the moment to go on after a rest. If a step begins while the loop is busy, adds wait
    for the step and for the other work. In a lull, a step delays only requests that arrive during
    the step.

    If the loop is busy all the time, the work waits only up to a limit, and then goes on slowly.
    """

    def __init__(self, now_ns: int, patience_s: float) -> None:
        self._ends_ns = now_ns + int(patience_s * 1e9)

    def has_come(self, turn_began_ns: int, now_ns: int, *, is_preceded: bool = False) -> bool:
        """Returns whether the work may go on after a turn of the loop. `is_preceded` says that more
        urgent work wants to run, even if it had no step in that turn.
        """
        is_idle = now_ns - turn_began_ns < _IDLE_TURN_NS and not is_preceded
        return is_idle or now_ns >= self._ends_ns
