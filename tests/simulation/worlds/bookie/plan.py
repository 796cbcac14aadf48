"""What clients do and what goes wrong, drawn from a seed.

A step is a few words: `add b1 2 3 v3` adds three entries to ledger 2 on bookie b1 in the words of
version 3. What else it needs (which entries, how large) is chance of the run.
"""

import random
from collections.abc import Callable
from itertools import combinations
from typing import Final

from tests.simulation.schedule import (
    EVERYTHING,
    SOON_US,
    Case,
    Focus,
    Kind,
    Recipe,
    Step,
    draw,
    log_uniform,
)

WORLD: Final = "bookie"
BOOKIES: Final = ("b1", "b2")
CLIENTS: Final = ("c1", "c2", "c3")
OPERATOR: Final = "operator"
METADATA: Final = "metadata"
REPAIRER: Final = "repairer"  # Moves ledgers away from a bookie, and back to it.
TWIN: Final = "twin"  # A machine that starts a bookie under the id of another one.
LEDGERS: Final = (1, 2, 3, 4, 2**40)
CHAOS_US: Final = (400_000, 4_400_000)  # Cluster, bookies and ledgers are made in peace.
_STEPS: Final = (20, 90)
_OFTEN: Final = 8

Draw = Callable[[random.Random], str]


def _version(rng: random.Random) -> str:
    return rng.choice(("v2", "v3"))


VERBS: Final[dict[str, tuple[float, Draw]]] = {
    "add": (30, lambda rng: f"{rng.choice((1, 1, 2, 3, 8, 20))} {_version(rng)}"),
    "defer": (2, lambda rng: f"{rng.choice((1, 3))} v3"),
    "mend": (3, lambda rng: f"{rng.choice((1, 3))} {_version(rng)}"),  # Recovery adds.
    "force": (1, lambda _: ""),
    "fence": (2, _version),
    "read": (12, _version),
    "batch": (3, lambda _: ""),
    "even": (4, lambda rng: f"{rng.choice((20, 40))} {_version(rng)}"),  # And a batch of them.
    "list": (2, lambda _: ""),
    "poll": (5, lambda rng: f"{rng.choice((50, 400, 1500))}"),
    "lac": (3, lambda _: ""),
    "ask-lac": (2, lambda _: ""),
}


def draw_case(seed: int, focus: Focus = EVERYTHING) -> Case:
    rng = random.Random(f"bookie {seed}")
    steps = _draw_steps(rng, focus.verbs)
    recipes = RECIPES if focus == EVERYTHING else focus.recipes(RECIPES)
    faults = draw(rng, recipes, CHAOS_US, steps)
    if not any(fault.kind is Kind.ROLLBACK for fault in faults):
        # Who writes off what is lost doubts no closed ledger.
        steps = tuple(sorted((*steps, *_draw_moves(seed, steps, focus.verbs)), key=_when))
    if any(fault.kind is Kind.ROLLBACK for fault in faults):
        # Only garbage collection doubts a listing; who writes off what is lost takes it for whole.
        faults = tuple(fault for fault in faults if fault.kind is not Kind.PARTIAL_LISTING)
    return Case(WORLD, seed, steps, faults)


def _draw_steps(rng: random.Random, often: tuple[str, ...]) -> tuple[Step, ...]:
    weights = [weight * (_OFTEN if verb in often else 1) for verb, (weight, _) in VERBS.items()]
    ledgers = LEDGERS[: rng.choice((1, 2, 5, 5))]  # On few of them, more meets.
    mean_us = rng.choice((5_000, 50_000))
    steps: list[Step] = []
    at_us = CHAOS_US[0]
    for _ in range(rng.randint(*_STEPS)):
        verb = rng.choices(list(VERBS), weights)[0]
        particulars = VERBS[verb][1](rng)
        words = (verb, rng.choice(BOOKIES), str(rng.choice(ledgers)), particulars)
        steps.append(Step(at_us, rng.choice(CLIENTS), " ".join(filter(None, words))))
        if rng.random() < 0.7:
            at_us += round(rng.expovariate(1 / mean_us))
        at_us = min(at_us, CHAOS_US[1])
    if rng.random() < 0.5:  # Early: it takes two scans and a quarantine until a ledger goes.
        steps.append(
            Step(rng.randint(CHAOS_US[0], at_us), OPERATOR, f"delete {rng.choice(ledgers)}")
        )
    if rng.random() < 0.2:
        steps.append(Step(rng.choice(steps).at_us + log_uniform(rng, SOON_US), TWIN, "start b1"))
    return tuple(sorted(steps, key=_when))


def _when(step: Step) -> int:
    return step.at_us


