"""The samples behind the overview's charts."""

from rollbook.api.dashboard.core.samples import KEPT, Counted, Samples

INF = float("inf")


def test_wanted_metrics_are_parsed_from_the_text() -> None:
    """DB7."""
    text = (
        "# TYPE rollbook_log_appended_records_total counter\n"
        "rollbook_log_appended_records_total 12.0\n"
        "rollbook_log_told_records_total nonsense\n"
        'rollbook_log_append_seconds_bucket{le="0.5"} 3\n'
        'rollbook_log_append_seconds_bucket{le="+Inf"} 4\n'
        'rollbook_log_append_stage_seconds_bucket{stage="queue",le="0.5"} 9\n'
    )
    assert Counted.parse(text) == Counted({"appended_records_total": 12.0}, {0.5: 3.0, INF: 4.0})


def test_rate_sums_servers_and_restarts_count_from_zero() -> None:
    """DB7."""
    samples = Samples()
    samples.add(10, {"a": Counted({"appended_records_total": 100}, {})})
    assert samples.newest is not None
    assert samples.newest.values == (None, None, None, None)
    b = Counted({"appended_records_total": 5000}, {})
    samples.add(12, {"a": Counted({"appended_records_total": 120}, {}), "b": b})
    assert samples.newest.values[0] == 10.0, "the first count of server b is not part of the rate"
    started = {"a": Counted({"appended_records_total": 4}, {}), "b": b}
    samples.add(14, started)
    assert samples.newest.values[0] == 2.0
    samples.add(16, {})
    assert samples.newest.values == (None, None, None, None)


def test_p99_covers_the_appends_since_the_last_sample() -> None:
    samples = Samples()
    samples.add(2, {"a": Counted({}, {0.1: 100, 0.5: 100, INF: 100})})
    samples.add(4, {"a": Counted({}, {0.1: 100, 0.5: 200, INF: 200})})
    assert samples.newest is not None
    assert samples.newest.values[3] == 500.0


def test_number_of_kept_samples_is_bounded() -> None:
    """DB7: 450 samples (15 minutes) are kept, also when the clock goes back."""
    samples = Samples()
    for second in range(0, 4 * KEPT, 2):
        samples.add(second, {})
    samples.add(5, {})
    assert len(samples.after(-1)) == KEPT
    assert [each.time_s for each in samples.after(4 * KEPT - 5)] == [4 * KEPT - 4, 4 * KEPT - 2]
