from rollbook.bookie.core.deadlines import Deadlines


def test_who_is_late_comes_out_once_and_in_order() -> None:
    deadlines = Deadlines[str](10)
    deadlines.start("a", 0)
    deadlines.start("b", 1)
    deadlines.start("c", 5)
    assert deadlines.take_late(9) == []
    assert deadlines.take_late(11) == ["a", "b"]
    assert deadlines.take_late(11) == []
    assert list(deadlines) == ["c"]


def test_to_start_again_is_to_be_last() -> None:
    deadlines = Deadlines[str](10)
    deadlines.start("a", 0)
    deadlines.start("b", 1)
    deadlines.start("a", 2)
    assert list(deadlines) == ["b", "a"]
    deadlines.stop("b")
    assert len(deadlines) == 1
    assert deadlines.take_late(11) == []
    assert deadlines.take_late(12) == ["a"]
