"""The memory lent to connections, and the order in which waiting ones resume."""

import random

import pytest

from rollbook.bookie.core.connection_memory import (
    CHUNK_BYTES_MAX,
    ConnectionMemory,
    Making,
    Pool,
    ReadGate,
    ReadSize,
)


def make(bytes_max: int = 800, floor: int = 100, ceiling: int = 500) -> Pool:
    return Pool(bytes_max=bytes_max, floor=floor, ceiling=ceiling)


def account(pool: Pool) -> ConnectionMemory:
    return ConnectionMemory(pool, lambda: None)


def test_every_connection_gets_its_floor() -> None:
    """B7: this holds however much the other connections hold."""
    pool = make()
    greedy = [account(pool) for _ in range(2)]
    for each in greedy:
        each.take(500)
    assert pool.lent == 800
    assert pool.is_exhausted
    assert not any(each.try_take() for each in greedy)
    late = account(pool)
    assert late.try_take()
    late.take(99)
    assert late.try_take()
    late.take(1)
    assert not late.try_take()


def test_ceiling_applies_to_a_single_connection() -> None:
    pool = make()
    alone = account(pool)
    alone.take(499)
    assert alone.try_take()
    alone.take(1)
    assert not alone.try_take()
    assert not alone.try_resume()
    alone.give(249)
    assert not alone.try_resume()
    alone.give(1)
    assert alone.try_resume()


def test_waiting_connections_resume_in_order() -> None:
    pool = make()
    greedy, first, second = account(pool), account(pool), account(pool)
    greedy.take(900)
    for waiting in (first, second):
        waiting.take(120)
        assert not waiting.try_take()
        pool.waiting[waiting] = None
    greedy.give(100)
    assert not pool.has_news  # With this little room every connection would stop again at once.
    greedy.give(100)
    assert pool.has_news
    assert pool.take_ready() == [first, second]
    assert not pool.waiting
    assert not pool.has_news


def test_one_partial_request_may_finish_in_an_exhausted_pool() -> None:
    """Otherwise several connections could hold half a request each forever."""
    pool = make()
    halves = [account(pool) for _ in range(3)]
    for each in halves:
        each.set_begun(400)
    assert pool.is_exhausted
    assert [each.try_take() for each in halves] == [True, False, False]
    halves[0].set_begun(450)
    assert halves[0].try_take()
    for each in halves[1:]:
        pool.waiting[each] = None
    halves[0].set_begun(0)
    assert pool.has_news
    assert pool.take_ready() == halves[1:]


def test_pending_responses_exhaust_the_pool_but_not_the_floors() -> None:
    """B7."""
    pool = make()
    asking = account(pool)
    making = Making(pool, 700)
    assert making.may_grow
    making.grow(200)
    assert not making.may_grow
    assert pool.is_exhausted
    assert (pool.held, pool.lent) == (900, 900)
    assert asking.try_take()
    asking.take(100)
    assert not asking.try_take()
    pool.waiting[asking] = None
    making.end()
    assert pool.take_ready() == [asking]
    assert (pool.held, pool.lent) == (100, 0)


def test_unread_responses_overdraw_the_pool() -> None:
    pool = make()
    readers = [account(pool) for _ in range(11)]
    for reader in readers:
        reader.set_unread(200)
    assert pool.lent == 1100
    assert pool.is_overdrawn
    for reader in readers[:2]:
        reader.set_unread(50)
    assert not pool.is_overdrawn


@pytest.mark.parametrize("seed", range(50))
def test_pool_totals_equal_the_sum_of_its_connections(seed: int) -> None:
    """B7."""
    chance = random.Random(seed)
    pool = make()
    accounts = [account(pool) for _ in range(5)]
    for _ in range(300):
        each = chance.choice(accounts)
        match chance.randrange(4):
            case 0:
                each.take(chance.randrange(300))
            case 1:
                each.give(chance.randint(0, each.held - each.begun - each.unread))
            case 2:
                each.set_begun(chance.randrange(300))
            case 3:
                each.set_unread(chance.randrange(300))
        assert pool.held == sum(each.held for each in accounts)
        assert pool.lent == sum(max(0, each.held - pool.floor) for each in accounts)


