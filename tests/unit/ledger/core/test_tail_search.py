"""The search for a ledger's end: scenarios, then random bookies compared with a simple model."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.ledger.core.tail_search import TailProbe, TailSearch
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import Entry

E3 = Quorum(ensemble=3, write=3, ack=2)
BOOKIES = tuple(BookieId(f"b{i}") for i in range(6))


def entry(entry_id: int) -> Entry:
    return Entry(LedgerId(1), EntryId(entry_id), NO_ENTRY, 10 * entry_id + 10, b"x" * 10)


def search(
    quorum: Quorum = E3,
    last_known: int = -1,
    highest_seen: int = -1,
    *,
    batch_slots: int = 0,
    batch_entries_max: int = 10,
) -> TailSearch:
    return TailSearch(
        quorum,
        EntryId(last_known),
        EntryId(highest_seen),
        batch_slots=batch_slots,
        batch_entries_max=batch_entries_max,
    )


def one(slot: int, entry_id: int) -> TailProbe:
    return TailProbe(slot, EntryId(entry_id), 1)


def test_end_is_proven_by_one_round_of_negatives() -> None:
    """FR3: after the highest seen entry the whole write set is asked at once."""
    tail = search(last_known=4, highest_seen=4)
    assert tail.plan(100) == [one(2, 5), one(0, 5), one(1, 5)]
    tail.on_negative(one(0, 5))
    assert not tail.is_absence_proven
    tail.on_negative(one(1, 5))
    assert tail.is_absence_proven
    assert not tail.is_over, "the third may still reply"
    tail.on_negative(one(2, 5))
    assert tail.is_over
    assert tail.next_entry == 5


def test_slots_with_known_last_entries_are_not_asked() -> None:
    """FR3: the fence replies prove the end."""
    tail = search(last_known=4, highest_seen=4)
    tail.on_last(0, entry(4))
    tail.on_last(1, entry(4))
    tail.on_last(2, entry(3))
    assert tail.plan(100) == []
    assert tail.is_over
    assert tail.next_entry == 5


def test_search_waits_for_an_expected_last_entry() -> None:
    """FR2, FR3: two replies prove the end, but the third bookie may have a copy."""
    tail = search(last_known=4, highest_seen=4)
    tail.on_last(0, entry(4))
    tail.on_last(1, None)
    tail.expect_last(2)
    assert tail.plan(100) == []
    assert tail.is_absence_proven
    assert not tail.is_over
    tail.on_last(2, entry(5))
    assert tail.take_found() == [entry(5)]
    assert tail.plan(100) == []
    assert tail.is_over, "all have reported a last entry below the next one"
    assert tail.next_entry == 6


def test_gap_below_a_last_entry_is_probed() -> None:
    """FR3: a last entry says nothing about gaps below it."""
    tail = search(last_known=4, highest_seen=6)
    tail.on_last(0, entry(6))
    tail.on_last(1, entry(4))
    tail.expect_last(2)
    assert tail.plan(100) == [one(0, 5)], "slots that lack the entry are not asked"
    tail.on_negative(one(0, 5))
    assert tail.is_absence_proven
    assert not tail.is_over, "the third has not replied"
    tail.on_last(2, None)
    assert tail.is_over
    assert tail.next_entry == 5


def waiting_for_the_third() -> TailSearch:
    """Two slots have reported the same last entry; the third decides."""
    tail = search(last_known=4, highest_seen=4)
    tail.on_last(0, entry(4))
    tail.on_last(1, entry(4))
    tail.expect_last(2)
    assert tail.plan(100) == []
    return tail


def test_higher_last_entry_makes_its_slot_asked_for_the_gap() -> None:
    """FR2: as soon as its last entry is known."""
    tail = waiting_for_the_third()
    tail.on_last(2, entry(6))
    assert tail.plan(100) == [one(2, 5)]
    tail.on_entries(one(2, 5), [entry(5)])
    assert tail.take_found() == [entry(5), entry(6)]
    assert tail.plan(100) == []
    assert tail.is_over


def test_slot_without_a_last_entry_is_asked() -> None:
    """FR3: its fence failed or takes long."""
    tail = waiting_for_the_third()
    tail.on_no_last(2)
    assert tail.plan(100) == [one(2, 5)]
    tail.on_entries(one(2, 5), [entry(5)])
    assert tail.take_found() == [entry(5)]


def test_one_valid_copy_outweighs_all_negatives() -> None:
    """FR2: the third bookie replies last, with a copy."""
    tail = search()
    tail.plan(100)
    tail.on_negative(one(0, 0))
    tail.on_negative(one(1, 0))
    tail.on_entries(one(2, 0), [entry(0)])
    assert tail.take_found() == [entry(0)]
    assert not tail.is_over
    assert tail.next_entry == 1


def test_search_ends_on_proof_when_waiting_stops() -> None:
    """FR3: a hung bookie does not block recovery."""
    tail = search()
    tail.plan(100)
    tail.on_negative(one(0, 0))
    tail.on_negative(one(1, 0))
    tail.stop_waiting()
    assert tail.is_over


def test_stopping_to_wait_without_proof_does_not_end_the_search() -> None:
    """FR3: one negative proves nothing, even when waiting stops."""
    tail = search()
    tail.plan(100)
    tail.on_negative(one(0, 0))
    tail.stop_waiting()
    assert not tail.is_over


@pytest.mark.parametrize("silent", [1, 2])
def test_failed_reads_do_not_count_as_negatives(silent: int) -> None:
    """FR3: a timeout, an I/O error, a bad digest or UNKNOWN counts for nothing."""
    tail = search()
    tail.plan(100)
    for slot in range(3):
        if slot < 3 - silent:
            tail.on_negative(one(slot, 0))
        else:
            tail.on_failure(one(slot, 0), "ENTRY_STATE_UNKNOWN")
    assert tail.is_over is (silent == 1)
    assert tail.is_stuck is (silent == 2)


def test_stuck_search_describes_replies_and_can_ask_again() -> None:
    """FR3."""
    tail = search()
    tail.plan(100)
    tail.on_negative(one(0, 0))
    tail.on_failure(one(1, 0), "CHECKSUM")
    tail.on_failure(one(2, 0), "BOOKIE_TIMEOUT")
    assert tail.is_stuck
    assert tail.describe(BOOKIES[:3]) == "b0: no, b1: CHECKSUM, b2: BOOKIE_TIMEOUT"
    assert tail.plan(100) == []
    tail.ask_again()
    assert not tail.is_stuck
    assert tail.plan(100) == [one(1, 0), one(2, 0)]
    tail.on_entries(one(2, 0), [entry(0)])
    assert tail.take_found() == [entry(0)]


def test_negatives_from_outside_the_write_set_do_not_count() -> None:
    """FR3, E > Qw: only its own write set can prove that an entry was never acknowledged."""
    quorum = Quorum(ensemble=5, write=3, ack=2)
    tail = search(quorum)
    assert tail.plan(100) == [one(0, 0), one(1, 0), one(2, 0)]
    tail.on_negative(one(3, 0))
    tail.on_negative(one(4, 0))
    tail.on_negative(one(0, 0))
    assert not tail.is_absence_proven


def test_each_run_is_asked_of_one_slot_and_the_end_of_all() -> None:
    tail = search(last_known=9, highest_seen=39, batch_slots=0b111)
    asks = tail.plan(1000)
    assert [a for a in asks if a.span > 1] == [
        TailProbe(1, EntryId(10), 10),
        TailProbe(2, EntryId(20), 10),
        TailProbe(0, EntryId(30), 10),
    ]
    assert [a for a in asks if a.span == 1] == [one(1, 40), one(2, 40), one(0, 40)]


def test_rest_of_a_short_batch_is_asked_again() -> None:
    """FR3: short batches are never negatives."""
    tail = search(highest_seen=9, batch_slots=0b111)
    batch = tail.plan(1000)[0]
    assert batch == TailProbe(0, EntryId(0), 10)
    tail.on_entries(batch, [entry(0), entry(1), entry(2)])
    assert tail.take_found() == [entry(0), entry(1), entry(2)]
    assert not tail.is_absence_proven
    assert tail.plan(1000) == [TailProbe(0, EntryId(3), 7)]


def test_entry_skipped_by_a_batch_is_asked_of_another_slot() -> None:
    """FR3: a gap within a sparse batch is no negative."""
    quorum = Quorum(ensemble=4, write=2, ack=2)
    tail = search(quorum, highest_seen=7, batch_slots=0b1111)
    batches = {a.slot: a for a in tail.plan(1000) if a.span > 1}
    assert batches == {0: TailProbe(0, EntryId(0), 8), 2: TailProbe(2, EntryId(1), 6)}
    tail.on_entries(batches[0], [entry(3), entry(4), entry(7)])
    assert not tail.is_absence_proven
    assert tail.plan(1000) == [one(1, 0)]  # Slot 1 also holds entry 0.


def test_empty_batch_is_a_negative_only_for_its_first_entry() -> None:
    """FR3."""
    tail = search(highest_seen=9, batch_slots=0b111)
    batch = tail.plan(1000)[0]
    tail.on_negative(batch)
    asks = tail.plan(1000)
    assert one(1, 0) in asks
    assert one(2, 0) in asks
    rest = [a for a in asks if a.first_entry == 1]
    assert rest == [TailProbe(2, EntryId(1), 9)]
    tail.on_negative(one(1, 0))
    tail.on_entries(rest[0], [entry(i) for i in range(1, 10)])
    assert tail.is_absence_proven
    assert tail.take_found() == []


def test_delayed_batch_is_asked_of_another_slot() -> None:
    tail = search(highest_seen=9, batch_slots=0b111)
    slow = tail.plan(1000)[0]
    tail.on_delay(slow)
    assert tail.plan(1000) == [TailProbe(2, EntryId(0), 10)]
    tail.on_entries(slow, [entry(i) for i in range(10)])
    assert len(tail.take_found()) == 10
    tail.on_negative(TailProbe(2, EntryId(0), 10))
    assert tail.next_entry == 10


def test_window_bounds_outstanding_entries() -> None:
    tail = search(highest_seen=999, batch_slots=0b111, batch_entries_max=100)
    assert sum(a.span for a in tail.plan(250)) == 250
    assert tail.plan(250) == []
    tail.on_entries(TailProbe(0, EntryId(0), 100), [entry(i) for i in range(100)])
    assert len(tail.take_found()) == 100
    assert sum(a.span for a in tail.plan(250)) == 100


def test_entries_beyond_the_fence_replies_are_found() -> None:
    """Only the third bookie, which did not answer the fence, has these entries."""
    tail = search()
    for entry_id in range(100):
        for ask in tail.plan(1000):
            if ask.slot == 2:
                tail.on_entries(ask, [entry(ask.first_entry)])
            else:
                tail.on_negative(ask)
        assert entry(entry_id) in tail.take_found() or tail.next_entry > entry_id


# --- Random -----------------------------------------------------------------------------------

HAS, LACKS, SILENT = "has", "lacks", "silent"


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Quorum, list[list[str]], int, int, int, bool]:
    """Draw a quorum, each slot's reply for each entry, and the fence replies."""
    ensemble = draw(st.integers(1, 5))
    write = draw(st.integers(1, ensemble))
    quorum = Quorum(ensemble, write, draw(st.integers(1, write)))
    entries = draw(st.integers(0, 12))
    rows = [
        draw(st.lists(st.sampled_from([HAS, HAS, LACKS, SILENT]), min_size=write, max_size=write))
        for _ in range(entries)
    ]
    highest_seen = draw(st.integers(-1, entries + 2))
    batch_slots = draw(st.integers(0, (1 << ensemble) - 1))
    return quorum, rows, highest_seen, batch_slots, draw(st.integers(1, 6)), draw(st.booleans())


