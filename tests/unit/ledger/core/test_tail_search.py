"""Where a ledger ends: stories first, then random bookies against an obvious model."""

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


def test_the_end_is_proven_in_one_round() -> None:
    """FR3: beyond what anybody has, the whole write set is asked at once."""
    tail = search(last_known=4, highest_seen=4)
    assert tail.plan(100) == [one(2, 5), one(0, 5), one(1, 5)]
    tail.on_negative(one(0, 5))
    assert not tail.is_absence_proven
    tail.on_negative(one(1, 5))
    assert tail.is_absence_proven
    assert not tail.is_over, "the third can still be heard"
    tail.on_negative(one(2, 5))
    assert tail.is_over
    assert tail.next_entry == 5


def test_who_named_its_last_entry_is_not_asked_for_more() -> None:
    """FR3: the answers to the fence prove the end."""
    tail = search(last_known=4, highest_seen=4)
    tail.on_last(0, entry(4))
    tail.on_last(1, entry(4))
    tail.on_last(2, entry(3))
    assert tail.plan(100) == []
    assert tail.is_over
    assert tail.next_entry == 5


def test_who_was_fenced_and_not_heard_yet_is_waited_for() -> None:
    """FR2, FR3: two are enough to prove it, and the third may have a copy."""
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
    assert tail.is_over, "all have named a lower one than the next"
    assert tail.next_entry == 6


def test_a_gap_below_the_last_entry_is_found_by_asking() -> None:
    """FR3: what a member has not got below its last entry it has not denied."""
    tail = search(last_known=4, highest_seen=6)
    tail.on_last(0, entry(6))
    tail.on_last(1, entry(4))
    tail.expect_last(2)
    assert tail.plan(100) == [one(0, 5)], "no member that has denied it is asked"
    tail.on_negative(one(0, 5))
    assert tail.is_absence_proven
    assert not tail.is_over, "the third was not heard"
    tail.on_last(2, None)
    assert tail.is_over
    assert tail.next_entry == 5


def waiting_for_the_third() -> TailSearch:
    """Two have named the same last entry; what the third has decides."""
    tail = search(last_known=4, highest_seen=4)
    tail.on_last(0, entry(4))
    tail.on_last(1, entry(4))
    tail.expect_last(2)
    assert tail.plan(100) == []
    return tail


def test_who_names_a_higher_one_than_is_sought_is_asked_for_what_is_below() -> None:
    """FR2: as soon as it is heard."""
    tail = waiting_for_the_third()
    tail.on_last(2, entry(6))
    assert tail.plan(100) == [one(2, 5)]
    tail.on_entries(one(2, 5), [entry(5)])
    assert tail.take_found() == [entry(5), entry(6)]
    assert tail.plan(100) == []
    assert tail.is_over


def test_who_does_not_name_its_last_entry_is_asked() -> None:
    """FR3: its fence failed, or takes long."""
    tail = waiting_for_the_third()
    tail.on_no_last(2)
    assert tail.plan(100) == [one(2, 5)]
    tail.on_entries(one(2, 5), [entry(5)])
    assert tail.take_found() == [entry(5)]


def test_one_valid_copy_wins_over_any_number_of_negatives() -> None:
    """FR2: the third answers last, and has it."""
    tail = search()
    tail.plan(100)
    tail.on_negative(one(0, 0))
    tail.on_negative(one(1, 0))
    tail.on_entries(one(2, 0), [entry(0)])
    assert tail.take_found() == [entry(0)]
    assert not tail.is_over
    assert tail.next_entry == 1


def test_who_does_not_answer_is_waited_for_only_so_long() -> None:
    """FR3: a hung bookie does not block recovery."""
    tail = search()
    tail.plan(100)
    tail.on_negative(one(0, 0))
    tail.on_negative(one(1, 0))
    tail.stop_waiting()
    assert tail.is_over


def test_waiting_ends_only_for_what_is_proven() -> None:
    """FR3: one negative and no more patience is no proof."""
    tail = search()
    tail.plan(100)
    tail.on_negative(one(0, 0))
    tail.stop_waiting()
    assert not tail.is_over


@pytest.mark.parametrize("silent", [1, 2])
def test_what_is_no_answer_is_no_negative(silent: int) -> None:
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


def test_stuck_it_says_who_said_what_and_asks_again() -> None:
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


def test_negatives_of_others_than_the_write_set_are_none() -> None:
    """FR3, E > Qw: only its own write set can prove that an entry was never acknowledged."""
    quorum = Quorum(ensemble=5, write=3, ack=2)
    tail = search(quorum)
    assert tail.plan(100) == [one(0, 0), one(1, 0), one(2, 0)]
    tail.on_negative(one(3, 0))
    tail.on_negative(one(4, 0))
    tail.on_negative(one(0, 0))
    assert not tail.is_absence_proven


