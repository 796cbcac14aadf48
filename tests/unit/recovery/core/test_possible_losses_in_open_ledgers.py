"""The decision about an open ledger in doubt, as a table of all cases, and the parts of the ledger that it is about."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings

from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.metadata import ENTRY_ID_MAX, Fragment, LedgerMetadata, LedgerState
from rollbook.proto.quorum import Quorum
from rollbook.recovery.core.entry_spans import WHOLE, EntrySpan, covers
from rollbook.recovery.core.possible_losses_in_open_ledgers import (
    OpenLedgerAction,
    OpenLedgerDoubts,
    Writers,
    as_if_closed,
    before_open_end,
    rest_to_give_up,
)
from tests.unit.recovery.core.test_entries_to_restore import LAST_MAX, NAMES, ledgers, some_ranges

HERE, THERE, THIRD = BookieId("a"), BookieId("b"), BookieId("c")
EARLIER = Fragment(EntryId(0), (HERE, THERE))
AT_THE_END = LedgerMetadata(LedgerId(1), Quorum(2, 2, 2), (EARLIER,))
LEFT_BY_WRITER = replace(AT_THE_END, fragments=(EARLIER, Fragment(EntryId(7), (THIRD, THERE))))
CONFIRMED = replace(AT_THE_END, state=LedgerState.CLOSED, last_entry=EntryId(3), length=0)
DOUBTS = OpenLedgerDoubts(
    AT_THE_END,
    HERE,
    is_doubted=True,
    is_wholly_doubted=True,
    is_unclaimed=False,
    refuses_writer=False,
)
SPARED, TO_HAVE_LEFT = Writers(are_spared=True), Writers(are_spared=True, are_to_have_left=True)


@pytest.mark.parametrize(
    ("doubts", "writers", "expected"),
    [
        (replace(DOUBTS, is_doubted=False, is_wholly_doubted=False), Writers(), "LEAVE"),
        (DOUBTS, Writers(), "CLOSE"),
        (DOUBTS, SPARED, "WAIT"),
        (DOUBTS, TO_HAVE_LEFT, "CLOSE"),
        (replace(DOUBTS, is_wholly_doubted=False), TO_HAVE_LEFT, "WAIT"),
        (replace(DOUBTS, is_wholly_doubted=False, refuses_writer=True), TO_HAVE_LEFT, "CLOSE"),
        (replace(DOUBTS, refuses_writer=True), SPARED, "WAIT"),
        (replace(DOUBTS, is_unclaimed=True), SPARED, "SETTLE_ALL"),
        (replace(DOUBTS, is_unclaimed=True), Writers(), "CLOSE"),
        (replace(DOUBTS, metadata=LEFT_BY_WRITER), SPARED, "HEAL_BESIDE_WRITER"),
        (replace(DOUBTS, metadata=LEFT_BY_WRITER), Writers(), "CLOSE"),
    ],
)
def test_action_for_an_open_ledger(
    doubts: OpenLedgerDoubts, writers: Writers, expected: str
) -> None:
    decision = doubts.decide(None, writers)
    assert decision.action is OpenLedgerAction[expected]
    if decision.action is OpenLedgerAction.HEAL_BESIDE_WRITER:
        assert decision.healable == before_open_end(doubts.metadata, HERE)


@pytest.mark.parametrize("writers", [Writers(), SPARED, TO_HAVE_LEFT])
def test_confirmed_doubts_are_healed_beside_the_writer(writers: Writers) -> None:
    decision = replace(DOUBTS, is_wholly_doubted=False).decide(CONFIRMED, writers)
    assert decision == (OpenLedgerAction.HEAL_BESIDE_WRITER, CONFIRMED)


def test_a_ledger_in_recovery_never_waits_for_its_writer() -> None:
    recovering = replace(AT_THE_END, state=LedgerState.IN_RECOVERY)
    for is_wholly_doubted, refuses_writer in itertools.product([False, True], repeat=2):
        doubts = replace(
            DOUBTS,
            metadata=recovering,
            is_wholly_doubted=is_wholly_doubted,
            refuses_writer=refuses_writer,
        )
        assert doubts.decide(None, SPARED).action is OpenLedgerAction.CLOSE


@settings(max_examples=300, deadline=None)
@given(ledgers(), some_ranges(), some_ranges())
def test_unclosed_ledger_gives_up_only_its_accepted_tail(
    closed: LedgerMetadata, doubted: list[EntrySpan], accepted: list[EntrySpan]
) -> None:
    """HL1: entries of earlier fragments were confirmed, so their copies are searched first."""
    metadata = LedgerMetadata(
        closed.ledger_id, closed.quorum, closed.fragments, LedgerState.IN_RECOVERY
    )
    given_up = rest_to_give_up(metadata, doubted, accepted)
    for entry_id in [*range(-1, LAST_MAX + 20), ENTRY_ID_MAX]:
        assert covers(given_up, entry_id) == (
            entry_id >= metadata.fragments[-1].first_entry
            and covers(doubted, entry_id)
            and covers(accepted, entry_id)
        )
    assert not rest_to_give_up(metadata, doubted, [])


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
@pytest.mark.parametrize(
    ("doubted", "lac", "may_stay_open"),
    [
        ([EntrySpan(3, 9)], 9, True),
        ([EntrySpan(3, 9)], 8, False),
        ([EntrySpan(0, 2), EntrySpan(5, ENTRY_ID_MAX)], 100, False),
        ([EntrySpan(NO_ENTRY, 4)], 9, False),  # The explicit LAC is in doubt.
        ([WHOLE], 9, False),
        ([], 9, False),
    ],
)
def test_ledger_stays_open_if_all_doubted_entries_are_confirmed(
    state: LedgerState, doubted: list[EntrySpan], lac: int, may_stay_open: bool
) -> None:
    ensemble = tuple(NAMES[:3])
    metadata = LedgerMetadata(
        LedgerId(1), Quorum(3, 3, 2), (Fragment(EntryId(0), ensemble),), state
    )
    found = as_if_closed(metadata, EntryId(lac), doubted)
    assert (found is not None) == (may_stay_open and state is LedgerState.OPEN)
    if found is not None:
        assert found.last_entry == lac


def test_bookie_the_writer_left_is_healed_up_to_its_last_entry() -> None:
    """DH3: its replies do not matter from the open fragment on."""
    q = Quorum(2, 2, 2)
    here, there, third = BookieId("a"), BookieId("b"), BookieId("c")
    fragments = Fragment(EntryId(0), (here, there)), Fragment(EntryId(7), (third, there))
    metadata = LedgerMetadata(LedgerId(1), q, fragments)
    healed = before_open_end(metadata, here)
    assert healed is not None
    assert (healed.is_closed, healed.last_entry, healed.fragments) == (True, 6, fragments[:1])
    assert before_open_end(metadata, there) is None, "the open fragment names this bookie"
