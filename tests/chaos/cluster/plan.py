"""What is done to bookies, recovery servers and writers, and when: drawn from a seed.

Kinds are dealt like cards: each comes before any comes again. One bookie is down at a time, and another one may drain:
three of the five take entries at every moment. The two recovery servers are never both killed for long.
"""

import random
from dataclasses import dataclass
from enum import Enum
from typing import Final

BOOKIES: Final = ("bk-1", "bk-2", "bk-3", "bk-4", "bk-5")
RECOVERY: Final = ("recovery-1", "recovery-2")
WRITERS: Final = ("writer-1", "writer-2", "writer-3")
SESSION_S: Final = 3.0  # The session time-out of a bookie.
DELAY_S: Final = 1  # Delay before a missing bookie counts as lost.
_GAP_S: Final = 1.5  # Mean time from one fault to the next.
_REST_S: Final = 1.0  # Least time between two faults of one target.


class ClusterFaultKind(Enum):
    LOSE_BOOKIE = "bookie away for longer than the delay"
    RESTART_BOOKIE = "bookie killed and started at once"
    DRAIN = "bookie drained, and kept after all"
    KILL_RECOVERY = "recovery server killed"
    KILL_WRITER = "writer killed"


_HOW_LONG_S: Final = {
    ClusterFaultKind.LOSE_BOOKIE: (SESSION_S + DELAY_S + 1, SESSION_S + DELAY_S + 6),
    ClusterFaultKind.RESTART_BOOKIE: (0.0, SESSION_S),
    ClusterFaultKind.DRAIN: (3.0, 12.0),
    ClusterFaultKind.KILL_RECOVERY: (0.0, 4.0),
    ClusterFaultKind.KILL_WRITER: (0.0, 0.5),
}
_DECK: Final = (*ClusterFaultKind, ClusterFaultKind.LOSE_BOOKIE, ClusterFaultKind.KILL_RECOVERY)
_TARGETS: Final = {
    ClusterFaultKind.LOSE_BOOKIE: BOOKIES,
    ClusterFaultKind.RESTART_BOOKIE: BOOKIES,
    ClusterFaultKind.DRAIN: BOOKIES,
    ClusterFaultKind.KILL_RECOVERY: RECOVERY,
    ClusterFaultKind.KILL_WRITER: WRITERS,
}
_IS_DOWN: Final = (ClusterFaultKind.LOSE_BOOKIE, ClusterFaultKind.RESTART_BOOKIE)


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    kind: ClusterFaultKind
    target: str
    for_s: float

    @property
    def end_s(self) -> float:
        return self.at_s + self.for_s


def draw(seed: int, seconds: float) -> list[Fault]:
    """Faults in the order of their start."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    deck: list[ClusterFaultKind] = []
    at_s = 0.0
    while (at_s := at_s + chance.expovariate(1 / _GAP_S)) < seconds:
        if not deck:
            deck = list(_DECK)
            chance.shuffle(deck)
        under_way = [each for each in faults if each.end_s + _REST_S > at_s]
        for kind in reversed(deck):  # The first kind that is possible now.
            if targets := _free(kind, under_way):
                low, high = _HOW_LONG_S[kind]
                faults.append(Fault(at_s, kind, chance.choice(targets), chance.uniform(low, high)))
                deck.remove(kind)
                break
    return faults


def _free(kind: ClusterFaultKind, under_way: list[Fault]) -> list[str]:
    alike = _IS_DOWN if kind in _IS_DOWN else (kind,)
    if kind is not ClusterFaultKind.KILL_RECOVERY and any(each.kind in alike for each in under_way):
        return []
    struck = [each.target for each in under_way]
    return [target for target in _TARGETS[kind] if target not in struck]
