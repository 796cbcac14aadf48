"""Logs that a server should own and could not open. The next attempt (`makes_ahead`), health and `explain` use this.

A single failure is not reported, since the next attempt follows immediately. A log is reported as stuck from its
second failure in a row until it is opened, or until no attempt has failed for five minutes: without requests for
the log, this server does not know whether it can be opened.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from rollbook.logservice.ids import LogName

_LOGS_MAX: Final = 100_000
_STUCK_ATTEMPTS: Final = 2
_KNOWN_S: Final = 300.0  # Larger: a log that was opened elsewhere is reported for longer.


@dataclass(frozen=True, slots=True)
class FailedOpening:
    """The number of failures in a row, and the latest failure."""

    attempts: int
    failed_s: float
    why: str
    next_step: str

    @property
    def is_news(self) -> bool:
        """Return whether to log this failure: the second in a row, the fourth, the eighth …"""
        return self.attempts >= _STUCK_ATTEMPTS and self.attempts & (self.attempts - 1) == 0


class UnopenedLogs:
    def __init__(self) -> None:
        # Logs in the order of their last failures.
        self._failed: OrderedDict[LogName, FailedOpening] = OrderedDict()

    def __contains__(self, name: LogName) -> bool:
        """Return whether the latest attempt to open the log failed, however long ago."""
        return name in self._failed

    def on_failed(
        self, name: LogName, now_s: float, why: str, next_step: str = ""
    ) -> FailedOpening:
        before = self._failed.pop(name, None)
        attempts = 1 if before is None else before.attempts + 1
        found = self._failed[name] = FailedOpening(attempts, now_s, why, next_step)
        if len(self._failed) > _LOGS_MAX:
            self._failed.popitem(last=False)
        return found

    def forget(self, name: LogName) -> None:
        """Forget a log that was opened, or that this server should no longer open."""
        self._failed.pop(name, None)

    def find_stuck(self, name: LogName, now_s: float) -> FailedOpening | None:
        found = self._failed.get(name)
        return found if found is not None and _is_stuck(found, now_s) else None

    def count_stuck(self, now_s: float) -> int:
        count = 0
        for each in reversed(self._failed.values()):
            if each.failed_s < now_s - _KNOWN_S:
                break
            count += _is_stuck(each, now_s)
        return count


def _is_stuck(failed: FailedOpening, now_s: float) -> bool:
    return failed.attempts >= _STUCK_ATTEMPTS and failed.failed_s >= now_s - _KNOWN_S
