"""Moments on which this protocol fails, each random in who, when and how long.

Some planted bugs need several things in one order, which random faults bring about once in a thousand
cases. They are looked for with these; and the protocol without them passes these, too.
"""

import random
from collections.abc import Callable
from typing import Final

from tests.simulation.schedule import Fault, Kind, Step, log_uniform
from tests.simulation.worlds.toy.words import (
    APPEND,
    BOOKIES,
    METADATA,
    RECOVER,
    RECOVERIES,
    WRITER,
)

Happening = tuple[tuple[Step, ...], tuple[Fault, ...]]
Drill = Callable[[random.Random], Happening]

MS: Final = 1000
_FIRST: Final = BOOKIES[:3]  # The ensemble that each ledger begins with.
_BEGIN_US: Final = 60_000
_RECOVERY: Final = RECOVERIES[0]


def late_adds(rng: random.Random) -> Happening:
    """A fence is lost on its way to one bookie, and what was added there comes after recovery's reads."""
    apart = log_uniform(rng, (5 * MS, 30 * MS))
    first, second, third = rng.sample(_FIRST, 3)
    appended_us = 200 * MS
    begins_us = appended_us + rng.randint(0, 2 * MS)
    faults = [
        Fault(_BEGIN_US, Kind.FAR_APART, (*_FIRST, _RECOVERY), amount=apart),
        _slow(first, _RECOVERY, rng.randint(4 * apart, 8 * apart)),
        _slow(WRITER, second, rng.randint(5 * apart, 40 * apart)),
        _slow(WRITER, third, rng.randint(5 * apart, 30 * apart)),
        # It takes one way and back to connect.
        Fault(begins_us + rng.randint(2 * apart, 4 * apart), Kind.RESET, (_RECOVERY, third)),
    ]
    return (Step(appended_us, WRITER, APPEND), Step(begins_us, _RECOVERY, RECOVER)), tuple(faults)


def dark_recovery(rng: random.Random) -> Happening:
    """Recovery has fenced the bookies, and then hears nothing of most of them."""
    apart = log_uniform(rng, (2 * MS, 30 * MS))
    appended_us = 200 * MS
    begins_us = appended_us + rng.randint(4 * apart, 10 * apart)
    goes_us = begins_us + rng.randint(2 * apart, 16 * apart)
    lasts = log_uniform(rng, (100 * MS, 900 * MS))
    gone = rng.sample(_FIRST, rng.choice((2, 3)))
    if rng.random() < 0.5:
        faults = [Fault(goes_us, Kind.CUT, (_RECOVERY, bookie), lasts) for bookie in gone]
    else:
        faults = [Fault(goes_us, Kind.POWER_CUT, tuple(gone), lasts)]
    steps = (Step(appended_us, WRITER, APPEND), Step(begins_us, _RECOVERY, RECOVER))
    return steps, (_far_apart(apart), *faults)


def new_members(rng: random.Random) -> Happening:
    """Most of the ensemble is replaced, and recovery hears the new ones, who know nothing, first."""
    stays = rng.choice(_FIRST)
    gone = tuple(name for name in _FIRST if name != stays)
    begins_us = rng.randint(250 * MS, 900 * MS)
    steps = (
        Step(100 * MS, WRITER, APPEND),
        Step(200 * MS, WRITER, APPEND),
        Step(begins_us, _RECOVERY, RECOVER),
    )
    faults = (
        _slow(stays, _RECOVERY, rng.randint(100 * MS, 400 * MS)),
        *(_slow(WRITER, name, rng.randint(20 * MS, 250 * MS)) for name in BOOKIES[3:]),
        Fault(140 * MS, Kind.POWER_CUT, gone, rng.randint(50 * MS, 300 * MS)),
    )
    return steps, faults


def lone_copy(rng: random.Random) -> Happening:
    """Of an entry there is one copy, and as recovery writes it back it hears of nobody else any more."""
    apart = log_uniform(rng, (2 * MS, 10 * MS))
    away = rng.randint(4 * apart, 8 * apart)
    begins_us = 200 * MS
    appended_us = begins_us + rng.randint(4 * apart, 9 * apart)
    # It fences, and asks twice, before it writes.
    goes_us = begins_us + 20 * apart + rng.randint(3 * away, 4 * away)
    _, *others = rng.sample(_FIRST, 3)
    faults = (
        _far_apart(apart),
        *(_slow(WRITER, name, rng.randint(15 * apart, 30 * apart)) for name in others),
        *(_slow(_RECOVERY, name, away) for name in others),
        *(Fault(goes_us, Kind.CUT, (_RECOVERY, name), 1300 * MS) for name in others),
    )
    return (Step(begins_us, _RECOVERY, RECOVER), Step(appended_us, WRITER, APPEND)), faults


def all_replaced(rng: random.Random) -> Happening:
    """Who has an entry is replaced while the others that shall have it are slow, one more than the other."""
    has, *others = rng.sample(_FIRST, 3)
    quick, slow = rng.sample(BOOKIES[3:], 2)
    appended_us = 200 * MS
    goes_us = appended_us + rng.randint(5 * MS, 20 * MS)
    again_us = goes_us + rng.randint(0, 50 * MS)
    quick_by = rng.randint(40 * MS, 240 * MS)
    faults = (
        *(Fault(appended_us - MS, Kind.CUT, (WRITER, name), 900 * MS) for name in others),
        Fault(goes_us, Kind.CUT, (WRITER, has), 900 * MS),
        _slow(WRITER, quick, quick_by),
        _slow(WRITER, slow, quick_by + rng.randint(5 * MS, 300 * MS)),
    )
    return (Step(appended_us, WRITER, APPEND), Step(again_us, WRITER, APPEND)), faults


def _far_apart(by_us: int) -> Fault:
    everybody = (*BOOKIES, WRITER, *RECOVERIES, METADATA)
    return Fault(_BEGIN_US, Kind.FAR_APART, everybody, amount=by_us)


def _slow(a: str, b: str, by_us: int) -> Fault:
    return Fault(_BEGIN_US, Kind.SLOW_LINK, (a, b), amount=by_us)


DRILLS: Final = (late_adds, dark_recovery, new_members, lone_copy, all_replaced)
