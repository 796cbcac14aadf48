"""A log is reported as stuck while its openings fail again and again."""

from rollbook.logservice.core.unopened_logs import UnopenedLogs
from rollbook.logservice.ids import LogName

LOG = LogName("test", "log")
OTHER = LogName("test", "other")


def test_log_is_stuck_after_two_failures_in_a_row() -> None:
    unopened = UnopenedLogs()
    assert not unopened.on_failed(LOG, 0.0, "no quorum").is_news
    assert LOG in unopened
    assert unopened.find_stuck(LOG, 0.0) is None
    assert unopened.count_stuck(0.0) == 0
    assert unopened.on_failed(LOG, 1.0, "no quorum", "start b1").is_news
    unopened.on_failed(OTHER, 1.0, "once")
    found = unopened.find_stuck(LOG, 2.0)
    assert found is not None
    assert (found.attempts, found.why, found.next_step) == (2, "no quorum", "start b1")
    assert unopened.count_stuck(2.0) == 1


def test_successful_opening_clears_the_failures() -> None:
    unopened = UnopenedLogs()
    for now_s in range(3):
        unopened.on_failed(LOG, now_s, "no quorum")
    unopened.forget(LOG)
    assert LOG not in unopened
    assert unopened.count_stuck(3.0) == 0
    assert not unopened.on_failed(LOG, 4.0, "no quorum").is_news


def test_log_without_recent_attempts_is_not_stuck() -> None:
    unopened = UnopenedLogs()
    for now_s in range(3):
        unopened.on_failed(LOG, now_s, "no quorum")
    assert unopened.count_stuck(302.0) == 1
    assert unopened.count_stuck(303.0) == 0
    assert unopened.find_stuck(LOG, 303.0) is None
    assert LOG in unopened, "the next attempt makes no ledger in advance"


def test_failures_are_logged_ever_less_often() -> None:
    unopened = UnopenedLogs()
    news = [n for n in range(1, 40) if unopened.on_failed(LOG, n, "no quorum").is_news]
    assert news == [2, 4, 8, 16, 32]
