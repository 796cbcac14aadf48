"""Cuts a failing case down to what makes it fail.

Delta debugging over the faults and over the workload: leave out ever smaller chunks, keep what
still fails in the same way, until no single item can go. Then what is left is made shorter, gentler
and rounder. "The same way" is the name of the broken rule, so that one bug does not slide into
another.

Leaving something out moves all later chance, and a candidate may pass by bad luck only. So each is
tried with a few seeds for that chance; the case that comes out names the one that worked.

A run of a large world takes a tenth of a second, and there is no end of candidates: when the runs or the
seconds are used up, the smallest case that was found by then is what comes out.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from tests.simulation.schedule import Case, Fault, Step

Item = TypeVar("Item")
Runs = Callable[[Case], str | None]
"""Runs a case and names the rule that it broke, or None."""

OTHER_SEEDS: Final = 4
RUNS_MAX: Final = 3000


@dataclass(frozen=True, slots=True)
class Shrunk:
    case: Case
    broke: str
    runs: int
    is_least: bool  # Else there was no time to find out.


class _OutOfRuns(Exception):
    pass


def shrink(
    case: Case, run: Runs, runs_max: int = RUNS_MAX, seconds_max: float = math.inf
) -> Shrunk:
    """The smallest case found that breaks the same rule. Raises ValueError if `case` breaks none."""
    ends_at = time.monotonic() + seconds_max
    broke = run(case)
    if broke is None:
        raise ValueError("this case does not fail")
    shrinker = _Shrinker(case, broke, run, runs_max, ends_at)
    is_least = True
    try:
        shrinker.to_a_fixed_point()
    except _OutOfRuns:
        is_least = False  # What was found so far fails all the same.
    return Shrunk(shrinker.case, broke, shrinker.runs, is_least)


class _Shrinker:
    """Holds the best case so far; it always fails."""

    def __init__(self, case: Case, broke: str, run: Runs, runs_max: int, ends_at: float) -> None:
        self.case = case
        self.runs = 1
        self._broke, self._run = broke, run
        self._runs_max, self._ends_at = runs_max, ends_at

    def to_a_fixed_point(self) -> None:
        before = None
        while before != self.case:
            before = self.case
            self._fewer(self.case.faults, lambda faults: replace(self.case, faults=faults))
            self._fewer(self.case.steps, lambda steps: replace(self.case, steps=steps))
            for index in range(len(self.case.faults)):
                self._first_that_fails(
                    replace(self.case, faults=_with(self.case.faults, index, fault))
                    for fault in _simpler_faults(self.case.faults[index])
                )
            for index in range(len(self.case.steps)):
                self._first_that_fails(
                    replace(self.case, steps=_with(self.case.steps, index, step))
                    for step in _simpler_steps(self.case.steps[index])
                )

    def _fewer(self, items: tuple[Item, ...], build: Callable[[tuple[Item, ...]], Case]) -> None:
        """Leaves out chunks, halving their size; ends when no single item can go."""
        size = len(items)
        while size > 0:
            start = 0
            while start < len(items):
                fewer = items[:start] + items[start + size :]
                if self._fails(build(fewer)):
                    items = fewer  # The next chunk has moved to `start`.
                else:
                    start += size
            size //= 2

    def _first_that_fails(self, candidates: Iterator[Case]) -> None:
        for candidate in candidates:
            if self._fails(candidate):
                return

    def _fails(self, candidate: Case) -> bool:
        for seed in (self.case.seed, *range(OTHER_SEEDS)):
            if self.runs >= self._runs_max or time.monotonic() > self._ends_at:
                raise _OutOfRuns
            self.runs += 1
            tried = replace(candidate, seed=seed)
            if self._run(tried) == self._broke:
                self.case = tried
                return True
        return False


def _with(items: Sequence[Item], index: int, item: Item) -> tuple[Item, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _simpler_faults(fault: Fault) -> Iterator[Fault]:
    """Boldest first."""
    for for_us in _smaller(fault.for_us):
        yield replace(fault, for_us=for_us)
    for amount in _smaller(fault.amount):
        yield replace(fault, amount=amount)
    for at_us in _rounder(fault.at_us):
        yield replace(fault, at_us=at_us)
    if len(fault.nodes) > 2:
        for index in range(len(fault.nodes)):
            yield replace(fault, nodes=fault.nodes[:index] + fault.nodes[index + 1 :])


def _simpler_steps(step: Step) -> Iterator[Step]:
    for at_us in _rounder(step.at_us):
        yield replace(step, at_us=at_us)


def _smaller(number: int) -> Iterator[int]:
    """Halves, in round numbers. Never zero, which may mean something else altogether."""
    if number > 1:
        half = number // 2
        yield _round_to(half, 1)
        yield from _rounder(number)


def _rounder(number: int) -> Iterator[int]:
    for digits in (1, 2):
        if 0 < (rounded := _round_to(number, digits)) < number:
            yield rounded


def _round_to(number: int, digits: int) -> int:
    """Downwards, to this many leading digits."""
    unit = int("1" + "0" * max(len(str(number)) - digits, 0))
    return number // unit * unit
