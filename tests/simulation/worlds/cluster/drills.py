"""Moments on which repairs fail, set up on purpose; what exactly happens in them is chance.

A drill makes its ledgers, and then a few steps and faults. `member-1` is the bookie with the first place in the
first fragment of the first ledger of the run when the fault comes, `stranger-1` the first bookie that has none.
"""

import random
from collections.abc import Callable
from typing import Final

from tests.simulation.schedule import Fault, Kind, Step
from tests.simulation.worlds.cluster import words

MS: Final = 1000
CHAOS_END_US: Final = 12_000 * MS
M1, M2, M3 = (f"member-{number}" for number in (1, 2, 3))
S1, S2 = (f"stranger-{number}" for number in (1, 2))
WRITER = words.WRITERS[0]
R1, R2 = words.RECOVERIES

Happening = tuple[list[Step], list[Fault]]
Drill = Callable[[random.Random, int], Happening]


def _fill(at_us: int, ledgers: int = 3, count: int = 6, quorum: str = "3 3 2") -> Step:
    return Step(at_us - 800 * MS, WRITER, f"{words.FILL} {ledgers} {count} 24 {quorum}")


def _hold(at_us: int, ledgers: int = 2, count: int = 3, quorum: str = "3 3 2") -> Step:
    return Step(at_us - 700 * MS, WRITER, f"{words.HOLD} {ledgers} {count} 24 {quorum}")


def _lose(at_us: int, name: str) -> Fault:
    """It never comes back."""
    return Fault(at_us, Kind.WIPE, (name,))


def _kill(at_us: int, name: str, for_us: int) -> Fault:
    return Fault(at_us, Kind.KILL, (name,), for_us)


def _fate(at_us: int, what: str) -> Step:
    return Step(at_us, words.FATE, what)


def _ask(at_us: int, what: str) -> Step:
    return Step(at_us, words.OPERATOR, what)


_QUORUMS: Final = ("3 3 2", "3 3 2", "3 2 2", "2 2 2")


def loss(rng: random.Random, at_us: int) -> Happening:
    """A bookie is lost and does not come back."""
    quorum = rng.choice(_QUORUMS)
    steps = [_fill(at_us, quorum=quorum), _hold(at_us, quorum=quorum)]
    return steps, [_lose(at_us + rng.randint(0, 500 * MS), M1)]


def restarts(rng: random.Random, at_us: int) -> Happening:
    """Three bookies restart, none of them for as long as the delay."""
    names = rng.sample((M1, M2, M3, S1, S2), 3)
    return [_fill(at_us), _hold(at_us)], [
        _kill(at_us + rng.randint(0, 6000 * MS), name, rng.randint(2100 * MS, 3600 * MS))
        for name in names
    ]


def reborn(rng: random.Random, at_us: int) -> Happening:
    """Lost, formatted and back within the delay."""
    wiped = Fault(at_us + rng.randint(0, 500 * MS), Kind.WIPE, (M1,), rng.randint(20, 1500) * MS)
    return [_fill(at_us), _hold(at_us)], [wiped]


def fragile_target(rng: random.Random, at_us: int) -> Happening:
    """The bookie that was copied to is formatted, or starts again, before it is named."""
    what = rng.choice((words.WIPE_TARGET, words.WIPE_TARGET, words.KILL_TARGET))
    return [_fill(at_us, 2), _fate(at_us, what)], [_lose(at_us + rng.randint(0, 500 * MS), M1)]


def late_return(rng: random.Random, at_us: int) -> Happening:
    """The lost bookie is back while its copies are made."""
    fill = Step(at_us - 800 * MS, WRITER, f"{words.FILL} 1 24 6000 3 3 2")
    lost = Fault(at_us + rng.randint(0, 300 * MS), Kind.KILL, (M1,), 9_000 * MS)
    return [fill, _fate(at_us, words.MEMBER_RETURNS)], [lost]


