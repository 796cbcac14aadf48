"""Judges a ledger's copies after all of them were checked.

    good          the bytes are sound, and the payload is the same as in the other copies
    missing       the bookie says that it does not have the copy
    bad           the bytes fail the digest check
    different     the bytes are sound, but the payload is not that of the majority; if there is none, all differ
    unknown       the bookie may have lost the copy, or could not read it
    unreachable   the bookie did not answer

An entry without a good copy is in doubt if a good copy may still be found; otherwise it is lost.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rollbook.proto.errors import BookieFailed, DigestMismatch, EntryStateUnknown, Missing
from rollbook.proto.ids import BookieId, EntryId
from rollbook.proto.metadata import Fragment
from rollbook.proto.quorum import Quorum


class CopyState(Enum):
    GOOD = "good"
    MISSING = "missing"
    BAD = "bad"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    UNREACHABLE = "unreachable"


Copy = int | CopyState
"""The state of a copy, or, for a sound one, a digest of its payload."""

_MAY_TURN_UP: Final = (CopyState.UNKNOWN, CopyState.UNREACHABLE)


def state_after(error: type[Exception]) -> CopyState:
    """Returns the state of a copy that could not be read."""
    if issubclass(error, Missing):
        return CopyState.MISSING
    if issubclass(error, DigestMismatch):
        return CopyState.BAD
    if issubclass(error, EntryStateUnknown | BookieFailed):
        return CopyState.UNKNOWN
    return CopyState.UNREACHABLE


@dataclass(slots=True)
class Flaw:
    """Copies of one fragment on one bookie that are all in the same bad state."""

    fragment: EntryId
    bookie: BookieId
    state: CopyState
    first_entry: EntryId
    last_entry: EntryId
    count: int


@dataclass(slots=True)
class LedgerVerification:
    """The verdict on a whole ledger, or on the part that was checked."""

    quorum: Quorum
    entries: int = 0
    copies: Counter[CopyState] = field(default_factory=Counter)
    under_replicated: int = 0  # Entries with fewer good copies than `write`.
    # Entries with fewer good copies than `ack`; `under_replicated` includes them.
    below_ack: int = 0
    in_doubt: int = 0  # Entries for which a good copy may still be found.
    lost: int = 0  # Entries that certainly have no good copy.
    flaws: list[Flaw] = field(default_factory=list)
    _open: dict[tuple[EntryId, int], Flaw] = field(default_factory=dict)

    def on_entry(self, fragment: Fragment, entry_id: EntryId, copies: Mapping[int, Copy]) -> None:
        """Adds an entry's copies, by slot of the ensemble. The caller passes entries in ascending
        order."""
        states = compare_copies(copies)
        good = sum(state is CopyState.GOOD for state in states.values())
        self.entries += 1
        self.under_replicated += good < self.quorum.write
        self.below_ack += good < self.quorum.ack
        if not good:
            is_doubtful = any(state in _MAY_TURN_UP for state in states.values())
            self.in_doubt += is_doubtful
            self.lost += not is_doubtful
        self.copies.update(states.values())
        for slot, state in states.items():
            self._note(fragment, slot, entry_id, state)

    @property
    def is_sound(self) -> bool:
        return not self.flaws

    def _note(self, fragment: Fragment, slot: int, entry_id: EntryId, state: CopyState) -> None:
        """Extends the slot's flaw while its copies stay in one state, or begins a new one."""
        key = fragment.first_entry, slot
        flaw = self._open.get(key)
        if flaw is not None and flaw.state is state:
            flaw.last_entry = entry_id
            flaw.count += 1
        elif state is CopyState.GOOD:
            self._open.pop(key, None)
        else:
            bookie = fragment.ensemble[slot]
            flaw = Flaw(fragment.first_entry, bookie, state, entry_id, entry_id, 1)
            self._open[key] = flaw
            self.flaws.append(flaw)


def compare_copies(copies: Mapping[int, Copy]) -> dict[int, CopyState]:
    """Returns the states of one entry's copies, by slot. Copies that agree with the majority are
    good; without a majority no copy is good."""
    sound = [copy for copy in copies.values() if isinstance(copy, int)]
    if len(set(sound)) > 1:
        (most, votes), (_, next_votes) = Counter(sound).most_common(2)
        right = most if votes > next_votes else None
    else:
        right = sound[0] if sound else None
    return {
        slot: copy
        if isinstance(copy, CopyState)
        else CopyState.GOOD
        if copy == right
        else CopyState.DIFFERENT
        for slot, copy in copies.items()
    }
