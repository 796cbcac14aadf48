"""Limits how many events of one kind are logged: enough to follow an incident, but too few to flood a log."""

from typing import Final


class EventBudget:
    """Lets at most `events_max` events be logged within `period_s` after the first of them, and
    counts the others.
    """

    def __init__(self, events_max: int = 1000, period_s: int = 60) -> None:
        self._events_max: Final = events_max
        self._period_ns: Final = period_s * 10**9
        self._period_ends_ns = 0
        self._left = 0
        self._left_out = 0

    def take(self, wanted: int, now_ns: int) -> int:
        """Returns the number of `wanted` events that may be logged now."""
        if now_ns >= self._period_ends_ns:
            self._period_ends_ns, self._left = now_ns + self._period_ns, self._events_max
        granted = min(wanted, self._left)
        self._left -= granted
        self._left_out += wanted - granted
        return granted

    def take_left_out(self) -> int:
        """Returns the number of events that were not logged since the last call."""
        left_out, self._left_out = self._left_out, 0
        return left_out
