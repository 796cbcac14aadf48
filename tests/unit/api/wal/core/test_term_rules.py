"""One leader's term, from its grant to its end."""

import pytest

from rollbook.api.wal.core.term_rules import TermRules
from rollbook.logservice.ids import Offset, WriterEpoch
from rollbook.proto.errors import BadFrame, LogSealed, QuorumTimeout, StaleEpoch

E3 = WriterEpoch(3)


def term(*waiters: str) -> TermRules[str]:
    rules: TermRules[str] = TermRules(E3, Offset(10))
    for waiter in waiters:
        rules.on_proposed(waiter)
    return rules


def fenced(at: int = 12, by: int = 4) -> StaleEpoch:
    return StaleEpoch(current_epoch=by, fenced_at=at, holder="b")


def test_leader_serves_after_applying_all_below_the_fence() -> None:
    """WK3"""
    rules = term()
    assert not rules.may_serve(Offset(9))
    assert rules.may_serve(Offset(10))
    assert rules.may_serve(Offset(11))
    rules.on_over(fenced())
    assert not rules.may_serve(Offset(11))


def test_acks_follow_proposals_without_gaps() -> None:
    """WK3"""
    rules = term("a", "b", "c")
    assert rules.on_acked(Offset(10), Offset(10)) == "a"
    with pytest.raises(BadFrame, match="another writer appended with our writer epoch"):
        rules.on_acked(Offset(12), Offset(11))
    assert rules.oldest == "b"


def test_ended_term_refuses_proposals_and_keeps_first_reason() -> None:
    """WK4"""
    rules, first = term("a"), fenced()
    rules.on_over(first)
    rules.on_over(QuorumTimeout())
    assert rules.over is first
    with pytest.raises(AssertionError):
        rules.on_proposed("b")
    with pytest.raises(AssertionError):
        rules.on_acked(Offset(10), Offset(10))
    assert list(rules.take_rest()) == ["a"]
    assert rules.oldest is None


def test_fenced_term_settles_proposals_up_to_the_fence() -> None:
    """WK5: the oldest proposals are below the fence; the rest was never appended."""
    rules = term("a", "b", "c")
    rules.on_over(fenced(at=13))
    assert rules.settled_below() == 13
    assert rules.on_replayed(E3) == "a"
    assert rules.on_replayed(WriterEpoch(4)) is None
    assert rules.on_replayed(E3) == "b"
    assert list(rules.take_rest()) == ["c"]
    assert rules.on_replayed(E3) is None


def test_sealed_log_settles_proposals_up_to_its_tail() -> None:
    """WK5"""
    rules = term("a")
    rules.on_over(LogSealed(tail=11))
    assert rules.settled_below() == 11


@pytest.mark.parametrize(
    "error", [QuorumTimeout(), fenced(by=3), StaleEpoch(), StaleEpoch(current_epoch=4)]
)
def test_proposals_stay_unsettled_without_a_newer_fence(error: StaleEpoch) -> None:
    """WK5: a released writer is not fenced; the reported fence is its own."""
    rules = term("a")
    rules.on_over(error)
    assert rules.settled_below() is None
