"""Prometheus' text: what `rollbook.proto.stats` counted, and what the process uses.

Nothing is registered anywhere, and nothing is copied until somebody asks: a scrape reads the
counters where they are.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import (
    Metric as Family,
)
from prometheus_client.registry import Collector

from rollbook.proto.stats import Histogram, Kind, Metric, Value, read

NAMESPACE: Final = "rollbook"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What one process, or one node in a test, shows of itself."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

    def add(self, part: str, stats: object) -> None:
        """A dataclass of `rollbook.proto.stats`; `part` comes in front of its names."""
        self._registry.register(_StatsCollector(f"{NAMESPACE}_{part}_", stats))

    def add_process(self) -> None:
        """Memory, processor time, open files, collections of garbage."""
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def exposition(self) -> Iterator[bytes]:
        """Metric by metric: whoever shares a loop with others lets them have their turn between."""
        for family in self._registry.collect():
            yield generate_latest(_One(family))


class _One(Collector):
    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterator[Family]:
        yield self._family


class _StatsCollector(Collector):
    def __init__(self, prefix: str, stats: object) -> None:
        self._prefix = prefix
        self._stats = stats

    def collect(self) -> Iterator[Family]:
        for metric, value in read(self._stats):
            yield _family(self._prefix + metric.name, metric, value)

    def describe(self) -> Iterator[Family]:
        """Nothing: names cannot clash, and asking for them would ask for the values."""
        return iter(())


def _family(name: str, metric: Metric, value: Value) -> Family:
    labels = [metric.label] if metric.label else []
    values = value.items() if isinstance(value, Mapping) else [("", value)]
    family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
    if metric.kind is Kind.HISTOGRAM:
        family = HistogramMetricFamily(name, metric.help, labels=labels)
        for label, each in values:
            assert isinstance(each, Histogram)
            family.add_metric([label] if labels else [], *_buckets(each))
        return family
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(name, metric.help, labels=labels)
    for label, each in values:
        assert not isinstance(each, Histogram)
        family.add_metric([label] if labels else [], each)
    return family


def _buckets(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    per_unit, reached = histogram.per_unit, 0
    found: list[tuple[str, float]] = []
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        reached += count
        found.append(("+Inf" if bound is None else f"{bound / per_unit:g}", reached))
    return found, histogram.total / per_unit