def test_partial_requests_beyond_half_the_pool_are_overdue() -> None:
    """B7: beyond half, stalled requests are closed if other connections wait."""
    pool = make()
    half, busy = account(pool), account(pool)
    half.set_begun(500)
    assert pool.overdue <= 0  # There is room for every connection.
    busy.take(500)
    assert pool.is_exhausted
    assert pool.overdue == 100
    half.set_begun(400)
    assert pool.overdue <= 0  # Partial requests are not what exhausts the pool.


def test_favoured_partial_request_gets_extra_room() -> None:
    pool = make(ceiling=600)
    half, busy = account(pool), account(pool)
    half.set_begun(200)
    busy.take(900)
    assert pool.is_exhausted
    assert half.room <= 0
    assert half.try_take()  # It has no other memory that it could give back.
    assert half.room == 400
    half.set_begun(0)
    assert half.room == 100


def test_read_gate_closes_at_ceiling_and_opens_at_half() -> None:
    """B7: closing and opening in each loop turn would cost more than it gains."""
    pool = make()
    full = account(pool)
    gate = ReadGate(full, calls_max=4)
    full.take(499)
    assert not gate.try_close(4, is_blocked=False)
    full.take(1)
    assert gate.try_close(4, is_blocked=False)
    assert gate.is_closed
    assert full in pool.waiting
    full.give(200)
    assert not gate.try_open(0, is_blocked=False), "more than half of its ceiling"
    full.give(50)
    assert gate.try_open(0, is_blocked=False)
    assert not gate.is_closed
    assert full not in pool.waiting


def test_read_gate_closes_above_call_limit_and_opens_at_half() -> None:
    """B7."""
    gate = ReadGate(account(make()), calls_max=4)
    assert not gate.try_close(4, is_blocked=False)
    assert gate.try_close(5, is_blocked=False)
    assert not gate.try_open(3, is_blocked=False)
    assert gate.try_open(2, is_blocked=False)


def test_blocked_read_gate_stays_closed_despite_free_memory() -> None:
    gate = ReadGate(account(make()), calls_max=4)
    assert gate.try_close(0, is_blocked=True)
    assert not gate.try_open(0, is_blocked=True)
    assert gate.try_open(0, is_blocked=False)


# --- Chunks -------------------------------------------------------------------------------------

KIB = 1024


@pytest.mark.parametrize(
    ("chunks", "next_kib"),
    [
        # Each chunk: its size in KiB, whether it has calls, and how many calls wait.
        ([], 2),
        ([(1, False, 0)], 2),
        ([(2, False, 0)], 4),
        ([(2, False, 0), (3, False, 0)], 4),  # The last chunk was not full.
        ([(2, False, 0), (4, False, 0), (8, False, 0)], 16),
        ([(2, True, 0), (4, True, 0), (8, True, 0), (16, True, 0)], 16),
        ([(2, True, 0), (4, True, 0), (8, True, 0), (16, False, 0)], 32),
        ([(2, False, 0), (4, False, 0), (8, False, 0), (16, False, 0), (32, True, 0)], 16),
        ([(2 << each, False, 0) for each in range(8)], 256),
        ([(2, False, 0), (4, True, 1)], 2),
        ([(2, False, 0), (3, True, 1)], 2),
    ],
)
def test_read_size_grows_while_chunks_are_full_and_no_call_waits(
    chunks: list[tuple[int, bool, int]], next_kib: int
) -> None:
    """B7."""
    size = ReadSize(account(make(8 * KIB * KIB, KIB * KIB, 4 * KIB * KIB)))
    for kib, has_calls, calls_waiting in chunks:
        size.on_chunk(kib * KIB, has_calls=has_calls, calls_waiting=calls_waiting)
    assert size.next_bytes() == next_kib * KIB <= CHUNK_BYTES_MAX


@pytest.mark.parametrize(
    ("held_kib", "next_kib"), [(0, 16), (84, 16), (90, 10), (98, 2), (99, 2), (120, 2)]
)
def test_read_size_is_limited_to_remaining_memory(held_kib: int, next_kib: int) -> None:
    """B7: a small chunk is always read."""
    here = account(make(0, floor=100 * KIB, ceiling=100 * KIB))
    size = ReadSize(here)
    for kib in (2, 4, 8):
        size.on_chunk(kib * KIB, has_calls=False, calls_waiting=0)
    here.take(held_kib * KIB)
    assert size.next_bytes() == next_kib * KIB
