"""How long nobody leads, judged: another one has to lead within `TAKEOVER_S`, in the median and mostly (`WITHIN`).

With fewer gaps of a kind than `JUDGED_FROM` the difference could be chance.
"""

from bisect import bisect_right
from typing import Final

TAKEOVER_S: Final = 2.0
WITHIN: Final = 0.9
JUDGED_FROM: Final = 25  # Of the hundred that are usually struck about 29 are frozen.


def too_slow(gaps: list[float]) -> str:
    """What is wrong with these, which are sorted; nothing, if they are few."""
    within = bisect_right(gaps, TAKEOVER_S)
    if len(gaps) < JUDGED_FROM:
        return ""
    if gaps[len(gaps) // 2] <= TAKEOVER_S and within >= WITHIN * len(gaps):
        return ""
    return f"another leads after {spread(gaps)}, {within} of {len(gaps)} within {TAKEOVER_S:g} s"


def spread(gaps: list[float]) -> str:
    """Of sorted ones."""
    return f"{gaps[len(gaps) // 2]:.2f} s, {gaps[-1]:.2f} s at most"
