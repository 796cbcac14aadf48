"""Which bookies are lost, and when."""

import random

import pytest

from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.ports import SessionId
from rollbook.recovery.core.auditor_rules import Backlog, Losses, is_check_due

B = [BookieId(f"b{number}:3181") for number in range(8)]
S = 10**9


SESSION = SessionId(1)


def members(
    losses: Losses,
    now_s: float,
    registered: set[int],
    named: set[int] | None = None,
    session: SessionId = SESSION,
) -> None:
    names = {B[each] for each in (range(4) if named is None else named)}
    now_ns = round(now_s * S)
    losses.on_members(B[:4], names, {B[each] for each in registered}, session, now_ns)


def watch(losses: Losses, from_s: float, until_s: float, registered: set[int]) -> float:
    """Look as often as `losses` asks for; return the time when no loss was pending any more."""
    now_s = from_s
    members(losses, now_s, registered)
    while (next_ns := losses.next_look_ns()) is not None and now_s + next_ns / S <= until_s:
        now_s += next_ns / S
        members(losses, now_s, registered)
    return now_s


def test_bookie_is_lost_after_the_delay() -> None:
    """AU1, AR2, AR16."""
    losses = Losses(60)
    members(losses, 0, {0, 1, 2, 3})
    assert losses.next_look_ns() is None
    watch(losses, 10, 69.999, {0, 1, 2})
    assert losses.lost() == set()
    assert watch(losses, 69.999, 1000, {0, 1, 2}) == 70
    assert losses.lost() == {B[3]}


def test_delay_holds_for_any_number_of_missing_bookies() -> None:
    """AU1: BookKeeper drops it as soon as two are missing, so a restarting rack causes a storm."""
    losses = Losses(60)
    watch(losses, 0, 30, {0, 1, 2})
    watch(losses, 30, 59.999, {0, 1})
    assert losses.lost() == set()
    watch(losses, 59.999, 60, {0, 1})
    assert losses.lost() == {B[3]}
    assert watch(losses, 60, 1000, {0, 1}) == 90
    assert losses.lost() == {B[2], B[3]}


def test_returning_bookie_restarts_its_delay() -> None:
    """AU1."""
    losses = Losses(60)
    watch(losses, 0, 49.9, {0, 1, 2})
    members(losses, 50, {0, 1, 2, 3})
    watch(losses, 55, 100, {0, 1, 2})
    assert losses.lost() == set()
    assert watch(losses, 100, 1000, {0, 1, 2}) == 115
    assert losses.lost() == {B[3]}


def test_unobserved_time_counts_only_partly_as_absence() -> None:
    """AU1: the auditor did not look for an hour, in which the bookie may have been registered."""
    losses = Losses(60)
    members(losses, 0, {0, 1, 2})
    members(losses, 3600, {0, 1, 2})
    assert losses.lost() == set()
    assert losses.missing[B[3]] == 15 * S, "a gap counts for at most a quarter of the delay"
    assert watch(losses, 3600, 10_000, {0, 1, 2}) == 3645


def test_new_session_restarts_the_delay() -> None:
    """AU1: a registration between two sessions would go unnoticed."""
    losses = Losses(60)
    watch(losses, 0, 59, {0, 1, 2})
    members(losses, 59.5, {0, 1, 2}, session=SessionId(2))
    assert losses.missing[B[3]] == 0
    members(losses, 60, {0, 1, 2}, session=SessionId(2))
    assert losses.lost() == set()


def test_rare_looks_still_find_a_loss() -> None:
    """AU1: looks rarer than the delay must not postpone a loss forever."""
    losses = Losses(60)
    for number in range(5):
        assert losses.lost() == set()
        members(losses, 100 * number, {0, 1, 2})
    assert losses.lost() == {B[3]}


def test_look_interval_is_a_tenth_of_the_delay_up_to_10_s() -> None:
    for delay_s, expected_s in ((2, 0.2), (60, 6), (300, 10), (3600, 10)):
        losses = Losses(delay_s)
        members(losses, 0, {0, 1, 2})
        assert losses.next_look_ns() == expected_s * S


def test_bookie_named_only_by_a_ledger_can_be_lost() -> None:
    losses = Losses(0)
    members(losses, 0, {0, 1, 2, 3}, {0, 1, 5})
    assert losses.lost() == {B[5]}


def test_changed_delay_counts_from_the_start_of_absence() -> None:
    losses = Losses(600)
    watch(losses, 0, 29, {0, 1, 2})
    losses.on_delay(30)
    assert losses.lost() == set()
    assert 30 <= watch(losses, 29, 1000, {0, 1, 2}) <= 32.5
    assert losses.lost() == {B[3]}


def test_manual_audit_skips_the_delay_of_missing_bookies() -> None:
    """Writing the delay again counts only for bookies that are missing then."""
    losses = Losses(60)
    members(losses, 0, {0, 1, 2})
    losses.on_asked()
    assert losses.lost() == {B[3]}
    members(losses, 2, {0, 1, 2, 3})
    members(losses, 3, {0, 1, 2})
    assert losses.lost() == set()


def test_loss_of_more_than_half_is_not_accepted() -> None:
    """AU2."""
    losses = Losses(0)
    members(losses, 0, {0, 1})
    assert not losses.is_braked
    assert losses.lost() == {B[2], B[3]}
    members(losses, 1, {0})
    assert losses.is_braked
    losses.on_asked()
    assert losses.lost() == set()
    members(losses, 2, {0, 1, 2})
    assert losses.lost() == {B[3]}


def test_approval_covers_only_the_named_bookies() -> None:
    """AU2: `audit --anyway`."""
    losses = Losses(0)
    members(losses, 0, {0})
    losses.on_approved({B[1], B[2]})
    assert losses.lost() == set()
    losses.on_approved({B[1], B[2], B[3]})
    assert losses.lost() == {B[1], B[2], B[3]}
    members(losses, 1, set())
    assert losses.lost() == set()


def test_unnamed_bookies_do_not_count_towards_the_brake() -> None:
    """AU2: bookies replaced long ago keep their cookies until an operator removes them."""
    losses = Losses(0)
    members(losses, 0, {0, 1}, {0, 1})
    assert not losses.is_braked
    members(losses, 1, {0}, {0, 1})
    assert not losses.is_braked


@pytest.mark.parametrize("seed", range(20))
def test_backlog_is_ordered_by_fewest_copies(seed: int) -> None:
    """AU3."""
    chance, backlog = random.Random(seed), Backlog()
    copies = {LedgerId(each): chance.randrange(4) for each in range(100)}
    for ledger_id, count in copies.items():
        backlog.add(ledger_id, count)
    order = [copies[ledger_id] for ledger_id in backlog]
    assert order == sorted(order)
    assert len(backlog) == len(order) == 100


def test_check_is_due_after_its_interval() -> None:
    assert not is_check_due(None, 5, 0), "an interval of 0 means never"
    assert is_check_due(None, 5, 10)
    assert [is_check_due(100, now, 10) for now in (100, 109, 110)] == [False, False, True]
    assert is_check_due(100, 99, 10), "it was completed in the future by this clock"
