"""Decides when a log may be taken from a server that others still believe to be alive.

A killed server stays registered until its session runs out, but its machine refuses connections immediately. A
server that has seen refusals for half a second takes over the logs of the killed server. This is safe at any
time, since a take-over fences the old owner. But it is disruptive if a server is alive and reports a wrong
address: every other server would take its logs again and again, and logs would move back and forth for ever.
So after such a take-over the log is left alone for 5 s, doubling to 5 min. This bounds the cost of a wrong
address (SV2), and the registration of a dead server has ended before the pause matters.

A connection that times out proves nothing: it is not a refusal, and the lease decides.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from rollbook.logservice.ids import LogName

REFUSED_NS: Final = 500_000_000
_NEWS_NS: Final = 1_000_000_000  # Refusals farther apart than this are not one series.
_PAUSE_NS_MIN: Final = 5_000_000_000
_PAUSE_NS_MAX: Final = 300_000_000_000
# The most pauses that are remembered; the oldest is dropped first.
_LOGS_MAX: Final = 100_000


class Refusals:
    """The results of repeated attempts to connect to one address."""

    def __init__(self) -> None:
        self._first_ns: int | None = None  # When the present series of refusals began.
        self._last_ns = 0

    def on_refused(self, now_ns: int) -> None:
        if self._first_ns is None or now_ns - self._last_ns > _NEWS_NS:
            self._first_ns = now_ns
        self._last_ns = now_ns

    def on_other(self) -> None:
        """Take note of an attempt that was not refused: the next refusal begins a new series."""
        self._first_ns = None

    @property
    def is_refusing(self) -> bool:
        """Return whether the last attempt was refused."""
        return self._first_ns is not None

    @property
    def is_dead(self) -> bool:
        """Return whether all attempts were refused for half a second."""
        return self._first_ns is not None and self._last_ns - self._first_ns >= REFUSED_NS


@dataclass(slots=True)
class _Pause:
    until_ns: int
    length_ns: int


class TakeoverPatience:
    def __init__(self) -> None:
        self._pauses: OrderedDict[LogName, _Pause] = OrderedDict()

    def wait_ns(self, name: LogName, now_ns: int) -> int:
        """How long the log must still be left alone; 0 if it may be taken."""
        pause = self._pauses.get(name)
        return max(pause.until_ns - now_ns, 0) if pause else 0

    def on_taken(self, name: LogName, now_ns: int) -> None:
        """Take note that the log was taken from a registered server. Other take-overs need no pause."""
        pause = self._pauses.pop(name, None)
        length_ns = _PAUSE_NS_MIN
        if pause is not None and now_ns < pause.until_ns + pause.length_ns:
            length_ns = min(2 * pause.length_ns, _PAUSE_NS_MAX)
        self._pauses[name] = _Pause(now_ns + length_ns, length_ns)
        while len(self._pauses) > _LOGS_MAX:
            self._pauses.popitem(last=False)
