"""Spreads background work evenly over time: it keeps a rate in bytes per second, without bursts."""

from typing import Final

_AHEAD_S: Final = 0.05


class Pace:
    """A rate limit in bytes per second. Unused budget beyond `_AHEAD_S` is lost, so no burst
    follows a pause.
    """

    def __init__(self, bytes_per_s: float) -> None:
        assert bytes_per_s > 0
        self.bytes_per_s = bytes_per_s  # Callers may change it at any time.
        self._free_ns = 0  # The time at which the rate has covered all bytes counted so far.

    def spend(self, size: int, now_ns: int) -> float:
        """Counts `size` bytes, and returns how many seconds to wait before the next work."""
        cost_ns = int(size / self.bytes_per_s * 1e9)
        self._free_ns = max(self._free_ns, now_ns - int(_AHEAD_S * 1e9)) + cost_ns
        return max(0, self._free_ns - now_ns) / 1e9
