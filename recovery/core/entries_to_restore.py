"""Rules that decide which entries of a closed ledger a bookie must get back, and which ones it may deny
again.

A bookie that may have lost entries answers UNKNOWN for them, and each such answer delays every client that
counts answers. A doubt about an entry may end in three ways only (HL1):

    restored       it is there again, verified and durable
    not needed     no client will ever use that bookie's answer: the entry is after the end of a
                   closed ledger, in a fragment that does not name the bookie, outside the bookie's share,
                   or the explicit LAC of a ledger that is closed
    given up       a person has named the entry, knowing that it may be lost

`core/possible_losses_in_open_ledgers.py` decides what comes first if the ledger is not closed.

An entry is lost if no other member of its write set has a good copy, and no copy may still turn up.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from rollbook.ledger.core.copy_comparison import Copy, CopyState
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId
from rollbook.proto.metadata import ENTRY_ID_MAX, Fragment, LedgerMetadata
from rollbook.proto.quorum import Quorum
from rollbook.recovery.core.entry_spans import EntrySpan, covers

_MAY_TURN_UP: Final = (CopyState.UNKNOWN, CopyState.UNREACHABLE)
_FIRST_ENTRY: Final = attrgetter("first_entry")


class DoubtfulFragment(NamedTuple):
    """A range of entries in doubt: either all in one fragment, or all entries that the bookie should not
    hold.
    """

    first_entry: int
    last_entry: int
    fragment: Fragment | None  # None: the bookie should hold none of the entries.


def stretches(
    metadata: LedgerMetadata, bookie: BookieId, doubted: Iterable[EntrySpan]
) -> Iterator[DoubtfulFragment]:
    """Yield all doubts in order, split into ranges that are treated alike."""
    assert metadata.is_closed
    for first, last in doubted:
        while first <= last:
            fragment, end = _piece(metadata, bookie, first)
            yield DoubtfulFragment(first, min(end, last), fragment)
            first = end + 1


def _piece(
    metadata: LedgerMetadata, bookie: BookieId, first_entry: int
) -> tuple[Fragment | None, int]:
    """Return the fragment at this entry, or None if the bookie holds none of it, and the last entry for which
    the result is the same.
    """
    assert metadata.last_entry is not None
    if first_entry <= NO_ENTRY:
        return None, NO_ENTRY
    if first_entry > metadata.last_entry:
        return None, ENTRY_ID_MAX
    index = bisect_right(metadata.fragments, first_entry, key=_FIRST_ENTRY) - 1
    end = metadata.last_entry_of(index)
    assert end is not None
    fragment = metadata.fragments[index]
    return fragment if bookie in fragment.ensemble else None, min(end, metadata.last_entry)


def expected(
    quorum: Quorum, fragment: Fragment, bookie: BookieId, window: range
) -> Sequence[EntryId]:
    """Return the entries of the window that the bookie should hold."""
    if quorum.ensemble == quorum.write:
        return [EntryId(each) for each in window]
    slots = [slot for slot, member in enumerate(fragment.ensemble) if member == bookie]
    return [EntryId(e) for e in window if any(quorum.holds(slot, EntryId(e)) for slot in slots)]


@dataclass(slots=True)
class WindowReport:
    """The findings for the entries of one window."""

    settled: list[EntrySpan] = field(default_factory=list)  # Ranges whose doubt can be settled.
    # Entries that have no copy anywhere, and stay in doubt.
    lost: list[EntryId] = field(default_factory=list)
    # Entries that stay in doubt for now, with each member's answer.
    waiting: dict[EntryId, str] = field(default_factory=dict)
    given_up: list[EntryId] = field(default_factory=list)  # Entries whose loss a person accepted.


def judge(
    window: range,
    wanted: Iterable[EntryId],
    held: Collection[EntryId],
    said: Mapping[EntryId, Mapping[BookieId, Copy]],
    accepted: Sequence[EntrySpan],
) -> WindowReport:
    """Decide what to report for a window. `wanted` has the entries of the window that the bookie should hold,
    `held` the entries that it holds durably, and `said` the other members' answers about the rest.
    """
    found = WindowReport()
    first = window.start
    for entry_id in wanted:
        if entry_id in held:
            continue
        if covers(accepted, entry_id):
            found.given_up.append(entry_id)
            continue
        copies = said[entry_id]
        if any(isinstance(copy, int) or copy in _MAY_TURN_UP for copy in copies.values()):
            found.waiting[entry_id] = _describe(copies)
        else:
            found.lost.append(entry_id)
        if first < entry_id:
            found.settled.append(EntrySpan(first, entry_id - 1))
        first = entry_id + 1
    if first < window.stop:
        found.settled.append(EntrySpan(first, window.stop - 1))
    assert not any(covers(found.settled, each) for each in (*found.lost, *found.waiting)), (
        "HL1: a doubt about a missing entry ends"
    )
    return found


def _describe(copies: Mapping[BookieId, Copy]) -> str:
    states = {bookie: "good" if isinstance(c, int) else c.value for bookie, c in copies.items()}
    return ", ".join(f"{bookie}: {state}" for bookie, state in states.items())
