"""Which bookies to ask for a copy, how long to wait, and the combined error."""

import pytest

from rollbook.ledger.core.read_plan import (
    CopySearch,
    CoverSearch,
    HedgeDelay,
    covering_slots,
    slots_in_order,
)
from rollbook.proto.errors import (
    BookieTimeout,
    BookieUnreachable,
    DigestMismatch,
    EntryStateUnknown,
    EntryUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    RollbookError,
)
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.quorum import Quorum

B = tuple(BookieId(f"b{i}") for i in range(3))
MS = 1_000_000


@pytest.mark.parametrize("size", range(1, 8))
def test_covering_slots_are_minimal_and_hold_every_entry(size: int) -> None:
    for write in range(1, size + 1):
        quorum = Quorum(size, write, 1)
        for offset in range(size):
            cover = covering_slots(quorum, offset)
            assert len(cover) == -(-size // write)
            for entry_id in map(EntryId, range(size)):
                assert any(quorum.holds(slot, entry_id) for slot in cover)


@pytest.mark.parametrize("size", range(1, 7))
def test_covering_slots_avoid_unusable_ones(size: int) -> None:
    """RD2: an entry held by any usable slot is held by a slot of the cover."""
    for write in range(1, size + 1):
        quorum = Quorum(size, write, 1)
        for usable in range(1 << size):
            cover = covering_slots(quorum, size // 2, usable)
            assert all(usable >> slot & 1 for slot in cover)
            for entry_id in map(EntryId, range(size)):
                is_held = bool(quorum.write_mask(entry_id) & usable)
                assert any(quorum.holds(slot, entry_id) for slot in cover) is is_held


def test_healthy_slots_come_first_and_runs_share_a_slot() -> None:
    """RD2."""
    quorum = Quorum(3, 3, 2)
    for entry_id in map(EntryId, range(6)):
        assert slots_in_order(quorum, entry_id, 1, [0, 0, 0]) == [1, 2, 0]
        assert slots_in_order(quorum, entry_id, 1, [0, 2, 1]) == [0, 2, 1]


def test_only_slots_holding_the_entry_are_asked() -> None:
    quorum = Quorum(5, 2, 2)
    assert sorted(slots_in_order(quorum, EntryId(4), 0, [0] * 5)) == [0, 4]


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ((NoSuchEntry, NoSuchEntry, NoSuchLedger), NoSuchEntry),
        ((NoSuchEntry, DigestMismatch, NoSuchEntry), DigestMismatch),
        ((NoSuchEntry, EntryStateUnknown, DigestMismatch), EntryUnavailable),
        ((BookieTimeout, NoSuchEntry, NoSuchEntry), EntryUnavailable),
        ((BookieUnreachable, BookieUnreachable, BookieUnreachable), EntryUnavailable),
    ],
)
def test_error_of_a_failed_search_reflects_all_replies(
    errors: tuple[type[RollbookError], ...], verdict: type[RollbookError]
) -> None:
    """RD3."""
    search = CopySearch([2, 0, 1], HedgeDelay(at_least_ms=5))
    for error in errors:
        slot = search.next_slot(0)
        assert slot is not None
        search.on_failure(slot, error)
    assert search.next_slot(0) is None
    assert type(search.error(LedgerId(1), EntryId(7), B)) is verdict


def test_striped_run_is_asked_of_a_minimal_cover() -> None:
    search = striped(Quorum(4, 2, 2), 1, [0, 0, 0, 0])
    assert asked(search) == [1, 3]
    assert asked(search) == []
    search.on_answer(1, 0, is_useful=True)
    assert search.waits_for == [3]
    search.on_answer(3, 0, is_useful=True)
    assert search.waits_for == []


def test_each_slot_is_asked_from_its_first_held_entry() -> None:
    search = striped(Quorum(4, 2, 2), 1, [0, 0, 0, 0], run=range(8, 12))
    assert search.next_requests(0) == [(1, range(8, 12)), (3, range(10, 12))]


def test_slot_holding_nothing_of_a_run_is_not_asked() -> None:
    search = striped(Quorum(4, 2, 2), 1, [0, 0, 0, 0], run=range(8, 9))
    assert search.next_requests(0) == [(1, range(8, 9))]
    assert search.waits_for == [1]


def test_useless_and_late_slots_are_covered_by_others() -> None:
    """RD2: five slots, each holding two of five entries."""
    search = striped(Quorum(5, 2, 2), 0, [0, 0, 0, 0, 0])
    assert asked(search) == [0, 2, 4]
    assert search.due_ns == 20 * MS
    search.on_answer(4, 1, is_useful=False)
    assert search.take_late([0, 2], 20 * MS - 1) == []
    search.on_answer(0, 2, is_useful=True)
    assert search.take_late([0, 2], 20 * MS) == [2]
    assert asked(search) == [1, 3]
    for slot in (1, 3):
        search.on_answer(slot, 20 * MS, is_useful=True)
    assert search.waits_for == []


def test_unhealthy_slots_are_asked_only_when_needed() -> None:
    """RD2."""
    assert asked(striped(Quorum(3, 2, 2), 1, [0, 2, 0])) == [0, 2]
    assert asked(striped(Quorum(3, 2, 2), 0, [0, 2, 2])) == [0, 2]


def striped(
    quorum: Quorum, preferred: int, ranks: list[int], run: range = range(100)
) -> CoverSearch:
    return CoverSearch(quorum, run, preferred, ranks, HedgeDelay(at_least_ms=5))


def asked(search: CoverSearch) -> list[int]:
    return [slot for slot, _ in search.next_requests(0)]


def test_overtaken_slot_is_slow_unless_asked_later() -> None:
    """RD2."""
    hedge = HedgeDelay(at_least_ms=5)
    search = CopySearch([2, 0, 1], hedge)
    assert [search.next_slot(now_ns) for now_ns in (0, 20 * MS, 40 * MS)] == [2, 0, 1]
    assert search.on_success(0, 50 * MS) == [2]
    for _ in range(14):
        hedge.observe(1 * MS)
    assert hedge.delay_ns == 50 * MS, "the response and the overtaken request count, 30 and 50 ms"


def test_hedge_delay_follows_the_slowest_latencies() -> None:
    """RD2."""
    delay = HedgeDelay(at_least_ms=5)
    assert delay.delay_ns == 20 * MS, "no latencies are known yet"
    for _ in range(128):
        delay.observe(1 * MS)
    assert delay.delay_ns == 5 * MS, "the minimum"
    for i in range(128):
        delay.observe(40 * MS if i % 10 == 0 else 1 * MS)
    assert delay.delay_ns == 40 * MS


def test_old_latencies_are_forgotten() -> None:
    delay = HedgeDelay(at_least_ms=5)
    for _ in range(128):
        delay.observe(400 * MS)
    for _ in range(128):
        delay.observe(1 * MS)
    assert delay.delay_ns == 5 * MS
