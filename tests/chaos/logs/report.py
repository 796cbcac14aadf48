"""Statistics of a run, and how long the logs of a killed owner were unavailable."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from tests.chaos.logs.checker import Judgement, Opened
from tests.chaos.logs.plan import LogFaultKind

_LOOKED_AT_NS: Final = (
    10**9
)  # Acks within this time before a kill count as the last ones before it.
_MS: Final = 1e6


class Struck(NamedTuple):
    kind: LogFaultKind
    target: str
    server_id: str  # The id of the log server process that was struck.
    from_ns: int
    to_ns: int


class Away(NamedTuple):
    """The outage of a log, from the death of its owner to the next ack."""

    log: str
    gap_ns: int  # From the last ack to the next.
    noticed_ns: int  # From the kill to the list that names the next owner.
    resumed_ns: int  # From there to the first ack.
    reason: str  # The reason that the next owner gave.


def describe(judgement: Judgement, struck: Sequence[Struck], settled_s: float) -> list[str]:
    kinds = Counter(each.kind for each in struck)
    overlapping = sum(
        other.from_ns < each.to_ns and each.from_ns < other.to_ns
        for index, each in enumerate(struck)
        for other in struck[index + 1 :]
    )
    faults = ", ".join(f"{count} x {kind.value}" for kind, count in kinds.items())
    return [
        f"{len(struck)} faults, {overlapping} pairs at once: {faults}",
        f"{judgement.appended:,} appends: {judgement.acked:,} acked, {judgement.refused:,} refused",
        f"{judgement.unknown_share:.1%} unknown; {judgement.repeated:,} batches sent once more",
        f"{judgement.frozen} times a log's owner was stopped for longer than its lease",
        f"{judgement.shown:,} records shown; {len(judgement.opened)} openings of logs",
        *_kills(judgement, struck),
        f"all sealed and audited {settled_s:.1f} s after healing",
    ]


def _kills(judgement: Judgement, struck: Sequence[Struck]) -> Iterator[str]:
    for kill in sorted(struck, key=lambda each: each.from_ns):
        if kill.kind is not LogFaultKind.KILL_SERVER:
            continue
        gaps = list(_gaps(judgement, kill))
        if not gaps:
            continue
        worst = max(gaps, key=lambda gap: gap.gap_ns)
        others = [each for each in struck if each is not kill and _overlaps(each, kill, worst)]
        beside = (
            ", ".join(f"{each.target} {each.kind.value}" for each in others) or "no other fault"
        )
        yield (
            f"{kill.target} killed, up again after {(kill.to_ns - kill.from_ns) / _MS:,.0f} ms at the "
            f"earliest; {len(gaps)} logs, longest append gap {worst.gap_ns / _MS:,.0f} ms "
            f"({worst.noticed_ns / _MS:,.0f} to refusals, fence, recovery and list; "
            f"{worst.resumed_ns / _MS:,.0f} from there to the first ack; {worst.reason}); {beside}"
        )


def _overlaps(each: Struck, kill: Struck, worst: Away) -> bool:
    return each.from_ns < kill.from_ns + worst.gap_ns and each.to_ns > kill.from_ns


def _gaps(judgement: Judgement, kill: Struck) -> Iterator[Away]:
    """The outages of the logs that the killed server owned."""
    for log, acks in judgement.acks.items():
        openings = sorted(
            (each for each in judgement.opened if each.log == log), key=lambda each: each.epoch
        )
        owner = _owner_at(openings, kill.from_ns)
        if owner is None or openings[owner].server_id != kill.server_id:
            continue
        if owner + 1 == len(openings):
            continue
        times = sorted(ack.at_ns for ack in acks)
        start = bisect_right(times, kill.from_ns - _LOOKED_AT_NS)
        next_at_ns = openings[owner + 1].at_ns
        around = [pair for pair in pairwise(times[start:]) if pair[0] <= next_at_ns <= pair[1]]
        for last, first in around[:1]:
            noticed = next_at_ns - kill.from_ns
            next_owner = openings[owner + 1]
            yield Away(log, first - last, noticed, first - next_at_ns, next_owner.reason)


def _owner_at(openings: Sequence[Opened], at_ns: int) -> int | None:
    index = bisect_right([each.at_ns for each in openings], at_ns) - 1
    return index if index >= 0 else None
