from rollbook.ledger.core.bookie_quarantine import QUARANTINE_NS_MAX, QUARANTINE_NS_MIN, Health
from rollbook.proto.ids import BookieId

B1, B2 = BookieId("b1"), BookieId("b2")
S = 1_000_000_000


def test_failure_quarantines_only_that_bookie_for_a_while() -> None:
    health = Health()
    health.on_failure(B1, 5 * S)
    assert health.is_quarantined(B1, 5 * S + QUARANTINE_NS_MIN - 1)
    assert not health.is_quarantined(B1, 5 * S + QUARANTINE_NS_MIN)
    assert not health.is_quarantined(B2, 5 * S)


def test_failures_of_one_outage_count_once() -> None:
    """A thousand ledgers may report the same failure at once."""
    health = Health()
    for at in range(100):
        health.on_failure(B1, at)
    assert health.quarantined_until_ns(B1) == QUARANTINE_NS_MIN


def test_repeated_failures_lengthen_the_quarantine() -> None:
    health, now, spans = Health(), 0, []
    for _ in range(8):
        health.on_failure(B1, now)
        spans.append(health.quarantined_until_ns(B1) - now)
        now = health.quarantined_until_ns(B1)
    assert spans[:3] == [QUARANTINE_NS_MIN, 2 * QUARANTINE_NS_MIN, 4 * QUARANTINE_NS_MIN]
    assert spans[-1] == QUARANTINE_NS_MAX
    health.on_failure(B1, now + 10 * QUARANTINE_NS_MAX)  # Earlier failures are long past.
    assert not health.is_quarantined(B1, now + 10 * QUARANTINE_NS_MAX + QUARANTINE_NS_MIN)


def test_bookie_that_answers_a_probe_is_pardoned_but_a_relapse_counts() -> None:
    health = Health()
    health.pardon(B1, 0)
    health.on_failure(B1, 0)
    health.pardon(B1, 5 * S)
    assert not health.is_quarantined(B1, 5 * S)
    health.on_failure(B1, 6 * S)
    assert health.quarantined_until_ns(B1) == 6 * S + 2 * QUARANTINE_NS_MIN


def test_read_rank_prefers_healthy_then_slow_then_quarantined() -> None:
    health = Health()
    health.on_failure(B1, 0)
    health.on_slow(B2, 0)
    assert [health.read_rank(each, 1) for each in (BookieId("b3"), B2, B1)] == [0, 1, 2]
    health.on_answer(B1)
    health.on_answer(B2)
    assert [health.read_rank(each, 1) for each in (B1, B2)] == [2, 0]


def test_health_forgets_the_oldest_of_20000_bookies() -> None:
    health = Health()
    for index in range(20_000):
        health.on_failure(BookieId(f"b{index}"), 0)
    assert not health.is_quarantined(B1, 1)
    assert health.is_quarantined(BookieId("b19999"), 1)
