"""Of the streams that are present, the one that waited longest has the next turn."""

from functools import partial

from rollbook.api.access.core.turn_queue import FairQueue


def test_fair_queue_is_first_come_first_served() -> None:
    line, woken = FairQueue(), list[str]()
    a, b, c = (line.join(partial(woken.append, name)) for name in "abc")
    assert line.is_first(a)
    assert not line.is_first(b)
    line.leave(b)
    assert not woken, "a is still first"
    line.leave(a)
    line.leave(a)
    assert line.is_first(c)
    assert woken == ["c"]
    line.come_back(a)
    assert line.is_first(a), "a stream that returns keeps its position"
    line.leave(a)
    line.leave(c)
    assert line.is_empty
    assert woken == ["c", "c"]
