"""Write-back of recovered entries: required copies, and replacement of bookies."""

import random

import pytest

from rollbook.ledger.core.write_back import WriteBack
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata, LedgerState
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import Entry

B0, B1, B2, B3, B4 = (BookieId(f"b{i}") for i in range(5))
E3 = Quorum(ensemble=3, write=3, ack=2)


def entry(entry_id: int) -> Entry:
    return Entry(LedgerId(1), EntryId(entry_id), NO_ENTRY, 10 * entry_id + 10, b"x" * 10)


def ids(*numbers: int) -> list[EntryId]:
    return [EntryId(number) for number in numbers]


def started(entries: int, quorum: Quorum = E3, first: int = 0) -> WriteBack:
    back = WriteBack(quorum, EntryId(first), (B0, B1, B2, B3, B4)[: quorum.ensemble])
    for entry_id in range(first, first + entries):
        back.add(entry(entry_id))
    return back


def test_write_back_waits_for_the_whole_write_set() -> None:
    """FR5."""
    back = started(2)
    assert back.entry_bytes == 20
    back.on_acks(0, B0, ids(0, 1))
    back.on_acks(1, B1, ids(0, 1))
    assert back.has_ack_quorums()
    assert not back.is_complete, "the third has not answered yet"
    back.on_acks(2, B2, ids(1, 0))
    assert back.is_complete
    assert back.entry_bytes == 0
    assert back.new_fragments() == []


def test_ack_quorum_completes_when_a_slot_is_abandoned() -> None:
    """FR5."""
    back = started(2)
    back.on_acks(0, B0, ids(0, 1))
    back.abandon(2)
    assert not back.is_complete
    assert not back.is_hopeless
    back.on_acks(1, B1, ids(0, 1))
    assert back.is_complete
    assert back.add(entry(2)) == [0, 1]
    assert back.new_fragments() == []


def test_write_back_is_hopeless_with_two_of_three_abandoned() -> None:
    """FR5."""
    back = started(1)
    back.abandon(2)
    back.abandon(0)
    assert back.is_hopeless
    back.on_acks(1, B1, ids(0))
    assert not back.is_complete


def test_replacement_is_sent_entries_from_the_first_unacked() -> None:
    """FR6: later acks of the replaced bookie no longer count."""
    back = started(4)
    back.on_acks(2, B2, ids(0, 1, 3))
    assert [e.entry_id for e in back.replace(2, B3)] == [2, 3]
    back.on_acks(2, B2, ids(2, 3))  # Too late.
    for slot, bookie in ((0, B0), (1, B1)):
        back.on_acks(slot, bookie, ids(0, 1, 2, 3))
    assert not back.is_complete
    back.on_acks(2, B3, ids(2, 3))
    assert back.is_complete
    assert back.new_fragments() == [Fragment(EntryId(2), (B0, B1, B3))]


def test_several_replacements_produce_correct_fragments() -> None:
    """FR6."""
    back = started(6, first=10)
    back.on_acks(0, B0, ids(10, 11, 12))
    back.on_acks(1, B1, ids(10))
    back.replace(0, B3)  # From entry 13 on.
    back.replace(1, B4)  # From entry 11 on.
    assert back.new_fragments() == [
        Fragment(EntryId(11), (B0, B4, B2)),
        Fragment(EntryId(13), (B3, B4, B2)),
    ]
    back.replace(0, BookieId("b5"))  # b3 acknowledged nothing.
    assert back.new_fragments()[1] == Fragment(EntryId(13), (BookieId("b5"), B4, B2))


def test_fragment_replaced_at_its_first_entry_is_overwritten() -> None:
    """FR6."""
    back = started(1, first=5)
    back.replace(1, B3)
    metadata = LedgerMetadata(
        LedgerId(1), E3, (Fragment(EntryId(0), (B0, B1, B4)), Fragment(EntryId(5), (B0, B1, B2)))
    ).with_recovery_started()
    closed = metadata.with_recovery_closed(EntryId(5), 60, back.new_fragments())
    assert closed.fragments[1] == Fragment(EntryId(5), (B0, B3, B2))
    assert len(closed.fragments) == 2


@pytest.mark.parametrize("seed", range(200))
def test_closed_entries_have_their_copies_where_metadata_says(seed: int) -> None:
    """FR5, FR6: whatever fails, each entry is on `ack` bookies that metadata names."""
    chance = random.Random(seed)
    size = chance.randint(1, 5)
    write = chance.randint(1, size)
    quorum = Quorum(size, write, chance.randint(1, write))
    first = chance.randint(0, 5)
    ensemble = tuple(BookieId(f"b{i}") for i in range(size))
    spares = [BookieId(f"s{i}") for i in range(chance.randint(0, 6))]
    back = WriteBack(quorum, EntryId(first), ensemble)
    end, to_come = first + chance.randint(1, 12), first
    stored: dict[BookieId, set[int]] = {}
    abandoned: set[int] = set()
    while to_come < end or not back.is_complete:
        if back.is_hopeless:
            return
        if to_come < end and chance.random() < 0.3:
            assert (
                set(back.add(entry(to_come)))
                == set(quorum.write_slots(EntryId(to_come))) - abandoned
            )
            to_come += 1
            continue
        slot = chance.randrange(size)
        owed = back.unacked(slot)
        if not owed:
            continue
        bookie = back.ensemble[slot]
        if chance.random() < 0.15:
            if spares:
                back.replace(slot, spares.pop())
            else:
                back.abandon(slot)
                abandoned.add(slot)
            continue
        acked = chance.sample([e.entry_id for e in owed], chance.randint(1, len(owed)))
        stored.setdefault(bookie, set()).update(acked)
        back.on_acks(slot, bookie, acked)
    metadata = LedgerMetadata(
        LedgerId(1), quorum, (Fragment(EntryId(0), ensemble),), LedgerState.IN_RECOVERY
    )
    closed = metadata.with_recovery_closed(EntryId(end - 1), 0, back.new_fragments())
    for entry_id in map(EntryId, range(first, end)):
        holders = quorum.write_set(entry_id, closed.fragment_of(entry_id).ensemble)
        assert sum(entry_id in stored.get(b, ()) for b in holders) >= quorum.ack
