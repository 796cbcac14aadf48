"""What writers, recoverers, readers and operators do and what goes wrong, drawn from a seed.

A step is a few words: `create 3 3 2 CRC32C`, `append 5 300` (five payloads of 300 bytes), `recover`. It
is about the newest ledger of the run, or with `earlier` about the one before.
"""

import random
from enum import Enum
from itertools import combinations
from typing import Final

from rollbook.proto.wire.digest import DigestType
from tests.simulation.schedule import (
    SOON_US,
    Case,
    Fault,
    Kind,
    Recipe,
    Span,
    Step,
    draw,
    log_uniform,
)

WORLD: Final = "ledger"
BOOKIES: Final = tuple(f"b{number}" for number in range(1, 7))
CLUSTER: Final = "cluster"
WRITER: Final = "writer"
RECOVERERS: Final = ("recoverer-1", "recoverer-2")
FOLLOWER: Final = "follower"
READER: Final = "reader"
OPERATOR: Final = "operator"
METADATA: Final = "metadata"
CLIENTS: Final = (WRITER, *RECOVERERS, FOLLOWER, READER)

CREATE, APPEND, FLUSH, FORCE, CLOSE = "create", "append", "flush", "force", "close"
RECOVER, DELETE, FOLLOW, READ = "recover", "delete", "follow", "read"
READ_ONLY: Final = "read-only"
STAY_DOWN: Final = "stay down after the healing"

PEACE_US: Final = 1_000_000  # Cluster and bookies are made in peace.
CHAOS_US: Final[Span] = (PEACE_US, 4_000_000)
_SIZES: Final = (24, 24, 100, 1_000)
_BOOKIES_MIN: Final = 4


class Mood(Enum):
    """Of what cannot be had together: where one copy may be gone, there have to be two."""

    LOSSY = "a bookie may lose its disk or a part of it"
    FRAIL = "some ledgers are confirmed with one copy"
    ABSENT = "a bookie does not come back after the healing"


# Ensemble, write and ack quorum.
_QUORUMS: Final = (
    *((3, 3, 2),) * 4,
    *((3, 2, 2), (4, 3, 2), (4, 2, 2), (2, 2, 2), (3, 3, 3), (4, 4, 2), (4, 4, 3)),
)
_FRAIL_QUORUMS: Final = ((2, 2, 1), (3, 2, 1), (3, 3, 1), (1, 1, 1))


def draw_case(seed: int) -> Case:
    rng = random.Random(f"ledger {seed}")
    mood = rng.choices(list(Mood), (5, 1, 2))[0]
    least = _BOOKIES_MIN + (mood is Mood.ABSENT)
    bookies = BOOKIES[: rng.randint(least, len(BOOKIES))]
    cluster = f"{len(bookies)} bookies v{rng.choice((2, 3, 3, 3))}"
    steps = _draw_steps(rng, bookies, mood)
    decisive = [step for step in steps if step.what.split()[0] in (RECOVER, CLOSE, DELETE)]
    faults = draw(rng, _recipes(bookies, mood), CHAOS_US, decisive or steps)
    return Case(WORLD, seed, (Step(0, CLUSTER, cluster), *steps), _one_loss(faults))


def bookies_of(case: Case) -> tuple[str, ...]:
    for step in case.steps:
        if step.actor == CLUSTER:
            return BOOKIES[: int(step.what.split()[0])]
    return BOOKIES[:_BOOKIES_MIN]


def version_of(case: Case) -> int:
    """Of the protocol that clients speak."""
    return 2 if any(s.actor == CLUSTER and s.what.endswith("v2") for s in case.steps) else 3


# --- Steps ----------------------------------------------------------------------------------------


def _draw_steps(rng: random.Random, bookies: tuple[str, ...], mood: Mood) -> list[Step]:
    quorums = _QUORUMS + _FRAIL_QUORUMS * 4 if mood is Mood.FRAIL else _QUORUMS
    mean_us = rng.choice((10_000, 60_000, 150_000))
    steps: list[Step] = []
    at_us = PEACE_US
    for _ in range(rng.choice((1, 1, 2))):
        sizes = " ".join(map(str, rng.choice(quorums)))
        digest = rng.choice(list(DigestType)).name
        steps.append(Step(at_us, WRITER, f"{CREATE} {sizes} {digest}"))
        begun_us = at_us
        for _ in range(rng.randint(3, 14)):
            at_us += round(rng.expovariate(1 / mean_us)) if rng.random() < 0.8 else 0
            count = rng.choice((1, 1, 1, 2, 5, 12))
            steps.append(Step(at_us, WRITER, f"{APPEND} {count} {rng.choice(_SIZES)}"))
            if rng.random() < 0.1:
                steps.append(Step(at_us, WRITER, rng.choice((FLUSH, FORCE))))
        for name in RECOVERERS:
            if rng.random() < 0.6:  # While some append is likely to be under way.
                when_us = rng.choice(steps[-4:]).at_us + log_uniform(rng, SOON_US)
                steps.append(Step(when_us, name, RECOVER))
        if rng.random() < 0.5:
            steps.append(Step(at_us + log_uniform(rng, SOON_US), WRITER, CLOSE))
        if rng.random() < 0.4:
            steps.append(Step(rng.randint(begun_us, at_us), FOLLOWER, FOLLOW))
        steps += [
            Step(rng.randint(begun_us, at_us + 300_000), READER, READ)
            for _ in range(rng.choice((0, 1, 3)))
        ]
        if rng.random() < 0.1:
            steps.append(Step(at_us + log_uniform(rng, SOON_US), OPERATOR, DELETE))
        at_us += log_uniform(rng, SOON_US)
    if rng.random() < 0.15:
        when_us = rng.randint(PEACE_US, at_us)
        steps.append(Step(when_us, OPERATOR, f"{READ_ONLY} {rng.choice(bookies)}"))
    if mood is Mood.ABSENT:
        steps.append(Step(CHAOS_US[1], rng.choice(bookies), STAY_DOWN))
    return sorted(steps, key=lambda step: step.at_us)


