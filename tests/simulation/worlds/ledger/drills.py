"""Moments on which protocols fail, set up on purpose; what exactly happens in them is chance.

A drill is a few steps and faults around the newest ledger: `member-1` is the bookie in the first slot of
its last fragment when the fault comes, `stranger-1` the first bookie that has none. Each lasts less than
a second. Random cases have some of them; a planted bug that is one drill's business is sought with that
drill alone.
"""

import random
from collections.abc import Callable
from typing import Final

from tests.simulation.schedule import Fault, Kind, Step
from tests.simulation.worlds.ledger import words

MS: Final = 1000
MEMBER: Final = "member"
STRANGER: Final = "stranger"
M1, M2, M3 = (f"{MEMBER}-{number}" for number in (1, 2, 3))
S1, S2, S3 = (f"{STRANGER}-{number}" for number in (1, 2, 3))
WRITER, RECOVERER = words.WRITER, words.RECOVERERS[0]

Happening = tuple[list[Step], list[Fault]]
Drill = Callable[[random.Random, int], Happening]


def _append(at_us: int, count: int, size: int = 30) -> Step:
    return Step(at_us, WRITER, f"{words.APPEND} {count} {size}")


def _recover(at_us: int) -> Step:
    return Step(at_us, RECOVERER, words.RECOVER)


def lonely_tail(rng: random.Random, at_us: int) -> Happening:
    """The last entry is on two of three; recovery is cut off from these when it has fenced them."""
    begins = at_us + 20 * MS + rng.randint(0, 6 * MS)
    cut_at = begins + rng.randint(MS, 12 * MS)
    lasts = rng.randint(1_200 * MS, 1_800 * MS)
    return (
        [_append(at_us, 9), _append(at_us + 20 * MS, rng.randint(1, 3)), _recover(begins)],
        [
            Fault(at_us + 15 * MS, Kind.CUT_ONE_WAY, (WRITER, M3), lasts),
            *(Fault(cut_at, Kind.CUT, (RECOVERER, each), lasts) for each in (M1, M2)),
        ],
    )


def erased_tail(rng: random.Random, at_us: int) -> Happening:
    """The last entry is on two of three. One loses its disk, the other is heard no more when it is fenced."""
    begins = at_us + rng.randint(2_400 * MS, 2_800 * MS)
    lasts = 3_000 * MS
    return (
        [_append(at_us, 9), _append(at_us + 20 * MS, rng.randint(1, 3)), _recover(begins)],
        [
            Fault(at_us + 15 * MS, Kind.CUT_ONE_WAY, (WRITER, M3), lasts),
            Fault(at_us + 26 * MS, Kind.KILL, (WRITER,), lasts),
            Fault(at_us + 40 * MS, Kind.WIPE, (M1,), 20 * MS),
            Fault(begins + rng.randint(MS, 12 * MS), Kind.CUT, (RECOVERER, M2), lasts),
        ],
    )


def unheard_fence(rng: random.Random, at_us: int) -> Happening:
    """The last entries are on one of three, and on their way to another one, whose fence is lost.

    Its line breaks under the fence, so that a later question gets there first, before these entries do.
    Whoever has them is heard no more once it is fenced, and the third never got them.
    """
    begins = at_us + rng.randint(38 * MS, 42 * MS)
    lasts = rng.randint(800 * MS, 1_200 * MS)
    broken_at = begins + rng.randint(MS, 5 * MS)
    again_at = [broken_at + rng.randint(15 * MS, 45 * MS) for _ in range(rng.randint(0, 2))]
    late = rng.randint(20 * MS, 60 * MS)
    return (
        [
            _append(at_us, 9),
            *(_append(at_us + (20 + number) * MS, 1) for number in range(18)),
            _recover(begins),
        ],
        [
            Fault(at_us + 15 * MS, Kind.CUT_ONE_WAY, (WRITER, M1), lasts),
            Fault(at_us + 15 * MS, Kind.SLOW_LINK, (WRITER, M3), lasts, late),
            Fault(begins - MS, Kind.SLOW_LINK, (RECOVERER, M3), broken_at - begins + MS, 30 * MS),
            *(Fault(each, Kind.RESET, (RECOVERER, M3)) for each in (broken_at, *again_at)),
            Fault(begins, Kind.SLOW_LINK, (M1, RECOVERER), 20 * MS, 8 * MS),
            Fault(begins + rng.randint(4 * MS, 9 * MS), Kind.CUT, (RECOVERER, M2), lasts),
        ],
    )


