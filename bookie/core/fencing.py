"""THE fencing rule: which facts about a ledger a bookie keeps besides its entries, and which adds
it refuses.

A fence is never lifted (B4). A fence takes effect when its request arrives, so that later adds are
refused, but it is acknowledged only once it is durable. A fence does not stop the adds of a
recovery. A deleted ledger stays fenced until it may be forgotten: a late add must not bring it
back. A ledger whose entries were dropped keeps its key and its fence, and accepts a recovery's adds
as before.

The first request about a ledger sets its key; after that, a request with another key is refused. If
damage destroyed the key of a ledger, the next key that is shown is accepted.

An add is refused for the first of these reasons that applies:

    BookieReadOnly  the bookie is read-only; an urgent add passes while the reserve of disk space has room
    BookieReadOnly  fences of any ledger may have been lost on this bookie; adds of a recovery pass
    Overloaded      too many bytes wait for the journal; a recovery or an urgent add may queue twice as many
    Unauthorized    the key differs from the first one that was shown
    LedgerFenced    the ledger was deleted; or it is fenced, and the add does not come from a recovery
    Overloaded      the bookie is still finding out whether the ledger was deleted
    BookieReadOnly  the ledger is older than a loss of fences (B13); adds of a recovery pass

A format fences the ledgers that the bookie doubts, although perhaps nobody fenced them. The writer
of such a ledger then stops, and its log begins a segment with all copies. If the bookie were only
read-only for that writer and no other bookie could take its place, the ledger would go on with one
copy less.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from rollbook.proto.errors import (
    BookieReadOnly,
    LedgerFenced,
    NoSuchLedger,
    Overloaded,
    Unauthorized,
)
from rollbook.proto.ids import NO_ENTRY
from rollbook.proto.wire.add_columns import AddGroup
from rollbook.proto.wire.messages import Failure


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """The durable facts about a ledger: what the journal and the catalog say."""

    ledger_key: bytes | None = None
    is_fenced: bool = False
    lac_packet: bytes | None = None  # The explicit LAC in the form in which its writer packed it.
    lac_of_packet: int = NO_ENTRY
    deleted_ms: int | None = None  # Wall time of the deletion.
    # The journal file with the DROP of the ledger's entries: entries in older logs are dead. 0:
    # never.
    dropped_in: int = 0

    def with_key(self, ledger_key: bytes) -> Self:
        return self if self.ledger_key is not None else replace(self, ledger_key=ledger_key)

    def with_fence(self) -> Self:
        return replace(self, is_fenced=True)

    def with_lac_packet(self, last_add_confirmed: int, packet: bytes) -> Self:
        """Replaces the explicit LAC; one that is older than the present one changes nothing."""
        if self.lac_packet is not None and last_add_confirmed < self.lac_of_packet:
            return self
        return replace(self, lac_packet=packet, lac_of_packet=last_add_confirmed)

    def with_deletion(self, wall_ms: int) -> Self:
        """Keeps only what is needed to refuse late requests."""
        return replace(
            self,
            is_fenced=True,
            lac_packet=None,
            lac_of_packet=NO_ENTRY,
            deleted_ms=wall_ms,
            dropped_in=0,
        )

    def with_drop(self, journal: int) -> Self:
        """Drops the entries; entries that are added after this journal file's record count again."""
        return replace(self, dropped_in=journal)


