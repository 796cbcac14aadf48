"""Clients' requests and responses, and the faults that were active at the time.

A history is a sequence of numbered events. Each call by a client is two of them, its invocation
and its return; a call precedes another iff its return has the smaller number, so that no two
events are ever "at the same time". Faults are recorded with the same numbers: a run in which no
fault overlapped an append has shown nothing, and `weakness` says so.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from rollbook.proto.errors import Outcome

Value = str | bytes | int
"""What one append carries; unique in its history, for example `writer-1:17`."""

NEVER: Final = 2**62  # Greater than the number of any event.
UNKNOWN_SHARE_MAX: Final = 0.30
DECISIVE_FAULTS_MIN: Final = 2


@dataclass(slots=True)
class Append:
    client: str
    value: Value
    invoked: int
    returned: int = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    position: int | None = None  # In the response; known exactly when APPLIED.
    why_unknown: str = "no answer by the end of the run"


@dataclass(slots=True)
class Read:
    """A linearizable read of one position; `value` None says that the log ends at or before it."""

    client: str
    position: int
    invoked: int
    returned: int = NEVER  # NEVER: it failed or has no answer yet, and so tells nothing.
    value: Value | None = None


@dataclass(slots=True)
class Tail:
    """A linearizable read of the log's length."""

    client: str
    invoked: int
    returned: int = NEVER
    length: int = 0


@dataclass(slots=True)
class Delivery:
    """A record handed to a reader that follows the log; it may lag, but not skip or go back."""

    reader: str
    position: int
    value: Value
    returned: int


@dataclass(slots=True)
class Call:
    """Any step of a protocol that takes time, and that faults can meet."""

    step: str
    invoked: int
    returned: int = NEVER


@dataclass(slots=True)
class Disturbance:
    kind: str
    target: str
    began: int
    ended: int = NEVER


