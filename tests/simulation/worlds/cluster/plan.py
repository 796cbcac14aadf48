"""What writers, operators and fate do to a cluster that repairs itself, drawn from a seed.

A step is a few words: `fill 3 6 24 3 3 2` (three ledgers of six entries of 24 bytes, ensemble 3, write
quorum 3, ack quorum 2, which are then closed), `hold 2 4 24 3 3 2` (the same, but they stay open, idle),
`append 1 2` (two entries to the second of those), `close 1`, `retire b3`, `recovery-1: dies after 3`.
"""

import random
from dataclasses import replace
from itertools import combinations
from typing import Final

from tests.simulation.schedule import (
    Case,
    Fault,
    Kind,
    Recipe,
    Span,
    Step,
    draw,
    log_uniform,
)
from tests.simulation.worlds.cluster.drills import CHAOS_END_US, DRILLS, DRILLS_ALONE
from tests.simulation.worlds.cluster.words import (
    APPEND,
    AUDIT,
    BOOKIES,
    CLOSE,
    CLUSTER,
    DIE,
    DISABLE,
    DRAIN,
    ENABLE,
    FATE,
    FILL,
    HOLD,
    METADATA,
    OPERATOR,
    RECOVERIES,
    RETIRE,
    SAFE,
    UNDRAIN,
    WRITERS,
)

WORLD: Final = "cluster"
PEACE_US: Final = 1_000_000  # Cluster and bookies are made in peace.
FULL_US: Final = 1_800_000  # Ledgers are made.
CHAOS_US: Final[Span] = (FULL_US, CHAOS_END_US)
_BOOKIES_MIN: Final = 5
_DRILL_ODDS: Final = 0.5
MS: Final = 1000

_QUORUMS: Final = ("3 3 2", "3 3 2", "3 3 2", "3 2 2", "2 2 2")


def draw_case(seed: int, drill: str | None = None) -> Case:
    """With `drill` it is that and nothing else."""
    rng = random.Random(f"cluster {seed}")
    is_alone = drill is not None
    if drill is None and rng.random() < _DRILL_ODDS:
        drill = rng.choice(list(DRILLS))
    count = _BOOKIES_MIN if is_alone else rng.choice((5, 5, 5, 6))
    bookies = BOOKIES[:count]
    steps = [Step(0, CLUSTER, f"{count} bookies window 8 v3")]
    faults: list[Fault] = []
    if drill is not None:
        drill_steps, drill_faults = (DRILLS | DRILLS_ALONE)[drill](rng, FULL_US)
        steps += drill_steps
        faults += drill_faults
    else:
        steps += _make(rng)
    if not is_alone:
        more = _draw_steps(rng, bookies)
        steps += more
        odds = 0.15 if drill else 0.45
        recipes = [replace(each, odds=odds * each.odds) for each in _recipes(bookies)]
        faults += draw(rng, recipes, CHAOS_US, more)
    return Case(
        WORLD,
        seed,
        tuple(sorted(steps, key=lambda step: step.at_us)),
        tuple(sorted(faults, key=lambda fault: fault.at_us)),
    )


# --- Steps ----------------------------------------------------------------------------------------


def _make(rng: random.Random) -> list[Step]:
    steps = []
    for name in WRITERS[: rng.choice((1, 2))]:
        quorum = rng.choice(_QUORUMS)
        sizes = f"{rng.randint(1, 3)} {rng.choice((0, 3, 6, 12))} {rng.choice((24, 24, 400))}"
        steps.append(Step(PEACE_US, name, f"{FILL} {sizes} {quorum}"))
        sizes = f"{rng.randint(1, 3)} {rng.choice((0, 2, 5))} 24"
        steps.append(Step(PEACE_US, name, f"{HOLD} {sizes} {quorum}"))
    return steps


def _draw_steps(rng: random.Random, bookies: tuple[str, ...]) -> list[Step]:
    steps: list[Step] = []

    def at() -> int:
        return rng.randint(*CHAOS_US)

    for _ in range(rng.randint(0, 6)):
        which = f"{rng.randint(0, 3)} {rng.choice((1, 1, 3))}"
        steps.append(Step(at(), rng.choice(WRITERS), f"{APPEND} {which}"))
    steps += [
        Step(at(), rng.choice(WRITERS), f"{CLOSE} {rng.randint(0, 3)}")
        for _ in range(rng.choice((0, 0, 1, 2)))
    ]
    if rng.random() < 0.5:
        steps.append(Step(at(), rng.choice(WRITERS), f"{FILL} 1 5 24 {rng.choice(_QUORUMS)}"))
    if rng.random() < 0.35:
        begun_us, bookie = at(), rng.choice(bookies)
        steps.append(Step(begun_us, OPERATOR, f"{rng.choice((DRAIN, RETIRE))} {bookie}"))
        if rng.random() < 0.3:
            later = begun_us + log_uniform(rng, (50 * MS, 5_000 * MS))
            steps.append(Step(min(later, CHAOS_US[1]), OPERATOR, f"{UNDRAIN} {bookie}"))
    if rng.random() < 0.2:
        steps.append(Step(at(), OPERATOR, f"{SAFE} {rng.choice(bookies)}"))
    if rng.random() < 0.1:
        begun_us = at()
        later = min(begun_us + log_uniform(rng, (100 * MS, 5_000 * MS)), CHAOS_US[1])
        steps += [Step(begun_us, OPERATOR, DISABLE), Step(later, OPERATOR, ENABLE)]
    if rng.random() < 0.2:
        steps.append(Step(at(), OPERATOR, AUDIT))
    for name in RECOVERIES:
        steps += [
            Step(at(), FATE, f"{name} {DIE} {rng.randint(1, 12)}")
            for _ in range(rng.choice((0, 0, 1, 2)))
        ]
    return sorted(steps, key=lambda step: step.at_us)


