"""What is done to log servers and bookies, and when: drawn from a seed.

One bookie of the three is away at a time, and two of the three log servers; one of these is always up.
Kinds are dealt like cards: each comes before any comes again.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

BOOKIES: Final = ("bk-1", "bk-2", "bk-3")
SERVERS: Final = ("log-1", "log-2", "log-3")
_GAP_S: Final = 2.0  # Mean time from one fault to the next.
_FIRST_S: Final = 1.0


class LogFaultKind(Enum):
    KILL_SERVER = "log server killed"
    STOP_SERVER = "log server stopped"
    STOP_SERVER_LONG = "log server stopped beyond its lease"
    KILL_BOOKIE = "bookie killed"
    STOP_BOOKIE = "bookie stopped"
    KILL_CLIENT = "client killed"


_HOW_LONG_S: Final = {
    LogFaultKind.KILL_SERVER: (0.0, 3.0),
    LogFaultKind.STOP_SERVER: (0.1, 2.0),
    LogFaultKind.STOP_SERVER_LONG: (4.5, 7.0),
    LogFaultKind.KILL_BOOKIE: (0.0, 3.0),
    LogFaultKind.STOP_BOOKIE: (0.1, 2.0),
    LogFaultKind.KILL_CLIENT: (0.0, 0.5),
}
_DECK: Final = (*LogFaultKind, LogFaultKind.KILL_SERVER)
_OF_SERVERS: Final = (
    LogFaultKind.KILL_SERVER,
    LogFaultKind.STOP_SERVER,
    LogFaultKind.STOP_SERVER_LONG,
)
_OF_BOOKIES: Final = (LogFaultKind.KILL_BOOKIE, LogFaultKind.STOP_BOOKIE)
_AWAY_MAX: Final[dict[Sequence[str], int]] = {BOOKIES: 1, SERVERS: 2}


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    kind: LogFaultKind
    target: str
    for_s: float


def draw(seed: int, seconds: float, clients: tuple[str, ...]) -> list[Fault]:
    """Faults in the order of their start."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    deck: list[LogFaultKind] = []
    at_s = _FIRST_S
    while at_s < seconds:
        if not deck:
            deck = list(_DECK)
            chance.shuffle(deck)
        kind = deck[-1]
        group: tuple[str, ...] = clients
        if kind in _OF_SERVERS:
            group = SERVERS
        elif kind in _OF_BOOKIES:
            group = BOOKIES
        away = {each.target for each in faults if each.at_s + each.for_s + 1 > at_s}
        there = [name for name in group if name not in away]
        if len(away.intersection(group)) < _AWAY_MAX.get(group, 1):
            target = chance.choice(there)
            faults.append(Fault(at_s, kind, target, chance.uniform(*_HOW_LONG_S[kind])))
            deck.pop()
        else:
            chance.shuffle(deck)
        at_s += chance.expovariate(1 / _GAP_S)
    return faults
