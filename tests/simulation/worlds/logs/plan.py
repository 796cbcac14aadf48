"""What users of named logs do and what goes wrong, drawn from a seed. `words.py` has the steps."""

import random
from typing import Final

from rollbook.logservice.log_config import LogConfig, WriterMode
from rollbook.proto.quorum import Quorum
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
from tests.simulation.worlds.logs import words
from tests.simulation.worlds.logs.words import (
    ADMIN,
    BOOKIES,
    CLIENTS,
    CLUSTER,
    LOGS,
    METADATA,
    PRODUCERS,
    READERS,
    SERVERS,
    STRANGER,
    WRITERS,
)

WORLD: Final = "logs"
PEACE_US: Final = 1_000_000
CHAOS_US: Final[Span] = (PEACE_US, 4_000_000)
MS: Final = 1000
_CALM_US: Final = 100_000
_QUORUMS: Final = ((3, 3, 2), (3, 3, 2), (4, 3, 2), (3, 2, 2), (2, 2, 2))


def draw_case(seed: int, drill: str | None = None) -> Case:
    """`drill`: it has that one; else it may have any."""
    rng = random.Random(f"logs {seed}")
    servers = SERVERS[: rng.choice((2, 2, 3))]
    logs = tuple(LOGS)[: rng.choice((1, 1, 2))]
    modes = " ".join(f"{log}={rng.choice(('open',) * 4 + ('exclusive',))}" for log in logs)
    quorum = " ".join(map(str, rng.choice(_QUORUMS)))
    cluster = Step(0, CLUSTER, f"{len(servers)} servers {quorum} {modes}")
    steps = _draw_steps(rng, servers, logs)
    drilled: list[Fault] = []
    wanted = [drill] if drill else [each for each in DRILLS if rng.random() < _DRILL_ODDS]
    for name in wanted:
        for _ in range(rng.randint(1, 2) if drill is None else 3):
            when_us = rng.randint(PEACE_US + _CALM_US, CHAOS_US[1] - 900 * MS)
            more_steps, more_faults = DRILLS[name](rng, when_us, rng.choice(logs))
            steps += more_steps
            drilled += more_faults
    steps.sort(key=lambda step: step.at_us)
    decisive = [step for step in steps if step.actor in (ADMIN, STRANGER, *SERVERS)]
    faults = draw(rng, _recipes(servers), (PEACE_US + _CALM_US, CHAOS_US[1]), decisive or steps)
    if drill is not None:  # Little else, or it would not come to what it is about.
        faults = tuple(fault for fault in faults if rng.random() < 0.2)
    in_order = sorted((*faults, *drilled), key=lambda fault: fault.at_us)
    return Case(WORLD, seed, (cluster, *steps), tuple(in_order))


def servers_of(case: Case) -> tuple[str, ...]:
    for step in case.steps:
        if step.actor == CLUSTER:
            return SERVERS[: int(step.what.split()[0])]
    return SERVERS[:2]


def logs_of(case: Case) -> dict[str, LogConfig]:
    """Small segments: a log of a few dozen batches has several."""
    for step in case.steps:
        if step.actor == CLUSTER:
            ensemble, write, ack, *modes = step.what.split()[2:]
            quorum = Quorum(int(ensemble), int(write), int(ack))
            pairs = (mode.split("=") for mode in modes)
            return {
                log: LogConfig(quorum, roll_entries=16, writer_mode=WriterMode(mode))
                for log, mode in pairs
            }
    return {"a": LogConfig(roll_entries=16)}


# --- Steps ----------------------------------------------------------------------------------------


