"""Writes recovered entries once more to their whole write sets, before the ledger is closed.

A copy that recovery read may be the only one, and need not be durable. Therefore each recovered
entry gets `ack` durable copies, and all `write` bookies are tried (FR5). A bookie that fails is
replaced from its first unacknowledged entry on, but only in memory: the new ensembles are part of
the change of metadata that closes the ledger, and are not visible before (FR6). A recovery that
dies has therefore changed nothing that a later recovery depends on.

Entries are kept from the first one that a counted bookie has not acknowledged, because a
replacement may need them, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.proto.ids import BookieId, EntryId
from rollbook.proto.metadata import Fragment
from rollbook.proto.quorum import Ensemble, Quorum, Slots
from rollbook.proto.wire.digest import Entry


@dataclass(slots=True)
class _Copies:
    entry: Entry
    acked: Slots = 0


class WriteBack:
    def __init__(self, quorum: Quorum, first_entry: EntryId, ensemble: Ensemble) -> None:
        """`first_entry` is the first entry that may be added; `ensemble` are the present bookies."""
        self.entry_bytes = 0  # Bytes of the payloads that are kept.
        self._quorum = quorum
        self._ensemble = ensemble
        # The bookies of each slot with their first entries. Entries are written to the last bookie.
        self._holders = [[(first_entry, bookie)] for bookie in ensemble]
        self._abandoned: Slots = 0  # Slots that failed without a replacement.
        self._copies: dict[EntryId, _Copies] = {}  # Copies by entry id, ascending.

    @property
    def ensemble(self) -> Ensemble:
        return tuple(holders[-1][1] for holders in self._holders)

    def holders(self) -> list[BookieId]:
        """Returns all bookies that have, or had, a slot."""
        return [bookie for holders in self._holders for _, bookie in holders]

    def add(self, entry: Entry) -> list[int]:
        """Adds an entry. Returns the slots to which it has to be sent."""
        assert not self._copies or entry.entry_id == next(reversed(self._copies)) + 1, (
            "FR5: recovery leaves an entry out"
        )
        self._copies[entry.entry_id] = _Copies(entry)
        self.entry_bytes += len(entry.payload)
        wanted = self._quorum.write_mask(entry.entry_id) & ~self._abandoned
        return [s for s in self._quorum.write_slots(entry.entry_id) if wanted >> s & 1]

    def on_acks(self, slot: int, bookie: BookieId, entry_ids: Sequence[EntryId]) -> None:
        if self._holders[slot][-1][1] != bookie:
            return  # The bookie was replaced: its copies no longer count.
        for entry_id in entry_ids:
            if (copies := self._copies.get(entry_id)) is not None:
                copies.acked |= 1 << slot
        self._release()

    def owes(self, slot: int) -> bool:
        """Returns whether the slot still has to acknowledge entries."""
        bit = 1 << slot
        return not self._abandoned & bit and any(
            not copies.acked & bit and self._quorum.holds(slot, entry_id)
            for entry_id, copies in self._copies.items()
        )

    def unacked(self, slot: int) -> list[Entry]:
        """Returns the entries that the slot's bookie has not acknowledged."""
        if self._abandoned >> slot & 1:
            return []
        return [
            copies.entry
            for entry_id, copies in self._copies.items()
            if self._quorum.holds(slot, entry_id) and not copies.acked >> slot & 1
        ]

    def replace(self, slot: int, bookie: BookieId) -> list[Entry]:
        """Replaces the slot's bookie, which has failed. Returns the entries for its replacement."""
        assert all(bookie != holder for holders in self._holders for _, holder in holders), (
            "WR9: a bookie is twice in an ensemble that we make"
        )
        first_entry = self.unacked(slot)[0].entry_id
        holders = self._holders[slot]
        if holders[-1][0] >= first_entry:
            holders.pop()  # The failed bookie has acknowledged no entry.
        holders.append((first_entry, bookie))
        for entry_id, copies in self._copies.items():
            if entry_id >= first_entry:
                copies.acked &= ~(1 << slot)
        return self.unacked(slot)

    def abandon(self, slot: int) -> None:
        """Gives up the slot, which failed without a replacement: the other slots have to suffice."""
        self._abandoned |= 1 << slot
        self._release()

    @property
    def is_complete(self) -> bool:
        return not self._copies

    @property
    def is_hopeless(self) -> bool:
        """Whether too few slots are left for `ack` copies."""
        return any(
            not self._quorum.is_acked(
                entry_id, copies.acked | self._quorum.write_mask(entry_id) & ~self._abandoned
            )
            for entry_id, copies in self._copies.items()
        )

    def has_ack_quorums(self) -> bool:
        """Returns whether every entry has its ack quorum. Slots that have not acknowledged yet only
        add further copies."""
        return all(
            self._quorum.is_acked(entry_id, copies.acked)
            for entry_id, copies in self._copies.items()
        )

    def new_fragments(self) -> list[Fragment]:
        """Returns the fragments of the entries, for the change of metadata that closes the ledger."""
        starts = sorted({first for holders in self._holders for first, _ in holders})
        fragments = [Fragment(start, self._ensemble_at(start)) for start in starts]
        return fragments if fragments[0].ensemble != self._ensemble else fragments[1:]

    def _ensemble_at(self, entry_id: EntryId) -> Ensemble:
        return tuple(
            next(bookie for first, bookie in reversed(holders) if first <= entry_id)
            for holders in self._holders
        )

    def _release(self) -> None:
        released: list[EntryId] = []
        for entry_id, copies in self._copies.items():
            owed = self._quorum.write_mask(entry_id) & ~self._abandoned & ~copies.acked
            if owed or not self._quorum.is_acked(entry_id, copies.acked):
                break
            released.append(entry_id)
        for entry_id in released:
            self.entry_bytes -= len(self._copies.pop(entry_id).entry.payload)
