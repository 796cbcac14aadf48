"""Prometheus metrics: the registry of a process, and how the events of a hot path reach it.

A metric is created once, at import or start, and its labelled children are resolved once: a hot
path adds plain ints to attributes of its own and hands them over a chunk at a time.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

NAMESPACE: Final = "rollbook"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# From a cached read to a deadline that passed: a factor of about two each.
LATENCY_BUCKETS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)


class Metrics:
    """One registry per process, or per node in a test; nothing is registered globally."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def counter(self, name: str, what: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, what, labels, namespace=NAMESPACE, registry=self.registry)

    def gauge(self, name: str, what: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(name, what, labels, namespace=NAMESPACE, registry=self.registry)

    def latency(self, name: str, what: str, labels: tuple[str, ...] = ()) -> Histogram:
        assert name.endswith("_seconds")
        return Histogram(
            name,
            what,
            labels,
            namespace=NAMESPACE,
            registry=self.registry,
            buckets=LATENCY_BUCKETS_S,
        )

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
