"""The decision about an open ledger in doubt, as a table of all cases."""

import itertools
from dataclasses import replace

import pytest

from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata, LedgerState
from rollbook.proto.quorum import Quorum
from rollbook.recovery.core.open_ledgers import (
    OpenLedgerAction,
    OpenLedgerDoubts,
    Writers,
    before_open_end,
)

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