def sleeping_worker(rng: random.Random, at_us: int) -> Happening:
    """A worker loses its lock in its sleep, and goes on with what it has copied."""
    steps = [_fill(at_us, rng.randint(1, 2)), _fate(at_us, words.WORKER_SLEEPS)]
    faults = [_lose(at_us + rng.randint(0, 500 * MS), M1)]
    if rng.random() < 0.5:  # Nobody else has done its work when it wakes.
        faults.append(_kill(at_us + 10 * MS, rng.choice((R1, R2)), 9_000 * MS))
    return steps, faults


def closing_writer(rng: random.Random, at_us: int) -> Happening:
    """A writer closes its ledger, or leaves another bookie, while an older fragment is repaired."""
    down_at = at_us + rng.randint(0, 300 * MS)
    steps = [_hold(at_us, 1, 6), Step(down_at + 100 * MS, WRITER, f"{words.APPEND} 0 3")]
    steps.append(_fate(at_us, words.WRITER_CLOSES))
    return steps, [_lose(down_at, M1)]


def dead_writer(rng: random.Random, at_us: int) -> Happening:
    """Nobody is left who could leave the lost bookie."""
    died_at = at_us + rng.randint(0, 3000 * MS)
    faults = [_lose(at_us + rng.randint(0, 300 * MS), M1), _kill(died_at, WRITER, 9_000 * MS)]
    steps = [_hold(at_us, 2, 4)]
    if rng.random() < 0.5:  # The recovery is begun, and left.
        steps += [_fate(at_us + 7_000 * MS, f"{name} {words.DIE} 2") for name in (R1, R2)]
    return steps, faults


def blind_auditor(rng: random.Random, at_us: int) -> Happening:
    """The auditor misses a bookie, and sees nothing while it comes back: it is cut off, or sleeps."""
    gone_at = at_us + 1_500 * MS  # About when the registration goes.
    back_at = gone_at + rng.randint(400 * MS, 1_700 * MS)
    blind_at = back_at - rng.randint(0, 300 * MS)
    faults = [_kill(at_us, M1, back_at - at_us)]
    steps = [_fill(at_us), _hold(at_us)]
    if rng.random() < 0.25:
        steps.append(_fate(blind_at, words.AUDITOR_SLEEPS))
    else:
        lasts = rng.randint(900 * MS, 2_600 * MS)
        faults += [Fault(blind_at, Kind.CUT, (name, words.METADATA), lasts) for name in (R1, R2)]
    if rng.random() < 0.5:  # It goes once more, so that it is missing again when the auditor sees.
        faults.append(_kill(back_at + rng.randint(50 * MS, 800 * MS), M1, 3_000 * MS))
    return steps, faults


def unseen_loss(rng: random.Random, at_us: int) -> Happening:
    """A bookie has lost its closed ledgers, and passes for whole: a check of copies finds that, though bookies are
    silent for a while.
    """
    wiped = Fault(at_us, Kind.WIPE, (M1,), rng.randint(20, 500) * MS)
    checked_at = at_us + rng.randint(4_500 * MS, 5_500 * MS)
    steps = [_fill(at_us), _fate(at_us, words.LOSS_UNSEEN), _ask(checked_at, words.CHECK)]
    silent_at, lasts = checked_at - rng.randint(0, 50 * MS), rng.randint(2_500 * MS, 4_500 * MS)
    faults = [wiped]
    if rng.random() < 0.7:
        faults += [Fault(silent_at, Kind.CUT, (r, m), lasts) for r in (R1, R2) for m in (M1, M2)]
    return steps, faults


def doubts(rng: random.Random, at_us: int) -> Happening:
    """A bookie was formatted, and is in doubt of ledgers whose writers live."""
    wiped_at = at_us + rng.randint(4_500 * MS, 5_500 * MS)
    wiped = Fault(wiped_at, Kind.WIPE, (M1,), rng.randint(20, 500) * MS)
    return [_fate(0, words.HEALING), _fill(at_us, 1), _hold(at_us, 2, rng.randint(0, 4))], [wiped]


