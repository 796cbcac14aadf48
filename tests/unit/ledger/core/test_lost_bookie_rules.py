"""Writers leave lost bookies, and no others (WR11)."""

import pytest

from rollbook.ledger.core.lost_bookie_rules import LostMembers, reason_to_leave
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


def test_bookie_unregistered_for_15_seconds_is_lost() -> None:
    absences = LostMembers()
    assert absences.on_look([A, B], [B], 100 * S) == set()
    assert absences.on_look([A, B], [B], 114 * S) == set()
    assert absences.on_look([A, B], [B], 115 * S) == {A}


def test_short_absence_does_not_make_a_bookie_lost() -> None:
    absences = LostMembers()
    absences.on_look([A], [], 100 * S)
    assert absences.on_look([A], [A], 110 * S) == set()
    assert absences.on_look([A], [], 116 * S) == set()
    assert absences.on_look([A], [], 131 * S) == {A}


@pytest.mark.parametrize("property_", [DRAINING, DOUBTING])
def test_draining_or_doubting_bookie_is_left_at_once(property_: str) -> None:
    live = LiveBookies({A: registered({property_: "true"}), B: registered({})})
    assert reason_to_leave(A, LedgerId(7), live, lost=()) == "it gives up its seats"
    assert reason_to_leave(B, LedgerId(7), live, lost=()) is None
    assert reason_to_leave(B, LedgerId(7), live, lost=(B,)) == "it is not registered"


def test_reformatted_bookie_is_left_by_older_ledgers() -> None:
    """WR11, B13: it refuses their writers and has lost their fences and entries."""
    live = LiveBookies({}, {A: registered({WRITERS_FROM: "8"})})
    expected = "it was formatted since this ledger began"
    assert reason_to_leave(A, LedgerId(7), live, lost=()) == expected
    assert reason_to_leave(A, LedgerId(8), live, lost=()) is None
    assert (live.refusing(LedgerId(7)), live.refusing(LedgerId(8))) == ([A], [])


@pytest.mark.parametrize("text", ["", "-1", "ten", "²", "1" * 30])
def test_malformed_writers_from_property_is_parsed_safely(text: str) -> None:
    assert registered({WRITERS_FROM: text}).writers_from in (0, int("1" * 30))


def test_absence_of_a_bookie_without_slots_is_forgotten() -> None:
    absences = LostMembers()
    absences.on_look([A], [], 0)
    absences.on_look([B], [B], 10 * S)
    assert absences.on_look([A], [], 20 * S) == set()
