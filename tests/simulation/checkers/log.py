"""Is the history of a log linearizable? Decided exactly, in O(n log n).

A general checker has to search for an order of the operations. A log gives it away: every append
carries a unique value and an acknowledged one names its position, so the appends happen in the
order of their positions, and only their moments are open. The history is legal iff moments can be
chosen along that chain.

1. Place each append: at the position its client got, or, of an unknown outcome, where its
   value was read. Positions below the end that are still free are taken by the remaining appends
   of unknown outcome, those invoked first in front; one left free is a hole.
2. Append i cannot happen before it was invoked, nor before a call was invoked that saw the log
   end at i, nor before append i-1. The greatest of these is p(i), its earliest moment.
3. Append i must have happened when its client got its answer, when a read of it returned, and when
   a client got a length beyond it. Illegal iff one of these comes before p(i). If none does,
   p is itself a legal choice: each read fits between the two appends it tells of.

Records handed to a reader that follows the log (`Delivery`) may lag behind, so one that ends early
says nothing; but what was delivered must have happened, must be the same record for everybody, and
each reader's positions must follow one another.

Anomalies go by the names that readers of such reports know; a legal history has none.
"""

from dataclasses import dataclass
from enum import StrEnum

from rollbook.proto.errors import Outcome
from tests.simulation.history import NEVER, Append, Delivery, History, Read, Tail, Value


class Name(StrEnum):
    LOST_WRITE = "lost write"  # Acknowledged, and later not there.
    VANISHED = "vanished read"  # Seen by someone, and later not there.
    ABORTED_READ = "aborted read"  # Seen, though its client learned that it did not happen.
    PHANTOM_READ = "phantom read"  # Seen, though nobody appended it.
    EARLY_READ = "early read"  # Seen before anybody appended it.
    DUPLICATE = "duplicate"  # One append at two positions.
    INCONSISTENT_OFFSET = "inconsistent offset"  # Two appends at one position.
    HOLE = "hole"  # A position below the end that no append can have taken.
    REORDERED = "reordered append"  # Acknowledged before an append in front of it was invoked.
    SKIPPED_POLL = "skipped poll"
    NON_MONOTONIC_POLL = "non-monotonic poll"


@dataclass(frozen=True, slots=True)
class Anomaly:
    name: Name
    position: int
    text: str

    def __str__(self) -> str:
        return f"{self.name} at {self.position}: {self.text}"


def check_log(history: History) -> list[Anomaly]:
    """Every anomaly of the history; it is linearizable iff there is none."""
    placed, anomalies = _place(history)
    anomalies += _check_readers(history.deliveries)
    if anomalies:  # Without one agreed order there are no moments to speak of.
        return anomalies
    chain, anomalies = _fill(history, placed)
    return anomalies or _check_moments(history, chain)


def _place(history: History) -> tuple[dict[int, Append], list[Anomaly]]:
    """Step 1, first half: the appends whose positions are known."""
    placed: dict[int, Append] = {}
    position_of: dict[Value, int] = {}
    anomalies: list[Anomaly] = []

    def put(append: Append, position: int, source: str) -> None:
        before = position_of.setdefault(append.value, position)
        if before != position:
            text = f"{source}, while {append.value!r} is at {before} too"
            anomalies.append(Anomaly(Name.DUPLICATE, position, text))
        other = placed.setdefault(position, append)
        if other is not append:
            text = f"{source}, while {other.value!r} is there too"
            anomalies.append(Anomaly(Name.INCONSISTENT_OFFSET, position, text))

    by_value = {append.value: append for append in history.appends}
    assert len(by_value) == len(history.appends), "every append must carry a value of its own"
    for append in history.appends:
        if (told := append.position) is not None:
            put(append, told, f"{append.client} was told so for {append.value!r}")

    seen: list[tuple[str, int, Value]] = [
        (read.client, read.position, read.value)
        for read in history.reads
        if read.returned != NEVER and read.value is not None
    ]
    seen += [(d.reader, d.position, d.value) for d in history.deliveries]
    for client, position, value in seen:
        if (known := placed.get(position)) is not None and known.value == value:
            continue  # The usual case, and the reason why a million operations take seconds.
        found = by_value.get(value)
        if found is None:
            text = f"{client} read {value!r}, which nobody appended"
            anomalies.append(Anomaly(Name.PHANTOM_READ, position, text))
        elif found.outcome is Outcome.NOT_APPLIED:
            text = f"{client} read {value!r}, which {found.client} was told did not happen"
            anomalies.append(Anomaly(Name.ABORTED_READ, position, text))
        else:
            put(found, position, f"{client} read {value!r} there")
    return placed, anomalies