def late_copies(rng: random.Random, at_us: int) -> Happening:
    """Ledgers are checked while the third copies of their last entries are still on their way."""
    late = rng.randint(500 * MS, 1_200 * MS)
    first, at_us = _fill(at_us, 1), at_us + 1_500 * MS
    fill = Step(at_us, WRITER, f"{words.FILL} 3 6 24 3 3 2")
    slow = [
        Fault(at_us - 100 * MS, Kind.SLOW_LINK, (WRITER, b), 2_000 * MS, late) for b in (M1, S1)
    ]
    checks = [_ask(at_us + at * MS, words.CHECK) for at in (100, 200, 300)]
    return [first, fill, *checks, _ask(at_us + 4_000 * MS, f"{words.DRAIN} {M1}")], slow


def bad_copy(rng: random.Random, at_us: int) -> Happening:
    """A bookie has an entry whose bytes are bad, and lists it: only its bytes tell."""
    spoilt_at = at_us + rng.randint(0, 500 * MS)
    steps = [_fill(at_us, 2), _ask(spoilt_at, f"{words.SPOIL} {M1}")]
    return [*steps, _ask(spoilt_at + rng.randint(500, 1_500) * MS, words.CHECK)], []


def racks(rng: random.Random, at_us: int) -> Happening:
    """Recovery servers know in which racks bookies are, and writers do not."""
    known = rng.choice((words.ONE_RACK, words.TWO_RACKS))
    steps = [_fate(0, known), _fill(at_us, 5, 3, "2 2 2")]
    return [*steps, _ask(at_us + rng.randint(0, 500 * MS), words.CHECK)], []


def last_copies(rng: random.Random, at_us: int) -> Happening:
    """A bookie is formatted that had the only copies of a fragment; its writer has left it."""
    steps = [_fate(0, words.HEALING), _fate(at_us, words.GIVEN_UP), _hold(at_us, 1, 4, "1 1 1")]
    wiped = Fault(at_us + rng.randint(0, 300 * MS), Kind.WIPE, (M1,), 6_000 * MS)
    return [*steps, _fill(at_us + 100 * MS, 1)], [wiped]


def two_losses(rng: random.Random, at_us: int) -> Happening:
    """The second bookie is lost when the first one's ledgers are copied, or when they have been."""
    lost_at = at_us + rng.randint(0, 300 * MS)
    if rng.random() < 0.5:
        fill = Step(at_us - 800 * MS, WRITER, f"{words.FILL} 3 20 4000 3 3 2")
        later = lost_at + rng.randint(100 * MS, 500 * MS)
        return [fill], [_kill(lost_at, M1, 12_000 * MS), _kill(later, M2, 12_000 * MS)]
    later = lost_at + rng.randint(4_500 * MS, 5_500 * MS)  # The one that replaced the first.
    return [_fill(at_us), _hold(at_us)], [_lose(lost_at, M1), _lose(later, rng.choice((S1, S2)))]


def flapping(rng: random.Random, at_us: int) -> Happening:
    """A bookie is lost, back, and lost again."""
    first = at_us + rng.randint(0, 200 * MS)
    back = rng.randint(4_500 * MS, 5_000 * MS)
    return [_fill(at_us), _hold(at_us)], [
        _kill(first, M1, back),
        _lose(first + back + rng.randint(600 * MS, 1_500 * MS), M1),
    ]


def blackout(rng: random.Random, at_us: int) -> Happening:
    """More than half of the bookies are gone at once, for longer than the delay."""
    lasts = rng.randint(7_000 * MS, 8_500 * MS)
    return [_fill(at_us, 4), _hold(at_us, 2)], [
        _kill(at_us + rng.randint(0, 100 * MS), name, lasts) for name in (M1, M2, M3, S1)
    ]


def deaths(rng: random.Random, at_us: int) -> Happening:
    """Auditor, steward and worker die after some step or other."""
    steps = [_fill(at_us), _hold(at_us)]
    steps += [
        _fate(at_us + rng.randint(0, 6_000 * MS), f"{name} {words.DIE} {rng.randint(1, 20)}")
        for name in (R1, R2)
        for _ in range(3)
    ]
    if rng.random() < 0.5:
        steps.append(_ask(at_us, f"{words.DRAIN} {M2}"))
        return steps, []
    return steps, [_lose(at_us + rng.randint(0, 500 * MS), M1)]


