"""What a process says of itself."""

import io
import json

import pytest
import structlog

from rollbook.proto.runtime.logs import configure_logs
from rollbook.proto.runtime.metrics import Metrics


def test_an_event_is_one_json_line_without_secrets() -> None:
    stream = io.StringIO()
    configure_logs(stream=stream)
    try:
        logger = structlog.get_logger().bind(ledger_id=7)
        logger.info("ledger_fenced", password="canary", by="b1")
        logger.debug("not_shown")
    finally:
        structlog.reset_defaults()
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


@pytest.mark.parametrize(
    ("is_terminal", "no_color", "is_coloured"),
    [(True, "", True), (True, "1", False), (False, "", False)],
)
def test_colours_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, no_color: str, is_coloured: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    configure_logs(as_json=False, stream=stream)
    try:
        structlog.get_logger().info("ledger_fenced")
    finally:
        structlog.reset_defaults()
    assert ("\x1b[" in stream.getvalue()) is is_coloured


def test_metrics_of_two_nodes_do_not_meet() -> None:
    first, second = Metrics(), Metrics()
    first.counter("adds", "Entries added.").inc(3)
    second.counter("adds", "Entries added.").inc()
    first.latency("add_seconds", "Time of an add.", ("op",)).labels("add").observe(0.003)
    first.gauge("queue_bytes", "Bytes waiting.").set(12)
    text = first.exposition().decode()
    assert "rollbook_adds_total 3.0" in text
    assert 'rollbook_add_seconds_bucket{le="0.005",op="add"} 1.0' in text
    assert "rollbook_queue_bytes 12.0" in text
    assert "rollbook_adds_total 1.0" in second.exposition().decode()