def _check_readers(deliveries: list[Delivery]) -> list[Anomaly]:
    anomalies: list[Anomaly] = []
    next_of: dict[str, int] = {}
    for delivery in deliveries:
        reader, position = delivery.reader, delivery.position
        expected = next_of.get(reader, position)
        if position > expected:
            text = f"{reader} was due {expected}"
            anomalies.append(Anomaly(Name.SKIPPED_POLL, position, text))
        elif position < expected:
            text = f"{reader} had been handed {expected - 1} already"
            anomalies.append(Anomaly(Name.NON_MONOTONIC_POLL, position, text))
        next_of[reader] = position + 1
    return anomalies


def _fill(history: History, placed: dict[int, Append]) -> tuple[list[Append], list[Anomaly]]:
    """Step 1, second half: the chain of appends, one for each position."""
    length = max(placed, default=-1) + 1
    for tail in history.tails:
        if tail.returned != NEVER and tail.length > length:
            length = tail.length
    known = {append.value for append in placed.values()}
    # Invoked first in front: any other choice only makes some earliest moment later.
    free = (a for a in history.appends if a.outcome is Outcome.UNKNOWN and a.value not in known)
    spare = sorted(free, key=lambda append: append.invoked)
    if length - len(placed) > len(spare):  # Counted first: a wild length must not cost memory.
        needed = (position for position in range(length) if position not in placed)
        *_, first_unfilled = (position for position, _ in zip(needed, [*spare, None], strict=False))
        text = f"the log is {length} long, and no append can have this position"
        return [], [Anomaly(Name.HOLE, first_unfilled, text)]
    fillers = iter(spare)
    return [placed.get(p) or next(fillers) for p in range(length)], []


def _check_moments(history: History, chain: list[Append]) -> list[Anomaly]:
    """Steps 2 and 3."""
    length = len(chain)
    earliest = [append.invoked for append in chain]
    cause: list[Append | Read | Tail] = list(chain)  # Whose invocation sets the earliest moment.

    def not_before(position: int, operation: Read | Tail) -> None:
        if position < length and operation.invoked > earliest[position]:
            earliest[position], cause[position] = operation.invoked, operation

    for read in history.reads:
        if read.value is None and read.returned != NEVER:
            not_before(read.position, read)
    for tail in history.tails:
        if tail.returned != NEVER:
            not_before(tail.length, tail)
    for position in range(1, length):
        if earliest[position - 1] > earliest[position]:
            earliest[position], cause[position] = earliest[position - 1], cause[position - 1]

    anomalies: list[Anomaly] = []
    for position, append in enumerate(chain):
        if append.outcome is Outcome.APPLIED and append.returned < earliest[position]:
            text = f"{append.client} was told that {append.value!r} is there; then "
            why = cause[position]
            name = Name.REORDERED if isinstance(why, Append) else Name.LOST_WRITE
            anomalies.append(Anomaly(name, position, text + _describe(why)))
    seen = [(r.position, r.returned, r.client) for r in history.reads if r.value is not None]
    seen += [(t.length - 1, t.returned, t.client) for t in history.tails if t.length > 0]
    seen += [(d.position, d.returned, d.reader) for d in history.deliveries]
    for position, returned, client in seen:
        if returned < earliest[position]:
            why = cause[position]
            name = Name.EARLY_READ if isinstance(why, Append) else Name.VANISHED
            text = f"{client} saw the log beyond it; then {_describe(why)}"
            anomalies.append(Anomaly(name, position, text))
    return anomalies


def _describe(operation: Append | Read | Tail) -> str:
    match operation:
        case Append():
            return f"{operation.client} began to append {operation.value!r} at or before it"
        case Read():
            return f"{operation.client} found nothing at {operation.position}"
        case Tail():
            return f"{operation.client} was told that the log is {operation.length} long"
