"""Spreads work in the background evenly over time, at a rate in bytes per second and without bursts."""

from typing import Final

_AHEAD_S: Final = 0.05


class Pace:
    """A rate limit in bytes a second. Unused budget beyond `_AHEAD_S` is lost: no burst follows a pause."""

    def __init__(self, bytes_per_s: float) -> None:
        assert bytes_per_s > 0
        self.bytes_per_s = bytes_per_s  # Can be changed at any time.
        self._free_ns = 0  # When the rate has covered everything spent so far.

    def spend(self, size: int, now_ns: int) -> float:
        """Counts `size` bytes; returns the seconds to wait before the next work."""
        cost_ns = int(size / self.bytes_per_s * 1e9)
        self._free_ns = max(self._free_ns, now_ns - int(_AHEAD_S * 1e9)) + cost_ns
        return max(0, self._free_ns - now_ns) / 1e9
