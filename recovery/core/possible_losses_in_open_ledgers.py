"""Rules for a bookie's possible losses in a ledger that is not closed.

While a ledger is open, no entry of its open fragment can be "not needed" (`core/entries_to_restore.py`), since its end
is unknown. What is done, the first row that fits:

    nothing of the ledger is in doubt                  nothing: its writer replaces bookies that fail
    only confirmed entries are in doubt                heal them, beside the writer
    writers are spared, no writer has claimed it       settle everything: it has no entries
    writers are spared, its open fragment does not     heal the earlier fragments, beside the writer
    name the bookie
    writers are spared, and it may not be closed       wait until it is closed
    else                                               close it by recovery, and heal it

If the doubt itself prevents recovery from closing the ledger, a person can give up the doubt about the open fragment by
name, but no other doubt about that ledger (`rest_to_give_up`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, NamedTuple

from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId
from rollbook.proto.metadata import ENTRY_ID_MAX, LedgerMetadata, LedgerState
from rollbook.recovery.core.entry_spans import EntrySpan, intersection


@dataclass(frozen=True, slots=True)
class Writers:
    """The treatment of a ledger that may have a writer."""

    # True: OPEN ledgers are not closed, unless `are_to_have_left`.
    are_spared: bool = False
    # True: a spared OPEN ledger is closed if its open end names a bookie that writers should have left.
    are_to_have_left: bool = False


NO_SPARED_WRITERS: Final = Writers()


class OpenLedgerAction(Enum):
    LEAVE = auto()
    SETTLE_ALL = auto()
    HEAL_BESIDE_WRITER = auto()
    WAIT = auto()
    CLOSE = auto()


class OpenLedgerDecision(NamedTuple):
    action: OpenLedgerAction
    healable: LedgerMetadata | None = (
        None  # HEAL_BESIDE_WRITER: the part to heal, as a closed ledger.
    )


@dataclass(frozen=True, slots=True)
class OpenLedgerDoubts:
    """What a bookie doubts about a ledger that is not closed, and what is known of the ledger's writer."""

    metadata: LedgerMetadata
    bookie: BookieId
    is_doubted: bool  # False: the bookie names no entry of it, and does not doubt everything.
    is_wholly_doubted: bool
    is_unclaimed: bool  # True: it was created in advance, and has no writer yet.
    refuses_writer: bool  # True: the bookie refuses entries of the ledger's writer.

    def decide(self, confirmed: LedgerMetadata | None, writers: Writers) -> OpenLedgerDecision:
        """Return what to do. `confirmed` is the result of `as_if_closed`."""
        if not self.is_doubted:
            return OpenLedgerDecision(OpenLedgerAction.LEAVE)
        if confirmed is not None:
            return OpenLedgerDecision(OpenLedgerAction.HEAL_BESIDE_WRITER, confirmed)
        if not writers.are_spared:
            return OpenLedgerDecision(OpenLedgerAction.CLOSE)
        if self.is_unclaimed:
            return OpenLedgerDecision(OpenLedgerAction.SETTLE_ALL)
        earlier = before_open_end(self.metadata, self.bookie)
        if earlier is not None:
            return OpenLedgerDecision(OpenLedgerAction.HEAL_BESIDE_WRITER, earlier)
        may_close = self._may_close(writers)
        return OpenLedgerDecision(OpenLedgerAction.CLOSE if may_close else OpenLedgerAction.WAIT)

    def _may_close(self, writers: Writers) -> bool:
        """Return whether a spared ledger may be closed. A ledger in recovery may always be closed, since it has
        no writer any longer.
        """
        if self.metadata.state is not LedgerState.OPEN:
            return True
        return writers.are_to_have_left and (self.is_wholly_doubted or self.refuses_writer)


def as_if_closed(
    metadata: LedgerMetadata, lac: EntryId, doubted: Sequence[EntrySpan]
) -> LedgerMetadata | None:
    """Return metadata that settles the doubts about an open ledger without closing it, or None if not all are
    about confirmed entries. A doubt about the explicit LAC cannot be settled: readers use it while the ledger
    is open.
    """
    if metadata.state is not LedgerState.OPEN or not doubted:
        return None
    if doubted[0].first_entry <= NO_ENTRY or doubted[-1].last_entry > lac:
        return None
    return replace(metadata, state=LedgerState.CLOSED, last_entry=lac, length=0)


def before_open_end(metadata: LedgerMetadata, bookie: BookieId) -> LedgerMetadata | None:
    """Return metadata of a ledger as if it ended before its open fragment, or None if the open fragment names
    the bookie. If the writer has left the bookie, the bookie's answers about later entries do not count.
    """
    if metadata.state is not LedgerState.OPEN or bookie in metadata.fragments[-1].ensemble:
        return None
    last = EntryId(metadata.fragments[-1].first_entry - 1)
    fragments = metadata.fragments[:-1]
    closed = LedgerState.CLOSED
    return replace(metadata, state=closed, fragments=fragments, last_entry=last, length=0)


def rest_to_give_up(
    metadata: LedgerMetadata, doubted: Sequence[EntrySpan], accepted: Sequence[EntrySpan]
) -> list[EntrySpan]:
    """Return the ranges that recovery may count as absent in a ledger that cannot be closed otherwise.

    Earlier fragments are excluded: their entries were confirmed, and each of them is later restored or found
    to be lost.
    """
    assert not metadata.is_closed
    rest = EntrySpan(metadata.fragments[-1].first_entry, ENTRY_ID_MAX)
    return intersection(intersection(doubted, accepted), [rest])