# --- Faults ---------------------------------------------------------------------------------------


def _recipes(bookies: tuple[str, ...]) -> tuple[Recipe, ...]:
    each_bookie = tuple((name,) for name in bookies)
    each_writer = tuple((name,) for name in WRITERS)
    each_recovery = tuple((name,) for name in RECOVERIES)
    groups = tuple(
        tuple(group) for size in (2, 3, len(bookies)) for group in combinations(bookies, size)
    )
    clients = (*WRITERS, *RECOVERIES)
    pairs = tuple((client, bookie) for client in clients for bookie in bookies)
    both_ways = pairs + tuple((bookie, client) for client, bookie in pairs)
    to_metadata = tuple((name, METADATA) for name in (*clients, *bookies))
    everyone = (*bookies, *clients, METADATA)
    return (
        Recipe(Kind.WIPE, each_bookie, times=(1, 1), odds=1.0),  # It never comes back.
        Recipe(Kind.WIPE, each_bookie, times=(1, 2), for_us=(20 * MS, 5000 * MS), odds=0.9),
        Recipe(Kind.KILL, each_bookie, times=(1, 4), for_us=(50 * MS, 8000 * MS), odds=1.0),
        Recipe(Kind.POWER_CUT, each_bookie + groups, times=(1, 2), for_us=(50 * MS, 6000 * MS)),
        Recipe(Kind.PAUSE, each_bookie, times=(1, 2), for_us=(50 * MS, 6000 * MS)),
        Recipe(Kind.KILL, each_writer, times=(1, 1), for_us=(50 * MS, 1000 * MS), odds=0.4),
        Recipe(Kind.PAUSE, each_writer, times=(1, 1), for_us=(50 * MS, 6000 * MS), odds=0.4),
        Recipe(Kind.KILL, each_recovery, times=(1, 4), for_us=(50 * MS, 3000 * MS), odds=1.0),
        Recipe(Kind.PAUSE, each_recovery, times=(1, 3), for_us=(50 * MS, 6000 * MS), odds=0.8),
        Recipe(Kind.CUT, pairs + to_metadata, times=(1, 4), for_us=(50 * MS, 5000 * MS), odds=0.8),
        Recipe(Kind.CUT_ONE_WAY, both_ways, times=(1, 3), for_us=(50 * MS, 3000 * MS)),
        Recipe(Kind.RESET, pairs, times=(1, 6)),
        Recipe(Kind.FAR_APART, (everyone,), times=(1, 1), amount=(MS, 20 * MS), from_start=True),
        Recipe(Kind.JITTER, (everyone,), times=(1, 1), amount=(5 * MS, 200 * MS), from_start=True),
        Recipe(Kind.SLOW_DISK, each_bookie, times=(1, 2), amount=(MS, 300 * MS), from_start=True),
        Recipe(Kind.HUNG_DISK, each_bookie, times=(1, 1), for_us=(50 * MS, 4000 * MS), odds=0.3),
        Recipe(Kind.SYNC_ERROR, each_bookie, times=(1, 1), for_us=(MS, 100 * MS), odds=0.3),
        Recipe(Kind.DISK_FULL, each_bookie, times=(1, 2), for_us=(500 * MS, 6000 * MS), odds=0.4),
        Recipe(Kind.ROT, each_bookie, times=(1, 1), amount=(1, 1), odds=0.3),
        Recipe(Kind.METADATA_DOWN, ((),), times=(1, 1), for_us=(50 * MS, 4000 * MS), odds=0.3),
        Recipe(Kind.METADATA_LOSS, each_recovery + each_writer, times=(1, 4), amount=(0, 1)),
        Recipe(
            Kind.METADATA_EXPIRY,
            each_recovery + each_recovery + each_writer + each_bookie,
            times=(1, 3),
        ),
        Recipe(
            Kind.METADATA_LAG,
            ((),),
            times=(1, 1),
            amount=(MS, 300 * MS),
            odds=0.2,
            from_start=True,
        ),
    )