class History:
    """Records a run. One list append per event, so it may stay on while speed is measured."""

    def __init__(
        self, now: Callable[[], float] = lambda: 0.0, decisive: Sequence[str] = ()
    ) -> None:
        self.appends: list[Append] = []
        self.reads: list[Read] = []
        self.tails: list[Tail] = []
        self.deliveries: list[Delivery] = []
        self.calls: list[Call] = []
        self.disturbances: list[Disturbance] = []
        self._now = now
        self._decisive = decisive
        self._times: list[float] = []

    def _event(self) -> int:
        self._times.append(self._now())
        return len(self._times)

    def time_of(self, event: int) -> float:
        """Seconds of the run's clock, for people."""
        return self._times[event - 1]

    # --- Appends ------------------------------------------------------------------------------

    def append(self, client: str, value: Value) -> Append:
        operation = Append(client, value, self._event())
        self.appends.append(operation)
        return operation

    def on_applied(self, append: Append, position: int) -> None:
        append.returned, append.outcome = self._event(), Outcome.APPLIED
        append.position, append.why_unknown = position, ""

    def on_refused(self, append: Append) -> None:
        """The client was promised that it did not and never will take effect."""
        append.returned, append.outcome = self._event(), Outcome.NOT_APPLIED
        append.why_unknown = ""

    def on_unknown(self, append: Append, why: str) -> None:
        """The client gave up; the append may still take effect at any later time."""
        append.returned, append.why_unknown = self._event(), why

    # --- Reads --------------------------------------------------------------------------------

    def read(self, client: str, position: int) -> Read:
        operation = Read(client, position, self._event())
        self.reads.append(operation)
        return operation

    def on_read(self, read: Read, value: Value | None) -> None:
        read.returned, read.value = self._event(), value

    def tail(self, client: str) -> Tail:
        operation = Tail(client, self._event())
        self.tails.append(operation)
        return operation

    def on_tail(self, tail: Tail, length: int) -> None:
        tail.returned, tail.length = self._event(), length

    def deliver(self, reader: str, position: int, value: Value) -> None:
        self.deliveries.append(Delivery(reader, position, value, self._event()))

    # --- Other steps --------------------------------------------------------------------------

    def call(self, step: str) -> Call:
        call = Call(step, self._event())
        self.calls.append(call)
        return call

    def on_answered(self, call: Call) -> None:
        call.returned = self._event()

    # --- Faults -------------------------------------------------------------------------------

    def disturb(self, kind: str, target: str) -> Disturbance:
        disturbance = Disturbance(kind, target, self._event())
        self.disturbances.append(disturbance)
        return disturbance

    def on_healed(self, disturbance: Disturbance) -> None:
        disturbance.ended = self._event()

    # --- What the run is worth ----------------------------------------------------------------

    def unknowns(self) -> Iterator[Append]:
        return (append for append in self.appends if append.outcome is Outcome.UNKNOWN)

    def weakness(self) -> str | None:
        """Why this run proves too little to count as passed, or None."""
        if not self.appends:
            return "no appends"
        unknown = sum(1 for _ in self.unknowns())
        if unknown > UNKNOWN_SHARE_MAX * len(self.appends):
            return f"{unknown} of {len(self.appends)} appends have an unknown outcome"
        if not any(self.overlapped().values()):
            return "no fault overlapped an append"
        if self.is_decisive() is False:
            return f"no two faults overlapped a {' or a '.join(self._decisive)}"
        return None

    def is_decisive(self) -> bool | None:
        """Whether faults enough were in force during one of the decisive steps; None if there are none."""
        if not self._decisive:
            return None
        return any(
            sum(
                fault.began < call.returned and fault.ended > call.invoked
                for fault in self.disturbances
            )
            >= DECISIVE_FAULTS_MIN
            for call in self.calls
            if call.step in self._decisive
        )

    def overlapped(self) -> dict[str, int]:
        """By kind of fault: how many of its occurrences overlapped an append."""
        appends = sorted((a.invoked, a.returned) for a in self.appends)
        starts = [invoked for invoked, _ in appends]
        last_returns = list(accumulate((returned for _, returned in appends), max))
        counts: dict[str, int] = {}
        for disturbance in self.disturbances:
            # Of the appends invoked before the fault ended: did one return after it began?
            before = bisect_right(starts, disturbance.ended)
            hit = before > 0 and last_returns[before - 1] > disturbance.began
            counts[disturbance.kind] = counts.get(disturbance.kind, 0) + hit
        return counts

    def met(self) -> dict[tuple[str, str], int]:
        """By kind of fault and step: how many of these steps were under way while one was in force."""
        steps = [(call.step, call.invoked, call.returned) for call in self.calls]
        steps += [("add", append.invoked, append.returned) for append in self.appends]
        counts: dict[tuple[str, str], int] = {}
        for fault in self.disturbances:
            for step, invoked, returned in steps:
                if invoked < fault.ended and returned > fault.began:
                    key = (fault.kind, step)
                    counts[key] = counts.get(key, 0) + 1
        return counts

    def lines(self) -> Iterator[str]:
        """The history as people read it: one line per call and fault, in order of invocation."""
        told = [(a.invoked, self._describe_append(a)) for a in self.appends]
        told += [
            (
                r.invoked,
                f"{r.client} reads {r.position}: {'nothing' if r.value is None else repr(r.value)}",
            )
            for r in self.reads
            if r.returned != NEVER
        ]
        told += [
            (t.invoked, f"{t.client} asks for the length: {t.length}")
            for t in self.tails
            if t.returned != NEVER
        ]
        told += [
            (d.returned, f"{d.reader} is handed {d.value!r} at {d.position}")
            for d in self.deliveries
        ]
        told += [
            (d.began, f"fault: {d.kind} {d.target}{self._until(d.ended)}")
            for d in self.disturbances
        ]
        for event, text in sorted(told):
            yield f"{self.time_of(event):9.4f}s {text}"

    def _describe_append(self, append: Append) -> str:
        what = f"{append.client} appends {append.value!r}{self._until(append.returned)}"
        if append.outcome is Outcome.APPLIED:
            return f"{what}: position {append.position}"
        if append.outcome is Outcome.NOT_APPLIED:
            return f"{what}: refused"
        return f"{what}: unknown, {append.why_unknown}"

    def _until(self, event: int) -> str:
        return "" if event == NEVER else f" until {self.time_of(event):.4f}s"
