"""Reports how far queries are behind their logs, from Spark's reports of their progress."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from rollbook.api.spark.core.lag import Lag, lag_of

__all__ = ["Lag", "RollbookListener", "lag"]


def lag(query: Any) -> Lag:
    """Returns the number of records that a streaming query had not read at its last report."""
    progress = query.lastProgress
    return lag_of(_sources(progress))


def _sources(progress: Any) -> list[tuple[Any, Any]]:
    """Returns the latest and the end offset of each source in the form in which Spark shows them: text, or an
    object.
    """
    if progress is None:
        return []
    shown = json.loads(progress.json) if hasattr(progress, "json") else progress
    if not isinstance(shown, Mapping):
        return []
    return [(each.get("latestOffset"), each.get("endOffset")) for each in shown.get("sources", ())]


@dataclass(frozen=True)
class _Gauges:
    lag: Any
    rows: Any
    seconds: Any


class RollbookListener(StreamingQueryListener):
    """Exports the lag of every query to Prometheus: `spark.streams.addListener(RollbookListener())`.

    `registry` is a registry of `prometheus_client`, by default the global one.
    """

    def __init__(self, registry: Any = None) -> None:
        from prometheus_client import REGISTRY, Counter, Gauge

        to = registry or REGISTRY
        self._gauges: Final = _Gauges(
            Gauge(
                "rollbook_spark_lag_records", "Records not read yet", ("query", "log"), registry=to
            ),
            Counter("rollbook_spark_rows", "Rows that queries have read", ("query",), registry=to),
            Gauge(
                "rollbook_spark_batch_seconds",
                "Duration of the last batch",
                ("query",),
                registry=to,
            ),
        )
        self._names: dict[str, str] = {}
        self._logs: dict[str, list[str]] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  # Spark's names, here and below.
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = event.progress
        query = progress.name or str(progress.id)
        found = lag_of(_sources(progress))
        if not found.logs:
            return
        for log, records in found.logs.items():
            self._gauges.lag.labels(query, log).set(records)
        for gone in self._logs.get(query, ()):
            if gone not in found.logs:
                self._gauges.lag.remove(query, gone)
        self._logs[query] = list(found.logs)
        self._gauges.rows.labels(query).inc(max(progress.numInputRows, 0))
        self._gauges.seconds.labels(query).set(progress.batchDuration / 1000)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Does nothing, since an idle query's lag has not changed."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        query = self._names.pop(str(event.id), str(event.id))
        for log in self._logs.pop(query, ()):
            self._gauges.lag.remove(query, log)
