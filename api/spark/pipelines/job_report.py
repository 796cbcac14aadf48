"""The report of a pipeline: its progress while it runs, and its results at the end."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rollbook.api.spark.core.audit_findings import AuditFinding

# Gets the number of records that are done, and the number of all known records.
Progress = Callable[[int, int], None]


@dataclass
class Report:
    """The results of a pipeline, for `report.json` and the report's page."""

    kind: str
    began_s: float = field(default_factory=time.time)
    ended_s: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    logs: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[AuditFinding] = field(default_factory=list)
    error: str = ""

    @property
    def is_ok(self) -> bool:
        return not self.findings and not self.error

    def packed(self) -> dict[str, Any]:
        return {
            "v": 1,
            "kind": self.kind,
            "ok": self.is_ok,
            "began_ms": round(self.began_s * 1000),
            "ended_ms": round((self.ended_s or time.time()) * 1000),
            **self.facts,
            "logs": [{"log": log, **self.logs[log]} for log in sorted(self.logs)],
            "findings": [each._asdict() for each in self.findings],
            "error": self.error,
        }
