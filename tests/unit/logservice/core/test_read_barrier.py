"""LS10: a barrier takes something that was sent after the question."""

from rollbook.logservice.core.read_barrier import Barriers


def test_any_append_behind_the_question_will_do() -> None:
    barriers = Barriers[str]()
    barriers.on_asked("a")
    barriers.on_asked("b")
    assert barriers.needs_entry
    assert barriers.on_sent() == ["a", "b"]
    assert not barriers.needs_entry


def test_what_was_sent_before_the_question_proves_nothing() -> None:
    """It may be confirmed by answers from a time before the log was taken over."""
    barriers = Barriers[str]()
    assert barriers.on_sent() == []
    barriers.on_asked("a")
    assert barriers.is_asked
    assert barriers.needs_entry


def test_who_asks_while_an_entry_is_on_its_way_shares_the_next_one() -> None:
    barriers = Barriers[str]()
    barriers.on_asked("a")
    assert barriers.on_sent(is_ours=True) == ["a"]
    barriers.on_asked("b")
    barriers.on_asked("c")
    assert not barriers.needs_entry
    barriers.on_settled()
    assert barriers.needs_entry
    assert barriers.on_sent(is_ours=True) == ["b", "c"]
