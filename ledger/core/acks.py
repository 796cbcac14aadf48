"""Which entries are confirmed, and which bookies still lack a copy.

An entry is confirmed once `ack` members of its write set have acknowledged it and every entry below
it is confirmed: the LAC grows one entry at a time and never passes a hole (WR1). Copies on a bookie
that is being replaced stop counting before its successor is picked; the successor's copies count
from the fragment that names the successor (WR2).

A bookie usually acknowledges a writer's entries in order. Therefore one number for each member,
`acked_below`, describes its copies: the member has all entries below this id that it should hold.
Entries acknowledged out of order are kept apart until that number reaches them. The LAC is computed
from these numbers, at a cost that does not depend on the number of entries between them.
"""

from collections.abc import Sequence

from rollbook.proto.ids import FIRST_ENTRY, EntryId
from rollbook.proto.quorum import Quorum, Slots


class AckTracker:
    """Counts acknowledgements by slot, that is, by index of the ensemble. When another bookie takes
    over a slot, it has to acknowledge all entries above the LAC again."""

    def __init__(self, quorum: Quorum, next_entry: EntryId = FIRST_ENTRY) -> None:
        self.last_add_confirmed = EntryId(next_entry - 1)
        self._quorum = quorum
        self._ack = quorum.ack
        self._is_striped = quorum.write < quorum.ensemble
        # For each slot, the first entry that it should hold and has not acknowledged.
        self._acked_below = [quorum.first_held(slot, next_entry) for slot in range(quorum.ensemble)]
        self._beyond: list[set[EntryId]] = [set() for _ in self._acked_below]
        self._excused: Slots = 0
        self._withdrawn: Slots = 0

    def acked_below(self, slot: int) -> EntryId:
        return self._acked_below[slot]

    def on_acks(self, slot: int, entry_ids: Sequence[EntryId], end: EntryId) -> bool:
        """Counts acks of a slot. Returns whether entries were confirmed. Acks for entry `end` and
        later ones do not count, because these were not sent to the slot; repeated acks change
        nothing."""
        if self._withdrawn >> slot & 1:
            return False
        acked_below = self._acked_below[slot]
        count = len(entry_ids)
        reached = acked_below + count
        if (
            not self._is_striped
            and reached <= end
            and not self._beyond[slot]
            and entry_ids[0] == acked_below
            and (
                count == 1
                or entry_ids == range(acked_below, reached)
                or entry_ids == [*range(acked_below, reached)]
            )
        ):
            self._acked_below[slot] = EntryId(reached)
            if reached <= self.last_add_confirmed + 1:
                return False  # All entries below the new number are confirmed already.
        elif not self._take_stripe(slot, entry_ids, end):
            self._take_each(slot, entry_ids, end)
        return self._confirm()

    def is_waiting_for(self, slot: int, entry_id: EntryId) -> bool:
        return (
            entry_id >= self._acked_below[slot]
            and entry_id not in self._beyond[slot]
            and self._quorum.holds(slot, entry_id)
        )

    def complete_to(self) -> EntryId:
        """Returns the id below which every entry is confirmed and has all copies that are still
        wanted."""
        lowest = EntryId(self.last_add_confirmed + 1)
        if not self._excused:
            return min(lowest, *self._acked_below)
        bounds = (m for slot, m in enumerate(self._acked_below) if not self._excused >> slot & 1)
        return min((lowest, *bounds))

    # --- Slots that get another bookie ----------------------------------------------------------

    def withdraw(self, slot: int) -> None:
        """Stops counting the slot's copies of unconfirmed entries, and its later acks (WR2)."""
        self._withdrawn |= 1 << slot
        self._restart(slot, EntryId(self.last_add_confirmed + 1))

    def admit(self, slot: int, first_entry: EntryId) -> None:
        """Counts acks of the slot's new bookie, which has no entry from `first_entry` on and will
        be sent all of them."""
        assert self._withdrawn >> slot & 1, "WR2: copies count again before they stopped counting"
        self._withdrawn &= ~(1 << slot)
        self._excused &= ~(1 << slot)
        self._restart(slot, first_entry)

    def excuse(self, slot: int) -> None:
        """Stops waiting for the slot's copies of entries that are confirmed without them."""
        self._excused |= 1 << slot

    def recall(self, slot: int, first_entry: EntryId) -> EntryId:
        """Waits for the slot's copies again, from `first_entry` on; all entries below are
        confirmed. Returns the slot's old `acked_below`: the slot is never sent the entries from
        there up to `first_entry`.
        """
        assert first_entry <= self.last_add_confirmed + 1, "WR2: entries are left out unconfirmed"
        self._excused &= ~(1 << slot)
        was = self._acked_below[slot]
        if was < first_entry:
            start = self._quorum.first_held(slot, first_entry)
            self._beyond[slot] = {each for each in self._beyond[slot] if each >= start}
            self._acked_below[slot] = self._pass(slot, start)
        return was

    # --------------------------------------------------------------------------------------------

    def _restart(self, slot: int, first_entry: EntryId) -> None:
        self._acked_below[slot] = self._quorum.first_held(slot, first_entry)
        self._beyond[slot].clear()

    def _take_stripe(self, slot: int, entry_ids: Sequence[EntryId], end: EntryId) -> bool:
        """Counts acks if they are exactly those that the slot should send next. Returns whether it
        counted them."""
        acked_below, behind = self._acked_below[slot], EntryId(entry_ids[-1] + 1)
        if not acked_below < behind <= end or self._beyond[slot]:
            return False
        if entry_ids != [*self._quorum.held(slot, acked_below, range(acked_below, behind))]:
            return False
        self._acked_below[slot] = self._quorum.first_held(slot, behind)
        return True

    def _take_each(self, slot: int, entry_ids: Sequence[EntryId], end: EntryId) -> None:
        acked_below, beyond, holds = self._acked_below[slot], self._beyond[slot], self._quorum.holds
        for entry_id in entry_ids:
            if entry_id == acked_below < end:
                acked_below = self._step(slot, acked_below)
            elif acked_below < entry_id < end and holds(slot, entry_id):
                beyond.add(entry_id)
        self._acked_below[slot] = self._pass(slot, acked_below)

    def _step(self, slot: int, acked_below: EntryId) -> EntryId:
        """Returns the next `acked_below` of a slot that has entry `acked_below`."""
        return self._pass(slot, self._quorum.first_held(slot, EntryId(acked_below + 1)))

    def _pass(self, slot: int, acked_below: EntryId) -> EntryId:
        beyond = self._beyond[slot]
        while acked_below in beyond:
            beyond.discard(acked_below)
            acked_below = self._quorum.first_held(slot, EntryId(acked_below + 1))
        return acked_below

    def _confirm(self) -> bool:
        known = self.last_add_confirmed + 1
        end = (
            self._striped_end(known) if self._is_striped else sorted(self._acked_below)[-self._ack]
        )
        end = EntryId(max(end, known))
        if any(self._beyond):
            while self._copies(end) >= self._ack:
                end = EntryId(end + 1)
        self.last_add_confirmed = EntryId(end - 1)
        return end > known

    def _striped_end(self, start: EntryId | int) -> EntryId:
        """Returns the end of the confirmed entries. Those with one write set are confirmed up to
        the `ack`th highest `acked_below` of its slots. The lowest unconfirmed entry of all write
        sets is the end.
        """
        size, bounds, ends = self._quorum.ensemble, self._acked_below, []
        for first_slot in range(size):
            slots = self._quorum.write_slots(EntryId(first_slot))
            bound = max(start, sorted(bounds[slot] for slot in slots)[-self._ack])
            ends.append(bound + (first_slot - bound) % size)
        return EntryId(min(ends))

    def _copies(self, entry_id: EntryId) -> int:
        return sum(
            entry_id < self._acked_below[slot] or entry_id in self._beyond[slot]
            for slot in self._quorum.write_slots(entry_id)
        )
