"""Logs and metrics of a process."""

import errno
import io
import json
from dataclasses import dataclass
from itertools import accumulate

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from rollbook.proto.runtime.logging_setup import configure_logs, log_as_a_library
from rollbook.proto.runtime.prometheus_text import Metrics
from rollbook.proto.stats import (
    LATENCY_BOUNDS_NS,
    Gauge,
    Histogram,
    counter,
    counters,
    gauge,
    latency,
)


def test_event_is_one_json_line_without_secrets() -> None:
    stream = io.StringIO()
    configure_logs(stream=stream)
    logger = structlog.get_logger().bind(ledger_id=7)
    logger.info("ledger_fenced", password="canary", by="b1")
    logger.debug("not_shown")
    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "event": "ledger_fenced",
        "level": "info",
        "ledger_id": 7,
        "by": "b1",
        "password": "***",
    }


def test_library_logs_to_the_logger_of_its_program(caplog: pytest.LogCaptureFixture) -> None:
    log_as_a_library()
    with caplog.at_level("WARNING", "rollbook"):
        logger = structlog.get_logger("rollbook.ledger.bookie_pool")
        logger.info("not_shown")
        logger.warning("bookie_connection_lost", bookie="bk-1", password="canary")
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("rollbook.ledger.bookie_pool", "WARNING")
    assert record.getMessage() == "event='bookie_connection_lost' bookie='bk-1' password='***'"
    configure_logs(stream=io.StringIO())
    before = structlog.get_config()
    log_as_a_library()  # A configuration that exists is kept.
    assert structlog.get_config() == before


def test_log_that_cannot_be_written_raises_nothing() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "full")

        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "full")

    configure_logs(stream=Full())
    structlog.get_logger().error("disk_full")


@pytest.mark.parametrize(
    ("is_terminal", "no_color", "is_coloured"),
    [(True, "", True), (True, "1", False), (False, "", False)],
)
def test_colours_are_used_only_on_terminals_without_no_color(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, no_color: str, is_coloured: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    configure_logs(as_json=False, stream=stream)
    structlog.get_logger().info("ledger_fenced")
    assert ("\x1b[" in stream.getvalue()) is is_coloured


@dataclass
class Stats:
    adds: int = counter("adds_total", "Entries added.")
    refusals: dict[str, int] = counters("refusals_total", "Refused, by reason.", "reason")
    add_latency: Histogram = latency("add_seconds", "Time of an add.")
    queue_bytes: Gauge = gauge("queue_bytes", "Bytes waiting.")


def shown(stats: Stats) -> str:
    metrics = Metrics()
    metrics.add("bookie", stats)
    return b"".join(metrics.exposition()).decode()


def test_exposition_shows_current_values() -> None:
    first, second = Stats(), Stats()
    first.adds += 3
    second.adds += 1
    first.refusals["FENCED"] = 2
    first.queue_bytes = lambda: 12
    first.add_latency.observe(3_000_000, 5)
    text = shown(first)
    assert "rollbook_bookie_adds_total 3.0" in text
    assert 'rollbook_bookie_refusals_total{reason="FENCED"} 2.0' in text
    assert 'rollbook_bookie_add_seconds_bucket{le="0.0025"} 0\n' in text
    assert 'rollbook_bookie_add_seconds_bucket{le="0.005"} 5\n' in text
    assert 'rollbook_bookie_add_seconds_bucket{le="+Inf"} 5\n' in text
    assert "rollbook_bookie_add_seconds_sum 0.015" in text
    assert "rollbook_bookie_queue_bytes 12.0" in text
    assert "rollbook_bookie_adds_total 1.0" in shown(second)


def test_exposition_is_parsed_by_prometheus_client() -> None:
    """A parser of the format reads every value as it was counted."""
    stats = Stats(adds=7, refusals={'with "quotes"': 1, "two\nlines \\ slash": 2})
    for value in (1, 10_000, 10_001, 10**12):
        stats.add_latency.observe(value, times=3)
    metrics = Metrics()
    metrics.add("bookie", stats)
    metrics.add_process("1.2.3")
    text = b"".join(metrics.exposition()).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["process_resident_memory_bytes"].type == "gauge"

    adds = families["rollbook_bookie_adds"]
    assert (adds.type, adds.documentation) == ("counter", "Entries added.")
    assert [(each.name, each.value) for each in adds.samples] == [("rollbook_bookie_adds_total", 7)]
    refusals = families["rollbook_bookie_refusals"].samples
    assert {each.labels["reason"]: each.value for each in refusals} == stats.refusals

    latency = families["rollbook_bookie_add_seconds"]
    assert latency.type == "histogram"
    buckets = [each for each in latency.samples if each.name.endswith("_bucket")]
    assert [each.value for each in buckets] == list(accumulate(stats.add_latency.counts))
    bounds = [float(each.labels["le"]) for each in buckets]
    assert bounds == [*(bound / 1e9 for bound in LATENCY_BOUNDS_NS), float("inf")]
    rest = {each.name.rpartition("_")[2]: each.value for each in latency.samples[len(buckets) :]}
    assert rest == {"sum": stats.add_latency.total / 1e9, "count": 12}


def test_control_characters_are_escaped_on_terminals() -> None:
    stream = io.StringIO()
    configure_logs(as_json=False, stream=stream)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        structlog.get_logger().error("refused", holder="h\x1b[2J\nforged", exc_info=True)
    said = stream.getvalue()
    assert r"h\x1b[2J\nforged" in said
    assert "two\nlines" in said  # A traceback keeps its lines.
    assert "\x1b" not in said
