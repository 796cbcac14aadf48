"""The ack tracker: scenarios, then random acks compared with a simple model."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.ledger.core.acks import AckTracker
from rollbook.proto.ids import NO_ENTRY, EntryId
from rollbook.proto.quorum import Quorum

Q332 = Quorum(ensemble=3, write=3, ack=2)
BIG = EntryId(2**62 + 5)


def ids(*entries: int) -> list[EntryId]:
    return [EntryId(each) for each in entries]


def test_lac_never_passes_an_unacked_entry() -> None:
    """WR1: entries confirm in order, however their acks arrive."""
    tracker = AckTracker(Q332)
    assert not tracker.on_acks(0, ids(1, 2), EntryId(3))
    assert not tracker.on_acks(1, ids(1, 2), EntryId(3))
    assert tracker.last_add_confirmed == NO_ENTRY
    assert not tracker.on_acks(0, ids(0), EntryId(3))
    assert tracker.on_acks(2, ids(0), EntryId(3))
    assert tracker.last_add_confirmed == 2


def test_repeated_acks_of_one_bookie_count_once() -> None:
    """WR1: a second reply to an add is not a second copy."""
    tracker = AckTracker(Q332)
    for _ in range(3):
        assert not tracker.on_acks(0, ids(0), EntryId(1))
    assert not tracker.on_acks(0, ids(0, 0, 0), EntryId(1))
    assert tracker.on_acks(1, ids(0), EntryId(1))


@pytest.mark.parametrize("lie", [ids(0, 1, 2), ids(2), ids(0, 0, 2), ids(5)])
def test_acks_of_unsent_entries_do_not_count(lie: list[EntryId]) -> None:
    """WR1: only entries 0 and 1 were sent, so acks of others are invalid."""
    tracker = AckTracker(Q332)
    tracker.on_acks(0, lie, EntryId(2))
    tracker.on_acks(1, ids(0, 1, 2, 3, 4, 5), EntryId(6))
    assert tracker.last_add_confirmed < 2


def test_acks_with_a_repeated_id_are_not_taken_as_a_range() -> None:
    """First, last and count look like a range, but entry 1 is missing."""
    tracker = AckTracker(Q332)
    tracker.on_acks(0, ids(0, 2, 2), EntryId(3))
    tracker.on_acks(1, ids(0, 1, 2), EntryId(3))
    assert tracker.last_add_confirmed == 0
    assert tracker.acked_below(0) == 1


def test_copies_on_a_withdrawn_bookie_do_not_count() -> None:
    """WR2: its later acks do not count, either."""
    tracker = AckTracker(Q332)
    tracker.on_acks(2, ids(0, 1), EntryId(2))
    tracker.withdraw(2)
    assert not tracker.on_acks(2, ids(0, 1), EntryId(2))
    assert not tracker.on_acks(0, ids(0), EntryId(2))
    tracker.admit(2, EntryId(0))
    assert tracker.last_add_confirmed == NO_ENTRY
    assert tracker.on_acks(2, ids(0), EntryId(2))
    assert tracker.last_add_confirmed == 0


def test_copies_on_remaining_bookies_count_during_withdrawal() -> None:
    """WR2: they stay in the ensemble whether the change succeeds or not."""
    tracker = AckTracker(Q332)
    tracker.withdraw(2)
    assert not tracker.on_acks(0, ids(0), EntryId(1))
    assert tracker.on_acks(1, ids(0), EntryId(1))


def test_entry_is_complete_once_all_unexcused_bookies_acked() -> None:
    tracker = AckTracker(Q332)
    tracker.on_acks(0, ids(0, 1), EntryId(2))
    tracker.on_acks(1, ids(0, 1), EntryId(2))
    assert (tracker.last_add_confirmed, tracker.complete_to()) == (1, 0)
    tracker.on_acks(2, ids(0), EntryId(2))
    assert tracker.complete_to() == 1
    tracker.excuse(2)
    assert tracker.complete_to() == 2
    assert tracker.recall(2, EntryId(2)) == 1  # It still lacks entries from 1 up to 2.
    tracker.on_acks(0, ids(2), EntryId(3))
    tracker.on_acks(1, ids(2), EntryId(3))
    assert (tracker.acked_below(2), tracker.complete_to()) == (2, 2)


def test_entry_ids_beyond_32_bits_are_confirmed() -> None:
    quorum = Quorum(ensemble=4, write=3, ack=2)
    tracker = AckTracker(quorum, BIG)
    for slot in quorum.write_slots(BIG)[1:]:
        tracker.on_acks(slot, [BIG], EntryId(BIG + 1))
    assert tracker.last_add_confirmed == BIG


# --- Random -------------------------------------------------------------------------------------


@dataclass
class Model:
    """All copies, entry by entry; every question is answered by a full scan."""

    quorum: Quorum
    lac: int = -1
    have: set[tuple[int, int]] = field(default_factory=set)  # Pairs of slot and entry.
    withdrawn: set[int] = field(default_factory=set)
    excused: set[int] = field(default_factory=set)

    def on_acks(self, slot: int, entries: list[EntryId], end: int) -> None:
        if slot not in self.withdrawn:
            self.have |= {(slot, e) for e in entries if e < end and self.quorum.holds(slot, e)}
        while self.copies(self.lac + 1) >= self.quorum.ack:
            self.lac += 1

    def copies(self, entry: int) -> int:
        return sum((s, entry) in self.have for s in self.quorum.write_slots(EntryId(entry)))

    def withdraw(self, slot: int) -> None:
        self.withdrawn.add(slot)
        self.have = {(s, e) for s, e in self.have if s != slot}
        self.settle(slot)  # Confirmed entries need no further acks.

    def admit(self, slot: int) -> None:
        self.withdrawn.discard(slot)
        self.excused.discard(slot)
        self.settle(slot)

    def recall(self, slot: int) -> None:
        self.excused.discard(slot)
        self.settle(slot)

    def settle(self, slot: int) -> None:
        """Mark confirmed entries as acked by this slot."""
        self.have |= {(slot, e) for e in range(self.lac + 1)}

    def complete_to(self) -> int:
        entry = 0
        while entry <= self.lac and all(
            (s, entry) in self.have or s in self.excused
            for s in self.quorum.write_slots(EntryId(entry))
        ):
            entry += 1
        return entry


QUORUMS = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5)).map(
    lambda sizes: Quorum(*sorted(sizes, reverse=True))
)


def as_decoded(data: st.DataObject, entries: list[EntryId]) -> Sequence[EntryId]:
    """Turn consecutive IDs into a range at random, as a decoder does."""
    row = range(entries[0], entries[0] + len(entries))
    if entries == [*row] and data.draw(st.booleans()):
        return cast(Sequence[EntryId], row)
    return entries


@settings(max_examples=150, deadline=None)
@given(QUORUMS, st.data())
def test_ack_tracker_matches_the_model(quorum: Quorum, data: st.DataObject) -> None:
    """WR1, WR2: for any order of acks, repeats, false acks and replaced slots."""
    tracker, model = AckTracker(quorum), Model(quorum)
    slots = st.integers(0, quorum.ensemble - 1)
    end = 0
    for _ in range(data.draw(st.integers(1, 40))):
        end += data.draw(st.integers(0, 4))
        slot = data.draw(slots)
        match data.draw(st.sampled_from(["row"] * 6 + ["any"] * 3 + ["leave", "excuse", "recall"])):
            case "row":
                row = [
                    e
                    for e in map(EntryId, range(tracker.acked_below(slot), end))
                    if quorum.holds(slot, e)
                ]
                some = row[: data.draw(st.integers(1, 6))]
                if some:
                    before, told = tracker.last_add_confirmed, as_decoded(data, some)
                    assert tracker.on_acks(slot, told, EntryId(end)) == (
                        tracker.last_add_confirmed > before
                    )
                    model.on_acks(slot, some, end)
            case "any":
                some = data.draw(st.lists(st.integers(0, end + 2).map(EntryId), min_size=1))
                tracker.on_acks(slot, as_decoded(data, some), EntryId(end))
                model.on_acks(slot, some, end)
            case "leave" if slot in model.withdrawn:
                tracker.admit(slot, EntryId(tracker.last_add_confirmed + 1))
                model.admit(slot)
            case "leave":
                tracker.withdraw(slot)
                model.withdraw(slot)
            case "excuse":
                tracker.excuse(slot)
                model.excused.add(slot)
            case "recall" if slot not in model.withdrawn:
                tracker.recall(slot, EntryId(tracker.last_add_confirmed + 1))
                model.recall(slot)
        assert tracker.last_add_confirmed == model.lac
        assert tracker.complete_to() == model.complete_to()
        for entry in range(end):
            if (slot, entry) not in model.have and quorum.holds(slot, EntryId(entry)):
                assert tracker.is_waiting_for(slot, EntryId(entry))
            elif entry > model.lac:
                assert not tracker.is_waiting_for(slot, EntryId(entry))
