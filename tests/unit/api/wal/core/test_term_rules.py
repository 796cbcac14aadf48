"""One leadership, from its grant to its end."""

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


def test_it_serves_when_all_below_the_fence_is_in_the_state() -> None:
    """WK3"""
    rules = term()
    assert not rules.may_serve(Offset(9))
    assert rules.may_serve(Offset(10))
    assert rules.may_serve(Offset(11))
    rules.on_over(fenced())
    assert not rules.may_serve(Offset(11))


def test_what_is_acked_is_the_next_record() -> None:
    """WK3"""
    rules = term("a", "b", "c")
    assert rules.on_acked(Offset(10), Offset(10)) == "a"
    with pytest.raises(BadFrame, match="another writer appended with our writer epoch"):
        rules.on_acked(Offset(12), Offset(11))
    assert rules.oldest == "b"


def test_over_it_takes_nothing_and_its_first_reason_stays() -> None:
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


def test_below_the_next_fence_is_all_that_ever_will_be() -> None:
    """WK5: records of this epoch are the front part of what waits; the others never were appended."""
    rules = term("a", "b", "c")
    rules.on_over(fenced(at=13))
    assert rules.settled_below() == 13
    assert rules.on_replayed(E3) == "a"
    assert rules.on_replayed(WriterEpoch(4)) is None
    assert rules.on_replayed(E3) == "b"
    assert list(rules.take_rest()) == ["c"]
    assert rules.on_replayed(E3) is None


def test_a_seal_settles_as_a_fence_does() -> None:
    """WK5"""
    rules = term("a")
    rules.on_over(LogSealed(tail=11))
    assert rules.settled_below() == 11


@pytest.mark.parametrize(
    "error", [QuorumTimeout(), fenced(by=3), StaleEpoch(), StaleEpoch(current_epoch=4)]
)
def test_without_a_newer_fence_nobody_knows(error: StaleEpoch) -> None:
    """WK5: released is not fenced: the reported fence is our own."""
    rules = term("a")
    rules.on_over(error)
    assert rules.settled_below() is None
