"""What hostile connections cost a real bookie process: CPU and memory of each kind, and of 1,000 at once.

CPU is that of the whole process from before the attack until it is quiet again; memory is the most
that was resident over what was before. What is let go of is not always given back to the system, so
a kind that comes late may seem to cost nothing: each kind meets a bookie of its own. It meets it once:
CPU and memory of fifty hardly vary; what all of them do to others, at the same time, is measured in runs.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import Final

from tests.bench import Figure, judged, show_progress
from tests.hostile.attacks import attacks
from tests.hostile.run import bookie, cost_of, cost_of_all

_EACH: Final = 50
_MANY: Final = 1_000
_KIB: Final = 1024


def figures(runs: int) -> Iterator[Figure]:
    yield from _kinds()
    yield from _many(runs)


def _kinds() -> Iterator[Figure]:
    kinds = attacks()
    for at, attack in enumerate(kinds):
        show_progress(attack.name, at, len(kinds))
        with tempfile.TemporaryDirectory() as folder, bookie(Path(folder)) as found:
            cost = cost_of(found, attack, _EACH)
        show_progress("", 1, 1)
        yield judged(f"{attack.name}: CPU", "ms", 10.0, [cost.cpu_ms_each])
        yield judged(f"{attack.name}: memory", "KiB", 1024.0, [cost.bytes_each / _KIB])


def _many(runs: int) -> Iterator[Figure]:
    costs, p99s, refused = [], [], []
    for run in range(runs):
        show_progress("all of them at once", run, runs)
        with tempfile.TemporaryDirectory() as folder, bookie(Path(folder)) as found:
            cost, good = asyncio.run(cost_of_all(found, _MANY))
            costs.append(cost)
            p99s.append(1000 * quantiles(good.latencies_s, n=100)[98])
            refused.append(good.refused)
    show_progress("", 1, 1)
    name = f"{_MANY:,} connections of all kinds"
    grown = [cost.grown_bytes / _KIB**2 for cost in costs]
    yield judged(f"{name}: CPU of each", "ms", 10.0, [cost.cpu_ms_each for cost in costs])
    yield judged(f"{name}: memory in all", "MiB", 64.0, grown)
    yield judged(f"{name}: adds of others refused", "adds", 0.0, refused)
    yield judged(f"{name}: ten adds of others, p99", "ms", None, p99s)
