"""What is done to a cluster, and when: drawn from a seed, so a run can be asked for again.

Kinds are dealt like cards: each comes before any comes again. Faults overlap freely, but for three
rules: nobody is killed who is dead; of the bookies at most two are away at a time, but for short
moments at which all are; calm stretches come between rough ones.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

_ROUGH_S, _CALM_S = 20.0, 8.0
_ROUGH_GAP_S, _CALM_GAP_S = 0.9, 3.0  # Mean time from one fault to the next.
_BOOKIES_AWAY_MAX: Final = 2
ZOOKEEPER: Final = "zookeeper"


class FaultKind(Enum):
    KILL_BOOKIE = "bookie killed"
    KILL_ALL = "all bookies killed"
    STOP_BOOKIE = "bookie stopped"
    STOP_LONG = "bookie stopped beyond its session"
    POWER_CUT = "power cut"
    SLOW_DISK = "slow disk"
    KILL_WRITER = "writer killed"
    STOP_WRITER = "writer stopped"
    KILL_READER = "recoverer or tailer killed"
    STOP_READER = "recoverer or tailer stopped"
    CUT = "cut between two"
    CUT_ONE_WAY = "one-way cut"
    ISOLATE = "bookie cut off"
    LOSE_SESSION = "cut off from ZooKeeper"
    STOP_ZOOKEEPER = "ZooKeeper stopped"
    STOP_ZOOKEEPER_LONG = "ZooKeeper stopped beyond sessions"
    KILL_ZOOKEEPER = "ZooKeeper killed"


NEEDS_NETWORK: Final = frozenset(
    {FaultKind.CUT, FaultKind.CUT_ONE_WAY, FaultKind.ISOLATE, FaultKind.LOSE_SESSION}
)
NEEDS_DISK: Final = frozenset({FaultKind.POWER_CUT, FaultKind.SLOW_DISK})
NEEDS_ZOOKEEPER: Final = frozenset(
    {
        FaultKind.LOSE_SESSION,
        FaultKind.STOP_ZOOKEEPER,
        FaultKind.STOP_ZOOKEEPER_LONG,
        FaultKind.KILL_ZOOKEEPER,
    }
)

_HOW_LONG_S: Final = {
    FaultKind.KILL_BOOKIE: (0.0, 4.0),
    FaultKind.KILL_ALL: (0.0, 0.5),
    FaultKind.STOP_BOOKIE: (0.1, 3.0),
    FaultKind.STOP_LONG: (5.0, 9.0),
    FaultKind.POWER_CUT: (0.0, 3.0),
    FaultKind.SLOW_DISK: (1.0, 8.0),
    FaultKind.KILL_WRITER: (0.0, 1.0),
    FaultKind.STOP_WRITER: (0.2, 14.0),
    FaultKind.KILL_READER: (0.0, 1.0),
    FaultKind.STOP_READER: (0.2, 14.0),
    FaultKind.CUT: (0.5, 8.0),
    FaultKind.CUT_ONE_WAY: (0.5, 8.0),
    FaultKind.ISOLATE: (0.5, 7.0),
    FaultKind.LOSE_SESSION: (5.0, 9.0),
    FaultKind.STOP_ZOOKEEPER: (0.2, 2.0),
    FaultKind.STOP_ZOOKEEPER_LONG: (5.0, 8.0),
    FaultKind.KILL_ZOOKEEPER: (0.0, 3.0),
}
_TWICE_IN_A_DECK: Final = (
    FaultKind.KILL_BOOKIE,
    FaultKind.STOP_BOOKIE,
    FaultKind.CUT,
    FaultKind.CUT_ONE_WAY,
    FaultKind.KILL_WRITER,
    FaultKind.STOP_WRITER,
)
_TAKES_BOOKIE_AWAY: Final = frozenset(
    {
        FaultKind.KILL_BOOKIE,
        FaultKind.STOP_BOOKIE,
        FaultKind.STOP_LONG,
        FaultKind.POWER_CUT,
        FaultKind.ISOLATE,
    }
)
_OF_ZOOKEEPER: Final = frozenset(
    {FaultKind.STOP_ZOOKEEPER, FaultKind.STOP_ZOOKEEPER_LONG, FaultKind.KILL_ZOOKEEPER}
)


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    kind: FaultKind
    target: str
    other: str  # The other side of a cut; empty for other kinds.
    for_s: float


@dataclass(frozen=True, slots=True)
class Cast:
    """The processes of a run and the possible faults."""

    bookies: Sequence[str]
    writers: Sequence[str]
    readers: Sequence[str]  # Recoverers and tailers.
    kinds: Sequence[FaultKind]  # The kinds that are possible on this machine.
    slow_disk: str = ""  # The bookie whose disk can be slow and lose unsynced data.


def draw(seed: int, seconds: float, cast: Cast) -> list[Fault]:
    """Faults in the order of their start; all end within `seconds` or are ended then."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    deck: list[FaultKind] = []
    at_s = 0.0
    while True:
        is_rough = at_s % (_ROUGH_S + _CALM_S) < _ROUGH_S
        at_s += chance.expovariate(1 / (_ROUGH_GAP_S if is_rough else _CALM_GAP_S))
        if at_s >= seconds:
            return faults
        if not deck:
            deck = [*cast.kinds, *(kind for kind in _TWICE_IN_A_DECK if kind in cast.kinds)]
            chance.shuffle(deck)
        for kind in reversed(deck):  # The first kind that is possible now.
            fault = _deal(kind, at_s, chance, cast)
            if not _is_too_much(fault, faults, cast):
                faults.append(fault)
                deck.remove(kind)
                break


