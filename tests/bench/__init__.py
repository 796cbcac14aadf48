"""Benchmarks behind `python -m tests bench NAME`: `figures(runs)` of the module of that name.

Those that take their time yield each figure when they know it, and meanwhile show how far they are.
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
    holds: bool | None  # None where there is no target.
    rival: float | None = None  # The best that others could do, in the same run,
    rival_name: str = ""  # and who that was.
    spread: Sequence[float] = ()  # Of a latency: at each of `load.jobs.SHARES`.

    @property
    def advantage(self) -> float | None:
        """How many times better it is than that."""
        if self.rival is None:
            return None
        return self.value / self.rival if self.unit.endswith("/s") else self.rival / self.value


def figure(
    name: str, unit: str, target: float | None, runs: int, measure: Callable[[], float]
) -> Figure:
    return judged(name, unit, target, [measure() for _ in range(runs)])


def judged(name: str, unit: str, target: float | None, values: Sequence[float]) -> Figure:
    """Of runs that were made already, since one run may bring several figures."""
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
    """What is called "ours" against the best of the others, which come after it in the output.

    Of two targets, the absolute one and the factor of that best, the harder one counts. Those who stand
    aside promise less, and are only shown.
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
    """What `--only` names; all parts if it is not given."""
    if unknown := [name for name in only or () if name not in parts]:
        known = "".join(f"\n    {name}" for name in parts)
        sys.exit(f"no such part: {', '.join(map(repr, unknown))}; there are{known}")
    return only or parts


_SAID_EVERY_S: Final = 15.0
_said_s = [time.monotonic()]


def show_progress(what: str, done: int, total: int) -> None:
    """A bar on a terminal, gone when it is full; elsewhere a line now and then, so that nobody takes what
    is long for what hangs."""
    if sys.stderr.isatty():
        line = progress_line(done, total, what) if done < total else "\r\x1b[K"
        print(line, end="", file=sys.stderr, flush=True)
    elif done < total and time.monotonic() - _said_s[0] >= _SAID_EVERY_S:
        _said_s[0] = time.monotonic()
        print(f"  {what}: {done:,} of {total:,}", file=sys.stderr, flush=True)
