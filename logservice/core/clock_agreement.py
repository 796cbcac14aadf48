"""Decides which clocks are trusted: those that agree with most others.

Each log server compares its wall clock with the metadata store's and reports the difference to the others. A
clock is trusted if it is within five minutes of more than half of all clocks, the store's and itself included,
or of exactly half if the store's is one of them. A server whose clock is not trusted owns no logs (CK1): their
records would expire too early or never.

An owner's time is the wall clock's time at the last comparison, advanced by the monotonic clock (CK2). So
setting the wall clock does not affect a log before the next comparison.
"""

from collections.abc import Mapping
from typing import Final

CLOCKS_APART_US_MAX: Final = 300 * 1_000_000

_STORE: Final = 0  # The difference of the store's clock from itself.


def odd_clocks(apart_us: Mapping[str, int]) -> frozenset[str]:
    """The servers whose clocks are not trusted. `apart_us`: for each server, how far its clock is ahead of
    the store's.
    """
    clocks = (_STORE, *apart_us.values())

    def is_odd(ours_us: int) -> bool:
        agreeing = sum(abs(ours_us - each) <= CLOCKS_APART_US_MAX for each in clocks)
        is_near_store = abs(ours_us - _STORE) <= CLOCKS_APART_US_MAX
        return 2 * agreeing < len(clocks) + (not is_near_store)

    return frozenset(name for name, ours_us in apart_us.items() if is_odd(ours_us))


class ServerTime:
    """A server's time between comparisons of its clock with the metadata store's."""

    def __init__(self, wall_us: int, now_ns: int) -> None:
        """Start with the time of the wall clock, which has not been compared yet."""
        # How far the wall clock is ahead of the store's; None: not compared.
        self.apart_us: int | None = None
        self._offset_us = wall_us - now_ns // 1000

    def time_us(self, now_ns: int) -> int:
        return self._offset_us + now_ns // 1000

    def on_compared(self, wall_us: int, store_us: int, now_ns: int) -> None:
        """Take note of a comparison: the three clocks were read at the same moment."""
        self.apart_us = wall_us - store_us
        self._offset_us = wall_us - now_ns // 1000

    def on_odd(self, store_us: int, others_us: Mapping[str, int], now_ns: int) -> None:
        """Take note that the wall clock is not trusted. The time becomes the lower median of the store's
        clock and the other servers' clocks. `others_us`: how far each other server's clock is ahead of the
        store's.
        """
        in_order = sorted((_STORE, *others_us.values()))
        common_us = in_order[(len(in_order) - 1) // 2]
        self._offset_us = store_us + common_us - now_ns // 1000

    def has_jumped(self, wall_us: int, now_ns: int) -> bool:
        """Return whether the clock must be compared again, since it was set or the machine slept."""
        return abs(wall_us - self.time_us(now_ns)) > CLOCKS_APART_US_MAX // 2
