"""When enough of an ensemble has replied to trust the highest LAC."""

from itertools import product

import pytest

from rollbook.ledger.core.lac_survey import LacSurvey
from rollbook.proto.ids import NO_ENTRY, EntryId
from rollbook.proto.quorum import Quorum

E3 = Quorum(ensemble=3, write=3, ack=2)
B = ("b0", "b1", "b2")


def test_highest_lac_counts_once_every_ack_quorum_replied() -> None:
    """RD1."""
    survey = LacSurvey(E3)
    survey.on_lac(EntryId(4), EntryId(5))
    survey.on_heard(0)
    assert not survey.is_covered
    survey.on_lac(EntryId(7), EntryId(8))
    survey.on_heard(1)
    assert survey.is_covered
    assert survey.last_add_confirmed == 7
    assert survey.highest_entry == 8


def test_bookies_with_unknown_state_do_not_count_as_replies() -> None:
    """RD1: two of three may have lost entries; the third may have missed the last ones."""
    survey = LacSurvey(E3)
    survey.on_lac(EntryId(0))
    survey.on_heard(0)
    survey.on_silence(1, "ENTRY_STATE_UNKNOWN")
    survey.on_silence(2, "ENTRY_STATE_UNKNOWN")
    assert not survey.is_covered
    assert survey.unheard_slots == [1, 2]
    assert survey.describe(B) == "b1: ENTRY_STATE_UNKNOWN, b2: ENTRY_STATE_UNKNOWN"  # type: ignore[arg-type]  # Strings are bookies here.


def test_lac_is_at_least_the_floor() -> None:
    survey = LacSurvey(E3, floor=EntryId(9))
    survey.on_lac(NO_ENTRY)
    assert survey.last_add_confirmed == 9


@pytest.mark.parametrize("write", range(1, 5))
@pytest.mark.parametrize("ensemble", range(1, 5))
def test_covered_survey_misses_no_confirmed_entry(ensemble: int, write: int) -> None:
    """RD1, exhaustively: the replies of a covered survey include every possible ack quorum."""
    if write > ensemble:
        return
    for ack in range(1, write + 1):
        quorum = Quorum(ensemble, write, ack)
        for heard in product((False, True), repeat=ensemble):
            survey = LacSurvey(quorum)
            for slot, is_heard in enumerate(heard):
                if is_heard:
                    survey.on_heard(slot)
                else:
                    survey.on_silence(slot, "timeout")
            can_hide = any(
                sum(not heard[slot] for slot in quorum.write_slots(EntryId(entry_id))) >= ack
                for entry_id in range(ensemble)
            )
            assert survey.is_covered is not can_hide