# --- Faults ---------------------------------------------------------------------------------------

MS: Final = 1000
_LOSSES: Final = (Kind.WIPE, Kind.ROT, Kind.READ_ERROR)
_EARLY: Final = (WRITER, *RECOVERERS)


def _recipes(bookies: tuple[str, ...], mood: Mood) -> tuple[Recipe, ...]:
    each_bookie = tuple((name,) for name in bookies)
    each_client = tuple((name,) for name in CLIENTS)
    groups = tuple(
        tuple(group) for size in (2, 3, len(bookies)) for group in combinations(bookies, size)
    )
    pairs = tuple((client, bookie) for client in CLIENTS for bookie in bookies)
    both_ways = pairs + tuple((bookie, client) for client, bookie in pairs)
    adds = tuple((client, bookie) for client in _EARLY for bookie in bookies)
    to_metadata = tuple((name, METADATA) for name in (*_EARLY, *bookies))
    everyone = (*bookies, *CLIENTS, METADATA)
    recipes = [
        Recipe(Kind.KILL, each_bookie, times=(1, 4), for_us=(5 * MS, 1000 * MS)),
        Recipe(Kind.KILL, ((WRITER,),), times=(1, 1), for_us=(5 * MS, 300 * MS), odds=0.2),
        Recipe(Kind.KILL, each_client[1:], times=(1, 4), for_us=(5 * MS, 300 * MS)),
        Recipe(Kind.POWER_CUT, each_bookie, times=(1, 3), for_us=(5 * MS, 1000 * MS)),
        Recipe(Kind.POWER_CUT, groups, times=(1, 2), for_us=(5 * MS, 500 * MS)),
        Recipe(Kind.PAUSE, each_bookie, times=(1, 3), for_us=(10 * MS, 1500 * MS)),
        Recipe(Kind.PAUSE, each_client[:3], times=(1, 3), for_us=(10 * MS, 1500 * MS)),
        Recipe(Kind.CUT, pairs + to_metadata, times=(1, 4), for_us=(20 * MS, 1500 * MS)),
        Recipe(Kind.CUT_ONE_WAY, both_ways, times=(1, 4), for_us=(20 * MS, 1500 * MS)),
        Recipe(Kind.RESET, pairs, times=(1, 20)),
        Recipe(Kind.STALL, both_ways, times=(1, 2), for_us=(10 * MS, 1000 * MS), odds=0.2),
        # Steps that take their time leave room for something to go wrong between them.
        Recipe(Kind.FAR_APART, (everyone,), times=(1, 1), amount=(MS, 20 * MS), from_start=True),
        Recipe(Kind.JITTER, (everyone,), times=(1, 1), amount=(5 * MS, 200 * MS), from_start=True),
        Recipe(Kind.SLOW_LINK, adds, times=(1, 4), amount=(10 * MS, 500 * MS), from_start=True),
        Recipe(Kind.TAIL_LATENCY, both_ways, times=(1, 6), amount=(MS, 800 * MS), from_start=True),
        Recipe(Kind.SLOW_DISK, each_bookie, times=(1, 3), amount=(MS, 500 * MS), from_start=True),
        Recipe(Kind.HUNG_DISK, each_bookie, times=(1, 2), for_us=(5 * MS, 1500 * MS), odds=0.3),
        Recipe(Kind.SYNC_ERROR, each_bookie + groups, times=(1, 2), for_us=(MS, 100 * MS)),
        Recipe(Kind.WRITE_ERROR, each_bookie, times=(1, 2), for_us=(MS, 100 * MS), odds=0.2),
        Recipe(Kind.DISK_FULL, each_bookie, times=(1, 2), for_us=(50 * MS, 1500 * MS), odds=0.2),
        Recipe(Kind.METADATA_DOWN, ((),), times=(1, 1), for_us=(20 * MS, 1000 * MS), odds=0.2),
        Recipe(Kind.METADATA_LOSS, each_client, times=(1, 3), amount=(0, 1), odds=0.3),
        Recipe(Kind.METADATA_EXPIRY, each_client + each_bookie, times=(1, 2), odds=0.25),
        Recipe(Kind.METADATA_LAG, ((),), times=(1, 1), amount=(MS, 300 * MS), odds=0.2),
    ]
    if mood is Mood.LOSSY:
        recipes += [
            Recipe(Kind.WIPE, each_bookie, times=(1, 1), for_us=(20 * MS, 800 * MS), odds=0.3),
            Recipe(Kind.ROT, each_bookie, times=(1, 1), amount=(1, 1), odds=0.15),
            Recipe(Kind.READ_ERROR, each_bookie, times=(1, 2), for_us=(MS, 500 * MS), odds=0.15),
        ]
    return tuple(recipes)


def _one_loss(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Only one bookie of a run loses anything: the copies of one are what quorums can spare."""
    losers = [fault.nodes[0] for fault in faults if fault.kind in _LOSSES]
    return tuple(f for f in faults if f.kind not in _LOSSES or f.nodes[0] == losers[0])
