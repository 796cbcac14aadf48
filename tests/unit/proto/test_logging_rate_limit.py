from rollbook.proto.logging_rate_limit import EventBudget

S = 10**9


def test_a_minute_grants_a_thousand_events() -> None:
    budget = EventBudget()
    assert budget.take(600, now_ns=5) == 600
    assert budget.take(600, now_ns=6) == 400
    assert budget.take(1, now_ns=7) == 0
    assert budget.take(600, now_ns=5 + 60 * S) == 600


def test_events_that_were_not_logged_are_counted_once() -> None:
    budget = EventBudget(events_max=2, period_s=1)
    assert [budget.take(1, now_ns=each) for each in (1, 2, 3, 4)] == [1, 1, 0, 0]
    assert budget.take(1, now_ns=1 + S) == 1
    assert budget.take_left_out() == 2
    assert budget.take_left_out() == 0