def _draw_steps(rng: random.Random, servers: tuple[str, ...], logs: tuple[str, ...]) -> list[Step]:
    first, last = CHAOS_US
    steps: list[Step] = []

    def at(actor: str, what: str, earliest: int = first) -> None:
        steps.append(Step(rng.randint(earliest, last), actor, what))

    for log in logs:
        for producer in PRODUCERS[: rng.choice((1, 2, 2))]:
            at_us, mean_us = first, rng.choice((40_000, 120_000, 250_000))
            while at_us < last:
                count = rng.choice((1, 1, 2, 4, 8))
                steps.append(Step(at_us, producer, f"{words.APPEND} {log} {count}"))
                if rng.random() < 0.25:
                    steps.append(
                        Step(at_us + rng.randint(0, 50_000), producer, f"{words.AGAIN} {log}")
                    )
                at_us += round(rng.expovariate(1 / mean_us)) + 5_000
        for writer in WRITERS[: rng.choice((0, 1, 1, 2))]:
            steps += _draw_writer(rng, writer, log)
        for reader in READERS[: rng.choice((0, 1, 1, 2))]:
            steps.append(Step(rng.randint(first, last), reader, f"{words.FOLLOW} {log}"))
        if rng.random() < 0.4:
            at(READERS[0] if rng.random() < 0.5 else READERS[1], f"{words.READ} {log}")
        for verb, odds, times in (
            (words.ROLL, 0.4, 3),
            (words.TRUNCATE, 0.45, 3),
            (words.MARK, 0.35, 3),
            (words.UNMARK, 0.1, 1),
        ):
            if rng.random() < odds:
                for _ in range(rng.randint(1, times)):
                    back = f" {rng.choice((0, 3, 10, 30))}" if verb in _WITH_BACK else ""
                    at(ADMIN, f"{verb} {log}{back}", first + _CALM_US)
        if rng.random() < 0.12:
            at(ADMIN, f"{words.SEAL} {log}", (first + last) // 2)
        if rng.random() < 0.3:
            for _ in range(rng.randint(1, 4)):
                at(rng.choice(servers), f"{words.TAKE} {log}", first + _CALM_US)
        if rng.random() < 0.2:
            for _ in range(rng.randint(1, 3)):
                at(STRANGER, f"{words.FENCE} {log}", first + _CALM_US)
        if rng.random() < 0.2:
            at(ADMIN, f"{words.TRANSFER} {log} {rng.choice(servers)}", first + _CALM_US)
    if rng.random() < 0.25:
        for _ in range(rng.randint(1, 2)):
            at(rng.choice(servers), words.STOP, first + _CALM_US)
    if rng.random() < 0.15:
        server, when_us = rng.choice(servers), rng.randint(first + _CALM_US, last)
        steps.append(Step(when_us, ADMIN, f"{words.DRAIN} {server}"))
        back_us = min(when_us + log_uniform(rng, (50 * MS, 1500 * MS)), last)
        steps.append(Step(back_us, ADMIN, f"{words.RESUME} {server}"))
    return steps


_WITH_BACK: Final = (words.TRUNCATE, words.MARK)


def _draw_writer(rng: random.Random, writer: str, log: str) -> list[Step]:
    """Some go by the tail, some by an epoch, some by both."""
    steps: list[Step] = []
    at_us, last = CHAOS_US[0] + rng.randint(0, 500_000), CHAOS_US[1]
    by_epoch = rng.random() < 0.5
    if by_epoch:
        steps.append(Step(at_us, writer, f"{words.ACQUIRE} {log}"))
    while at_us < last:
        roll = rng.random()
        if by_epoch and roll < 0.2:
            what = f"{words.ACQUIRE} {log}"
        elif by_epoch and roll < 0.23:
            what = f"{words.RELEASE} {log}"
        elif roll < 0.3:
            what = f"{words.BARRIER} {log}"
        else:
            verb = words.EXPECT if rng.random() < 0.5 else words.APPEND
            what = f"{verb} {log} {rng.choice((1, 1, 2, 4))}"
        steps.append(Step(at_us, writer, what))
        at_us += log_uniform(rng, (5 * MS, 400 * MS))
    return steps


# --- Drills ---------------------------------------------------------------------------------------

Happening = tuple[list[Step], list[Fault]]


def death_in_a_roll(rng: random.Random, at_us: int, log: str) -> Happening:
    """The owner's way to the metadata store is long, and it dies while it rolls."""
    owner = words.owner_of(log)
    late = log_uniform(rng, (5 * MS, 60 * MS))
    dies = at_us + rng.randint(2 * late, 12 * late)
    return (
        [Step(at_us + MS, ADMIN, f"{words.ROLL} {log}"), *_burst(rng, at_us + MS, log)],
        [
            Fault(at_us, Kind.SLOW_LINK, (owner, METADATA), 13 * late, late),
            Fault(dies, Kind.KILL, (owner,), rng.randint(50 * MS, 900 * MS)),
        ],
    )


def stuck_roll(rng: random.Random, at_us: int, log: str) -> Happening:
    """What the old ledger was sent last reaches no bookie, what the new one is sent does."""
    owner = words.owner_of(log)
    dies = at_us + log_uniform(rng, (15 * MS, 400 * MS))
    lasts = rng.randint(500 * MS, 800 * MS)
    kind = rng.choice((Kind.KILL, Kind.KILL, Kind.PAUSE))
    return (
        [
            Step(at_us, words.STORAGE, f"{words.DEAF} {log} {lasts // MS}"),
            *_burst(rng, at_us + MS, log),
            Step(at_us + 5 * MS, ADMIN, f"{words.ROLL} {log}"),
        ],
        [Fault(dies, kind, (owner,), rng.randint(100 * MS, 1200 * MS))],
    )


def two_owners(rng: random.Random, at_us: int, log: str) -> Happening:
    """The owner is cut off from the metadata store, and others take over; clients go on asking it."""
    owner = words.owner_of(log)
    lasts = rng.randint(300 * MS, 900 * MS)
    taker = rng.choice(SERVERS[:2])
    return (
        [
            *_burst(rng, at_us + MS, log),
            Step(at_us + rng.randint(MS, 50 * MS), taker, f"{words.TAKE} {log}"),
            *(
                Step(at_us + rng.randint(MS, lasts), writer, f"{verb} {log}")
                for writer in WRITERS
                for verb in (words.BARRIER, words.BARRIER)
            ),
            *(
                Step(at_us + rng.randint(MS, lasts), writer, f"{words.EXPECT} {log} 2")
                for writer in WRITERS
            ),
        ],
        [Fault(at_us, Kind.CUT, (owner, METADATA), lasts)],
    )


def frozen_owner(rng: random.Random, at_us: int, log: str) -> Happening:
    """The owner stands still for longer than its lease, with appends on their way to bookies and back."""
    owner = words.owner_of(log)
    late = log_uniform(rng, (2 * MS, 60 * MS))
    stops = at_us + 10 * MS + rng.randint(0, 2 * late)
    return (
        _burst(rng, at_us + 5 * MS, log),
        [
            *(Fault(at_us, Kind.SLOW_LINK, (each, owner), 4 * late, late) for each in BOOKIES),
            Fault(stops, Kind.PAUSE, (owner,), rng.randint(650 * MS, 1300 * MS)),
        ],
    )


def rivals(rng: random.Random, at_us: int, log: str) -> Happening:
    """Two writers take the log from each other, on an owner whose ledger is stuck, or fenced."""
    steps = [*_burst(rng, at_us + 5 * MS, log)]
    for writer in WRITERS:
        for _ in range(3):
            asks_us = at_us + rng.randint(0, 300 * MS)
            steps.append(Step(asks_us, writer, f"{words.ACQUIRE} {log}"))
            steps.append(Step(asks_us + 1, writer, f"{words.APPEND} {log} 4"))
    happens_us = at_us + rng.randint(10 * MS, 300 * MS)
    if rng.random() < 0.5:
        steps.append(Step(happens_us, words.STORAGE, f"{words.DEAF} {log} {rng.randint(50, 600)}"))
    if rng.random() < 0.5:
        steps.append(Step(happens_us + 5 * MS, rng.choice(SERVERS[:2]), f"{words.TAKE} {log}"))
    return steps, []


def truncation(rng: random.Random, at_us: int, log: str) -> Happening:
    """Marks and truncations in each other's way, and an owner that dies over them."""
    steps = [*_burst(rng, at_us, log)]
    for number in range(6):
        verb = rng.choice((words.TRUNCATE, words.TRUNCATE, words.MARK, words.MARK, words.UNMARK))
        back = f" {rng.choice((0, 3, 10, 25))}" if verb != words.UNMARK else ""
        steps.append(Step(at_us + 60 * MS * number, ADMIN, f"{verb} {log}{back}"))
    dies = at_us + rng.randint(10 * MS, 360 * MS)
    return steps, [Fault(dies, Kind.KILL, (words.owner_of(log),), rng.randint(10 * MS, 600 * MS))]


def clocks(rng: random.Random, at_us: int, log: str) -> Happening:
    """The owner's clock is ahead of that of whoever takes over."""
    steps = _burst(rng, at_us + 2 * MS, log)
    for number, server in enumerate((*SERVERS[:2], *SERVERS[:2])):
        taken_us = at_us + (60 + 60 * number) * MS
        steps += [Step(taken_us, server, f"{words.TAKE} {log}"), *_burst(rng, taken_us, log)]
    ahead = rng.randint(500 * MS, 5000 * MS)
    return steps, [Fault(at_us, Kind.CLOCK_JUMP, (words.owner_of(log),), amount=ahead)]


def _burst(rng: random.Random, at_us: int, log: str) -> list[Step]:
    return [
        Step(at_us + rng.randint(0, 10 * MS), producer, f"{words.APPEND} {log} {rng.randint(1, 8)}")
        for producer in PRODUCERS
        for _ in range(2)
    ]


DRILLS: Final = {
    each.__name__: each
    for each in (death_in_a_roll, stuck_roll, two_owners, frozen_owner, rivals, truncation, clocks)
}
_DRILL_ODDS: Final = 0.2


# --- Faults ---------------------------------------------------------------------------------------


def _recipes(servers: tuple[str, ...]) -> tuple[Recipe, ...]:
    each_server = tuple((name,) for name in servers)
    each_bookie = tuple((name,) for name in BOOKIES)
    each_client = tuple((name,) for name in (*PRODUCERS, *WRITERS))
    asked = tuple((client, server) for client in CLIENTS for server in servers)
    stored = tuple((server, bookie) for server in servers for bookie in BOOKIES)
    both_ways = stored + tuple((bookie, server) for server, bookie in stored)
    to_metadata = tuple((server, METADATA) for server in servers)
    everyone = (*servers, *BOOKIES, *CLIENTS, METADATA)
    inner = (*servers, *BOOKIES, METADATA)
    return (
        Recipe(Kind.KILL, each_server, times=(1, 4), for_us=(5 * MS, 800 * MS), odds=0.6),
        Recipe(Kind.POWER_CUT, each_server, times=(1, 2), for_us=(50 * MS, 1000 * MS), odds=0.2),
        Recipe(Kind.PAUSE, each_server, times=(1, 3), for_us=(20 * MS, 1800 * MS), odds=0.5),
        Recipe(Kind.KILL, each_client, times=(1, 2), for_us=(5 * MS, 300 * MS), odds=0.2),
        Recipe(Kind.KILL, each_bookie, times=(1, 3), for_us=(5 * MS, 800 * MS), odds=0.4),
        Recipe(Kind.PAUSE, each_bookie, times=(1, 2), for_us=(10 * MS, 1200 * MS), odds=0.3),
        Recipe(Kind.CUT, stored, times=(1, 4), for_us=(20 * MS, 1200 * MS), odds=0.4),
        Recipe(Kind.CUT_ONE_WAY, both_ways, times=(1, 4), for_us=(20 * MS, 1200 * MS), odds=0.4),
        Recipe(Kind.CUT, to_metadata, times=(1, 2), for_us=(50 * MS, 1500 * MS), odds=0.4),
        Recipe(Kind.SLOW_LINK, to_metadata, times=(1, 2), amount=(5 * MS, 100 * MS), odds=0.2),
        Recipe(Kind.CUT, asked, times=(1, 4), for_us=(20 * MS, 800 * MS), odds=0.3),
        Recipe(Kind.RESET, asked, times=(1, 15), odds=0.4),
        Recipe(Kind.RESET, stored, times=(1, 10), odds=0.3),
        Recipe(Kind.SLOW_LINK, stored, times=(1, 4), amount=(10 * MS, 400 * MS), from_start=True),
        Recipe(Kind.FAR_APART, (inner,), times=(1, 1), amount=(MS, 15 * MS), from_start=True),
        Recipe(Kind.JITTER, (everyone,), times=(1, 1), amount=(5 * MS, 150 * MS), from_start=True),
        Recipe(Kind.CLOCK_JUMP, each_server, times=(1, 2), amount=(MS, 5000 * MS), odds=0.15),
        Recipe(Kind.METADATA_DOWN, ((),), times=(1, 1), for_us=(20 * MS, 900 * MS), odds=0.2),
        Recipe(Kind.METADATA_LOSS, each_server, times=(1, 4), amount=(0, 1), odds=0.4),
        Recipe(Kind.METADATA_EXPIRY, each_server, times=(1, 2), odds=0.3),
        Recipe(Kind.METADATA_LAG, ((),), times=(1, 1), amount=(MS, 300 * MS), odds=0.3),
    )