def truth(quorum: Quorum, rows: list[list[str]]) -> tuple[int, str]:
    """The simple model: all replies at once, entry by entry."""
    for entry_id, row in enumerate(rows):
        if HAS in row:
            continue
        return entry_id, "end" if row.count(LACKS) >= quorum.absence else "stuck"
    return len(rows), "end"


@settings(max_examples=200, deadline=None)
@given(world=worlds(), data=st.data())
def test_tail_search_matches_the_model(
    world: tuple[Quorum, list[list[str]], int, int, int, bool], data: st.DataObject
) -> None:
    """FR2, FR3: for any order of replies, with short batches, delays and repeats, and any set of
    slots that reported a last entry.
    """
    quorum, rows, highest_seen, batch_slots, batch_entries_max, is_patient = world
    tail = search(
        quorum,
        highest_seen=highest_seen,
        batch_slots=batch_slots,
        batch_entries_max=batch_entries_max,
    )

    def says(slot: int, entry_id: int) -> str:
        if entry_id >= len(rows):
            return LACKS
        return rows[entry_id][quorum.write_slots(EntryId(entry_id)).index(slot)]

    for slot in range(quorum.ensemble):
        mine = [e for e in range(len(rows)) if quorum.holds(slot, EntryId(e))]
        last = max((e for e in mine if says(slot, e) != LACKS), default=None)
        if (last is None or says(slot, last) == HAS) and data.draw(st.booleans()):
            tail.on_last(slot, None if last is None else entry(last))
    found: list[Entry] = tail.take_found()
    pending: list[TailProbe] = []
    rounds = 0
    while not tail.is_over:
        pending += tail.plan(data.draw(st.integers(1, 20)))
        if tail.is_over:
            break
        if not pending:
            assert tail.is_stuck
            rounds += 1
            if rounds > 2:
                break
            tail.ask_again()
            continue
        ask = pending.pop(data.draw(st.integers(0, len(pending) - 1)))
        if data.draw(st.booleans()):
            tail.on_delay(ask)
        answer(tail, quorum, ask, says, data)
        found += tail.take_found()
        if not is_patient:
            tail.stop_waiting()
    end, verdict = truth(quorum, rows)
    assert [e.entry_id for e in found] == list(range(len(found)))
    if is_patient:
        assert len(found) == end
        assert tail.is_over is (verdict == "end")
    else:
        # Without patience a copy may be missed, but only of an entry never acknowledged.
        assert len(found) <= end
        if tail.is_over and len(found) < end:
            assert rows[len(found)].count(LACKS) >= quorum.absence


def answer(
    tail: TailSearch,
    quorum: Quorum,
    ask: TailProbe,
    says: Callable[[int, int], str],
    data: st.DataObject,
) -> None:
    bodies: list[Entry] = []
    for entry_id in range(ask.first_entry, ask.first_entry + ask.span):
        if not quorum.holds(ask.slot, EntryId(entry_id)):
            continue
        said = says(ask.slot, entry_id)
        if said == HAS:
            bodies.append(entry(entry_id))
        elif said == SILENT or quorum.ensemble == quorum.write:
            break  # Dense batches end at a gap; all batches end at a failure.
    if bodies:
        tail.on_entries(ask, bodies[: data.draw(st.integers(1, len(bodies)))])
    elif says(ask.slot, ask.first_entry) == LACKS:
        tail.on_negative(ask)
    else:
        tail.on_failure(ask, "BOOKIE_FAILED")
