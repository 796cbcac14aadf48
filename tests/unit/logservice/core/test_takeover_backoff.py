"""Logs of a dead server are taken over in half a second; a wrong address moves none back and forth."""

from rollbook.logservice.core.peer_failure_detector import Refusals
from rollbook.logservice.core.takeover_backoff import TakeoverPatience
from rollbook.logservice.ids import LogName

MS = 1_000_000
S = 1000 * MS
ORDERS, OTHER = LogName("default", "orders"), LogName("default", "other")


def refused(*times_ms: int) -> Refusals:
    refusals = Refusals()
    for time_ms in times_ms:
        refusals.on_refused(time_ms * MS)
    return refusals


def test_server_refusing_for_half_a_second_is_dead() -> None:
    assert not refused(1000).is_dead
    assert not refused(1000, 1100, 1499).is_dead
    assert refused(1000, 1100, 1499, 1500).is_dead


def test_server_that_answers_between_refusals_is_alive() -> None:
    refusals = refused(1000, 1400)
    assert refusals.is_refusing
    refusals.on_other()
    assert not refusals.is_refusing
    refusals.on_refused(1500 * MS)
    assert not refusals.is_dead


def test_old_refusals_do_not_count() -> None:
    """A server that refused twice, hours apart, may have served in between."""
    refusals = refused(1000, 61_000)
    assert refusals.is_refusing
    assert not refusals.is_dead


def test_takeover_pauses_double_per_log() -> None:
    patience, now = TakeoverPatience(), 0
    for length_s in (5, 10, 20, 40, 80, 160, 300, 300):
        assert patience.wait_ns(ORDERS, now) == 0
        patience.on_taken(ORDERS, now)
        assert patience.wait_ns(ORDERS, now) == length_s * S
        assert patience.wait_ns(OTHER, now) == 0
        now += length_s * S


def test_pauses_start_over_after_a_quiet_time() -> None:
    patience = TakeoverPatience()
    patience.on_taken(ORDERS, 0)
    patience.on_taken(ORDERS, 5 * S)
    assert patience.wait_ns(ORDERS, 5 * S) == 10 * S
    patience.on_taken(ORDERS, 60 * S)
    assert patience.wait_ns(ORDERS, 60 * S) == 5 * S
