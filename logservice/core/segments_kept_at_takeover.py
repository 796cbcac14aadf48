"""Decides which segments at the end of a log a new owner keeps, and which it discards.

    list     … P ── N ── N+1       at most the last two are unclosed (LS3)
                    │     │
    fence and recover both, to CLOSED: nothing is decided before (LS2)
                    │     │
                    │     └─ its first entry: "I follow N, which ends at entry 41"
                    └─ CLOSED at 41?   yes: all of N+1 counts.   no: all of N+1 is discarded

Nothing in N+1 was acked unless its writer had seen N CLOSED at 41. A ledger is closed only once, so a
ledger is discarded only if none of its entries was acked. A ledger without an entry does not count and is
discarded, too. If N is CLOSED in the list, the server that wrote this had found N closed, and had decided
whether N+1 counts, so only N+1 is fenced and recovered.

The compare-and-set that lists the new owner's ledger fails if another server has changed the list since it was
read. A server that has already fenced the ledgers must not give up because of that: the other server might
give up, too. It gives up only if the list names a newer owner; otherwise it retries after a random, growing
pause.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rollbook.logservice.core.control_blocks import Follows
from rollbook.logservice.core.ledger_list import LedgerList, ListedSegmentState, Segment
from rollbook.logservice.ids import OwnerEpoch
from rollbook.proto.ids import NO_ENTRY, EntryId
from rollbook.proto.ports import Randomness

_PAUSE_S_MIN: Final = 0.02
_PAUSE_S_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A ledger that was fenced and recovered, or was closed before."""

    segment: Segment
    last_entry: EntryId
    follows: Follows | None  # What the first entry says; None: no entry, or it was not read.
    bytes: int


def to_end(log: LedgerList) -> Sequence[Segment]:
    """The segments that a new owner has to fence, recover and read."""
    last_two = log.segments[-2:]
    assert all(each.is_closed for each in log.segments[:-2]), "LS3: three ledgers are unclosed"
    is_settled = len(last_two) == 2 and last_two[0].state is ListedSegmentState.CLOSED
    return last_two[1:] if is_settled else last_two


def counts(before: Ended | None, last: Ended) -> bool:
    """Return whether the last ledger is a part of the log. `before`: the previous ledger; None if it is
    CLOSED in the list, or there is no previous ledger.
    """
    if before is None or last.last_entry == NO_ENTRY:
        return last.last_entry != NO_ENTRY
    return last.follows is not None and (last.follows.ledger_id, last.follows.last_entry) == (
        before.segment.ledger_id,
        before.last_entry,
    )


def judge(ended: Sequence[Ended]) -> tuple[Sequence[Ended], Sequence[Ended]]:
    """The ledgers that count, and the ledgers to discard, both in order (LS2)."""
    count = 0
    while count < len(ended) and counts(ended[count - 1] if count else None, ended[count]):
        count += 1
    return ended[:count], ended[count:]


def stands_down(fenced_epoch: OwnerEpoch, listed_epoch: OwnerEpoch) -> bool:
    """Return whether a server may give up a log that it fenced at `fenced_epoch` and has not taken over."""
    return listed_epoch > fenced_epoch


def pause_s(attempt: int, randomness: Randomness) -> float:
    """The pause after this many attempts to take a log over; random, so that two servers do not stay in step."""
    longest = min(_PAUSE_S_MIN * 2.0 ** min(attempt, 16), _PAUSE_S_MAX)
    return longest * (0.25 + 0.75 * randomness.random())