def _deal(kind: FaultKind, at_s: float, chance: random.Random, cast: Cast) -> Fault:
    other = ""
    match kind:
        case FaultKind.POWER_CUT | FaultKind.SLOW_DISK:
            target = cast.slow_disk
        case FaultKind.KILL_WRITER | FaultKind.STOP_WRITER:
            target = chance.choice(cast.writers)
        case FaultKind.KILL_READER | FaultKind.STOP_READER:
            target = chance.choice(cast.readers)
        case FaultKind.STOP_ZOOKEEPER | FaultKind.STOP_ZOOKEEPER_LONG | FaultKind.KILL_ZOOKEEPER:
            target = ZOOKEEPER
        case FaultKind.CUT | FaultKind.CUT_ONE_WAY:
            target = chance.choice(cast.bookies)
            other = chance.choice((*cast.writers, *cast.readers))
            if chance.random() < 0.5:
                target, other = other, target
        case FaultKind.LOSE_SESSION:
            target = chance.choice((*cast.bookies, *cast.writers))
            other = ZOOKEEPER
        case _:
            target = chance.choice(cast.bookies)
    return Fault(at_s, kind, target, other, chance.uniform(*_HOW_LONG_S[kind]))


def _is_too_much(fault: Fault, faults: Sequence[Fault], cast: Cast) -> bool:
    under_way = [each for each in faults if each.at_s + each.for_s > fault.at_s]
    away = [each for each in under_way if each.kind in _TAKES_BOOKIE_AWAY]
    if any(each.kind is FaultKind.KILL_ALL for each in under_way):
        return fault.target in cast.bookies
    if fault.kind is FaultKind.KILL_ALL:
        return bool(away)
    if fault.kind in _OF_ZOOKEEPER or fault.kind is FaultKind.SLOW_DISK:
        return any(each.target == fault.target for each in under_way if not each.other)
    if fault.kind in _TAKES_BOOKIE_AWAY and len(away) >= _BOOKIES_AWAY_MAX:
        return True
    is_of_process = not fault.other and fault.kind is not FaultKind.ISOLATE
    return is_of_process and any(
        each.target == fault.target and not each.other and each.kind is not FaultKind.SLOW_DISK
        for each in under_way
    )
