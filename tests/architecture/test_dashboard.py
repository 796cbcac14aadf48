"""The dashboard's queries use existing metrics according to their kind and labels."""

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import GCCollector, ProcessCollector
from prometheus_client.core import CollectorRegistry

from rollbook.api.access.certificate_expiry_watch import TlsStats
from rollbook.bookie.stats import Stats
from rollbook.logservice.stats import NAMESPACE, LogStats
from rollbook.proto.stats import Metric, MetricKind, metrics_of
from rollbook.recovery.stats import RecoveryStats
from tests.architecture.source import ROOT

DASHBOARD: dict[str, Any] = json.loads((ROOT / "compose" / "grafana" / "rollbook.json").read_text())
NAMES = re.compile(r"\b(?:rollbook|process|python)_[a-z_0-9]+")
GROUPED = re.compile(r"\bby \(([^)]*)\)")
LEGEND = re.compile(r"{{(\w+)}}")
OF_PROMETHEUS = {"instance", "job", "le"}


def known() -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    for prefix, stats in (
        (f"{NAMESPACE}_", LogStats),
        ("rollbook_bookie_", Stats),
        ("rollbook_recovery_", RecoveryStats),
        ("rollbook_tls_", TlsStats),
    ):
        found |= {prefix + metric.name: metric for metric in metrics_of(stats)}
    found["rollbook_build_info"] = Metric("rollbook_build_info", MetricKind.GAUGE, "", "version")
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    for family in registry.collect():
        kind = MetricKind.COUNTER if family.type == "counter" else MetricKind.GAUGE
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = Metric(name, kind, family.documentation)
    source = (ROOT / "api" / "spark" / "lag.py").read_text()  # Importing it needs Spark.
    for kind, name in re.findall(r'(Gauge|Counter)\(\s*"(rollbook_spark_\w+)"', source):
        name += "_total" if kind == "Counter" else ""
        found[name] = Metric(name, MetricKind(kind.lower()), "", "query")
    return found


def targets() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]


def faults(expr: str, legend: str) -> list[str]:
    """The faults of a query."""
    found, labels = [], set(OF_PROMETHEUS)
    for name in NAMES.findall(expr):
        is_bucket = name.endswith("_bucket")
        metric = known().get(name.removesuffix("_bucket"))
        if metric is None:
            found.append(f"{name} does not exist")
            continue
        labels |= {metric.label}
        if name == "rollbook_spark_lag_records":
            labels.add("log")  # This metric has two labels.
        if is_bucket != (metric.kind is MetricKind.HISTOGRAM):
            found.append(f"{name} is a {metric.kind.value}")
        if (metric.kind is not MetricKind.GAUGE) != bool(
            re.search(rf"(?:rate|increase)\({name}\[", expr)
        ):
            found.append(f"{name}: rates are of what only grows")
    named = {each.strip() for group in GROUPED.findall(expr) for each in group.split(",")}
    found += [f"no label {each}" for each in sorted((named | {*LEGEND.findall(legend)}) - labels)]
    if expr.count("(") != expr.count(")") or expr.count("[") != expr.count("]"):
        found.append("brackets")
    return found


@pytest.mark.parametrize(("expr", "legend"), list(targets()))
def test_dashboard_queries_use_existing_metrics_and_labels(expr: str, legend: str) -> None:
    assert not faults(expr, legend)


def test_dashboard_shows_log_server_metrics() -> None:
    shown = " ".join(expr for expr, _ in targets())
    hidden = {
        f"{NAMESPACE}_{metric.name}"
        for metric in metrics_of(LogStats)
        if f"{NAMESPACE}_{metric.name}" not in shown
    }
    assert hidden == {f"{NAMESPACE}_told_bytes_total"}
    assert dataclasses.is_dataclass(LogStats)


def test_dashboard_shows_recovery_server_metrics() -> None:
    shown = " ".join(expr for expr, _ in targets())
    assert all(f"rollbook_recovery_{each.name}" in shown for each in metrics_of(RecoveryStats))


def test_dashboard_panels_do_not_overlap() -> None:
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, panel["title"]
                taken.add((x, y))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.parametrize(
    ("expr", "legend"),
    [
        ("rate(rollbook_log_nonsense_total[1m])", ""),
        ("rollbook_log_appended_records_total", ""),
        ("rate(rollbook_log_readers[1m])", ""),
        ("rollbook_log_append_seconds", ""),
        ("sum by (stage) (rollbook_log_readers)", ""),
        ("rollbook_log_readers", "{{reader}}"),
        ("sum(rollbook_log_readers", ""),
    ],
)
def test_faulty_queries_are_detected(expr: str, legend: str) -> None:
    assert faults(expr, legend)