def _draw_moves(seed: int, others: tuple[Step, ...], often: tuple[str, ...]) -> list[Step]:
    """A closed ledger is moved away from a bookie, which drops what it has, and mostly back to it, more than once."""
    rng = random.Random(f"bookie moves {seed}")
    doomed = [step.what.split()[1] for step in others if step.actor == OPERATOR]
    ledgers = [each for each in LEDGERS if str(each) not in doomed]
    steps: list[Step] = []
    if rng.random() > (1.0 if "move" in often else 0.3):
        return steps
    for bookie in rng.sample(BOOKIES, rng.choice((1, 2))):
        ledger_id, at_us = rng.choice(ledgers), CHAOS_US[0] + rng.randint(0, 500_000)
        while at_us < CHAOS_US[1]:
            steps.append(Step(at_us, REPAIRER, f"move {bookie} {ledger_id}"))
            at_us += rng.randint(300_000, 2_000_000)
            how = rng.choice(("back", "back-unlocked"))
            steps.append(Step(at_us, REPAIRER, f"{how} {bookie} {ledger_id}"))
            at_us += log_uniform(rng, (50_000, 1_000_000))
        if rng.random() < 0.3:
            steps.pop()
    return steps


MS: Final = 1000
_EACH_BOOKIE: Final = tuple((name,) for name in BOOKIES)
_EACH_CLIENT: Final = tuple((name,) for name in CLIENTS)
_PAIRS: Final = tuple((client, bookie) for client in CLIENTS for bookie in BOOKIES)
_BOTH_WAYS: Final = _PAIRS + tuple((bookie, client) for client, bookie in _PAIRS)
_TO_METADATA: Final = tuple((bookie, METADATA) for bookie in BOOKIES)
_ALL: Final = (*BOOKIES, *CLIENTS, METADATA)
_GROUPS: Final = tuple(tuple(group) for group in combinations(BOOKIES, 2))

RECIPES: Final = (
    Recipe(Kind.KILL, _EACH_BOOKIE, times=(1, 4), for_us=(5 * MS, 500 * MS)),
    Recipe(Kind.KILL, _EACH_CLIENT, times=(1, 3), for_us=(5 * MS, 300 * MS), odds=0.3),
    Recipe(Kind.POWER_CUT, _EACH_BOOKIE + _GROUPS, times=(1, 4), for_us=(5 * MS, 500 * MS)),
    Recipe(Kind.PAUSE, _EACH_BOOKIE + _EACH_CLIENT, times=(1, 3), for_us=(10 * MS, 3000 * MS)),
    Recipe(Kind.CUT, _PAIRS + _TO_METADATA, times=(1, 4), for_us=(20 * MS, 2500 * MS)),
    Recipe(Kind.CUT_ONE_WAY, _BOTH_WAYS + _TO_METADATA, times=(1, 3), for_us=(20 * MS, 2500 * MS)),
    Recipe(Kind.RESET, _PAIRS, times=(1, 10)),
    Recipe(Kind.STALL, _BOTH_WAYS, times=(1, 3), for_us=(10 * MS, 1500 * MS), odds=0.3),
    Recipe(Kind.JITTER, (_ALL,), times=(1, 1), amount=(5 * MS, 100 * MS), from_start=True),
    Recipe(Kind.SLOW_LINK, _BOTH_WAYS, times=(1, 4), amount=(MS, 200 * MS), from_start=True),
    Recipe(Kind.SLOW_DISK, _EACH_BOOKIE, times=(1, 2), amount=(MS, 200 * MS), from_start=True),
    Recipe(Kind.HUNG_DISK, _EACH_BOOKIE, times=(1, 2), for_us=(5 * MS, 1500 * MS), odds=0.3),
    Recipe(Kind.SYNC_ERROR, _EACH_BOOKIE + _GROUPS, times=(1, 3), for_us=(MS, 100 * MS)),
    Recipe(Kind.WRITE_ERROR, _EACH_BOOKIE, times=(1, 2), for_us=(MS, 100 * MS), odds=0.3),
    Recipe(Kind.READ_ERROR, _EACH_BOOKIE, times=(1, 2), for_us=(MS, 200 * MS), odds=0.2),
    Recipe(Kind.DISK_FULL, _EACH_BOOKIE, times=(1, 2), for_us=(50 * MS, 2000 * MS), odds=0.3),
    Recipe(Kind.ROT, _EACH_BOOKIE, times=(1, 1), amount=(1, 1), odds=0.2),
    Recipe(Kind.CLOCK_JUMP, _EACH_BOOKIE, times=(1, 2), amount=(1, 3_600_000 * MS), odds=0.2),
    Recipe(Kind.METADATA_DOWN, ((),), times=(1, 2), for_us=(20 * MS, 3000 * MS), odds=0.3),
    Recipe(Kind.METADATA_LOSS, _EACH_BOOKIE, times=(1, 3), amount=(0, 1), odds=0.3),
    Recipe(Kind.METADATA_EXPIRY, _EACH_BOOKIE, times=(1, 3), odds=0.3),
    Recipe(Kind.METADATA_LAG, ((),), times=(1, 1), amount=(MS, 300 * MS), odds=0.2),
    Recipe(Kind.PARTIAL_LISTING, ((),), times=(1, 1), amount=(20, 100), odds=0.3, from_start=True),
    Recipe(Kind.ROLLBACK, _EACH_BOOKIE, times=(1, 1), for_us=(50 * MS, 2000 * MS), odds=0.2),
)
