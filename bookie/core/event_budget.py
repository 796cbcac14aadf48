"""How many events of single ledgers may be logged: enough to follow one ledger, not enough to flood the
log."""

from typing import Final

_PER_MINUTE: Final = 1000
_MINUTE_NS: Final = 60 * 10**9


class EventBudget:
    def __init__(self) -> None:
        self._minute_ends_ns = 0
        self._left = 0

    def take(self, wanted: int, now_ns: int) -> int:
        """How many of the `wanted` events may be logged now. A summary counts the others."""
        if now_ns >= self._minute_ends_ns:
            self._minute_ends_ns, self._left = now_ns + _MINUTE_NS, _PER_MINUTE
        granted = min(wanted, self._left)
        self._left -= granted
        return granted
