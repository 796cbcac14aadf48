"""Counters of what a component did and how long it took, without a metrics library.

A component has a dataclass of counters, passes it to its parts, and updates the counters once for
each chunk:

    @dataclass
    class Stats:
        adds: int = counter("adds_total", "Entries added.")
        syncs: Histogram = latency("sync_seconds", "One sync of the journal.")
        queue_bytes: Gauge = gauge("queue_bytes", "Bytes that wait for the journal.")

    stats.adds += len(chunk)
    stats.syncs.observe(clock.monotonic_ns() - started_ns)
    stats.queue_bytes = lambda: journal.queued_bytes

The dataclass is the only table of its metrics: `proto/runtime/prometheus_text.py` shows it to
Prometheus.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from itertools import accumulate
from typing import Any, Final, TypeAlias

_METRIC: Final = "metric"
_NS_PER_S: Final = 1_000_000_000
# The bounds grow by factors of 2 and 2.5, from the time of a read in memory to that of a missed deadline.
LATENCY_BOUNDS_NS: Final = (
    *(digit * 10**power for power in range(3, 9) for digit in (10, 25, 50)),
    10 * _NS_PER_S,
)
SIZE_BOUNDS: Final = tuple(4**power for power in range(14))  # The bounds go from 1 to 64 Mi.


class Histogram:
    """A histogram: it counts the values between bounds. `observe` takes a fraction of a microsecond."""

    __slots__ = ("bounds", "counts", "per_unit", "total")

    def __init__(self, bounds: Sequence[int], per_unit: int = 1) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # The last element counts values above all bounds.
        self.total = 0
        # Converts values for display: those counted in nanoseconds are shown in seconds.
        self.per_unit = per_unit

    def observe(self, value: int, times: int = 1) -> None:
        """Counts this value `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """Returns an estimate in the shown unit, exact to within its bucket, or None if nothing was
        observed.
        """
        if not self.count:
            return None
        wanted = share * self.count
        reached = list(accumulate(self.counts))
        at = bisect_left(reached, wanted)
        if at == len(self.bounds):
            return self.bounds[-1] / self.per_unit
        low = self.bounds[at - 1] if at else 0
        part = 1 - (reached[at] - wanted) / max(1, self.counts[at])
        return (low + part * (self.bounds[at] - low)) / self.per_unit


class MetricKind(Enum):
    COUNTER = "counter"  # Its value only grows, and its name ends in _total.
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """The description of one metric. Its name ends in its unit: _seconds, _bytes, _total."""

    name: str
    kind: MetricKind
    help: str
    label: str = ""  # The name of the label, if each value of the label has a number of its own.


Gauge: TypeAlias = Callable[[], float]
Gauges: TypeAlias = Callable[[], Mapping[str, float]]
Value: TypeAlias = float | Histogram | Mapping[str, float] | Mapping[str, Histogram]


def _field(metric: Metric, make: Callable[[], object]) -> Any:
    return field(default_factory=make, metadata={_METRIC: metric})


def counter(name: str, help_text: str) -> Any:
    assert name.endswith("_total"), name
    return field(default=0, metadata={_METRIC: Metric(name, MetricKind.COUNTER, help_text)})


def counters(name: str, help_text: str, label: str) -> Any:
    """One counter for each value of the label. There must be few values, and none may come from a client."""
    assert name.endswith("_total"), name
    return _field(Metric(name, MetricKind.COUNTER, help_text, label), dict)


def gauge(name: str, help_text: str) -> Any:
    return _field(Metric(name, MetricKind.GAUGE, help_text), lambda: _nothing)


def counter_gauge(name: str, help_text: str) -> Any:
    """Returns a counter whose value comes from a function, as that of a gauge does."""
    assert name.endswith("_total"), name
    return _field(Metric(name, MetricKind.COUNTER, help_text), lambda: _nothing)


def gauges(name: str, help_text: str, label: str) -> Any:
    return _field(Metric(name, MetricKind.GAUGE, help_text, label), lambda: _nothings)


def sizes(name: str, help_text: str, bounds: Sequence[int] = SIZE_BOUNDS) -> Any:
    return _field(Metric(name, MetricKind.HISTOGRAM, help_text), lambda: Histogram(bounds))


def latency(name: str, help_text: str) -> Any:
    """Returns a histogram of times in nanoseconds."""
    assert name.endswith("_seconds"), name
    return _field(Metric(name, MetricKind.HISTOGRAM, help_text), new_latency)


def latencies(name: str, help_text: str, label: str, values: Sequence[str]) -> Any:
    assert name.endswith("_seconds"), name
    metric = Metric(name, MetricKind.HISTOGRAM, help_text, label)
    return _field(metric, lambda: {value: new_latency() for value in values})


def new_latency() -> Histogram:
    return Histogram(LATENCY_BOUNDS_NS, _NS_PER_S)


def _nothing() -> float:
    return 0


def _nothings() -> Mapping[str, float]:
    return {}


def metrics_of(stats: object) -> Iterator[Metric]:
    """Returns the metrics that are fields of this dataclass, or of this instance."""
    for each in fields(stats):  # type: ignore[arg-type]  # Any dataclass: it has no type of its own.
        yield each.metadata[_METRIC]


def read(stats: object) -> Iterator[tuple[Metric, Value]]:
    """Returns the present values of all metrics."""
    for each, metric in zip(fields(stats), metrics_of(stats), strict=True):  # type: ignore[arg-type]  # It is a dataclass.
        value = getattr(stats, each.name)
        yield metric, value() if callable(value) else value