def long_tail(rng: random.Random, at_us: int) -> Happening:
    """Recovery finds more than a batch holds."""
    begins = at_us + rng.randint(MS, 8 * MS)
    return (
        [_append(at_us, 12, 1_000), _append(at_us, 6, 1_000), _recover(begins)],
        [Fault(at_us, Kind.SLOW_LINK, (each, WRITER), 300 * MS, 60 * MS) for each in (M1, M2, M3)],
    )


def revolving_door(rng: random.Random, at_us: int) -> Happening:
    """The last fragment is new to all its bookies when the ledger is recovered."""
    down_at = at_us + 30 * MS
    late = rng.randint(150 * MS, 500 * MS)
    lasts = rng.randint(1_000 * MS, 1_500 * MS)
    return (
        [
            _append(at_us, 9),
            _append(down_at + MS, rng.randint(1, 3)),
            _recover(down_at + rng.randint(40 * MS, 250 * MS)),
        ],
        [
            *(
                Fault(down_at - 5 * MS, Kind.SLOW_LINK, (WRITER, each), lasts, late)
                for each in (S1, S2, S3)
            ),
            *(Fault(down_at, Kind.KILL, (each,), lasts) for each in (M1, M2, M3)),
        ],
    )


def thin_copies(rng: random.Random, at_us: int) -> Happening:
    """One bookie gets nothing, one is late, and the only quick one dies with what it acknowledged."""
    cut_at = at_us + 20 * MS
    down_at = cut_at + 10 * MS + rng.randint(MS, 12 * MS)
    lasts = rng.randint(800 * MS, 1_500 * MS)
    return (
        [
            _append(at_us, 9),
            _append(cut_at + 5 * MS, 1),
            _append(cut_at + 9 * MS, 3),
            _append(down_at + 10 * MS, 1),  # Who owes nothing is not missed.
        ],
        [
            Fault(cut_at, Kind.CUT_ONE_WAY, (WRITER, M3), 500 * MS),
            Fault(
                cut_at + 8 * MS, Kind.SLOW_LINK, (WRITER, M2), lasts, rng.randint(20_000, 200_000)
            ),
            Fault(down_at, Kind.KILL, (M1,), lasts),
        ],
    )


def broken_recovery(rng: random.Random, at_us: int) -> Happening:
    """Recovery has entries to write back and loses a bookie on the way, perhaps its own life, too."""
    begins = at_us + 10 * MS + rng.randint(MS, 6 * MS)
    lasts = rng.randint(1_000 * MS, 1_500 * MS)
    faults = [
        Fault(at_us + 8 * MS, Kind.SLOW_LINK, (each, WRITER), 400 * MS, 100 * MS)
        for each in (M1, M2, M3)
    ]
    faults.append(Fault(begins + rng.randint(0, 4 * MS), Kind.KILL, (M1,), lasts))
    if rng.random() < 0.7:
        faults.append(Fault(at_us + 9 * MS, Kind.CUT_ONE_WAY, (WRITER, M1), lasts))
    if rng.random() < 0.3:
        died = begins + rng.randint(10 * MS, 100 * MS)
        faults.append(Fault(died, Kind.KILL, (RECOVERER,), 50 * MS))
    return [
        _append(at_us, 9),
        _append(at_us + 10 * MS, rng.randint(2, 6)),
        _recover(begins),
    ], faults


def duel(rng: random.Random, at_us: int) -> Happening:
    """Writer and recovery want to close the ledger, or change it, at the same time."""
    begins = at_us + 20 * MS
    steps = [_append(at_us, 9), _recover(begins + rng.randint(0, 4 * MS))]
    late = rng.randint(5 * MS, 60 * MS)
    faults = [
        Fault(begins - 5 * MS, Kind.SLOW_LINK, (WRITER, words.METADATA), 500 * MS, late),
        *(
            Fault(begins - 5 * MS, Kind.SLOW_LINK, (each, RECOVERER), 500 * MS, 100 * MS)
            for each in (M1, M2, M3)
        ),
    ]
    if rng.random() < 0.5:
        steps.append(Step(begins, WRITER, words.CLOSE))
    else:
        faults.append(Fault(begins - MS, Kind.KILL, (M1,), 1_000 * MS))
        steps.append(_append(begins, 2))
    return steps, faults


