from rollbook.bookie.core.deadline_queue import Deadlines


def test_expired_entries_are_taken_once_in_order() -> None:
    deadlines = Deadlines[str](10)
    deadlines.start("a", 0)
    deadlines.start("b", 1)
    deadlines.start("c", 5)
    assert deadlines.take_late(9) == []
    assert deadlines.take_late(11) == ["a", "b"]
    assert deadlines.take_late(11) == []
    assert deadlines.waited_for(0, 5) == ["c"]


def test_restarted_entry_moves_to_the_end() -> None:
    deadlines = Deadlines[str](10)
    deadlines.start("a", 0)
    deadlines.start("b", 1)
    deadlines.start("a", 2)
    assert deadlines.waited_for(0, 2) == ["b", "a"]
    deadlines.stop("b")
    assert len(deadlines) == 1
    assert deadlines.take_late(11) == []
    assert deadlines.take_late(12) == ["a"]


def test_waited_for_returns_entries_past_the_given_wait() -> None:
    deadlines = Deadlines[str](10)
    deadlines.start("a", 0)
    deadlines.start("b", 3)
    assert deadlines.waited_for(4, 3) == []
    assert deadlines.waited_for(4, 4) == ["a"]
    assert deadlines.waited_for(4, 7) == ["a", "b"]
    assert len(deadlines) == 2


def test_postpone_extends_every_deadline() -> None:
    deadlines = Deadlines[str](10)
    deadlines.start("a", 0)
    deadlines.start("b", 3)
    deadlines.postpone(100)
    assert deadlines.waited_ns("a", 104) == 4
    assert deadlines.take_late(109) == []
    assert deadlines.take_late(112) == ["a"]
    assert deadlines.take_late(113) == ["b"]
