"""Moments on which repairs fail, set up on purpose; what exactly happens in them is chance.

A drill makes its ledgers, and then a few steps and faults. `member-1` is the bookie with the first place in the
first fragment of the first ledger of the run when the fault comes, `stranger-1` the first bookie that has none.
"""

import random
from collections.abc import Callable
from typing import Final

from tests.simulation.schedule import Fault, Kind, Step
from tests.simulation.worlds.cluster import words

MS: Final = 1000
M1, M2, M3 = (f"member-{number}" for number in (1, 2, 3))
S1, S2 = (f"stranger-{number}" for number in (1, 2))
WRITER = words.WRITERS[0]
R1, R2 = words.RECOVERIES

Happening = tuple[list[Step], list[Fault]]
Drill = Callable[[random.Random, int], Happening]


def _fill(at_us: int, ledgers: int = 3, count: int = 6, quorum: str = "3 3 2") -> Step:
    return Step(at_us - 800 * MS, WRITER, f"{words.FILL} {ledgers} {count} 24 {quorum}")


def _hold(at_us: int, ledgers: int = 2, count: int = 3, quorum: str = "3 3 2") -> Step:
    return Step(at_us - 700 * MS, WRITER, f"{words.HOLD} {ledgers} {count} 24 {quorum}")


def _lose(at_us: int, name: str) -> Fault:
    """It never comes back."""
    return Fault(at_us, Kind.WIPE, (name,))


def loss(rng: random.Random, at_us: int) -> Happening:
    """A bookie is lost and does not come back."""
    return [_fill(at_us), _hold(at_us)], [_lose(at_us + rng.randint(0, 500 * MS), M1)]


DRILLS: Final[dict[str, Drill]] = {drill.__name__: drill for drill in (loss,)}