def departure(rng: random.Random, at_us: int) -> Happening:
    """A bookie is drained under its ledgers and taken away."""
    quorum = rng.choice(_QUORUMS)
    steps = [_fill(at_us, quorum=quorum), _hold(at_us, quorum=quorum)]
    return [*steps, _ask(at_us + rng.randint(0, 500 * MS), f"{words.RETIRE} {M1}")], []


def called_off(rng: random.Random, at_us: int) -> Happening:
    """A drain is called off when its copies are made."""
    steps = [_fill(at_us, 2), _fate(at_us, words.CALLED_OFF)]
    return [*steps, _ask(at_us + rng.randint(0, 500 * MS), f"{words.DRAIN} {M1}")], []


def tried_again(rng: random.Random, at_us: int) -> Happening:
    """A drain fails because no bookie takes copies, and is tried again; its ledgers are marked, too."""
    lasts = CHAOS_END_US - at_us
    faults = [_kill(at_us, name, lasts) for name in (M2, S1)]
    begun_at = at_us + rng.randint(1_700 * MS, 2_000 * MS)
    steps = [_fill(at_us, rng.randint(1, 2), quorum="4 3 2")]
    steps += [_ask(begun_at, f"{words.FORCE} {M1}")]
    steps += [_ask(begun_at + at * MS, f"{words.FORCE} {M1}") for at in range(3_200, 6_000, 400)]
    return steps, faults


def late_creation(rng: random.Random, at_us: int) -> Happening:
    """A ledger is made long after its bookies were picked, one of which is drained meanwhile."""
    late = rng.randint(300 * MS, 450 * MS)
    drained_at = at_us + rng.randint(0, 200 * MS)
    steps = [
        _hold(at_us, 1, 0),
        Step(at_us, WRITER, f"{words.FILL} 4 2 24 3 3 2"),
        _ask(drained_at, f"{words.DRAIN} {S1}"),
        *(_ask(drained_at + number * 40 * MS, f"{words.SAFE} {S1}") for number in range(10, 60)),
    ]
    slow = Fault(at_us - 100 * MS, Kind.SLOW_LINK, (WRITER, words.METADATA), 4_000 * MS, late)
    return steps, [slow]


def late_obedience(rng: random.Random, at_us: int) -> Happening:
    """A bookie that drains does not hear of it for a while; no ledger names it."""
    steps = [_hold(at_us, 1, 2), _ask(at_us, f"{words.DRAIN} {S1}")]
    asleep = Fault(at_us - 100 * MS, Kind.CUT, (S1, words.METADATA), rng.randint(1_200, 1_700) * MS)
    return steps, [asleep]


def stale_steward(rng: random.Random, at_us: int) -> Happening:
    """A steward sleeps between its walk and what it concludes, longer than its session lasts."""
    steps = [_fill(at_us, 1), _fate(at_us, words.STEWARD_SLEEPS)]
    return [*steps, _ask(at_us + rng.randint(0, 500 * MS), f"{words.DRAIN} {S1}")], []


def orphans(rng: random.Random, at_us: int) -> Happening:
    """Votes that nobody stands by lie before those of all candidates."""
    killed_at = at_us + 100 * MS
    faults = [_kill(killed_at, name, rng.randint(50, 400) * MS) for name in (R1, R2)]
    steps = [_fill(at_us, 2), _ask(at_us, words.ORPHAN)]
    if rng.random() < 0.5:
        return [*steps, _ask(killed_at + 3_000 * MS, f"{words.DRAIN} {M1}")], faults
    return steps, [*faults, _lose(killed_at + 100 * MS, M1)]


def unheard(rng: random.Random, at_us: int) -> Happening:
    """Ledgers are made while no recovery server hears anything, on a bookie that is lost then."""
    lasts = rng.randint(900 * MS, 1_500 * MS)
    faults = [Fault(at_us, Kind.CUT, (name, words.METADATA), lasts) for name in (R1, R2)]
    faults += [Fault(at_us, Kind.RESET, (name, words.METADATA)) for name in (R1, R2)]
    fill = Step(at_us + 200 * MS, WRITER, f"{words.FILL} 2 4 24 3 3 2")
    return [fill], [*faults, _lose(at_us + lasts + rng.randint(0, 500 * MS), M1)]


