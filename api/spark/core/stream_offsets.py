"""A stream's progress: the offsets that Spark keeps in its checkpoint, and the rules for continuing from
them.

    {"v": 1, "start": "latest"}                                      before the first batch
    {"v": 1, "from": {"ns/log": [uid, first]},                       the end of a batch: the start of each log that
             "logs": {"ns/log": [uid, next]}}                        it reads, and the end of every log

Spark asks for the initial offset twice, and again after a crash in the first batch. The initial offset is
therefore the text of the options, which never changes. The end of the first batch resolves it, and includes
the start of its batch, so that Spark's own checkpoint has the start (SK1). Every end includes the start of
its batch, since logs may appear in any batch. A log without new records is named only once, so that idle logs
cost little. A uid distinguishes a log from another one that was created later with the same name, where the same
offset means another record (SK2).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from rollbook.logservice import messages
from rollbook.proto.errors import (
    InvalidRequest,
    LogDataLoss,
    LogDeleted,
    LogReplaced,
    RollbookError,
    UnsupportedVersion,
)

VERSION: Final = 1
TOLERATE: Final = "to go on without these records, set failOnDataLoss=false"


class Point(NamedTuple):
    """The next record to read from the log that has this uid."""

    uid: str
    next: int


class TailPoint(NamedTuple):
    """The head and the tail of a log, as its server knows them."""

    uid: str
    head: int
    tail: int
    is_sealed: bool = False

    @classmethod
    def of(cls, found: messages.LogTail | messages.TailOfLog) -> Self:
        return cls(found.uid, found.head, found.tail, found.is_sealed)


Points = Mapping[str, Point]


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """An offset that Spark stores. `starts` has the start of each log that the batch reads, and `ends` the end of every
    log.
    """

    starts: Points
    ends: Points

    @classmethod
    def of(cls, starts: Points, ends: Points) -> Self:
        return cls({name: at for name, at in starts.items() if at.next < ends[name].next}, ends)

    def packed(self) -> dict[str, Any]:
        return {"v": VERSION, "from": _packed(self.starts), "logs": _packed(self.ends)}


def _packed(points: Points) -> dict[str, list[str | int]]:
    return {name: list(points[name]) for name in sorted(points)}


def initial(start: str) -> dict[str, Any]:
    return {"v": VERSION, "start": start}


def unpack(offset: Mapping[str, Any]) -> BatchEnd | None:
    """Parses an offset. Returns None for an offset before the first batch. Raises `UnsupportedVersion`,
    `InvalidRequest`.
    """
    version = offset.get("v")
    if isinstance(version, int) and version > VERSION:
        raise UnsupportedVersion(
            f"the checkpoint was written by a newer release: version {version}, and this one reads {VERSION}",
            next_step="install that release again, or start with another checkpointLocation",
        )
    if version != VERSION:
        raise InvalidRequest(f"{str(offset)[:120]} is not an offset of this source")
    if "start" in offset:
        return None
    try:
        starts, ends = (
            {name: Point(str(uid), int(at)) for name, (uid, at) in offset[which].items()}
            for which in ("from", "logs")
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidRequest(f"{str(offset)[:120]} is not an offset of this source") from None
    return BatchEnd(starts, ends)


def moved(known: Points, tails: Mapping[str, TailPoint]) -> list[str]:
    """Returns, in order, the logs that are new, have new records, or were deleted or replaced. All other logs end
    where the last batch ended.
    """
    found = [
        name
        for name, tail in tails.items()
        if (point := known.get(name)) is None
        or tail.tail > point.next
        or (tail.uid != point.uid and tail.uid and point.uid)
    ]
    found += [name for name in known if name not in tails]
    return sorted(found)


def idle_wait_s(logs: int) -> float:
    """Returns how long a trigger waits if there are no new records, so that an idle query takes at most 2 % of a
    processor.

    Spark takes about 16 ms for each trigger, and 8 ms more for each thousand logs.
    """
    return 0.95 + 0.0004 * logs


class Beginning(NamedTuple):
    """The start of the next batch, and an error for each loss that this start skips."""

    starts: dict[str, Point]
    losses: list[RollbookError]


def begin(known: Points, tails: Mapping[str, TailPoint]) -> Beginning:
    """Returns the start of the next batch, which is the end of the last one. Logs that the last batch did not know
    start at their heads (SK3).
    """
    starts: dict[str, Point] = {}
    losses: list[RollbookError] = []
    for name in sorted({**known, **tails}):
        tail, point = tails.get(name), known.get(name)
        if tail is None:
            assert point is not None
            losses.append(deleted(name, point))
        elif point is None:
            starts[name] = Point(tail.uid, tail.head)
        elif point.uid and tail.uid and point.uid != tail.uid:
            losses.append(replaced(name, point, tail))
            starts[name] = Point(tail.uid, tail.head)
        elif point.next < tail.head:
            losses.append(truncated(name, point.next, tail.head, tail))
            starts[name] = Point(tail.uid, tail.head)
        else:
            starts[name] = Point(tail.uid or point.uid, point.next)
    return Beginning(starts, losses)


def ends_of(starts: Points, ends: Mapping[str, int]) -> dict[str, Point]:
    return {name: Point(point.uid, ends.get(name, point.next)) for name, point in starts.items()}


# --- Losses ----------------------------------------------------------------------------------


def truncated(log: str, start: int, end: int, tail: TailPoint | None) -> RollbookError:
    bounds = {"head": tail.head, "tail": tail.tail} if tail else {}
    return LogDataLoss(
        f"records [{start}, {end}) of {log} were truncated before they were read",
        next_step=f"{TOLERATE}; a protected cursor prevents truncation",
        log=log,
        **bounds,
    )


def deleted(log: str, point: Point) -> RollbookError:
    return LogDeleted(
        f"{log} was deleted; this query has read it up to {point.next}",
        next_step="to go on without it, set failOnDataLoss=false",
        log=log,
        uid=point.uid,
    )


def replaced(log: str, point: Point, tail: TailPoint) -> RollbookError:
    return LogReplaced(
        f"{log} was deleted and created again; offset {point.next} belongs to the deleted log",
        next_step="to continue at the head of the new log, set failOnDataLoss=false",
        log=log,
        uid=point.uid,
        now=tail.uid,
        head=tail.head,
        tail=tail.tail,
    )
