"""Decides which stream may read next if an account has exceeded its quota. One stream has the turn at a time, and the
stream that has waited longest is next.

While a stream sends its position to its client, it is skipped, but keeps its place.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Waiter:
    number: int
    wake: Callable[[], None] = field(compare=False)  # Called when this waiter has become the first.


class FairQueue:
    def __init__(self) -> None:
        self._here: list[Waiter] = []  # Waiters in ascending order of their numbers.
        self._ever = 0

    @property
    def is_empty(self) -> bool:
        return not self._here

    def join(self, wake: Callable[[], None]) -> Waiter:
        self._ever += 1
        place = Waiter(self._ever, wake)
        self._here.append(place)
        return place

    def is_first(self, place: Waiter) -> bool:
        return bool(self._here) and self._here[0] == place

    def come_back(self, place: Waiter) -> None:
        """Returns a waiter to its old place."""
        insort(self._here, place)

    def leave(self, place: Waiter) -> None:
        """Removes a waiter, and wakes the next one if this was the first. Idempotent."""
        at = bisect_left(self._here, place)
        if at < len(self._here) and self._here[at] == place:
            del self._here[at]
            if at == 0 and self._here:
                self._here[0].wake()
