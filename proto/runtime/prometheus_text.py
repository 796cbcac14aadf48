"""Writes metrics in Prometheus' text format: the counters of `rollbook.proto.stats`, and the
resources of the process.

Metrics are neither registered nor copied: a scrape reads the counters directly. Prometheus' client
library is not used, since it makes an object for each line. A bookie has three hundred lines, and
its loop has other work.
"""

import asyncio
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest

from rollbook.proto.stats import Histogram, Metric, MetricKind, Value, read

NAMESPACE: Final = "rollbook"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_BUILD: Final = Metric(
    f"{NAMESPACE}_build_info", MetricKind.GAUGE, "1: the release that runs.", "version"
)
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metrics:
    """The metrics of one process, or of one node in a test."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, object]] = []
        self._process = CollectorRegistry()
        self._version = ""

    def add(self, part: str, stats: object) -> None:
        """Adds a dataclass of `rollbook.proto.stats`. Its names get the prefix `part`."""
        self._parts.append((f"{NAMESPACE}_{part}_", stats))

    def add_process(self, version: str) -> None:
        """Adds the process's release, memory, processor time, open files and garbage collections."""
        self._version = version
        ProcessCollector(registry=self._process)
        GCCollector(registry=self._process)

    def exposition(self) -> Iterator[bytes]:
        """Returns the text in pieces, one for each metric."""
        for prefix, stats in self._parts:
            for metric, value in read(stats):
                yield _text_of(prefix + metric.name, metric, value).encode()
        if self._version:
            yield _text_of(_BUILD.name, _BUILD, {self._version: 1}).encode()
        yield generate_latest(self._process)

    async def page(self) -> bytes:
        """Returns the whole text. Other tasks of the loop may run between two metrics."""
        parts = []
        for part in self.exposition():
            parts.append(part)
            await asyncio.sleep(0)
        return b"".join(parts)


def _text_of(name: str, metric: Metric, value: Value) -> str:
    values = value.items() if isinstance(value, Mapping) else [("", value)]
    lines = [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind.value}"]
    for labelled, each in values:
        label = f'{metric.label}="{labelled.translate(_ESCAPES)}"' if metric.label else ""
        if isinstance(each, Histogram):
            lines += _lines_of(name, label, each)
        else:
            lines.append(f"{name}{f'{{{label}}}' if label else ''} {float(each)!r}")
    return "\n".join([*lines, ""])


def _lines_of(name: str, label: str, histogram: Histogram) -> list[str]:
    before, after = (f"{label},", f"{{{label}}}") if label else ("", "")
    bounds = [f"{bound / histogram.per_unit:g}" for bound in histogram.bounds]
    reached = list(accumulate(histogram.counts))
    rows = zip([*bounds, "+Inf"], reached, strict=True)
    return [
        *[f'{name}_bucket{{{before}le="{bound}"}} {count}' for bound, count in rows],
        f"{name}_sum{after} {histogram.total / histogram.per_unit!r}",
        f"{name}_count{after} {reached[-1]}",
    ]