def lost_words(rng: random.Random, at_us: int) -> Happening:
    """The change that names a new bookie is lost on its way to the metadata, or its answer is."""
    down_at = at_us + 20 * MS
    return (
        [_append(at_us, 9), _append(down_at + 3 * MS, 3), _append(down_at + 300 * MS, 3)],
        [
            Fault(down_at, Kind.METADATA_LOSS, (WRITER,), 0, rng.randint(0, 1)),
            Fault(down_at + MS, Kind.KILL, (M1,), rng.randint(1_000 * MS, 1_500 * MS)),
        ],
    )


def sleeper(rng: random.Random, at_us: int) -> Happening:
    """A writer that stood still goes on when its ledger is closed and all bookies were restarted."""
    asleep_at = at_us + 20 * MS
    lasts = rng.randint(1_000 * MS, 1_400 * MS)
    return (
        [_append(at_us, 9), _recover(asleep_at + 5 * MS), _append(asleep_at + 600 * MS, 3)],
        [
            Fault(asleep_at, Kind.PAUSE, (WRITER,), lasts),
            *(
                Fault(asleep_at + rng.randint(60 * MS, 200 * MS), Kind.KILL, (each,), 20 * MS)
                for each in (M1, M2, M3)
            ),
        ],
    )


def deletion(rng: random.Random, at_us: int) -> Happening:
    """A ledger is deleted under its writer."""
    steps = [_append(at_us + number * 8 * MS, 1) for number in range(40)]
    return [*steps, Step(at_us + rng.randint(0, 100 * MS), words.OPERATOR, words.DELETE)], []


def erasure(rng: random.Random, at_us: int) -> Happening:
    """A bookie loses its disk, and nobody asks for what it had until it is back."""
    return [_append(at_us, 9)], [Fault(at_us + rng.randint(15, 60) * MS, Kind.WIPE, (M1,), 20 * MS)]


def rest(rng: random.Random, at_us: int) -> Happening:
    """A writer rests while two of its bookies have not got what it sent last."""
    late = rng.randint(10 * MS, 40 * MS)
    cut_at = at_us + late + rng.randint(MS, 4 * MS)
    return (
        [_append(at_us, 9), _append(at_us + 5 * MS, 3)],
        [
            *(
                Fault(at_us - MS, Kind.SLOW_LINK, (WRITER, each), 600 * MS, late)
                for each in (M1, M2, M3)
            ),
            *(Fault(cut_at, Kind.CUT_ONE_WAY, (WRITER, each), 500 * MS) for each in (M1, M2)),
        ],
    )


def late_return(rng: random.Random, at_us: int) -> Happening:
    """A writer sleeps while its ledger is closed without one bookie, and one that was fenced is wiped.

    Then it wakes, cut from the third: what it hears is a bookie that was never fenced, and one
    whose fence went with its disk.
    """
    asleep, lasts = at_us + 80 * MS, 2_600 * MS
    return (
        [_append(at_us, 9), _recover(asleep + 5 * MS), _append(asleep + 2_500 * MS, 2)],
        [
            Fault(asleep, Kind.PAUSE, (WRITER,), lasts),
            Fault(asleep, Kind.CUT, (WRITER, M3), 3_500 * MS),
            Fault(asleep, Kind.CUT, (RECOVERER, M1), lasts),
            Fault(asleep + 80 * MS + rng.randint(0, 100 * MS), Kind.WIPE, (M2,), 20 * MS),
        ],
    )


DRILLS: Final[dict[str, Drill]] = {
    drill.__name__: drill
    for drill in (
        lonely_tail,
        erased_tail,
        unheard_fence,
        long_tail,
        revolving_door,
        thin_copies,
        broken_recovery,
        duel,
        lost_words,
        sleeper,
        deletion,
        erasure,
        rest,
        late_return,
    )
}
QUORUMS: Final[dict[str, tuple[tuple[int, int, int], ...]]] = {
    "lonely_tail": ((3, 3, 2),),
    "erased_tail": ((3, 3, 2),),
    "unheard_fence": ((3, 3, 2),),
    "long_tail": ((3, 3, 3), (3, 3, 3), (4, 4, 3)),
    "revolving_door": ((2, 2, 2), (3, 3, 2), (3, 3, 3)),
    "thin_copies": ((3, 3, 2),),
    "broken_recovery": ((3, 3, 3), (2, 2, 2), (3, 3, 2)),
    "rest": ((3, 3, 2),),
    "late_return": ((3, 3, 2),),
    "duel": ((3, 3, 2), (2, 2, 2), (3, 2, 2)),
}