def test_a_run_is_asked_of_one_member_and_the_end_of_all() -> None:
    tail = search(last_known=9, highest_seen=39, batch_slots=0b111)
    asks = tail.plan(1000)
    assert [a for a in asks if a.span > 1] == [
        TailProbe(1, EntryId(10), 10),
        TailProbe(2, EntryId(20), 10),
        TailProbe(0, EntryId(30), 10),
    ]
    assert [a for a in asks if a.span == 1] == [one(1, 40), one(2, 40), one(0, 40)]


def test_what_a_batch_had_no_room_for_is_asked_for_again() -> None:
    """FR3: short batches are never negatives."""
    tail = search(highest_seen=9, batch_slots=0b111)
    batch = tail.plan(1000)[0]
    assert batch == TailProbe(0, EntryId(0), 10)
    tail.on_entries(batch, [entry(0), entry(1), entry(2)])
    assert tail.take_found() == [entry(0), entry(1), entry(2)]
    assert not tail.is_absence_proven
    assert tail.plan(1000) == [TailProbe(0, EntryId(3), 7)]


def test_what_a_batch_passed_over_is_asked_of_others() -> None:
    """FR3: a gap within a sparse batch is no negative."""
    quorum = Quorum(ensemble=4, write=2, ack=2)
    tail = search(quorum, highest_seen=7, batch_slots=0b1111)
    batches = {a.slot: a for a in tail.plan(1000) if a.span > 1}
    assert batches == {0: TailProbe(0, EntryId(0), 8), 2: TailProbe(2, EntryId(1), 6)}
    tail.on_entries(batches[0], [entry(3), entry(4), entry(7)])
    assert not tail.is_absence_proven
    assert tail.plan(1000) == [one(1, 0)]  # The other holder of entry 0.


def test_a_batch_that_has_nothing_is_a_negative_for_its_first_entry_alone() -> None:
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


def test_the_slow_are_not_waited_for() -> None:
    tail = search(highest_seen=9, batch_slots=0b111)
    slow = tail.plan(1000)[0]
    tail.on_delay(slow)
    assert tail.plan(1000) == [TailProbe(2, EntryId(0), 10)]
    tail.on_entries(slow, [entry(i) for i in range(10)])
    assert len(tail.take_found()) == 10
    tail.on_negative(TailProbe(2, EntryId(0), 10))
    assert tail.next_entry == 10


def test_the_window_bounds_what_is_asked() -> None:
    tail = search(highest_seen=999, batch_slots=0b111, batch_entries_max=100)
    assert sum(a.span for a in tail.plan(250)) == 250
    assert tail.plan(250) == []
    tail.on_entries(TailProbe(0, EntryId(0), 100), [entry(i) for i in range(100)])
    assert len(tail.take_found()) == 100
    assert sum(a.span for a in tail.plan(250)) == 100


def test_a_ledger_longer_than_the_fence_told_is_followed() -> None:
    """Only the third, not heard at the fence, has these."""
    tail = search()
    for entry_id in range(100):
        for ask in tail.plan(1000):
            if ask.slot == 2:
                tail.on_entries(ask, [entry(ask.first_entry)])
            else:
                tail.on_negative(ask)
        assert entry(entry_id) in tail.take_found() or tail.next_entry > entry_id


# --- Chance -----------------------------------------------------------------------------------

HAS, LACKS, SILENT = "has", "lacks", "silent"


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Quorum, list[list[str]], int, int, int, bool]:
    """A quorum; for each entry what each slot would say of it; the answer to the fence."""
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
    """The obvious model: entry by entry, everybody's answer at once."""
    for entry_id, row in enumerate(rows):
        if HAS in row:
            continue
        return entry_id, "end" if row.count(LACKS) >= quorum.absence else "stuck"
    return len(rows), "end"


@settings(max_examples=200, deadline=None)
@given(world=worlds(), data=st.data())
def test_it_finds_what_everybody_together_would_say(
    world: tuple[Quorum, list[list[str]], int, int, int, bool], data: st.DataObject
) -> None:
    """FR2, FR3: in whatever order answers come, short batches, delays and repeats included, and whoever
    has named its last entry.
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
        # Without patience a copy may be missed, but only of what was never acknowledged.
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
            break  # Dense batches end at a gap, and all at what fails.
    if bodies:
        tail.on_entries(ask, bodies[: data.draw(st.integers(1, len(bodies)))])
    elif says(ask.slot, ask.first_entry) == LACKS:
        tail.on_negative(ask)
    else:
        tail.on_failure(ask, "BOOKIE_FAILED")