def no_sources(rng: random.Random, at_us: int) -> Happening:
    """No worker can read what it is to copy, for a while."""
    lasts = rng.randint(7_000 * MS, 8_000 * MS)
    cut_at = at_us + rng.randint(0, 500 * MS)
    faults = [Fault(cut_at, Kind.CUT, (r, m), lasts) for r in (R1, R2) for m in (M2, M3)]
    return [_fill(at_us, 2)], [*faults, _lose(cut_at, M1)]


def full_targets(rng: random.Random, at_us: int) -> Happening:
    """The bookies that could take copies have no room, for a while."""
    lasts = rng.randint(6_000 * MS, 8_000 * MS)
    faults = [Fault(at_us, Kind.DISK_FULL, (name,), lasts) for name in (S1, S2)]
    return [_fill(at_us, 2), _hold(at_us, 1)], [*faults, _lose(at_us + 100 * MS, M1)]


def quarantine(rng: random.Random, at_us: int) -> Happening:
    """Every bookie that could take a slot failed lately, as its clients know it."""
    steps = [_hold(at_us, 1, 2)]
    faults = []
    for number, name in enumerate((S1, S2)):
        at = at_us + number * 300 * MS
        # A ledger on that bookie, whose appends find it dead.
        steps.append(Step(at, WRITER, f"{words.FILL} 3 3 24 4 4 2"))
        faults.append(_kill(at + 5 * MS, name, rng.randint(100, 300) * MS))
    steps.append(_ask(at_us + rng.randint(1_500, 2_500) * MS, f"{words.DRAIN} {M1}"))
    return steps, faults


def owned_log(rng: random.Random, at_us: int) -> Happening:
    """A log's owner appends all the time, while bookies are lost or drained, and dies or loses its sessions."""
    steps = [_fate(0, words.OWNED), _fill(at_us, 1)]
    faults = []
    if rng.random() < 0.6:
        faults.append(_lose(at_us + rng.randint(0, 2_000 * MS), rng.choice((M1, M2, S1))))
    else:
        faults.append(_kill(at_us, rng.choice((M1, M2, S1)), rng.randint(500, 5_000) * MS))
    if rng.random() < 0.6:
        drained_at = at_us + rng.randint(0, 4_000 * MS)
        steps.append(
            _ask(drained_at, f"{rng.choice((words.DRAIN, words.RETIRE))} {rng.choice((M3, S2))}")
        )
    for _ in range(rng.choice((0, 1, 1, 2))):
        at, lasts = at_us + rng.randint(0, 5_000 * MS), rng.randint(500, 4_000) * MS
        name = rng.choice((words.LOG_OWNER, words.LOG_OWNER, R1, R2))
        kind = rng.choice((Kind.KILL, Kind.PAUSE, Kind.METADATA_EXPIRY))
        faults.append(Fault(at, kind, (name,), 0 if kind is Kind.METADATA_EXPIRY else lasts))
    return steps, faults


DRILLS: Final[dict[str, Drill]] = {
    drill.__name__: drill
    for drill in (
        loss,
        restarts,
        reborn,
        fragile_target,
        late_return,
        sleeping_worker,
        closing_writer,
        dead_writer,
        blind_auditor,
        unseen_loss,
        doubts,
        two_losses,
        flapping,
        blackout,
        late_copies,
        bad_copy,
        racks,
        deaths,
        departure,
        called_off,
        tried_again,
        late_creation,
        late_obedience,
        stale_steward,
        orphans,
        unheard,
        no_sources,
        full_targets,
        quarantine,
    )
}
# Nothing else happens beside these: what is lost on purpose, or is judged by who reads it, would be judged wrongly.
DRILLS_ALONE: Final[dict[str, Drill]] = {
    drill.__name__: drill for drill in (last_copies, owned_log)
}
