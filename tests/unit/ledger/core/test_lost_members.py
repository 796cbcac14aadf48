"""Writers leave bookies that are gone, and only those (WR11)."""

from rollbook.ledger.core.lost_members import Absences
from rollbook.proto.ids import BookieId

A, B = BookieId("a"), BookieId("b")
S = 1_000_000_000


def test_a_bookie_is_left_when_it_was_not_registered_for_15_seconds() -> None:
    absences = Absences()
    assert absences.on_look([A, B], [B], [], 100 * S) == set()
    assert absences.on_look([A, B], [B], [], 114 * S) == set()
    assert absences.on_look([A, B], [B], [], 115 * S) == {A}


def test_a_restart_moves_nothing() -> None:
    absences = Absences()
    absences.on_look([A], [], [], 100 * S)
    assert absences.on_look([A], [A], [], 110 * S) == set()
    assert absences.on_look([A], [], [], 116 * S) == set()
    assert absences.on_look([A], [], [], 131 * S) == {A}


def test_a_draining_bookie_is_left_at_once() -> None:
    assert Absences().on_look([A, B], [A, B], [A], 0) == {A}


def test_a_bookie_without_a_seat_is_not_remembered() -> None:
    absences = Absences()
    absences.on_look([A], [], [], 0)
    absences.on_look([B], [B], [], 10 * S)
    assert absences.on_look([A], [], [], 20 * S) == set()
