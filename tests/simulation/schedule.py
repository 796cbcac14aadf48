"""Fault schedules as data: a seed first becomes a list of timed faults and steps, then it runs.

What a run does on purpose is written down in its `Case`: which fault hits whom, when and for how
long, and what the clients do. All other chance (delays, torn sectors, which node goes
first) is drawn from `Case.seed` while it runs. So a case can be cut down without changing what it
is about, kept as JSON, and run again for ever.

A schedule is drawn like a swarm: each seed turns each class of faults on or off, because a run with
all of them rarely gets anywhere and a run with few of them gets far.
"""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, Self

FORMAT: Final = 1


class Kind(StrEnum):
    """Each comment names `nodes`, then `amount`. All but the momentary ones last for `for_us`."""

    KILL = "kill"  # node: the process dies, its page cache stays. for_us 0: it does not come back.
    POWER_CUT = (
        "power cut"  # nodes: they die at once and lose what was not synced; they come back at once.
    )
    PAUSE = "pause"  # node: stopped, while its machine keeps the connections open.
    CUT = "cut"  # a, b: nothing passes either way.
    CUT_ONE_WAY = "one-way cut"  # from, to.
    RESET = "reset"  # a, b: their connections break, bytes in flight are lost. Momentary.
    STALL = "stall"  # from, to: the receiver does not read.
    SLOW_LINK = "slow link"  # from, to; µs added to each delivery.
    FAR_APART = "far apart"  # nodes; µs added to each delivery between any two of them.
    JITTER = "jitter"  # nodes; tail latency between any two of them.
    TAIL_LATENCY = "tail latency"  # from, to; up to `amount` µs added to one delivery in five.
    SLOW_DISK = "slow disk"  # node; µs that each sync takes.
    HUNG_DISK = "hung disk"  # node: no sync ends.
    SYNC_ERROR = "sync error"  # nodes: their syncs fail.
    WRITE_ERROR = "write error"  # nodes: their writes fail.
    READ_ERROR = "read error"  # nodes: their reads fail.
    DISK_FULL = "disk full"  # node.
    ROT = "rot"  # node; this many durable bits flip, in any of its files. Momentary.
    WIPE = (
        "wipe"  # node: it dies, and comes back with an empty disk that was formatted in its name.
    )
    STALE_SECTOR = "stale sector"  # node: a sector of some file's last sync never got there.
    CLOCK_JUMP = "clock jump"  # node; µs added to its wall clock. Momentary.
    METADATA_DOWN = "metadata down"  # nobody: the whole store.
    METADATA_LOSS = "metadata loss"  # node; its next write loses the reply (1) or itself (0).
    METADATA_EXPIRY = "metadata expiry"  # node: its session ends. Momentary.
    METADATA_LAG = "metadata lag"  # nobody; reads may be this many µs stale.
    PARTIAL_LISTING = "partial listing"  # nobody; this many of 100 lists of children lack some.
    ROLLBACK = (
        "rollback"  # node: it starts again, and later once more with its disk as it was before.
    )


@dataclass(frozen=True, slots=True)
class Fault:
    at_us: int
    kind: Kind
    nodes: tuple[str, ...] = ()
    for_us: int = 0
    amount: int = 0

    def __str__(self) -> str:
        arrow = " → " if self.kind in _DIRECTED else ", "
        parts = [self.kind.value, arrow.join(self.nodes)]
        if self.amount:
            parts.append(f"by {self.amount} µs" if self.kind in _IN_US else f"of {self.amount}")
        if self.for_us:
            parts.append(f"for {self.for_us / 1000:g} ms")
        return " ".join(filter(None, parts))


_DIRECTED: Final = (Kind.CUT_ONE_WAY, Kind.STALL, Kind.SLOW_LINK, Kind.TAIL_LATENCY)
_IN_US: Final = (
    Kind.SLOW_LINK,
    Kind.FAR_APART,
    Kind.JITTER,
    Kind.TAIL_LATENCY,
    Kind.SLOW_DISK,
    Kind.CLOCK_JUMP,
    Kind.METADATA_LAG,
)


