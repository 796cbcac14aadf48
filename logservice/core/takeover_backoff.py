"""Decides for how long a log is left alone after it was taken from a server that others still believe to be alive.

If a server refuses connections for half a second, its logs are taken over (`peer_failure_detector.py`). This is safe at
any time, since a take-over fences the old owner. But it is disruptive if a server is alive and reports a wrong
address: every other server would take its logs again and again, and logs would move back and forth for ever. So
after such a take-over the log is left alone for 5 s, doubling to 5 min. This bounds the cost of a wrong address
(SV2), and the registration of a dead server has ended before the pause matters.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from rollbook.logservice.ids import LogName

_PAUSE_NS_MIN: Final = 5_000_000_000
_PAUSE_NS_MAX: Final = 300_000_000_000
# The most pauses that are remembered; the oldest is dropped first.
_LOGS_MAX: Final = 100_000


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
