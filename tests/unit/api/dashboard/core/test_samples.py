"""What the overview's charts are drawn from."""

from rollbook.api.dashboard.core.samples import KEPT, Counted, Samples

INF = float("inf")


def test_what_is_wanted_is_taken_from_the_text() -> None:
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


def test_rates_are_of_all_servers_and_a_new_start_is_none_below_zero() -> None:
    """DB7."""
    samples = Samples()
    samples.add(10, {"a": Counted({"appended_records_total": 100}, {})})
    assert samples.newest is not None
    assert samples.newest.values == (None, None, None, None)
    b = Counted({"appended_records_total": 5000}, {})
    samples.add(12, {"a": Counted({"appended_records_total": 120}, {}), "b": b})
    assert samples.newest.values[0] == 10.0, "what b counted before it was seen is no rate"
    started = {"a": Counted({"appended_records_total": 4}, {}), "b": b}
    samples.add(14, started)
    assert samples.newest.values[0] == 2.0
    samples.add(16, {})
    assert samples.newest.values == (None, None, None, None)


def test_p99_is_of_the_appends_since_the_sample_before() -> None:
    samples = Samples()
    samples.add(2, {"a": Counted({}, {0.1: 100, 0.5: 100, INF: 100})})
    samples.add(4, {"a": Counted({}, {0.1: 100, 0.5: 200, INF: 200})})
    assert samples.newest is not None
    assert samples.newest.values[3] == 500.0


def test_no_more_than_a_quarter_of_an_hour_is_kept() -> None:
    """DB7: 450 samples, however long it runs and however clocks jump."""
    samples = Samples()
    for second in range(0, 4 * KEPT, 2):
        samples.add(second, {})
    samples.add(5, {})
    assert len(samples.after(-1)) == KEPT
    assert [each.time_s for each in samples.after(4 * KEPT - 5)] == [4 * KEPT - 4, 4 * KEPT - 2]
