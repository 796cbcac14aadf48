"""Benchmarks behind `python -m tests bench NAME`: `figures(runs)` of the module of that name.

Slow benchmarks yield each figure when it is known, and show their progress.
"""

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from tests.tally import progress_line


@dataclass(frozen=True)
class Figure:
    name: str
    value: float  # The median of the runs.
    unit: str  # Lower is better, unless it ends in "/s".
    target: float | None
    holds: bool | None  # None without a target.
    rival: float | None = None  # The best value of the peers in the same run.
    rival_name: str = ""  # The peer that had the best value.
    spread: Sequence[float] = ()  # Latencies at each of `load.jobs.SHARES`.

    @property
    def advantage(self) -> float | None:
        """How many times better the value is than the rival's."""
        if self.rival is None:
            return None
        return self.value / self.rival if self.unit.endswith("/s") else self.rival / self.value


def figure(
    name: str, unit: str, target: float | None, runs: int, measure: Callable[[], float]
) -> Figure:
    return judged(name, unit, target, [measure() for _ in range(runs)])


def judged(name: str, unit: str, target: float | None, values: Sequence[float]) -> Figure:
    """A figure from the values of earlier runs, because one run may give several figures."""
    value = median(values)
    if target is None:
        return Figure(name, value, unit, None, None)
    holds = value >= target if unit.endswith("/s") else value <= target
    return Figure(name, value, unit, target, holds)


def compared(
    what: str,
    unit: str,
    values: Mapping[str, Sequence[float]],
    factor: float | None,
    target: float | None,
    *,
    aside: Collection[str] = (),
) -> Iterator[Figure]:
    """Compares "ours" with the best of the peers, which follow it in the output.

    The harder of two targets counts: the absolute one, and the factor of the best peer. Peers in
    `aside` guarantee less and are only shown.
    """
    equals = [name for name in values if name != "ours" and name not in aside]
    others = {name: median(values[name]) for name in equals}
    is_rate = unit.endswith("/s")
    best = (max if is_rate else min)(others, key=others.__getitem__) if others else ""
    limits = [] if target is None else [target]
    if factor is not None and best:
        limits.append(factor * others[best])
    limit = (max(limits) if is_rate else min(limits)) if limits else None
    for name, found in values.items():
        if name == "ours":
            mine = judged(f"{what}: {name}", unit, limit, found)
            yield replace(mine, rival=others.get(best), rival_name=best)
        else:
            yield judged(f"{what}: {name}", unit, None, found)


def parts_of(parts: Collection[str], only: Collection[str] | None) -> Collection[str]:
    """The parts named by `--only`, or all parts."""
    if unknown := [name for name in only or () if name not in parts]:
        known = "".join(f"\n    {name}" for name in parts)
        sys.exit(f"no such part: {', '.join(map(repr, unknown))}; there are{known}")
    return only or parts


_SAID_EVERY_S: Final = 15.0
_said_s = [time.monotonic()]


def show_progress(what: str, done: int, total: int) -> None:
    """Shows a bar on a terminal, which is removed when it is full, or prints a line now and then.

    So a long run does not seem to hang.
    """
    if sys.stderr.isatty():
        line = progress_line(done, total, what) if done < total else "\r\x1b[K"
        print(line, end="", file=sys.stderr, flush=True)
    elif done < total and time.monotonic() - _said_s[0] >= _SAID_EVERY_S:
        _said_s[0] = time.monotonic()
        print(f"  {what}: {done:,} of {total:,}", file=sys.stderr, flush=True)
