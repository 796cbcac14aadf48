"""Which bookies are lost, and when."""

import random

import pytest

from rollbook.proto.ids import BookieId, LedgerId
from rollbook.recovery.core.audit import Backlog, Losses, is_check_due

B = [BookieId(f"b{number}:3181") for number in range(8)]
S = 10**9


def members(
    losses: Losses, now_s: int, registered: set[int], named: set[int] | None = None
) -> None:
    names = {B[each] for each in (range(4) if named is None else named)}
    losses.on_members(B[:4], names, {B[each] for each in registered}, now_s * S)


def test_a_bookie_is_lost_after_the_delay() -> None:
    """AU1, A2, A16."""
    losses = Losses(60)
    members(losses, 0, {0, 1, 2, 3})
    members(losses, 10, {0, 1, 2})
    assert losses.lost(10 * S) == set()
    assert losses.next_ns(10 * S) == 70 * S
    assert losses.lost(70 * S - 1) == set()
    assert losses.lost(70 * S) == {B[3]}
    assert losses.next_ns(70 * S) is None


def test_the_delay_holds_for_any_number_of_bookies() -> None:
    """AU1: Java forgets it as soon as two are missing, and a rack that restarts starts a storm."""
    losses = Losses(60)
    members(losses, 0, {0, 1, 2})
    members(losses, 30, {0, 1})
    assert losses.lost(59 * S) == set()
    assert losses.lost(60 * S) == {B[3]}
    assert losses.lost(90 * S) == {B[2], B[3]}


def test_one_that_comes_back_begins_again() -> None:
    """AU1."""
    losses = Losses(60)
    members(losses, 0, {0, 1, 2})
    members(losses, 50, {0, 1, 2, 3})
    members(losses, 55, {0, 1, 2})
    assert losses.lost(100 * S) == set()
    assert losses.lost(115 * S) == {B[3]}


def test_one_that_only_a_ledger_names_is_lost_too() -> None:
    losses = Losses(0)
    members(losses, 0, {0, 1, 2, 3}, {0, 1, 5})
    assert losses.lost(0) == {B[5]}


def test_another_delay_counts_from_when_it_was_missed() -> None:
    losses = Losses(600)
    members(losses, 0, {0, 1, 2})
    losses.on_delay(30)
    assert losses.lost(29 * S) == set()
    assert losses.lost(30 * S) == {B[3]}


def test_a_person_does_not_wait_for_the_delay() -> None:
    """Writing the delay again audits at once, but only for those that are missing then."""
    losses = Losses(60)
    members(losses, 0, {0, 1, 2})
    losses.on_asked()
    assert losses.lost(1 * S) == {B[3]}
    members(losses, 2, {0, 1, 2, 3})
    members(losses, 3, {0, 1, 2})
    assert losses.lost(4 * S) == set()


def test_more_than_half_at_once_is_nobodys_loss() -> None:
    """AU2."""
    losses = Losses(0)
    members(losses, 0, {0, 1})
    assert not losses.is_braked
    assert losses.lost(0) == {B[2], B[3]}
    members(losses, 1, {0})
    assert losses.is_braked
    losses.on_asked()
    assert losses.lost(10**6 * S) == set()
    members(losses, 2, {0, 1, 2})
    assert losses.lost(2 * S) == {B[3]}


def test_a_person_approves_these_bookies_and_no_others() -> None:
    """AU2: `audit --anyway`."""
    losses = Losses(0)
    members(losses, 0, {0})
    losses.on_approved({B[1], B[2]})
    assert losses.lost(0) == set()
    losses.on_approved({B[1], B[2], B[3]})
    assert losses.lost(0) == {B[1], B[2], B[3]}
    members(losses, 1, set())
    assert losses.lost(1 * S) == set()


def test_bookies_that_no_ledger_names_do_not_count() -> None:
    """AU2: those that were replaced long ago keep their cookies until somebody removes them."""
    losses = Losses(0)
    members(losses, 0, {0, 1}, {0, 1})
    assert not losses.is_braked
    members(losses, 1, {0}, {0, 1})
    assert not losses.is_braked


@pytest.mark.parametrize("seed", range(20))
def test_the_fewest_copies_come_first(seed: int) -> None:
    """AU3."""
    chance, backlog = random.Random(seed), Backlog()
    copies = {LedgerId(each): chance.randrange(4) for each in range(100)}
    for ledger_id, count in copies.items():
        backlog.add(ledger_id, count)
    order = [copies[ledger_id] for ledger_id in backlog]
    assert order == sorted(order)
    assert len(backlog) == len(order) == 100


def test_when_a_check_is_due() -> None:
    assert not is_check_due(None, 5, 0), "0: never"
    assert is_check_due(None, 5, 10)
    assert [is_check_due(100, now, 10) for now in (100, 109, 110)] == [False, False, True]
    assert is_check_due(100, 99, 10), "it was completed in the future"
