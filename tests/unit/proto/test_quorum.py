"""Quorum arithmetic, exhaustively for small quorums."""

from itertools import combinations, product

import pytest

from rollbook.proto.errors import InvalidRequest
from rollbook.proto.ids import BookieId, EntryId
from rollbook.proto.quorum import Quorum

SMALL = [
    Quorum(ensemble, write, ack)
    for ensemble, write, ack in product(range(1, 6), repeat=3)
    if ensemble >= write >= ack
]
BIG = EntryId(2**62 + 12345)


def members(mask: int) -> set[int]:
    return {slot for slot in range(64) if mask >> slot & 1}


@pytest.mark.parametrize("quorum", SMALL)
def test_copy_w_of_entry_e_is_in_slot_e_plus_w_modulo_ensemble(quorum: Quorum) -> None:
    """Q1: BookKeeper's striping, for ids beyond 32 bits too."""
    for entry in (*map(EntryId, range(12)), BIG):
        slots = [(entry + copy) % quorum.ensemble for copy in range(quorum.write)]
        assert list(quorum.write_slots(entry)) == slots
        assert members(quorum.write_mask(entry)) == set(slots)
        assert {s for s in range(quorum.ensemble) if quorum.holds(s, entry)} == set(slots)


@pytest.mark.parametrize("quorum", SMALL)
def test_entry_is_either_provably_absent_or_possibly_acked(quorum: Quorum) -> None:
    """Q2."""
    entry = EntryId(7)
    for size in range(quorum.ensemble + 1):
        for negatives in combinations(range(quorum.ensemble), size):
            mask = sum(1 << slot for slot in negatives)
            others = quorum.write_mask(entry) & ~mask
            assert quorum.is_absent(entry, mask) != quorum.is_acked(entry, others)


@pytest.mark.parametrize("quorum", SMALL)
def test_coverage_means_an_answer_from_every_possible_ack_quorum(quorum: Quorum) -> None:
    """Q3, checked against its definition: no ack quorum of any entry is entirely without answers."""
    for unheard in range(1 << quorum.ensemble):
        hidden = any(
            set(acks) <= members(unheard)
            for entry in range(quorum.ensemble)
            for acks in combinations(quorum.write_slots(EntryId(entry)), quorum.ack)
        )
        assert quorum.is_covered(unheard) != hidden


@pytest.mark.parametrize("quorum", SMALL)
def test_first_held_is_the_next_entry_of_the_stripe(quorum: Quorum) -> None:
    for slot, start in product(range(quorum.ensemble), (*range(8), BIG)):
        expected = next(e for e in range(start, start + 9) if quorum.holds(slot, EntryId(e)))
        assert quorum.first_held(slot, EntryId(start)) == expected


@pytest.mark.parametrize("quorum", SMALL)
def test_held_selects_items_for_entries_of_the_stripe(quorum: Quorum) -> None:
    for slot, start in product(range(quorum.ensemble), (*range(8), BIG)):
        entries = range(start, start + 9)
        expected = [e for e in entries if quorum.holds(slot, EntryId(e))]
        assert list(quorum.held(slot, EntryId(start), entries)) == expected


def test_write_set_lists_bookies_in_order_of_reading() -> None:
    ensemble = (BookieId("a"), BookieId("b"), BookieId("c"))
    assert Quorum(3, 2, 2).write_set(EntryId(2), ensemble) == ("c", "a")


@pytest.mark.parametrize("sizes", [(0, 0, 0), (2, 3, 1), (3, 2, 3), (3, 2, 0), (5000, 3, 2)])
def test_impossible_quorums_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidRequest):
        Quorum(*sizes)
