"""Every interleaving of one writer and one recovery, in a world small enough to visit all of it.

Three bookies hold every entry, two acknowledge it. The writer sends its entries in order; an add
reaches a bookie at any later time or never, out of order too, and the writer hears at once (hearing
late only lowers the LAC that its next add carries, so any lower LAC may be carried). Recovery has
marked the ledger, so nothing else changes: it asks for the LAC, reads with any read-ahead, and
closes. Each of its questions may reach a bookie and have its answer lost. Bookies forget nothing.

The one promise: no entry is confirmed, before or after, beyond the last entry of the closed ledger.
What the seeds can only make likely is decided here, within these bounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

BOOKIES: Final = 3
ACKS: Final = 2
NOT_CLOSED: Final = -2
FENCING, READING, CLOSED = range(3)


@dataclass(frozen=True, slots=True)
class Rules:
    """How recovery goes about it; as it stands, rightly."""

    entries: int = 2
    lac_answers_needed: int = BOOKIES - ACKS + 1  # So that no ack quorum went unheard.
    lac_questions: int = BOOKIES  # To how many bookies they go at all.
    reads_fence: bool = True
    negatives_needed: int = BOOKIES - ACKS + 1


class BookieState(NamedTuple):
    held: int = 0  # Bits of entries.
    is_fenced: bool = False
    is_asked: bool = False  # For the LAC.
    has_told: bool = False  # Its LAC, to a recovery that heard it.
    denied: int = 0  # Bits of entries that recovery heard it call absent.


class ModelState(NamedTuple):
    bookies: tuple[BookieState, ...] = (BookieState(),) * BOOKIES  # Sorted: they are alike.
    lacs: tuple[int, ...] = ()  # That each entry sent so far carries.
    phase: int = FENCING
    lac: int = -1  # The greatest that recovery heard.
    found: int = 0  # Bits of entries of which recovery has read a copy.
    last: int = NOT_CLOSED


@dataclass(frozen=True, slots=True)
class ModelVerdict:
    states: int
    broken: ModelState | None


def explore(rules: Rules) -> ModelVerdict:
    """All reachable states, or those up to the first in which the promise is broken."""
    start = ModelState()
    seen = {start}
    pending = [start]
    while pending:
        state = pending.pop()
        if state.last != NOT_CLOSED and confirmed(state) > state.last:
            return ModelVerdict(len(seen), state)
        for after in successors(state, rules):
            if after not in seen:
                seen.add(after)
                pending.append(after)
    return ModelVerdict(len(seen), None)


def confirmed(state: ModelState) -> int:
    """The writer's LAC: it confirms in order."""
    entry = 0
    while sum(bookie.held >> entry & 1 for bookie in state.bookies) >= ACKS:
        entry += 1
    return entry - 1


def successors(state: ModelState, rules: Rules) -> Iterator[ModelState]:
    sent = len(state.lacs)
    if sent < rules.entries:
        for lac in range(-1, confirmed(state) + 1):
            yield state._replace(lacs=(*state.lacs, lac))
    for number, bookie in enumerate(state.bookies):
        if not bookie.is_fenced:
            for entry in range(sent):
                if not bookie.held >> entry & 1:
                    yield _with(state, number, bookie._replace(held=bookie.held | 1 << entry))
        if state.phase == FENCING:
            yield from _ask_lac(state, number, bookie, rules)
        elif state.phase == READING:
            yield from _read(state, number, bookie, rules)
    yield from _decide(state, rules)


def _ask_lac(
    state: ModelState, number: int, bookie: BookieState, rules: Rules
) -> Iterator[ModelState]:
    asked = sum(other.is_asked for other in state.bookies)
    if not bookie.is_asked and asked == rules.lac_questions:
        return
    fenced = bookie._replace(is_fenced=True, is_asked=True)
    yield _with(state, number, fenced)  # The answer is lost.
    told = max((state.lacs[e] for e in range(len(state.lacs)) if bookie.held >> e & 1), default=-1)
    heard = _with(state, number, fenced._replace(has_told=True))
    yield heard._replace(lac=max(state.lac, told))


def _read(
    state: ModelState, number: int, bookie: BookieState, rules: Rules
) -> Iterator[ModelState]:
    fenced = bookie._replace(is_fenced=bookie.is_fenced or rules.reads_fence)
    yield _with(state, number, fenced)
    for entry in range(state.lac + 1, rules.entries):
        if bookie.held >> entry & 1:
            yield _with(state, number, fenced)._replace(found=state.found | 1 << entry)
        else:
            yield _with(state, number, fenced._replace(denied=fenced.denied | 1 << entry))


def _decide(state: ModelState, rules: Rules) -> Iterator[ModelState]:
    if state.phase == FENCING:
        if sum(bookie.has_told for bookie in state.bookies) >= rules.lac_answers_needed:
            yield state._replace(phase=READING)
    elif state.phase == READING:
        entry = state.lac + 1
        while state.found >> entry & 1:
            entry += 1
        denials = sum(bookie.denied >> entry & 1 for bookie in state.bookies)
        # Behind the last entry that the writer will ever send there is nothing to lose.
        if entry == rules.entries or denials >= rules.negatives_needed:
            yield state._replace(phase=CLOSED, last=entry - 1)


def _with(state: ModelState, number: int, bookie: BookieState) -> ModelState:
    others = state.bookies[:number] + state.bookies[number + 1 :]
    return state._replace(bookies=tuple(sorted((*others, bookie))))
