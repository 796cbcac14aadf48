"""Statistics of a run: faults, and the work that was going on during them."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tests.chaos.checker import Judgement
from tests.chaos.history import Event
from tests.chaos.plan import FaultKind

_WRITTEN: Final = ("append", "acked")


class Struck(NamedTuple):
    """A fault with its start and end."""

    kind: FaultKind
    from_ns: int
    to_ns: int


class _Spans:
    """Time spans; tells whether a moment or another span overlaps one of them."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin, end in sorted(spans):
            if self._ends and begin <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._begins.append(begin)
                self._ends.append(end)

    def overlaps(self, begin: int, end: int) -> bool:
        index = bisect_right(self._begins, end) - 1
        return index >= 0 and self._ends[index] >= begin


def recoveries(events: Iterable[Event]) -> list[tuple[int, int]]:
    """The span of each recovery: from its start to its end, its retry or its last event."""
    begun: dict[tuple[str, int], Event] = {}
    spans = []
    for event in events:
        if event.who.startswith("recoverer") and event.kind in ("closing", "closed"):
            if before := begun.pop((event.who, event.ledger_id), None):
                spans.append((before.at_ns, event.at_ns))
            if event.kind == "closing":
                begun[event.who, event.ledger_id] = event
    return spans + [(event.at_ns, event.at_ns) for event in begun.values()]


def describe(
    events: Sequence[Event],
    judgement: Judgement,
    struck: Sequence[Struck],
    starts: Mapping[str, int],
    open_at_healing: int,
    healed_after_s: float,
    closed_after_s: float,
) -> list[str]:
    faults = _Spans((fault.from_ns, fault.to_ns) for fault in struck)
    writing = _Spans((e.at_ns, e.at_ns) for e in events if e.kind in _WRITTEN)
    spans = recoveries(events)
    recovering = _Spans(spans)
    by_kind = Counter(fault.kind for fault in struck)
    rows = [f"{'fault':<36}{'times':>6}{'over appends':>14}{'over recoveries':>17}"]
    for kind in FaultKind:
        same = [fault for fault in struck if fault.kind is kind]
        if same:
            appends = sum(writing.overlaps(each.from_ns, each.to_ns) for each in same)
            closes = sum(recovering.overlaps(each.from_ns, each.to_ns) for each in same)
            rows.append(f"{kind.value:<36}{by_kind[kind]:>6}{appends:>14}{closes:>17}")
    under_faults = sum(
        each.last - each.first + 1
        for each in events
        if each.kind == "append" and faults.overlaps(each.at_ns, each.at_ns)
    )
    disturbed = sum(faults.overlaps(*span) for span in spans)
    in_turn = sorted(struck, key=lambda fault: fault.from_ns)
    pairs = sum(
        other.from_ns < one.to_ns
        for index, one in enumerate(in_turn)
        for other in in_turn[index + 1 :]
    )
    started_again = sum(starts.values()) - len(starts)
    unknown = f"{judgement.unknown_share:.1%}"
    return [
        *rows,
        f"{len(struck)} faults, {pairs} pairs of them at once, {started_again} processes started again",
        f"{judgement.appended:,} appends to {judgement.ledgers} ledgers, {under_faults:,} during a fault",
        f"{judgement.acked:,} acknowledged, {judgement.refused:,} refused, {unknown} unknown",
        f"{len(spans)} recoveries, {disturbed} during a fault",
        f"{judgement.read:,} entries shown, {judgement.verified_entries:,} verified copy by copy",
        f"everybody up again {healed_after_s:.1f} s after the last fault was over",
        f"{open_at_healing} ledgers were open then, the last one closed {closed_after_s:.1f} s after that",
    ]
