"""Deadlines of equal length, in the order in which they were started."""

from itertools import takewhile
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlines(Generic[T]):
    def __init__(self, allowed_ns: int) -> None:
        self._allowed_ns = allowed_ns
        self._ends_ns: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self._ends_ns)

    def start(self, who: T, now_ns: int) -> None:
        """Starts a deadline, or starts it again if it is running."""
        self._ends_ns.pop(who, None)
        self._ends_ns[who] = now_ns + self._allowed_ns

    def stop(self, who: T) -> None:
        self._ends_ns.pop(who, None)

    def postpone(self, by_ns: int) -> None:
        """Postpones all deadlines after a pause of the process, in which no deadline could be met."""
        for who in self._ends_ns:
            self._ends_ns[who] += by_ns

    def take_late(self, now_ns: int) -> list[T]:
        late = self.waited_for(self._allowed_ns, now_ns)
        for who in late:
            del self._ends_ns[who]
        return late

    def waited_ns(self, who: T, now_ns: int) -> int:
        """Returns the time since the deadline was started."""
        return now_ns - (self._ends_ns[who] - self._allowed_ns)

    def waited_for(self, least_ns: int, now_ns: int) -> list[T]:
        """Returns the keys that have waited at least this long, the longest wait first."""
        end_ns_max = now_ns - least_ns + self._allowed_ns
        return list(takewhile(lambda who: self._ends_ns[who] <= end_ns_max, self._ends_ns))
