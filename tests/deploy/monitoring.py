"""Prometheus with the cluster: its scrapes, the queries of panels, and the alerts that fire."""

import json
import re
import urllib.parse
import urllib.request
from typing import Any, Final

from tests.deploy.cluster import Cluster
from tests.deploy.images import ROOT

_DASHBOARD: Final = ROOT / "compose" / "grafana" / "rollbook.json"
_TARGETS: Final = {"bookie": 3, "log": 2, "recovery": 2}
_SCRAPED_WITHIN_S: Final = 60.0
_FIRES_WITHIN_S: Final = 150.0  # Most alerts wait for a minute.
# Metrics without a value in a cluster without Spark, refusals, cursors in doubt and TLS.
_EMPTY: Final = re.compile(r"rollbook_spark_|_refusals_total|_cursors_untold|rollbook_tls_")
_EMPTY_WITH_TLS: Final = re.compile(r"rollbook_spark_|_refusals_total|_cursors_untold")


class Monitoring:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        cluster.up("prometheus")

    def ask(self, path: str, **words: str) -> Any:
        url = f"http://127.0.0.1:{self._cluster.prometheus_port}/api/v1/{path}"
        with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(words)}", timeout=10) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def await_targets(self) -> None:
        wanted = dict(_TARGETS)

        def are_up() -> bool:
            rows = self.ask("query", query="sum by (job) (up)")["result"]
            return {row["metric"]["job"]: int(row["value"][1]) for row in rows} == wanted

        self._cluster.until(are_up, _SCRAPED_WITHIN_S, f"{wanted} are scraped")

    def require_panels(self) -> tuple[int, int]:
        """Requires an answer to each query; returns the numbers of queries and of those with a
        value.
        """
        panels = json.loads(_DASHBOARD.read_text())["panels"]
        queries = [target["expr"] for each in panels for target in each.get("targets", ())]
        empty = _EMPTY_WITH_TLS if self._cluster.has_tls else _EMPTY
        left: list[str] = []

        def are_answered() -> bool:  # A rate has a value from the second scrape on.
            nonlocal left
            asked = {each: each.replace("$__rate_interval", "1m") for each in queries}
            left = [each for each in queries if not self.ask("query", query=asked[each])["result"]]
            return all(empty.search(each) for each in left)

        try:
            self._cluster.until(are_answered, _SCRAPED_WITHIN_S, "each query has a value")
        except AssertionError as error:
            raise AssertionError(f"{error}; these have none: {left}") from None
        return len(queries), len(queries) - len(left)

    def firing(self) -> set[tuple[str, str]]:
        """Names of the firing alerts with their instances."""
        return {
            (each["labels"]["alertname"], each["labels"].get("instance", ""))
            for each in self.ask("alerts")["alerts"]
            if each["state"] == "firing"
        }

    def await_alerts(self, *wanted: tuple[str, str]) -> None:
        """Waits until exactly these alerts fire."""
        expected = set(wanted)
        found: set[tuple[str, str]] = set()

        def are_right() -> bool:
            nonlocal found
            found = self.firing()
            return found == expected

        try:
            self._cluster.until(are_right, _FIRES_WITHIN_S, f"{sorted(expected)} fire")
        except AssertionError as error:
            raise AssertionError(f"{error}; these do: {sorted(found)}") from None
