"""What users of named logs do and what goes wrong, drawn from a seed. `messages.py` has the steps."""

import random
from dataclasses import replace
from typing import Any, Final

from rollbook.logservice.log_config import LogConfig, WriterMode
from rollbook.proto.quorum import Quorum
from tests.simulation.checkers.logs.lists import APART_S
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
    VISITORS,
    WRITERS,
)

WORLD: Final = "logs"
PEACE_US: Final = 1_000_000
CHAOS_US: Final[Span] = (PEACE_US, 4_000_000)
MS: Final = 1000
LONG_S: Final = 4000  # Longer than any run and any clock that is believed is wrong.
_CALM_US: Final = 100_000
_QUORUMS: Final = ((3, 3, 2), (3, 3, 2), (4, 3, 2), (3, 2, 2), (2, 2, 2))


def draw_case(seed: int, drill: str | None = None) -> Case:
    """`drill`: it has that one; else it may have any."""
    rng = random.Random(f"logs {seed}")
    servers = SERVERS[: rng.choice((2, 2, 3))]
    logs = tuple(LOGS)[: rng.choice((1, 1, 2)) if drill is None else 1]
    modes = " ".join(f"{log}={rng.choice(('open',) * 4 + ('exclusive',))}" for log in logs)
    quorum = " ".join(map(str, rng.choice(_QUORUMS)))
    cluster = Step(0, CLUSTER, f"{len(servers)} servers {quorum} {modes}")
    steps = [*_draw_configs(rng, logs), *_draw_steps(rng, servers, logs)]
    if drill == forgotten.__name__:  # Nobody else: a producer that is not silent is remembered.
        steps = [step for step in steps if not step.at_us or step.actor not in PRODUCERS]
    if drill is not None:  # Little else, or it would not come to what it is about, and take long.
        steps = [step for step in steps if not step.at_us or rng.random() < _BESIDE_DRILLS]
    drilled: list[Fault] = []
    wanted = [drill] if drill else [each for each in DRILLS if rng.random() < _DRILL_ODDS]
    if wrong_clock.__name__ in wanted and fast_clock.__name__ in wanted:
        wanted.remove(
            fast_clock.__name__
        )  # With two wrong clocks nobody is believed, and no log has an owner.
    wanted = wanted or [interrupted.__name__]  # Else nothing may come to anything.
    for name in wanted:
        for _ in range(rng.randint(1, 2) if drill is None else 3):
            when_us = rng.randint(PEACE_US + _CALM_US, CHAOS_US[1] - 900 * MS)
            more_steps, more_faults = DRILLS[name](rng, when_us, rng.choice(logs))
            steps += more_steps
            drilled += more_faults
    steps.sort(key=lambda step: step.at_us)
    acting = [step for step in steps if step.at_us]
    decisive = [step for step in acting if step.actor in (ADMIN, STRANGER, *SERVERS)]
    faults = draw(rng, _recipes(servers), (PEACE_US + _CALM_US, CHAOS_US[1]), decisive or acting)
    if drill is not None:
        faults = tuple(fault for fault in faults if rng.random() < _BESIDE_DRILLS)
    in_order = sorted((*faults, *drilled), key=lambda fault: fault.at_us)
    return Case(WORLD, seed, (cluster, *steps), tuple(in_order))


def bookies_of(case: Case) -> tuple[str, ...]:
    return BOOKIES[:3] if has_few_bookies(case) else BOOKIES


def has_few_bookies(case: Case) -> bool:
    return any(step.what == words.THREE for step in case.steps)


def stands_a_siege(case: Case) -> bool:
    """Of three bookies one may be away. Not where entries are striped and have no copy beyond the ack quorum: one
    whose write set has lost a bookie waits for it.
    """
    quorums = [config.quorum for config in logs_of(case).values()]
    if any(step.what.startswith(words.FORMAT) for step in case.steps):
        return False  # The one that is away may have the only copies that are left.
    return has_few_bookies(case) and all(
        each.write > each.ack or each.ensemble == each.write for each in quorums
    )


