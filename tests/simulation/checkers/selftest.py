"""The log checker against a search that knows nothing of its shortcuts, and against the clock."""

import random
import time
from dataclasses import dataclass

from rollbook.proto.errors import Outcome
from tests.simulation.checkers.log import check_log
from tests.simulation.history import NEVER, Append, Delivery, History, Read, Tail

Operation = Append | Read | Tail | Delivery


@dataclass(frozen=True, slots=True)
class Agreement:
    histories: int
    illegal: int


def compare(histories: int, seed: int) -> Agreement:
    """Judges random small histories both ways; raises on the first one judged differently."""
    illegal = 0
    for number in range(seed, seed + histories):
        history = random_history(random.Random(number))
        expected = is_linearizable(history)
        anomalies = check_log(history)
        if expected != (not anomalies):
            told = "\n".join(map(str, (*operations_of(history), *anomalies)))
            raise AssertionError(f"history {number} is legal: {expected}, but\n{told}")
        illegal += not expected
    return Agreement(histories, illegal)


def operations_of(history: History) -> list[Operation]:
    return [*history.appends, *history.reads, *history.tails, *history.deliveries]


def is_linearizable(history: History) -> bool:
    """Tries every order that real time allows, by depth-first search with memory.

    Deliveries are judged as reads of their instant; that readers do not skip is not asked here.
    """
    optional = [a for a in history.appends if a.outcome is Outcome.UNKNOWN]
    required: list[Operation] = [a for a in history.appends if a.outcome is Outcome.APPLIED]
    required += [r for r in history.reads if r.returned != NEVER]
    required += [t for t in history.tails if t.returned != NEVER]
    required += history.deliveries
    operations = [*required, *optional]
    all_required = (1 << len(required)) - 1
    seen: set[tuple[int, tuple[object, ...]]] = set()

    def search(done: int, log: tuple[object, ...]) -> bool:
        if done & all_required == all_required:
            return True
        if (done, log) in seen:
            return False
        seen.add((done, log))
        open_returns = [
            op.returned for bit, op in enumerate(required) if not done >> bit & 1
        ]  # Nothing that was invoked after one of these returned may go first.
        horizon = min(open_returns)
        for bit, operation in enumerate(operations):
            if done >> bit & 1 or _invoked(operation) > horizon:
                continue
            after = _apply(operation, log)
            if after is not None and search(done | 1 << bit, after):
                return True
        return False

    return search(0, ())


def _invoked(operation: Operation) -> int:
    return operation.returned if isinstance(operation, Delivery) else operation.invoked


def _apply(operation: Operation, log: tuple[object, ...]) -> tuple[object, ...] | None:
    """The log afterwards, or None if the operation cannot have been answered so."""
    match operation:
        case Append():
            fits = operation.position in (None, len(log))
            return (*log, operation.value) if fits else None
        case Tail():
            fits = operation.length == len(log)
        case Read() | Delivery():
            there = log[operation.position] if operation.position < len(log) else None
            fits = operation.value == there
    return log if fits else None


def random_history(rng: random.Random) -> History:
    """Operations on a real log at random moments of overlapping calls; half of them with one lie."""
    history = History()
    count = rng.randint(2, 7)
    events = list(range(1, 2 * count + 1))
    rng.shuffle(events)
    moments: list[tuple[float, Operation]] = []
    for number in range(count):
        invoked, returned = sorted(events[2 * number : 2 * number + 2])
        moment = rng.uniform(invoked, returned)
        kind = rng.choices(("append", "read", "tail", "delivery"), (5, 3, 2, 2))[0]
        if kind == "append":
            outcome = rng.choices(list(Outcome), (5, 2, 3))[0]
            append = Append(f"c{number}", number, invoked, returned, outcome)
            history.appends.append(append)
            if outcome is Outcome.UNKNOWN:  # May happen late, or never.
                moment = rng.choice((moment, rng.uniform(invoked, 2 * count), NEVER))
            moments.append((moment, append))
        elif kind == "read":
            read = Read(f"c{number}", rng.randrange(3), invoked, returned)
            history.reads.append(read)
            moments.append((moment, read))
        elif kind == "tail":
            tail = Tail(f"c{number}", invoked, returned)
            history.tails.append(tail)
            moments.append((moment, tail))
        else:  # A reader of its own each: their order is another matter.
            delivery = Delivery(f"c{number}", 0, "", returned)
            moments.append((returned, delivery))

    log: list[int] = []
    for moment, operation in sorted(moments, key=lambda pair: pair[0]):
        match operation:
            case Append() if operation.outcome is not Outcome.NOT_APPLIED and moment < NEVER:
                if operation.outcome is Outcome.APPLIED:
                    operation.position = len(log)
                log.append(int(operation.value))
            case Read():
                operation.value = log[operation.position] if operation.position < len(log) else None
            case Tail():
                operation.length = len(log)
            case Delivery() if log:
                operation.position = rng.randrange(len(log))
                operation.value = log[operation.position]
                history.deliveries.append(operation)
    if rng.random() < 0.5:
        _tell_a_lie(rng, history)
    return history


def _tell_a_lie(rng: random.Random, history: History) -> None:
    operation = rng.choice([*operations_of(history), None])
    match operation:
        case Append() if operation.outcome is Outcome.APPLIED:
            operation.position = rng.randrange(4)
        case Read():
            operation.value = rng.choice((None, *range(7)))
        case Tail():
            operation.length = rng.randrange(5)
        case Delivery():
            operation.position = rng.randrange(3)
        case _:
            pass


def long_history(operations: int, rng: random.Random) -> History:
    """A legal one: half appends (2 % of them unknown), half reads, tails and deliveries."""
    history = History()
    log: list[int] = []
    for number in range(operations):
        choice = number % 8
        if choice < 4:
            append = history.append(f"writer-{choice}", number)
            if rng.random() < 0.02:
                history.on_unknown(append, "a test")
                if rng.random() < 0.5:
                    log.append(number)
            else:
                history.on_applied(append, len(log))
                log.append(number)
        elif choice < 6:
            read = history.read("reader", rng.randrange(len(log) + 10))
            history.on_read(read, log[read.position] if read.position < len(log) else None)
        elif choice == 6:
            history.on_tail(history.tail("reader"), len(log))
        elif len(history.deliveries) < len(log):
            position = len(history.deliveries)
            history.deliver("follower", position, log[position])
    return history


def time_check(operations: int) -> float:
    """CPU seconds to judge this many operations."""
    history = long_history(operations, random.Random(1))
    start = time.process_time()
    anomalies = check_log(history)
    spent = time.process_time() - start
    assert not anomalies, anomalies[0]
    return spent
