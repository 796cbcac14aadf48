"""Judges the times without a leader: the median, and the share `WITHIN`, must be within `TAKEOVER_S`.

With fewer gaps of a kind than `JUDGED_FROM` the difference could be chance.
"""

from bisect import bisect_right
from typing import Final

TAKEOVER_S: Final = 2.0
WITHIN: Final = 0.9
JUDGED_FROM: Final = 25  # Of a hundred strikes, about 29 are freezes.


def too_slow(gaps: list[float]) -> str:
    """Complains about sorted gaps that are too long; "" if not, or if there are too few."""
    within = bisect_right(gaps, TAKEOVER_S)
    if len(gaps) < JUDGED_FROM:
        return ""
    if gaps[len(gaps) // 2] <= TAKEOVER_S and within >= WITHIN * len(gaps):
        return ""
    return f"another leads after {spread(gaps)}, {within} of {len(gaps)} within {TAKEOVER_S:g} s"


def spread(gaps: list[float]) -> str:
    """Median and maximum of sorted gaps."""
    return f"{gaps[len(gaps) // 2]:.2f} s, {gaps[-1]:.2f} s at most"