def servers_of(case: Case) -> tuple[str, ...]:
    for step in case.steps:
        if step.actor == CLUSTER and not step.what.startswith(_CONFIG):
            return SERVERS[: int(step.what.split()[0])]
    return SERVERS[:2]


def addresses_of(case: Case) -> dict[str, str]:
    """Where each server says that it is."""
    liars = [step.actor for step in case.steps if step.what == words.MISTELL]
    return {
        name: words.address_of(name, words.NOBODYS_PORT if name in liars else words.PORT)
        for name in servers_of(case)
    }


def clocks_are_believed(case: Case) -> bool:
    """None is so wrong that its server leaves all to others that must not go too early."""
    jumps = [fault.amount for fault in case.faults if fault.kind is Kind.CLOCK_JUMP]
    return sum(map(abs, jumps)) < APART_S * 1_000_000


def has_liar(case: Case) -> bool:
    """A server tells an address where nobody listens: what it owns, it alone can tell the end of."""
    return any(step.what == words.MISTELL for step in case.steps)


def must_read(case: Case, server: str) -> bool:
    """Whether this server owes a reader the whole log in the end. One whose clock is wrong owns no logs and asks their
    owner for the tail; if an owner tells a wrong address for ever, the answer can only be that it could not be asked.
    """
    jumps = [f.amount for f in case.faults if f.kind is Kind.CLOCK_JUMP and server in f.nodes]
    is_wrong = abs(sum(jumps)) >= APART_S * 1_000_000
    return not is_wrong or not has_liar(case)


def logs_of(case: Case) -> dict[str, LogConfig]:
    """Small segments: a log of a few dozen batches has several."""
    logs = {"a": LogConfig(roll_entries=16)}
    clusters = [step.what for step in case.steps if step.actor == CLUSTER]
    for what in clusters:
        if not what.startswith(_CONFIG):
            ensemble, write, ack, *modes = what.split()[2:]
            quorum = Quorum(int(ensemble), int(write), int(ack))
            pairs = (mode.split("=") for mode in modes)
            logs = {
                log: LogConfig(quorum, roll_entries=16, writer_mode=WriterMode(mode))
                for log, mode in pairs
            }
    for what in clusters:
        _, log, *changes = what.split()
        if what.startswith(_CONFIG) and log in logs:
            numbers: dict[str, Any] = {
                key: int(value) for key, value in (each.split("=") for each in changes)
            }
            logs[log] = replace(logs[log], **numbers)
    return logs


_CONFIG: Final = "config "


def _config(log: str, **numbers: int) -> Step:
    told = " ".join(f"{key}={value}" for key, value in numbers.items())
    return Step(0, CLUSTER, f"{_CONFIG}{log} {told}")


def _draw_configs(rng: random.Random, logs: tuple[str, ...]) -> list[Step]:
    """What expires while the chaos lasts, what must not; what is kept of a deleted log, or is not."""
    found: list[Step] = []
    for log in logs:
        found.append(_config(log, delete_grace_s=rng.choice((0, 0, LONG_S))))
        if rng.random() < 0.3:
            found.append(_config(log, retention_age_s=rng.choice((1, LONG_S))))
        if rng.random() < 0.3:
            found.append(_config(log, retention_bytes=rng.choice((0, 4_000, 12_000))))
        if rng.random() < 0.3:
            found.append(_small_cache(rng, log))
    return found


