from rollbook.bookie.core.event_budget import EventBudget


def test_a_minute_grants_a_thousand_events() -> None:
    budget = EventBudget()
    assert budget.take(600, now_ns=5) == 600
    assert budget.take(600, now_ns=6) == 400
    assert budget.take(1, now_ns=7) == 0
    assert budget.take(600, now_ns=5 + 60 * 10**9) == 600
