"""When a recorded run proves too little to count."""

from tests.simulation.history import History


def test_run_without_a_fault_during_an_append_is_weak() -> None:
    history = History()
    history.on_healed(history.disturb("kill", "b1"))
    history.on_applied(history.append("writer", 1), 0)
    history.disturb("cut", "b2")
    assert history.weakness() == "no fault overlapped an append"
    assert history.overlapped() == {"kill": 0, "cut": 0}


def test_run_with_many_unknown_appends_is_weak() -> None:
    history = History()
    history.disturb("kill", "b1")
    for value in range(10):
        history.on_applied(history.append("writer", value), value)
    assert history.weakness() is None
    for value in range(10, 15):
        history.on_unknown(history.append("writer", value), "timeout")
    assert history.weakness() == "5 of 15 appends have an unknown outcome"
    assert [append.why_unknown for append in history.unknowns()] == ["timeout"] * 5


def test_append_that_outlasts_a_fault_overlaps_it() -> None:
    history = History()
    history.append("writer", 0)  # Never returns.
    history.on_applied(history.append("writer", 1), 1)
    history.on_healed(history.disturb("pause", "b1"))
    assert history.overlapped() == {"pause": 1}


def test_lines_of_history_are_in_order_of_time() -> None:
    ticks = iter(range(100))
    history = History(lambda: float(next(ticks)))
    fault = history.disturb("kill", "b1")
    append = history.append("writer", "a")
    history.on_healed(fault)
    history.on_applied(append, 0)
    history.on_read(history.read("reader", 0), "a")
    history.on_tail(history.tail("reader"), 1)
    history.deliver("follower", 0, "a")
    assert [line.strip() for line in history.lines()] == [
        "0.0000s fault: kill b1 until 2.0000s",
        "1.0000s writer appends 'a' until 3.0000s: position 0",
        "4.0000s reader reads 0: 'a'",
        "6.0000s reader asks for the length: 1",
        "8.0000s follower is handed 'a' at 0",
    ]
