"""Writers leave bookies that are gone, and only those (WR11)."""

import pytest

from rollbook.ledger.core.lost_bookies import LostMembers, reason_to_leave
from rollbook.proto.cluster.bookie_watcher import LiveBookies
from rollbook.proto.formats.service_info import (
    DOUBTING,
    DRAINING,
    WRITERS_FROM,
    BookieServiceInfo,
)
from rollbook.proto.ids import BookieId, LedgerId

A, B = BookieId("a"), BookieId("b")
S = 1_000_000_000


def registered(properties: dict[str, str]) -> BookieServiceInfo:
    return BookieServiceInfo(properties=tuple(properties.items()))


def test_a_bookie_is_left_when_it_was_not_registered_for_15_seconds() -> None:
    absences = LostMembers()
    assert absences.on_look([A, B], [B], 100 * S) == set()
    assert absences.on_look([A, B], [B], 114 * S) == set()
    assert absences.on_look([A, B], [B], 115 * S) == {A}


def test_a_restart_moves_nothing() -> None:
    absences = LostMembers()
    absences.on_look([A], [], 100 * S)
    assert absences.on_look([A], [A], 110 * S) == set()
    assert absences.on_look([A], [], 116 * S) == set()
    assert absences.on_look([A], [], 131 * S) == {A}


@pytest.mark.parametrize("property_", [DRAINING, DOUBTING])
def test_a_bookie_that_gives_up_its_seats_is_left_at_once(property_: str) -> None:
    live = LiveBookies({A: registered({property_: "true"}), B: registered({})})
    assert reason_to_leave(A, LedgerId(7), live, lost=()) == "it gives up its seats"
    assert reason_to_leave(B, LedgerId(7), live, lost=()) is None
    assert reason_to_leave(B, LedgerId(7), live, lost=(B,)) == "it is not registered"


def test_a_bookie_that_was_formatted_since_is_left_by_older_ledgers() -> None:
    """WR11, B13: it refuses their writers, and knows neither their fences nor what it acknowledged."""
    live = LiveBookies({}, {A: registered({WRITERS_FROM: "8"})})
    expected = "it was formatted since this ledger began"
    assert reason_to_leave(A, LedgerId(7), live, lost=()) == expected
    assert reason_to_leave(A, LedgerId(8), live, lost=()) is None
    assert (live.refusing(LedgerId(7)), live.refusing(LedgerId(8))) == ([A], [])


@pytest.mark.parametrize("text", ["", "-1", "ten", "²", "1" * 30])
def test_a_strange_limit_does_no_harm(text: str) -> None:
    assert registered({WRITERS_FROM: text}).writers_from in (0, int("1" * 30))


def test_a_bookie_without_a_seat_is_not_remembered() -> None:
    absences = LostMembers()
    absences.on_look([A], [], 0)
    absences.on_look([B], [B], 10 * S)
    assert absences.on_look([A], [], 20 * S) == set()