def _small_cache(rng: random.Random, log: str) -> Step:
    """Its owner keeps a few blocks in memory, the last one, or not even that."""
    return _config(log, tail_cache_bytes=rng.choice((0, 500, 2_000)))


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
        if rng.random() < 0.4:
            for _ in range(rng.randint(1, 6)):
                at(rng.choice(VISITORS), f"{rng.choice(_VISITS)} {log}")
        for verb, odds, times in (
            (words.ROLL, 0.4, 3),
            (words.TRUNCATE, 0.45, 3),
            (words.MARK, 0.35, 3),
            (words.UNMARK, 0.1, 1),
        ):
            if rng.random() < odds:
                for _ in range(rng.randint(1, times)):
                    back = f" {rng.choice((-4, 0, 3, 10, 30))}" if verb in _WITH_BACK else ""
                    at(ADMIN, f"{verb} {log}{back}", first + _CALM_US)
        if rng.random() < 0.12:
            at(ADMIN, f"{words.SEAL} {log}", (first + last) // 2)
        if rng.random() < 0.06:
            at(ADMIN, f"{words.DELETE} {log}", (first + last) // 2)
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


_VISITS: Final = (words.RANGE, words.RANGE, words.TO_TAIL)
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
    """The owner's way to the metadata store is long, or ends, and it dies while it rolls."""
    owner = words.owner_of(log)
    late = log_uniform(rng, (5 * MS, 60 * MS))
    trickle = [
        Step(at_us + number * late // 2, rng.choice(PRODUCERS), f"{words.APPEND} {log} 1")
        for number in range(1, 24)
    ]
    faults = [Fault(at_us, Kind.SLOW_LINK, (owner, METADATA), 15 * late, late)]
    if rng.random() < 0.5:
        ends = at_us + rng.randint(3 * late, 8 * late)
        faults.append(Fault(ends, Kind.CUT_ONE_WAY, (owner, METADATA), 15 * late))
        dies = ends + rng.randint(late, 4 * late)
    else:
        dies = at_us + rng.randint(2 * late, 12 * late)
    faults.append(Fault(dies, Kind.KILL, (owner,), rng.randint(50 * MS, 900 * MS)))
    steps = [Step(at_us + MS, ADMIN, f"{words.ROLL} {log}"), *_burst(rng, at_us + MS, log)]
    return [*steps, *trickle], faults


def stuck_roll(rng: random.Random, at_us: int, log: str) -> Happening:
    """What the old ledger was sent last reaches no bookie, what the new one is sent does."""
    owner = words.owner_of(log)
    dies = at_us + log_uniform(rng, (15 * MS, 400 * MS))
    lasts = rng.randint(500 * MS, 800 * MS)
    kind = rng.choice((Kind.KILL, Kind.KILL, Kind.PAUSE))
    again = [
        Step(at_us + rng.randint(10 * MS, 200 * MS), producer, f"{words.AGAIN} {log}")
        for producer in PRODUCERS
        for _ in range(2)
    ]
    return (
        [
            *(Step(at_us - 20 * MS, reader, f"{words.FOLLOW} {log}") for reader in READERS),
            *again,
            Step(at_us, words.STORAGE, f"{words.DEAF} {log} {lasts // MS}"),
            *_burst(rng, at_us + MS, log),
            Step(at_us + 5 * MS, ADMIN, f"{words.ROLL} {log}"),
        ],
        [Fault(dies, kind, (owner,), rng.randint(100 * MS, 1200 * MS))],
    )


def two_owners(rng: random.Random, at_us: int, log: str) -> Happening:
    """The owner is cut off from the metadata store, and others take over; clients go on asking it, and
    what it sends reaches one bookie before the fence and others behind it.
    """
    owner = words.owner_of(log)
    lasts = rng.randint(300 * MS, 900 * MS)
    taken_us = at_us + rng.randint(20 * MS, 60 * MS)
    late = log_uniform(rng, (10 * MS, 100 * MS))
    slow = rng.sample(BOOKIES, 2) if rng.random() < 0.8 else ()
    return (
        [
            *_burst(rng, at_us + MS, log),
            Step(taken_us, rng.choice(SERVERS[:2]), f"{words.TAKE} {log}"),
            *(Step(at_us, writer, f"{words.BARRIER} {log}") for writer in WRITERS),
            *(
                Step(taken_us + rng.randint(-late, 5 * MS), writer, f"{words.APPEND} {log} 1")
                for writer in WRITERS
                for _ in range(3)
            ),
            *(
                Step(at_us + rng.randint(MS, lasts), writer, what)
                for writer in WRITERS
                for what in (
                    f"{words.BARRIER} {log}",
                    f"{words.BARRIER} {log}",
                    f"{words.EXPECT} {log} 2",
                    f"{words.APPEND} {log} 2",
                )
            ),
        ],
        [
            Fault(at_us, Kind.CUT, (owner, METADATA), lasts),
            *(Fault(at_us, Kind.SLOW_LINK, (owner, each), lasts, late) for each in slow),
        ],
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
    steps += [
        Step(at_us + rng.randint(0, 400 * MS), reader, f"{words.READ} {log}")
        for reader in READERS
        for _ in range(3)
    ]
    dies = at_us + rng.randint(10 * MS, 360 * MS)
    return steps, [Fault(dies, Kind.KILL, (words.owner_of(log),), rng.randint(10 * MS, 600 * MS))]


def clocks(rng: random.Random, at_us: int, log: str) -> Happening:
    """The owner's clock is ahead of that of the next owner."""
    steps = _burst(rng, at_us + 2 * MS, log)
    for number, server in enumerate((*SERVERS[:2], *SERVERS[:2])):
        taken_us = at_us + (60 + 60 * number) * MS
        steps += [Step(taken_us, server, f"{words.TAKE} {log}"), *_burst(rng, taken_us, log)]
    ahead = rng.randint(500 * MS, 5000 * MS)
    return steps, [Fault(at_us, Kind.CLOCK_JUMP, (words.owner_of(log),), amount=ahead)]


def two_rolls(rng: random.Random, at_us: int, log: str) -> Happening:
    """A ledger cannot be closed, and the one behind it is full."""
    lasts = rng.randint(300 * MS, 800 * MS)
    return (
        [
            Step(at_us, words.STORAGE, f"{words.DEAF} {log} {lasts // MS}"),
            *_burst(rng, at_us + MS, log),
            Step(at_us + 15 * MS, ADMIN, f"{words.ROLL} {log}"),
            *(
                Step(at_us + (40 + 10 * number) * MS, producer, f"{words.APPEND} {log} 8")
                for number in range(3)
                for producer in PRODUCERS
            ),
        ],
        [],
    )


def late_memory(rng: random.Random, at_us: int, log: str) -> Happening:
    """A ledger is listed and takes nothing yet, not even what its log remembers; then what is before it
    is truncated, and the owner dies.
    """
    lasts = rng.randint(300 * MS, 700 * MS)
    rolls_us = at_us + 60 * MS
    steps = [
        *_burst(rng, at_us, log),
        Step(rolls_us, words.STORAGE, f"{words.DEAF_TO_NEW} {lasts // MS}"),
        Step(rolls_us + MS, ADMIN, f"{words.ROLL} {log}"),
    ]
    for _ in range(3):
        cut_us = rolls_us + rng.randint(10 * MS, lasts)
        steps.append(Step(cut_us, ADMIN, f"{words.TRUNCATE} {log} {rng.choice((-4, 0, 0, 2))}"))
    if rng.random() < 0.5:
        steps += _burst(rng, rolls_us + rng.randint(MS, lasts), log)
    dies = rolls_us + rng.randint(50 * MS, lasts)
    return steps, [Fault(dies, Kind.KILL, (words.owner_of(log),), rng.randint(50 * MS, 600 * MS))]


def late_listing(rng: random.Random, at_us: int, log: str) -> Happening:
    """It takes its time from the making of a ledger to its listing, and somebody looks for leftovers."""
    owner = words.owner_of(log)
    late = log_uniform(rng, (5 * MS, 60 * MS))
    looks = [
        Step(at_us + rng.randint(late, 10 * late), rng.choice(SERVERS[:2]), words.WALK)
        for _ in range(5)
    ]
    taker = rng.choice(SERVERS[:2])
    begins = rng.choice(((ADMIN, f"{words.ROLL} {log}"), (taker, f"{words.TAKE} {log}")))
    return (
        [Step(at_us + MS, *begins), *_burst(rng, at_us + MS, log), *looks],
        [
            Fault(at_us, Kind.SLOW_LINK, (each, METADATA), 12 * late, late)
            for each in (owner, taker)
        ],
    )


def wrong_address(rng: random.Random, at_us: int, log: str) -> Happening:
    """A server that lives takes the log again and again, and nobody listens where it says that it is."""
    liar = SERVERS[0]
    steps = [Step(0, liar, words.MISTELL)]
    for number in range(3):
        taken_us = at_us + 800 * MS * number
        steps.append(Step(taken_us, liar, f"{words.TAKE} {log}"))
        steps += _burst(rng, taken_us + 20 * MS, log)
        steps += [
            Step(taken_us + asked * MS, writer, f"{words.BARRIER} {log}")
            for writer in WRITERS
            for asked in (30, 60, 90)
        ]
    return steps, []


def wrong_clock(rng: random.Random, at_us: int, log: str) -> Happening:
    """A server's clock is set so far ahead that all would have expired, and so would a log's grace; or it has been so
    far behind, from before the log's first record on, that what bears its time would have expired elsewhere.
    """
    odd, right = SERVERS[:2]
    far = (LONG_S + 100) * 1_000_000
    jump = Fault(at_us, Kind.CLOCK_JUMP, (odd,), amount=far)
    if log == min(LOGS) and rng.random() < 0.5:
        at_us = PEACE_US - 200 * MS
        jump = Fault(at_us, Kind.CLOCK_JUMP, (odd,), amount=-far)
    back_us = at_us + rng.randint(500 * MS, 700 * MS)
    return (
        [
            _config(log, retention_age_s=LONG_S, delete_grace_s=LONG_S),
            Step(at_us + 50 * MS, odd, f"{words.TAKE} {log}"),
            *_burst(rng, at_us + 220 * MS, log),
            Step(at_us + 300 * MS, ADMIN, f"{words.ROLL} {log}"),
            *_burst(rng, at_us + 320 * MS, log),
            Step(back_us, right, f"{words.TAKE} {log}"),
        ],
        [jump],
    )


def fast_clock(rng: random.Random, at_us: int, log: str) -> Happening:
    """A log comes to a server whose clock is ahead by more than its producers are remembered, and they send again
    what they have appended.
    """
    first, fast = SERVERS[:2]
    taken_us = at_us + rng.randint(40 * MS, 90 * MS)
    again = [
        Step(taken_us + rng.randint(20 * MS, 400 * MS), producer, f"{words.AGAIN} {log}")
        for producer in PRODUCERS
        for _ in range(3)
    ]
    return (
        [
            _config(log, dedupe_age_s=LONG_S),
            Step(at_us - 50 * MS, first, f"{words.TAKE} {log}"),
            *_burst(rng, at_us, log),
            Step(taken_us, fast, f"{words.TAKE} {log}"),
            *again,
        ],
        [Fault(at_us, Kind.CLOCK_JUMP, (fast,), amount=(LONG_S + 100) * 1_000_000)],
    )


def forgotten(rng: random.Random, at_us: int, log: str) -> Happening:
    """Producers are silent for longer than the log remembers them, and go on; some of what they then send
    reaches the owner, whose answer does not reach them.
    """
    at_us = PEACE_US + _CALM_US + rng.randint(0, 300 * MS)
    steps = [_config(log, dedupe_age_s=words.BRIEF_S), *_burst(rng, at_us, log)]
    faults: list[Fault] = []
    for _ in range(2):
        at_us += words.BRIEF_S * 1_000_000 + rng.randint(100 * MS, 250 * MS)
        steps += _burst(rng, at_us, log)
        if rng.random() < 0.6:
            cut = (words.owner_of(log), rng.choice(PRODUCERS))
            lasts = rng.randint(100 * MS, 1300 * MS)
            faults.append(Fault(at_us + rng.randint(0, 12 * MS), Kind.CUT_ONE_WAY, cut, lasts))
    return steps, faults


def expiry(rng: random.Random, at_us: int, log: str) -> Happening:
    """What has to go goes while the log is written, marked and taken over; and no more of it."""
    steps = [
        _config(log, retention_bytes=rng.choice((3_000, 6_000)), retention_age_s=LONG_S),
        Step(at_us, ADMIN, f"{words.MARK} {log} 20"),
        Step(at_us + 400 * MS, ADMIN, f"{words.UNMARK} {log}"),
        Step(at_us + rng.randint(0, 600 * MS), rng.choice(SERVERS[:2]), f"{words.TAKE} {log}"),
    ]
    for number in range(6):
        steps += _burst(rng, at_us + 90 * MS * number, log)
    return steps, []


def deletion(rng: random.Random, at_us: int, log: str) -> Happening:
    """A log is deleted under the hands of those who write and read it."""
    at_us = max(at_us, (PEACE_US + CHAOS_US[1]) // 2)  # It has to have been used.
    steps = [*_burst(rng, at_us, log)]
    asked_us = at_us + rng.randint(5 * MS, 60 * MS)
    steps.append(Step(asked_us, ADMIN, f"{words.DELETE} {log}"))
    steps.append(Step(asked_us + 10 * MS, READERS[0], f"{words.READ} {log}"))
    for number in range(4):
        steps += _burst(rng, asked_us + 20 * MS * number, log)
    if rng.random() < 0.5:
        taken_us = asked_us + rng.randint(0, 40 * MS)
        steps.append(Step(taken_us, rng.choice(SERVERS[:2]), f"{words.TAKE} {log}"))
    lost = Fault(asked_us, Kind.METADATA_LOSS, (words.owner_of(log),), amount=rng.randint(0, 1))
    return steps, [lost] if rng.random() < 0.4 else []


def replacement(rng: random.Random, at_us: int, log: str) -> Happening:
    """A log is deleted, and another one is created under its name, while others go on using the first one."""
    asked_us = PEACE_US + _CALM_US + rng.randint(0, 900 * MS)
    steps = [*_burst(rng, asked_us - 60 * MS, log), _config(log, delete_grace_s=0)]
    steps += [Step(asked_us - 20 * MS, reader, f"{words.FOLLOW} {log}") for reader in READERS]
    steps.append(Step(asked_us, ADMIN, f"{words.REPLACE} {log}"))
    for number in range(12):
        steps += _burst(rng, asked_us + 150 * MS * number, log)
        for writer in WRITERS:
            what = rng.choice((f"{words.EXPECT} {log} 2", f"{words.APPEND} {log} 1"))
            steps.append(Step(asked_us + 150 * MS * number, writer, what))
        again = Step(asked_us + 170 * MS * number, PRODUCERS[0], f"{words.AGAIN} {log}")
        steps += [again, Step(asked_us + 190 * MS * number, READERS[0], f"{words.READ} {log}")]
    return steps, []


def undeletion(rng: random.Random, at_us: int, log: str) -> Happening:
    """A log without a grace is deleted and brought back at the same time, and used again."""
    asked_us = PEACE_US + _CALM_US + rng.randint(0, 900 * MS)
    steps = [*_burst(rng, asked_us - 60 * MS, log), _config(log, delete_grace_s=0)]
    steps.append(Step(asked_us, ADMIN, f"{words.UNDELETE} {log}"))
    for number in range(4):
        steps += _burst(rng, asked_us + 150 * MS * (number + 1), log)
        steps.append(Step(asked_us + 170 * MS * (number + 1), READERS[0], f"{words.READ} {log}"))
    return steps, []


def full_disks(rng: random.Random, at_us: int, log: str) -> Happening:
    """All bookies are full: logs are truncated and read, and owned again when there is space."""
    lasts = rng.randint(200 * MS, 900 * MS)
    steps = [
        *_burst(rng, at_us - 50 * MS, log),
        Step(at_us, words.STORAGE, f"{words.FULL} {lasts // MS}"),
        *_burst(rng, at_us + 5 * MS, log),
        Step(at_us + 30 * MS, ADMIN, f"{words.TRUNCATE} {log} {rng.choice((0, 5, 20))}"),
        Step(at_us + 60 * MS, ADMIN, f"{words.MARK} {log} 3"),
        Step(at_us + 90 * MS, READERS[1], f"{words.READ} {log}"),
        Step(at_us + 120 * MS, ADMIN, f"{words.TRUNCATE} {log} {rng.choice((-4, 0, 1, 5))}"),
    ]
    if rng.random() < 0.6:
        taken_us = at_us + rng.randint(10 * MS, lasts)
        steps.append(Step(taken_us, rng.choice(SERVERS[:2]), f"{words.TAKE} {log}"))
    return steps, []


def few_bookies(rng: random.Random, at_us: int, log: str) -> Happening:
    """Of three bookies one is away, now this one, now that one, while the log changes hands and rolls. At the
    end, too: then logs are used with an ack quorum of bookies (LS13).
    """
    steps = [Step(0, words.STORAGE, words.THREE)]
    for number in range(rng.randint(1, 4)):
        leaves_us, lasts = at_us + 250 * MS * number, log_uniform(rng, (20 * MS, 900 * MS))
        bookie = rng.choice(BOOKIES[:3])
        steps.append(Step(leaves_us, words.STORAGE, f"{words.AWAY} {bookie} {lasts // MS}"))
        steps += _burst(rng, leaves_us + 5 * MS, log)
        acts_us = leaves_us + rng.randint(0, 200 * MS)
        if rng.random() < 0.6:
            steps.append(Step(acts_us, rng.choice(SERVERS[:2]), f"{words.TAKE} {log}"))
        else:
            steps.append(Step(acts_us, ADMIN, f"{words.ROLL} {log}"))
    return steps, []


def formatted(rng: random.Random, at_us: int, log: str) -> Happening:
    """Of three bookies one is formatted while a log with a long segment is written or rests: it is whole again, and refuses
    the segment's writer (LS16).
    """
    lasts = log_uniform(rng, (20 * MS, 500 * MS))
    bookie = rng.choice(BOOKIES[:3])
    steps = [
        Step(0, words.STORAGE, words.THREE),
        _config(log, roll_entries=10_000),
        *_burst(rng, at_us - 50 * MS, log),
        Step(at_us, words.STORAGE, f"{words.FORMAT} {bookie} {lasts // MS}"),
    ]
    for number in range(rng.randint(0, 4)):
        steps += _burst(rng, at_us + rng.randint(0, lasts) + 150 * MS * number, log)
    return steps, []


def interrupted(rng: random.Random, at_us: int, log: str) -> Happening:
    """A hand-over, or a change of the list, and the power or the metadata store goes in the middle."""
    owner = words.owner_of(log)
    verb = rng.choice((words.TRANSFER, words.ROLL, words.TRUNCATE))
    what = {
        words.TRANSFER: f"{verb} {log} {rng.choice(SERVERS[:2])}",
        words.ROLL: f"{verb} {log}",
        words.TRUNCATE: f"{verb} {log} 3",
    }[verb]
    late = log_uniform(rng, (MS, 30 * MS))
    strikes = at_us + MS + rng.randint(0, 8 * late)
    lasts = rng.randint(20 * MS, 600 * MS)
    blows = (
        Fault(strikes, Kind.POWER_CUT, (owner,), lasts),
        Fault(strikes, Kind.METADATA_DOWN, (), lasts),
        Fault(strikes, Kind.METADATA_EXPIRY, (owner,)),
        Fault(strikes, Kind.METADATA_LOSS, (owner,), amount=rng.randint(0, 1)),
    )
    return (
        [*_burst(rng, at_us, log), Step(at_us + MS, ADMIN, what)],
        [Fault(at_us, Kind.SLOW_LINK, (owner, METADATA), 9 * late, late), rng.choice(blows)],
    )


def sealing(rng: random.Random, at_us: int, log: str) -> Happening:
    """What was appended is sent again when the log is sealed, here and at who comes next."""
    sealed_us = at_us + rng.randint(10 * MS, 100 * MS)
    again = [
        Step(sealed_us + rng.randint(0, 200 * MS), producer, f"{words.AGAIN} {log}")
        for producer in PRODUCERS
        for _ in range(3)
    ]
    steps = [*_burst(rng, at_us, log), Step(sealed_us, ADMIN, f"{words.SEAL} {log}"), *again]
    if rng.random() < 0.5:
        taken_us = sealed_us + rng.randint(0, 100 * MS)
        steps.append(Step(taken_us, rng.choice(SERVERS[:2]), f"{words.TAKE} {log}"))
    return steps, []


def elsewhere(rng: random.Random, at_us: int, log: str) -> Happening:
    """A log rests after each burst, and is read then, at servers that do not own it as well as at its owner, whose
    memory may be too small for the last block.
    """
    at_us = PEACE_US + _CALM_US + rng.randint(0, 600 * MS)
    steps = [Step(at_us, reader, f"{words.FOLLOW} {log}") for reader in READERS]
    if rng.random() < 0.7:
        steps.append(_small_cache(rng, log))
    for number in range(4):
        burst_us = at_us + 500 * MS * number
        steps += _burst(rng, burst_us, log)
        for visitor in VISITORS:
            for _ in range(2):
                visit = f"{rng.choice(_VISITS)} {log}"
                steps.append(Step(burst_us + rng.randint(10 * MS, 450 * MS), visitor, visit))
    if rng.random() < 0.3:
        moved_us = at_us + rng.randint(200 * MS, 1_500 * MS)
        steps.append(Step(moved_us, ADMIN, f"{words.TRANSFER} {log} {rng.choice(SERVERS[:2])}"))
    return steps, []


def orphaned_followers(rng: random.Random, at_us: int, log: str) -> Happening:
    """An owner dies while others follow its log, at its server and elsewhere, and the next one takes appends at once;
    what one of the servers looks up takes its time.
    """
    at_us = PEACE_US + _CALM_US + rng.randint(100 * MS, 400 * MS)
    steps = [Step(at_us - 80 * MS, reader, f"{words.FOLLOW} {log}") for reader in READERS]
    faults: list[Fault] = []
    for number in range(3):
        dies_us = at_us + 800 * MS * number + rng.randint(20 * MS, 100 * MS)
        late = log_uniform(rng, (20 * MS, 150 * MS))
        slow = rng.choice(SERVERS), METADATA
        faults.append(Fault(dies_us, Kind.SLOW_LINK, slow, 750 * MS, late))
        kind = rng.choice((Kind.KILL, Kind.KILL, Kind.PAUSE, Kind.METADATA_EXPIRY))
        lasts = rng.randint(100 * MS, 900 * MS)
        faults.append(Fault(dies_us, kind, (words.owner_of(log),), lasts))
        steps += [
            Step(dies_us + after_us, rng.choice(PRODUCERS), f"{words.APPEND} {log} 1")
            for after_us in range(-20 * MS, 700 * MS, 30 * MS)
        ]
    return steps, faults


def _burst(rng: random.Random, at_us: int, log: str) -> list[Step]:
    return [
        Step(at_us + rng.randint(0, 10 * MS), producer, f"{words.APPEND} {log} {rng.randint(1, 8)}")
        for producer in PRODUCERS
        for _ in range(2)
    ]


DRILLS: Final = {
    each.__name__: each
    for each in (
        death_in_a_roll,
        stuck_roll,
        two_owners,
        frozen_owner,
        rivals,
        truncation,
        clocks,
        two_rolls,
        late_memory,
        late_listing,
        wrong_address,
        wrong_clock,
        expiry,
        deletion,
        fast_clock,
        forgotten,
        full_disks,
        interrupted,
        sealing,
        few_bookies,
        replacement,
        elsewhere,
        orphaned_followers,
        undeletion,
        formatted,
    )
}
_BESIDE_DRILLS: Final = 0.2  # Of what is drawn besides.
_DRILL_ODDS: Final = 0.12


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