class Ledger:
    """The present state of one ledger: durable facts and pending changes."""

    __slots__ = (
        "deletion_is_wanted",
        "facts",
        "fence_is_wanted",
        "is_suspect",
        "last_add_confirmed",
        "ledger_id",
        "received_lac",
        "shown_key",
    )

    def __init__(self, ledger_id: int, facts: LedgerFacts) -> None:
        self.ledger_id = ledger_id
        self.facts = facts
        # The key of the first accepted request, whether it is durable yet or not.
        self.shown_key = facts.ledger_key
        self.fence_is_wanted = facts.is_fenced
        self.deletion_is_wanted = self.is_deleted
        self.is_suspect = False  # The bookie is finding out whether the ledger was deleted.
        self.last_add_confirmed: int = facts.lac_of_packet  # The highest LAC that is durable here.
        # The highest LAC received, durable or not: the ledger's LAC is at least this high.
        self.received_lac: int = facts.lac_of_packet

    def on_facts(self, facts: LedgerFacts) -> None:
        """Takes facts that have become durable."""
        assert facts.is_fenced or not self.facts.is_fenced, "B4: a fence was lifted"
        self.facts = facts

    @property
    def is_deleted(self) -> bool:
        return self.facts.deleted_ms is not None

    def refusal_of_add(self, ledger_key: bytes, *, is_recovery: bool) -> Failure:
        if self.shown_key is not None and ledger_key != self.shown_key:
            return Unauthorized
        if self.deletion_is_wanted or (self.fence_is_wanted and not is_recovery):
            return LedgerFenced
        # The answer is `Overloaded`, not `LedgerFenced`, because the ledger may not be deleted and
        # its writer goes on.
        if self.is_suspect:
            return Overloaded
        return None

    def refusal_of_control(self, ledger_key: bytes) -> Failure:
        """Returns why a fencing request or an explicit LAC is refused; None if it is not."""
        if self.is_deleted:
            return NoSuchLedger
        if self.shown_key is not None and ledger_key != self.shown_key:
            return Unauthorized
        return None

    @property
    def is_at_rest(self) -> bool:
        """Returns whether all facts are durable and no change is pending."""
        return (
            self.shown_key == self.facts.ledger_key
            and self.fence_is_wanted == self.facts.is_fenced
            and self.deletion_is_wanted == self.is_deleted
            and not self.is_suspect
        )

    def show_key(self, ledger_key: bytes) -> None:
        if self.shown_key is None:
            self.shown_key = ledger_key

    def on_lac(self, last_add_confirmed: int) -> bool:
        """Takes the LAC of an accepted add. Returns whether it is higher than any before.

        The LAC is right even if the add fails, because the entries that it covers were confirmed.
        Therefore requests that wait for the LAC are answered at once. A decision must use the
        durable LAC.
        """
        if last_add_confirmed <= self.received_lac:
            return False
        self.received_lac = last_add_confirmed
        return True

    def on_durable_lac(self, last_add_confirmed: int) -> bool:
        """Takes a LAC that is durable here. Returns whether it is higher than any before."""
        if last_add_confirmed <= self.last_add_confirmed:
            return False
        self.last_add_confirmed = last_add_confirmed
        self.on_lac(last_add_confirmed)
        return True


class AddLimits(NamedTuple):
    """The present state of a bookie that decides which adds it refuses, made for one stretch of
    adds."""

    is_read_only: bool
    takes_urgent: (
        # True if the reserve of disk space has room for urgent adds, though the bookie is
        # read-only.
        bool
    )
    may_have_lost_fences: bool  # True if fences of any ledger may have been lost.
    old_below: int  # Fences of ledgers with lower ids may have been lost (B13).
    queued_bytes: int  # Bytes that wait for the journal, including this stretch.
    queued_bytes_max: int

    def refusal_of_group(self, group: AddGroup) -> Failure:
        """Returns the refusal that holds for any ledger, or None."""
        # A recovery that is not urgent does not get the reserve: copies can be made on other bookies.
        if self.is_read_only and not (group.is_high_priority and self.takes_urgent):
            return BookieReadOnly
        if self.may_have_lost_fences and not group.is_recovery:
            return BookieReadOnly  # Urgent adds are refused, too: the ledger may have been fenced.
        # Recoveries and urgent adds may queue twice as many bytes: other adds must not starve them.
        is_urgent = group.is_recovery or group.is_high_priority
        if self.queued_bytes > self.queued_bytes_max << is_urgent:
            return Overloaded
        return None

    def refusal_of_add(self, group: AddGroup, ledger: Ledger) -> Failure:
        refusal = ledger.refusal_of_add(group.ledger_key, is_recovery=group.is_recovery)
        if refusal is None and ledger.ledger_id < self.old_below and not group.is_recovery:
            return BookieReadOnly  # The writer replaces this bookie with another one.
        return refusal
