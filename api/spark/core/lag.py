"""Computes how many records a stream has not read yet."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a stream: `logs` has the lag of each log, and `records` is the total."""

    records: int = 0
    logs: Mapping[str, int] = field(default_factory=dict)


def lag_of(sources: Iterable[tuple[Any, Any]]) -> Lag:
    """Computes the lag from the latest and the end offset of each source, in the form in which Spark shows them. Other
    kinds of sources are ignored. The latest offset names only the logs that have records beyond the end. If two
    sources read a log, the larger lag counts.
    """
    logs: dict[str, int] = {}
    for latest, end in sources:
        ends = _logs(end)
        for log, (uid, tail) in {**ends, **_logs(latest)}.items():
            known_uid, at = ends.get(log, (uid, tail))
            behind = max(tail - at, 0) if known_uid == uid else tail
            logs[log] = max(logs.get(log, 0), behind)
    return Lag(sum(logs.values()), logs)


def _logs(offset: Any) -> dict[str, tuple[str, int]]:
    """Returns the position in each log, or nothing for the offset of another kind of source."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    if not isinstance(offset, Mapping) or "v" not in offset:
        return {}
    found = offset.get("logs")
    if not isinstance(found, Mapping):
        return {}
    return {str(log): (str(uid), int(at)) for log, (uid, at) in found.items()}
