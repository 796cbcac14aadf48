"""What hostile connections cost a real bookie process: CPU and memory of each kind, and of 1,000 at once.

CPU is that of the whole process from before the attack until it is quiet again; memory is the most
that was resident over what was before. What is let go of is not always given back to the system, so
a kind that comes late may seem to cost nothing: each kind meets a bookie of its own.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import Final

from tests.bench import Figure, judged
from tests.hostile.attacks import attacks
from tests.hostile.run import bookie, cost_of, cost_of_all

_EACH: Final = 50
_MANY: Final = 1_000
_KIB: Final = 1024


def figures(runs: int) -> list[Figure]:
    return [*_kinds(runs), *_many(runs)]


def _kinds(runs: int) -> Iterator[Figure]:
    for attack in attacks():
        costs = []
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as folder, bookie(Path(folder)) as found:
                costs.append(cost_of(found, attack, _EACH))
        yield judged(f"{attack.name}: CPU", "ms", 10.0, [cost.cpu_ms_each for cost in costs])
        sizes = [cost.bytes_each / _KIB for cost in costs]
        yield judged(f"{attack.name}: memory", "KiB", 1024.0, sizes)


def _many(runs: int) -> Iterator[Figure]:
    costs, p99s, refused = [], [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder, bookie(Path(folder)) as found:
            cost, good = asyncio.run(cost_of_all(found, _MANY))
            costs.append(cost)
            p99s.append(1000 * quantiles(good.latencies_s, n=100)[98])
            refused.append(good.refused)
    name = f"{_MANY:,} connections of all kinds"
    grown = [cost.grown_bytes / _KIB**2 for cost in costs]
    yield judged(f"{name}: CPU of each", "ms", 10.0, [cost.cpu_ms_each for cost in costs])
    yield judged(f"{name}: memory in all", "MiB", 64.0, grown)
    yield judged(f"{name}: adds of others refused", "adds", 0.0, refused)
    yield judged(f"{name}: ten adds of others, p99", "ms", None, p99s)
