"""LS10: a barrier needs an entry that was sent after the request."""

from rollbook.logservice.core.tail_barrier import Barriers


def test_append_after_the_request_serves_the_barrier() -> None:
    barriers = Barriers[str]()
    barriers.on_asked("a")
    barriers.on_asked("b")
    assert barriers.needs_entry
    assert barriers.on_sent() == ["a", "b"]
    assert not barriers.needs_entry


def test_entry_sent_before_the_request_does_not_count() -> None:
    """Its confirmations may date from before the log was taken over."""
    barriers = Barriers[str]()
    assert barriers.on_sent() == []
    barriers.on_asked("a")
    assert barriers.is_asked
    assert barriers.needs_entry


def test_requests_during_a_pending_entry_share_the_next_one() -> None:
    barriers = Barriers[str]()
    barriers.on_asked("a")
    assert barriers.on_sent(is_ours=True) == ["a"]
    barriers.on_asked("b")
    barriers.on_asked("c")
    assert not barriers.needs_entry
    barriers.on_settled()
    assert barriers.needs_entry
    assert barriers.on_sent(is_ours=True) == ["b", "c"]
