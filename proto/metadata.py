"""The metadata of a ledger, and every change that may be made to it.

A ledger is OPEN while its writer appends, IN_RECOVERY while another client finds out where it ends,
and then CLOSED. Its entries are in fragments: fragment `i` holds the entries from its
`first_entry` up to the next fragment's, on its ensemble; the last one is open-ended until the
ledger is closed.

Three parties change a ledger, each with its own methods. The methods check the state that was read
from the store, and raise an error if the change is not allowed in it:

    writer           with_writer_ensemble, with_close               only while OPEN            (LM2)
    recovery         with_recovery_started, with_recovery_closed    invisible before CLOSED     (LM3)
    re-replication   with_replacement                               never in an open fragment  (LM4)

Each method returns a new value, which the caller writes by compare-and-swap from the version that
was read. If the new value equals the old one, there is nothing to write.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from operator import attrgetter
from typing import Final, Self

from rollbook.proto.errors import LedgerClosed, LedgerFenced, MetadataConflict
from rollbook.proto.ids import FIRST_ENTRY, LEDGER_ID_MAX, NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.ports import Randomness
from rollbook.proto.quorum import Ensemble, Quorum
from rollbook.proto.wire.digest import DigestType

FORMAT_VERSION: Final = 3  # The format version of new ledgers; existing ledgers keep theirs.
ENTRY_ID_MAX: Final = EntryId(2**63 - 1)
LENGTH_MAX: Final = 2**63 - 1
_CREATION_TOKEN_END: Final = 2**63 - 1


class LedgerState(Enum):
    OPEN = "open"
    IN_RECOVERY = "in_recovery"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Fragment:
    first_entry: EntryId
    ensemble: Ensemble


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """The metadata of one ledger. Every change makes a new value, which is written by compare-and-swap."""

    ledger_id: LedgerId
    quorum: Quorum
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: EntryId | None = None  # Known exactly when CLOSED; NO_ENTRY if the ledger is empty.
    length: int | None = None  # The payload bytes of all entries; known exactly when CLOSED.
    # None if the ledger is too old to record the type; the client that opens it then has to know the type.
    digest_type: DigestType | None = None
    password: bytes | None = field(default=None, repr=False)
    custom: tuple[tuple[str, bytes], ...] = ()  # The application's own values, with distinct keys.
    created_ms: int | None = None  # None if only the node records the creation time.
    # If the reply to the creator was lost, this token shows the creator that it made the node. Java's
    # updates overwrite the token with 0.
    creation_token: int | None = None
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        flaw = find_flaw(
            self.ledger_id, self.quorum, self.fragments, self.state, self.last_entry, self.length
        )
        assert not flaw, flaw
        assert len(dict(self.custom)) == len(self.custom)

    # --- Questions ----------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    def fragment_of(self, entry_id: EntryId) -> Fragment:
        """Returns the fragment of an entry; for a future entry, the fragment that would get it at present."""
        assert entry_id >= FIRST_ENTRY
        return self.fragments[bisect_right(self.fragments, entry_id, key=_FIRST_ENTRY) - 1]

    def last_entry_of(self, index: int) -> EntryId | None:
        """Returns the last entry of a fragment, or None if the fragment is still open-ended.

        For an empty fragment the result is one less than its first entry.
        """
        if index + 1 < len(self.fragments):
            return EntryId(self.fragments[index + 1].first_entry - 1)
        if self.last_entry is None:
            return None
        return max(self.last_entry, EntryId(self.fragments[index].first_entry - 1))

    def names(self, bookie: BookieId) -> bool:
        return any(bookie in fragment.ensemble for fragment in self.fragments)

    # --- The writer ---------------------------------------------------------------------------

    def with_writer_ensemble(self, first_entry: EntryId, ensemble: Ensemble) -> Self:
        """Moves the open end of the ledger to another ensemble (LM2).

        Raises `LedgerFenced` unless the ledger is OPEN. Otherwise a recovery has begun and may have
        counted negative answers of the present ensemble, so entries on a new ensemble could be
        lost.
        """
        if self.state is not LedgerState.OPEN:
            raise LedgerFenced(ledger_id=self.ledger_id, state=self.state.value)
        return replace(self, fragments=self._tailed((Fragment(first_entry, ensemble),)))

    def with_close(self, last_entry: EntryId, length: int) -> Self:
        """Closes the ledger for its writer (LM2). If the ledger is already closed at exactly this
        entry, the writer itself has closed it, and nothing changes.
        """
        if self.state is LedgerState.CLOSED:
            if (self.last_entry, self.length) == (last_entry, length):
                return self
            raise LedgerClosed(
                "another client closed the ledger at another entry",
                ledger_id=self.ledger_id,
                last_entry=self.last_entry,
                wanted=last_entry,
            )
        if self.state is LedgerState.IN_RECOVERY:
            raise LedgerFenced(ledger_id=self.ledger_id, state=self.state.value)
        return self._closed(last_entry, length, self.fragments)

    # --- Recovery -----------------------------------------------------------------------------

    def with_recovery_started(self) -> Self:
        """Starts recovery; the writer can no longer change the ledger (LM3).

        If the ledger is already in recovery, another client is recovering it or died while
        recovering it; several clients may recover it at the same time.
        """
        if self.state is LedgerState.CLOSED:
            raise LedgerClosed(ledger_id=self.ledger_id, last_entry=self.last_entry)
        return replace(self, state=LedgerState.IN_RECOVERY)

    def with_recovery_closed(
        self, last_entry: EntryId, length: int, new_fragments: Sequence[Fragment] = ()
    ) -> Self:
        """Closes the ledger for recovery, with its end and the ensembles of written-back entries
        (LM3). Recovery makes no other visible change.

        Apply this only to the metadata from which recovery started, not to a later version: if the
        metadata has changed, recovered entries may be on the wrong bookies. Raises `LedgerClosed`
        if another client was quicker, and `MetadataConflict` if recovery had not started.
        """
        if self.state is LedgerState.CLOSED:
            raise LedgerClosed(ledger_id=self.ledger_id, last_entry=self.last_entry)
        if self.state is LedgerState.OPEN:
            raise MetadataConflict("the ledger is not in recovery", ledger_id=self.ledger_id)
        fragments = self._tailed(new_fragments) if new_fragments else self.fragments
        return self._closed(last_entry, length, fragments)

    # --- Re-replication -----------------------------------------------------------------------

    def with_replacement(self, first_entry: EntryId, old: BookieId, new: BookieId) -> Self:
        """Gives the slot of `old` to `new`, in the fragment that starts at `first_entry` (LM4).

        Raises `LedgerFenced` while the ledger is in recovery, which uses a frozen ensemble, and
        `MetadataConflict` if the fragment is the open one, is gone, or has changed.
        """
        if self.state is LedgerState.IN_RECOVERY:
            raise LedgerFenced("the ledger is being recovered", ledger_id=self.ledger_id)
        index = next((i for i, f in enumerate(self.fragments) if f.first_entry == first_entry), -1)
        if index < 0:
            raise self._changed("there is no such fragment", first_entry)
        if self.last_entry_of(index) is None:
            raise self._changed("the fragment is still being written", first_entry)
        ensemble = self.fragments[index].ensemble
        if old not in ensemble or new in ensemble:
            raise self._changed(f"cannot replace {old} by {new}", first_entry)
        slot = ensemble.index(old)
        repaired = Fragment(first_entry, (*ensemble[:slot], new, *ensemble[slot + 1 :]))
        fragments = (*self.fragments[:index], repaired, *self.fragments[index + 1 :])
        return replace(self, fragments=fragments)

    # ------------------------------------------------------------------------------------------

    def _tailed(self, new: Sequence[Fragment]) -> tuple[Fragment, ...]:
        """Returns the fragments that the ledger has when its entries from `new[0]` on move to other
        ensembles (LM1).

        Only the last fragment is changed: it ends where the first new fragment starts. If both
        start at the same entry, no entry of the last fragment was confirmed, and the new fragment
        replaces it.
        """
        last = self.fragments[-1]
        if new[0].first_entry < last.first_entry:
            raise self._changed("a later fragment exists", new[0].first_entry)
        for before, after in pairwise((last, *new)):
            assert _replaces_soundly(before.ensemble, after.ensemble), (
                f"LM1: a bookie has two seats: {before}, {after}"
            )
        kept = self.fragments[:-1] if new[0].first_entry == last.first_entry else self.fragments
        return (*kept, *new)

    def _closed(self, last_entry: EntryId, length: int, fragments: tuple[Fragment, ...]) -> Self:
        """Returns the closed ledger. A last fragment without entries stays: its bookies keep their
        fence as long as the ledger names them, and a writer that was cut off may still try to add
        to them.
        """
        if last_entry < fragments[-1].first_entry - 1:
            raise self._changed(
                f"the ledger cannot end at entry {last_entry}", fragments[-1].first_entry
            )
        return replace(
            self,
            state=LedgerState.CLOSED,
            fragments=fragments,
            last_entry=last_entry,
            length=length,
        )

    def _changed(self, what: str, first_entry: EntryId) -> MetadataConflict:
        return MetadataConflict(what, ledger_id=self.ledger_id, first_entry=first_entry)


def draw_creation_token(randomness: Randomness) -> int:
    """Returns a token for one attempt to create one ledger."""
    return randomness.randrange(_CREATION_TOKEN_END)


_FIRST_ENTRY: Final = attrgetter("first_entry")


def find_flaw(
    ledger_id: LedgerId,
    quorum: Quorum,
    fragments: tuple[Fragment, ...],
    state: LedgerState,
    last_entry: EntryId | None,
    length: int | None,
) -> str:
    """Returns a description of what makes these values an invalid ledger, or an empty text if they
    are valid (LM1).

    An ensemble that names a bookie twice is accepted, since foreign tools may have written it;
    Rollbook itself never writes such an ensemble.
    """
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        return f"ledger id {ledger_id} is outside 0 … 2^63-1"
    if not fragments:
        return "it has no fragment"
    if fragments[0].first_entry != FIRST_ENTRY:
        return f"its first fragment starts at entry {fragments[0].first_entry}"
    for before, after in pairwise(fragments):
        if before.first_entry >= after.first_entry:
            return f"a fragment at {after.first_entry} follows one at {before.first_entry}"
    if fragments[-1].first_entry > ENTRY_ID_MAX:
        return f"a fragment starts at entry {fragments[-1].first_entry}"
    if any(len(fragment.ensemble) != quorum.ensemble for fragment in fragments):
        return f"a fragment does not have {quorum.ensemble} bookies"
    if {last_entry is None, length is None} != {state is not LedgerState.CLOSED}:
        return f"its last entry is {last_entry}, its length {length} and its state {state.value}"
    if last_entry is not None and not NO_ENTRY <= last_entry <= ENTRY_ID_MAX:
        return f"its last entry is {last_entry}"
    if length is not None and not 0 <= length <= LENGTH_MAX:
        return f"its length is {length}"
    return ""


def _replaces_soundly(old: Ensemble, new: Ensemble) -> bool:
    """Returns whether no bookie that is new in a slot is in another slot, too: two copies on one
    bookie would count as one.
    """
    return len(old) == len(new) and all(
        before == after or new.count(after) == 1 for before, after in zip(old, new, strict=True)
    )
