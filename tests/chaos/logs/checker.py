"""Judges the responses that clients of logs got, in a run in which owners could die, hang, or be replaced.

- **linearizable**: `simulation/checkers/log.py` decides, log by log: no acked record is lost, appended
  twice, or placed before a record that was acked before it was handed over; no hole; no refused record
  is in the log; all readers read the same at any time; each reader sees every offset, in order.
- **order** (SV5): the records of a writer are in the log in the order in which it was given them, and none is
  missing before another one.
- **retry**: a batch that is sent again gets its first offsets.
- **condition**: a record that was acked with an expected offset has that offset.
- **prefix**: a reader gets every offset from where it begins, except for reported gaps.
- **gap**: readers miss only records that a client asked to truncate.
- **end**: every log was sealed, all clients learned the same end, and all of it was read.
- **thaw**: an owner that was stopped for longer than its lease acks no append that was handed over later.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final, NamedTuple

from rollbook.proto.errors import Outcome
from tests.chaos.logs.history import Event
from tests.simulation.checkers.log import check_log
from tests.simulation.history import Append, Delivery, History, Tail

_SHOWN_MAX: Final = 5  # The most violations shown for one rule in one log.


class Freeze(NamedTuple):
    """A server process was stopped."""

    server_id: str
    from_ns: int
    to_ns: int


class Opened(NamedTuple):
    log: str
    epoch: int
    server_id: str
    at_ns: int
    reason: str


class Acked(NamedTuple):
    at_ns: int
    invoked_ns: int
    epoch: int | None


@dataclass(slots=True)
class Judgement:
    violations: list[str] = field(default_factory=list)
    operations: int = 0
    appended: int = 0
    acked: int = 0
    refused: int = 0
    shown: int = 0
    repeated: int = 0
    frozen: int = 0
    acks: dict[str, list[Acked]] = field(default_factory=lambda: defaultdict(list))
    opened: list[Opened] = field(default_factory=list)

    @property
    def unknown_share(self) -> float:
        return (self.appended - self.acked - self.refused) / max(1, self.appended)


class _Log:
    """The responses of all clients about one log."""

    def __init__(self, name: str, judgement: Judgement) -> None:
        self._name = name
        self._judgement = judgement
        self._history = History()
        self._appends: dict[str, Append] = {}
        self._expected: dict[str, int] = {}
        self._first_offsets: dict[str, list[int]] = {}
        self._places: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        self._readings: dict[str, int] = {}
        self._next: dict[str, int] = {}  # The next offset of each reader that has begun.
        self._truncated: list[tuple[int, int]] = []
        self._gaps: list[tuple[int, int, str]] = []
        self._ends: dict[int, str] = {}
        self._is_audited = False
        self._broken: dict[str, int] = defaultdict(int)

    def _break(self, rule: str, text: str) -> None:
        self._broken[rule] += 1
        if self._broken[rule] <= _SHOWN_MAX:
            self._judgement.violations.append(f"{rule}: {self._name}: {text}")

    def hear(self, event: Event) -> None:
        told, judgement = event.told, self._judgement
        match event.kind:
            case "append":
                for name in _names(event):
                    append = Append(event.who, name, event.at_ns)
                    self._appends[name] = append
                    self._history.appends.append(append)
                judgement.appended += told["count"]
                if (expect := told.get("expect")) is not None:
                    self._expected[_first(event)] = expect
            case "acked":
                self._on_acked(event)
            case "again":
                judgement.repeated += 1
                if self._first_offsets[_first(event)] != told["offsets"]:
                    before = self._first_offsets[_first(event)]
                    self._break("retry", f"{_first(event)}: {before}, then {told['offsets']}")
            case "refused" | "unknown":
                for name in _names(event):
                    append = self._appends[name]
                    append.returned, append.why_unknown = event.at_ns, told["why"]
                    if event.kind == "refused":
                        append.outcome = Outcome.NOT_APPLIED
                        judgement.refused += 1
            case "truncate":
                self._truncated.append((event.at_ns, told["before"]))
            case "asked":
                self._asked[event.who] = event.at_ns
            case "tail":
                asked = self._asked[event.who]
                self._history.tails.append(Tail(event.who, asked, event.at_ns, told["tail"]))
            case _:
                self._on_reader(event)

    def _on_acked(self, event: Event) -> None:
        told, names = event.told, _names(event)
        self._first_offsets[names[0]] = told["offsets"]
        for name, offset in zip(names, told["offsets"], strict=True):
            append = self._appends[name]
            append.returned, append.outcome = event.at_ns, Outcome.APPLIED
            append.position, append.why_unknown = offset, ""
            self._places[name] = offset
            self._judgement.acked += 1
        expect = self._expected.get(names[0], told["offsets"][0])
        if told["offsets"][0] != expect:
            self._break("condition", f"{names[0]} is at {told['offsets'][0]}, not at {expect}")
        acked = Acked(event.at_ns, self._appends[names[0]].invoked, told["epoch"])
        self._judgement.acks[self._name].append(acked)

    def _on_reader(self, event: Event) -> None:
        told = event.told
        reading = self._readings.setdefault(event.who, 0)
        match event.kind:
            case "begin":
                self._readings[event.who] += 1
                self._next.pop(event.who, None)
            case "read":
                self._advance(event.who, told["offset"], told["offset"] + len(told["names"]))
                reader = f"{event.who}#{reading}"
                for offset, name in enumerate(told["names"], told["offset"]):
                    delivery = Delivery(reader, offset, name or "", event.at_ns)
                    self._history.deliveries.append(delivery)
                    self._places.setdefault(name, offset)
                self._judgement.shown += len(told["names"])
            case "odd":
                self._break("contents", f"{event.who} reads {told['offset']} as nobody wrote it")
            case "gap":
                self._readings[event.who] += 1
                self._advance(event.who, told["start"], told["end"])
                self._gaps.append((event.at_ns, told["end"], told["why"]))
            case "sealed":
                self._ends.setdefault(told["tail"], event.who)
                self._advance(event.who, told["tail"], told["tail"])
            case "audited":
                self._is_audited = True
            case "owner":
                pass  # Checked for the run as a whole.
            case _:
                raise ValueError(f"what is this: {event}")

    def _advance(self, who: str, start: int, end: int) -> None:
        expected = self._next.get(who, start)
        if start != expected:
            self._break("prefix", f"{who} is shown {start}, not {expected}")
        self._next[who] = end

    def end(self) -> None:
        self._judgement.operations += len(self._history.appends) + len(self._history.tails)
        for anomaly in check_log(self._history):
            self._break("linearizable", str(anomaly))
        self._check_order()
        for at_ns, end, why in self._gaps:
            asked = max((before for when, before in self._truncated if when < at_ns), default=0)
            if why != "truncated" or end > asked:
                self._break("gap", f"{why} up to {end}, and {asked} was asked for")
        if len(self._ends) != 1 or not self._is_audited:
            self._break("end", f"sealed at {self._ends or 'no offset'}")
        for tail in self._ends:
            if beyond := [name for name, place in self._places.items() if place >= tail]:
                self._break("end", f"it ends at {tail}, and {beyond[0]} is behind that")

    def _check_order(self) -> None:
        """A writer whose first failure is its end leaves no hole; only truncation hides records."""
        known = sorted(self._places.values())
        streams: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for name, offset in self._places.items():
            stream, _, index = name.partition("/")
            if stream.partition("-")[0] == "writer":
                streams[stream].append((int(index), offset))
        for stream, places in streams.items():
            places.sort()
            before, last = -1, -1
            for number, offset in places:
                if offset <= last:
                    self._break("order", f"{stream}/{number} is at {offset}, behind {last}")
                seen = bisect_left(known, offset) - bisect_left(known, last + 1)
                if number != before + 1 and seen == offset - last - 1:
                    self._break("order", f"{stream}/{before + 1} is missing before {number}")
                before, last = number, offset


def _first(event: Event) -> str:
    return f"{event.told['stream']}/{event.told['first']}"


def _names(event: Event) -> list[str]:
    told = event.told
    count = told["count"] if "count" in told else len(told["offsets"])
    return [f"{told['stream']}/{told['first'] + index}" for index in range(count)]


def judge(
    events: Iterable[Event], freezes: Sequence[Freeze], lease_s: float, wall_ns: int
) -> Judgement:
    """`wall_ns` is how far the wall clock is ahead of the monotonic clock."""
    judgement = Judgement()
    logs: dict[str, _Log] = {}
    for event in events:
        if event.log not in logs:
            logs[event.log] = _Log(event.log, judgement)
        logs[event.log].hear(event)
        if event.kind == "owner":
            told = event.told
            at_ns = told["at_us"] * 1000 - wall_ns
            judgement.opened.append(
                Opened(event.log, told["epoch"], told["server"], at_ns, told["reason"])
            )
    for log in logs.values():
        log.end()
    _check_thaws(judgement, freezes, lease_s)
    return judgement


def _check_thaws(judgement: Judgement, freezes: Sequence[Freeze], lease_s: float) -> None:
    long = [each for each in freezes if each.to_ns - each.from_ns > lease_s * 1e9]
    for opened, freeze in product(judgement.opened, long):
        if opened.server_id != freeze.server_id or opened.at_ns > freeze.from_ns:
            continue
        judgement.frozen += _owner_at(judgement, opened.log, freeze.from_ns) == opened
        late = [
            ack
            for ack in judgement.acks[opened.log]
            if ack.epoch == opened.epoch
            and ack.invoked_ns > freeze.from_ns
            and ack.at_ns > freeze.to_ns
        ]
        if late:
            text = f"{opened.log}: {opened.server_id} acked {len(late)} as epoch {opened.epoch}"
            judgement.violations.append(f"thaw: {text}, after it had been stopped")


def _owner_at(judgement: Judgement, log: str, at_ns: int) -> Opened | None:
    before = (each for each in judgement.opened if each.log == log and each.at_ns <= at_ns)
    return max(before, key=lambda each: each.epoch, default=None)
