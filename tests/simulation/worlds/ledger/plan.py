"""What writers, recoverers, readers and operators do and what goes wrong, drawn from a seed.

A step is a few words: `create 3 3 2 CRC32C`, `append 5 300` (five payloads of 300 bytes), `recover`. It
is about the newest ledger of the run, or with `earlier` about the one before.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
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
from tests.simulation.worlds.ledger.drills import DRILLS, QUORUMS
from tests.simulation.worlds.ledger.words import (
    APPEND,
    BOOKIES,
    CLIENTS,
    CLOSE,
    CLUSTER,
    CREATE,
    DELETE,
    FLUSH,
    FOLLOW,
    FOLLOWER,
    FORCE,
    HEAL,
    METADATA,
    OPERATOR,
    READ,
    READ_ONLY,
    READER,
    RECOVER,
    RECOVERERS,
    STAY_DOWN,
    WRITER,
)

WORLD: Final = "ledger"
PEACE_US: Final = 1_000_000  # Cluster and bookies are made in peace.
CHAOS_US: Final[Span] = (PEACE_US, 4_000_000)
WINDOW: Final = 20
_WINDOWS: Final = (8, 8, WINDOW)  # All of it ends unknown when a writer is overtaken.
_SIZES: Final = (24, 24, 100, 1_000)
_BOOKIES_MIN: Final = 4
_STORM_ODDS: Final = 0.6
_DRILL_ODDS: Final = 0.2
_CALM_ODDS: Final = 0.85
_HEAL_ODDS: Final = 0.7
_CALM_US: Final = 50_000
_CALM_BATCHES: Final = 4  # Of twelve: fewer unknown outcomes would be too many of all.
_STORMY_UNTIL_US: Final = 3_500_000  # What begins later has no time to unfold.


class Mood(Enum):
    """Of what cannot be had together: where one copy may be gone, there have to be two."""

    LOSSY = "a bookie may lose its disk or a part of it"
    FRAIL = "some ledgers are confirmed with one copy"
    ABSENT = "a bookie does not come back after the healing"


# Ensemble, write and ack quorum.
_QUORUMS: Final = (
    *((3, 3, 2),) * 4,
    (3, 2, 2),
    (4, 3, 2),
    (4, 2, 2),
    (2, 2, 2),
    (3, 3, 3),
    (4, 4, 2),
    (4, 4, 3),
)
_FRAIL_QUORUMS: Final = ((2, 2, 1), (3, 2, 1), (3, 3, 1), (1, 1, 1))


def draw_case(seed: int, drill: str | None = None) -> Case:
    """With `drill` it is that and little else."""
    rng = random.Random(f"ledger {seed}")
    if drill is not None:
        return _draw_drill(rng, seed, drill, goes_on=False)
    if rng.random() < _DRILL_ODDS:
        return _draw_drill(rng, seed, rng.choice(list(DRILLS)), goes_on=True)
    mood = rng.choices(list(Mood), (5, 1, 2))[0]
    least = _BOOKIES_MIN + (mood is Mood.ABSENT)
    # Some protocols need many bookies, and each costs as much as a writer.
    bookies = BOOKIES[: min(least + rng.choice((0, 0, 0, 1, 1, 2)), len(BOOKIES))]
    cluster = f"{len(bookies)} bookies window {rng.choice(_WINDOWS)} v{rng.choice((2, 3, 3, 3))}"
    calm_us = _CALM_US if rng.random() < _CALM_ODDS else 0
    steps, storms = _draw_steps(rng, bookies, mood, calm_us)
    decisive = [step for step in steps if step.what.split()[0] in (RECOVER, CLOSE, DELETE)]
    odds = 0.5 if storms else 1.0  # Many at once get nowhere.
    recipes = [replace(each, odds=odds * each.odds) for each in _recipes(bookies, mood)]
    when_us = (PEACE_US + calm_us, CHAOS_US[1])
    faults = [*draw(rng, recipes, when_us, decisive or steps), *storms]
    faults = sorted(_one_loss(faults), key=lambda fault: fault.at_us)
    steps = sorted((*steps, *_heals(rng, faults)), key=lambda step: step.at_us)
    return Case(WORLD, seed, (Step(0, CLUSTER, cluster), *steps), tuple(faults))


def _draw_drill(rng: random.Random, seed: int, drill: str, *, goes_on: bool) -> Case:
    """`goes_on`: a storm over another ledger follows, or there would be little to see in some."""
    sizes = " ".join(map(str, rng.choice(QUORUMS.get(drill, _QUORUMS))))
    count = rng.choice((4, 4, 4, 5, 5, 6))
    window = rng.choice(_WINDOWS) if goes_on else WINDOW
    words = f"{count} bookies window {window} v{rng.choice((2, 3, 3, 3))}"
    cluster = Step(0, CLUSTER, words)
    create = f"{CREATE} {sizes} {rng.choice(list(DigestType)).name}"
    steps, faults = DRILLS[drill](rng, PEACE_US + 40_000)
    steps = [cluster, Step(PEACE_US, WRITER, create), *steps]
    at_us = max(step.at_us for step in steps) + 200_000
    if goes_on and at_us < _STORMY_UNTIL_US:
        steps += [Step(at_us, WRITER, create), *_calm_appends(at_us)]
        storm_steps, storm_faults = _brew_storm(rng, at_us + _CALM_US, BOOKIES[:count])
        steps += storm_steps
        faults += storm_faults
        steps += _heals(rng, faults)
    mild = (
        Recipe(Kind.JITTER, ((*BOOKIES[:4], *CLIENTS, METADATA),), (1, 1), amount=(100, 5_000)),
    )
    faults += draw(rng, mild, (PEACE_US, PEACE_US), ())
    return Case(
        WORLD,
        seed,
        tuple(sorted(steps, key=lambda step: step.at_us)),
        tuple(sorted(faults, key=lambda fault: fault.at_us)),
    )


def bookies_of(case: Case) -> tuple[str, ...]:
    for step in case.steps:
        if step.actor == CLUSTER:
            return BOOKIES[: int(step.what.split()[0])]
    return BOOKIES[:_BOOKIES_MIN]


def version_of(case: Case) -> int:
    """Of the protocol that clients speak."""
    return 2 if any(s.actor == CLUSTER and s.what.endswith("v2") for s in case.steps) else 3


def window_of(case: Case) -> int:
    """How many entries writers have open at most."""
    for step in case.steps:
        if step.actor == CLUSTER and " window " in step.what:
            return int(step.what.split()[3])
    return WINDOW


# --- Steps ----------------------------------------------------------------------------------------


def _draw_steps(
    rng: random.Random, bookies: tuple[str, ...], mood: Mood, calm_us: int
) -> tuple[list[Step], list[Fault]]:
    quorums = _QUORUMS + _FRAIL_QUORUMS * 4 if mood is Mood.FRAIL else _QUORUMS
    mean_us = rng.choice((10_000, 60_000, 150_000))
    steps: list[Step] = []
    faults: list[Fault] = []
    at_us = PEACE_US
    for _ in range(rng.choice((1, 1, 2))):
        sizes = " ".join(map(str, rng.choice(quorums)))
        digest = rng.choice(list(DigestType)).name
        steps.append(Step(at_us, WRITER, f"{CREATE} {sizes} {digest}"))
        begun_us = at_us
        if calm_us:
            steps += _calm_appends(at_us)
            at_us += calm_us
        for _ in range(rng.randint(6, 14)):
            at_us += round(rng.expovariate(1 / mean_us)) if rng.random() < 0.8 else 0
            count = rng.choice((1, 1, 2, 5, 12, 12))
            steps.append(Step(at_us, WRITER, f"{APPEND} {count} {rng.choice(_SIZES)}"))
            if rng.random() < 0.1:
                steps.append(Step(at_us, WRITER, rng.choice((FLUSH, FORCE))))
        if rng.random() < _STORM_ODDS:
            brewed_steps, brewed_faults = _brew_storm(rng, at_us, bookies)
            steps += brewed_steps
            faults += brewed_faults
            at_us = max(step.at_us for step in steps)
            continue
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
    if mood is Mood.ABSENT:
        steps.append(Step(CHAOS_US[1], rng.choice(bookies), STAY_DOWN))
    elif rng.random() < 0.2:  # Two that take no entries could be one too many.
        when_us = rng.randint(PEACE_US, at_us)
        steps.append(Step(when_us, OPERATOR, f"{READ_ONLY} {rng.choice(bookies)}"))
    return sorted(steps, key=lambda step: step.at_us), faults


def _calm_appends(at_us: int) -> list[Step]:
    """The beginning of a ledger's life that is like any other's."""
    return [Step(at_us + 1 + number, WRITER, f"{APPEND} 12 24") for number in range(_CALM_BATCHES)]


def _brew_storm(
    rng: random.Random, at_us: int, bookies: tuple[str, ...]
) -> tuple[list[Step], list[Fault]]:
    """A burst of appends that reach some bookies late or not at all; while it is under way bookies
    fail, and recoveries begin and are cut short. What protocols are for happens in such moments.
    """
    steps, faults = [], []

    def soon(least: int = 100, most: int = 30_000) -> int:
        return at_us + log_uniform(rng, (least, most))

    for bookie in bookies:  # From before the burst on.
        ends = (WRITER, bookie) if rng.random() < 0.7 else (bookie, WRITER)
        lasts = log_uniform(rng, (20_000, 1_500_000))
        if rng.random() < 0.4:
            late = log_uniform(rng, (2_000, 500_000))
            faults.append(Fault(at_us, Kind.SLOW_LINK, ends, lasts, late))
        elif rng.random() < 0.2:
            faults.append(Fault(at_us, Kind.CUT_ONE_WAY, ends, lasts))
    at_us += 100
    for _ in range(rng.randint(1, 3)):
        size = rng.choice(_SIZES)
        steps.append(Step(soon(), WRITER, f"{APPEND} {rng.choice((1, 3, 12))} {size}"))
    for _ in range(rng.choice((0, 1, 1, 2))):
        down = (rng.choice(bookies),)
        lasts = log_uniform(rng, (5_000, 1_500_000))
        faults.append(Fault(soon(), rng.choice((Kind.KILL, Kind.POWER_CUT)), down, lasts))
    faults += [
        Fault(soon(), Kind.RESET, (rng.choice(_EARLY), rng.choice(bookies)))
        for _ in range(rng.choice((0, 0, 2)))
    ]
    if rng.random() < 0.3:
        faults.append(Fault(soon(), Kind.PAUSE, (WRITER,), log_uniform(rng, (5_000, 1_500_000))))
    if rng.random() < 0.3:
        steps.append(Step(soon(), WRITER, CLOSE))
    if rng.random() < 0.3:
        steps.append(Step(at_us, FOLLOWER, FOLLOW))
    if rng.random() < 0.3:
        steps.append(Step(soon(), READER, READ))
    if rng.random() < 0.1:
        steps.append(Step(soon(), OPERATOR, DELETE))
    begins = soon(100, 300_000)
    for name in RECOVERERS:
        if rng.random() < 0.8:
            steps.append(Step(begins, name, RECOVER))
            during = begins + log_uniform(rng, (500, 60_000))
            if rng.random() < 0.4:
                faults.append(Fault(during, Kind.KILL, (name,), log_uniform(rng, (5_000, 300_000))))
            for bookie in bookies:
                if rng.random() < 0.2:
                    lasts = log_uniform(rng, (20_000, 1_500_000))
                    kind = rng.choice((Kind.CUT, Kind.CUT_ONE_WAY))
                    faults.append(Fault(during, kind, (name, bookie), lasts))
            begins += log_uniform(rng, (1_000, 500_000))
    if rng.random() < 0.3:
        group = tuple(rng.sample(bookies, rng.choice((2, 3, len(bookies)))))
        when = begins + log_uniform(rng, (100, 100_000))
        faults.append(Fault(when, Kind.POWER_CUT, group, log_uniform(rng, (5_000, 300_000))))
    last_us = CHAOS_US[1]
    return (
        [replace(step, at_us=min(step.at_us, last_us)) for step in steps],
        [replace(fault, at_us=min(fault.at_us, last_us)) for fault in faults],
    )


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


def _heals(rng: random.Random, faults: Sequence[Fault]) -> list[Step]:
    """Of bookies that lost their disks, while the chaos goes on."""
    back_us = [fault.at_us + fault.for_us for fault in faults if fault.kind is Kind.WIPE]
    when_us = [each + log_uniform(rng, (50_000, 1_000_000)) for each in back_us]
    return [
        Step(min(each, CHAOS_US[1]), OPERATOR, HEAL)
        for each in when_us
        if rng.random() < _HEAL_ODDS
    ]


def _one_loss(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Only one bookie of a run loses anything: the copies of one are what quorums can spare."""
    losers = [fault.nodes[0] for fault in faults if fault.kind in _LOSSES]
    return tuple(f for f in faults if f.kind not in _LOSSES or f.nodes[0] == losers[0])