@dataclass(frozen=True, slots=True)
class Step:
    """The workload: at this moment somebody is told to do something."""

    at_us: int
    actor: str
    what: str

    def __str__(self) -> str:
        return f"{self.actor}: {self.what}"


@dataclass(frozen=True, slots=True)
class Case:
    world: str
    seed: int
    steps: tuple[Step, ...]
    faults: tuple[Fault, ...]

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        if fields["format"] != FORMAT:
            raise ValueError(f"a case of format {fields['format']}; this reads {FORMAT}")
        return cls(
            world=fields["world"],
            seed=fields["seed"],
            steps=tuple(Step(**step) for step in fields["steps"]),
            faults=tuple(
                Fault(**{**fault, "kind": Kind(fault["kind"]), "nodes": tuple(fault["nodes"])})
                for fault in fields["faults"]
            ),
        )

    def dumps(self) -> str:
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False)

    @classmethod
    def loads(cls, text: str) -> Self:
        return cls.from_json(json.loads(text))

    def __str__(self) -> str:
        """What will happen, in order, a line each."""
        timed = [(step.at_us, str(step)) for step in self.steps]
        timed += [(fault.at_us, str(fault)) for fault in self.faults]
        return "\n".join(f"{at_us / 1e6:9.4f}s {text}" for at_us, text in sorted(timed))


# --- Drawing one ------------------------------------------------------------------------------

Span = tuple[int, int]  # Inclusive bounds.


SOON_US: Final[Span] = (100, 100_000)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One class of faults: whom it may hit, how often and how hard."""

    kind: Kind
    targets: Sequence[tuple[str, ...]]  # One of these is hit each time.
    times: Span = (1, 3)
    for_us: Span = (0, 0)
    amount: Span = (0, 0)
    odds: float = 0.5  # That a seed has this class at all.
    from_start: bool = False  # A condition of the whole chaos rather than an event in it.


def draw(
    rng: random.Random, recipes: Sequence[Recipe], when_us: Span, steps: Sequence[Step]
) -> tuple[Fault, ...]:
    """Half of the faults come soon after a step, when something is under way; half at any time."""
    faults: list[Fault] = []
    for recipe in recipes:
        if rng.random() < recipe.odds:
            times = rng.randint(*recipe.times)
            faults += [_draw_one(rng, recipe, when_us, steps) for _ in range(times)]
    return tuple(sorted(faults, key=lambda fault: fault.at_us))


@dataclass(frozen=True, slots=True)
class Focus:
    """What cases are mostly about, when a certain bug is looked for."""

    kinds: tuple[Kind, ...] = ()  # Each case has them; of all others a third of what it would have.
    nodes: tuple[str, ...] = ()  # Of those kinds, whom they hit, if they can.
    verbs: tuple[str, ...] = ()  # Steps of which there are more.

    def recipes(self, recipes: Sequence[Recipe]) -> list[Recipe]:
        return [self._focused(recipe) for recipe in recipes]

    def _focused(self, recipe: Recipe) -> Recipe:
        if recipe.kind not in self.kinds:
            return replace(recipe, odds=recipe.odds / 3)
        hit = [each for each in recipe.targets if any(name in self.nodes for name in each)]
        return replace(recipe, odds=1.0, targets=hit or recipe.targets)


EVERYTHING: Final = Focus()


def _draw_one(rng: random.Random, recipe: Recipe, when_us: Span, steps: Sequence[Step]) -> Fault:
    at_us = rng.randint(*when_us)
    if steps and rng.random() < 0.5:
        at_us = min(rng.choice(steps).at_us + log_uniform(rng, SOON_US), when_us[1])
    return Fault(
        at_us=when_us[0] if recipe.from_start else at_us,
        kind=recipe.kind,
        nodes=rng.choice(recipe.targets),
        for_us=log_uniform(rng, recipe.for_us),
        amount=log_uniform(rng, recipe.amount),
    )


def log_uniform(rng: random.Random, span: Span) -> int:
    """Short and long alike: time-outs lie somewhere in between, and both sides of them matter."""
    low, high = span
    return (
        rng.randint(low, high)
        if low == 0
        else round(math.exp(rng.uniform(math.log(low), math.log(high))))
    )
