"""Background work goes in small, even steps, so that no request waits behind it."""

from typing import Final

_STEP_NS_MIN: Final = 500_000
_STEP_NS_MAX: Final = 5_000_000  # A longer step waited for the disk.
# In a shorter turn of the loop hardly anything was parsed, packed or answered.
_IDLE_TURN_NS: Final = 100_000


class StepPauses:
    """How long work on the loop rests after a step: an add takes several turns of the loop, and must
    not meet a step in each of them.

    Short steps are put together first: no timer is finer than a millisecond.
    """

    def __init__(self, now_ns: int) -> None:
        self._began_ns = now_ns
        self._worked_ns = 0

    def on_paused(self, now_ns: int, times: float) -> float:
        """A step ends. Returns the seconds to rest: `times` as long as it worked, or 0 if no rest is due."""
        self._worked_ns += now_ns - self._began_ns
        if self._worked_ns < _STEP_NS_MIN:
            return 0.0
        worked_ns, self._worked_ns = min(self._worked_ns, _STEP_NS_MAX), 0
        return worked_ns * times / 1e9

    def on_resumed(self, now_ns: int) -> None:
        self._began_ns = now_ns


class Lull:
    """When to go on after a rest. A step that begins while the loop is busy adds to all its
    other work, and adds wait for both. In a lull it delays only what arrives during the step.

    A loop that is busy all the time is waited for only up to a limit: then the work goes on,
    slowly.
    """

    def __init__(self, now_ns: int, patience_s: float) -> None:
        self._ends_ns = now_ns + int(patience_s * 1e9)

    def has_come(self, turn_began_ns: int, now_ns: int, *, is_preceded: bool = False) -> bool:
        """Whether the work may go on after a turn of the loop. `is_preceded`: more urgent work
        wants to run, even if it had no step in that turn.
        """
        is_idle = now_ns - turn_began_ns < _IDLE_TURN_NS and not is_preceded
        return is_idle or now_ns >= self._ends_ns
