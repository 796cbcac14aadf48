"""The rules for dropping copies that metadata assigns to other bookies."""

import random

import pytest

from rollbook.bookie.core.surplus import SurplusCopies, is_surplus
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.quorum import Quorum

S = 1_000_000_000
US, THEM, OTHERS = BookieId("us:3181"), BookieId("them:3181"), BookieId("others:3181")


def test_surplus_is_a_closed_ledger_with_no_fragment_here() -> None:
    """B16."""
    theirs = Fragment(EntryId(0), (THEM, OTHERS))
    opened = LedgerMetadata(LedgerId(7), Quorum(2, 2, 1), (theirs,))
    closed = opened.with_close(EntryId(9), 100)
    assert is_surplus(closed, US)
    assert is_surplus(opened.with_close(NO_ENTRY, 0), US)
    assert not is_surplus(opened, US)
    assert not is_surplus(opened.with_recovery_started(), US)
    assert not is_surplus(closed.with_replacement(EntryId(0), OTHERS, US), US)
    early = opened.with_writer_ensemble(EntryId(5), (US, OTHERS)).with_close(EntryId(9), 100)
    assert not is_surplus(early, US)


def look(copies: SurplusCopies, asked_ns: int, *, surplus: bool = True) -> bool:
    copies.on_asked(7, asked_ns)
    return copies.on_answer(7, asked_ns, surplus=surplus)


def test_drop_needs_two_agreeing_checks_an_interval_apart() -> None:
    """B16: one check is not enough, nor are two that an operator requested in quick succession."""
    copies = SurplusCopies(100 * S, 10.0, {})
    assert not look(copies, 5 * S)
    assert list(copies.ledger_ids) == [7]
    assert not look(copies, 94 * S)
    # A check may come slightly early, since the one before took longer.
    assert look(copies, 95 * S)
    assert copies.may_drop(7, 96 * S, 96 * S)
    copies.on_gone(7)
    assert not look(copies, 300 * S)


def test_add_restarts_the_two_checks() -> None:
    """B16: a repair copies first and names the bookie afterwards."""
    quiet: dict[int, int] = {}
    copies = SurplusCopies(100 * S, 10.0, quiet)
    look(copies, 5 * S)
    quiet.pop(7)
    assert not look(copies, 105 * S)
    copies.on_asked(7, 205 * S)
    quiet.pop(7)  # An add while the metadata is read.
    assert not copies.on_answer(7, 205 * S, surplus=True)
    assert not look(copies, 305 * S)
    assert look(copies, 405 * S)
    quiet.pop(7)  # An add while the metadata is read again under the lock.
    assert not copies.may_drop(7, 405 * S, 405 * S)


def test_check_naming_the_bookie_restarts_the_two_checks() -> None:
    """B16."""
    copies = SurplusCopies(100 * S, 10.0, {})
    look(copies, 5 * S)
    look(copies, 105 * S, surplus=False)
    assert not look(copies, 205 * S)
    assert look(copies, 305 * S)


def test_failed_check_is_ignored() -> None:
    """B16."""
    copies = SurplusCopies(100 * S, 10.0, {})
    copies.on_asked(7, 5 * S)
    copies.on_unanswered(7, 5 * S)
    assert not look(copies, 105 * S)
    copies.on_asked(7, 155 * S)
    copies.on_unanswered(7, 155 * S)
    assert look(copies, 205 * S)


@pytest.mark.parametrize(("session_s", "certain_s"), [(10.0, 1.0), (1.0, 0.5)])
def test_lock_is_valid_only_while_its_session_must_be_alive(
    session_s: float, certain_s: float
) -> None:
    """B16: after a pause another process may hold the lock and rely on the copies listed here."""
    copies = SurplusCopies(100 * S, session_s, {})
    look(copies, 0)
    assert look(copies, 100 * S)
    asked_ns = 101 * S
    assert copies.may_drop(7, asked_ns, asked_ns + int(certain_s * S) - 1)
    assert not copies.may_drop(7, asked_ns, asked_ns + int(certain_s * S))


@pytest.mark.parametrize("seed", range(100))
def test_drop_is_due_exactly_after_two_agreeing_checks(seed: int) -> None:
    """B16, compared with its definition."""
    chance = random.Random(seed)
    quiet: dict[int, int] = {}
    copies = SurplusCopies(100, 10.0, quiet)
    now, looks = 0, list[int]()  # Starts of agreeing checks since the last add.
    for _ in range(60):
        now += chance.choice((1, 40, 100, 150))
        surplus = chance.random() < 0.8
        is_due = look(copies, now, surplus=surplus)
        looks = [*looks, now] if surplus else []
        assert is_due == (bool(looks) and looks[-1] - looks[0] >= 90)
        if chance.random() < 0.2:
            quiet.pop(7, None)
            looks = []
