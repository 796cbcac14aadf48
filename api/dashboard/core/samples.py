"""The history on the overview. The counters of /metrics are read every two seconds, and their rates are kept for
15 minutes (DB7)."""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

INTERVAL_S: Final = 2
KEPT: Final = 15 * 60 // INTERVAL_S  # 450 samples of four numbers take about 50 KB.
SERIES: Final = ("Appended records/s", "Appended bytes/s", "Read records/s", "p99 of appends, ms")
_PREFIX: Final = "rollbook_log_"
_COUNTERS: Final = ("appended_records_total", "appended_bytes_total", "told_records_total")
_LINE: Final = re.compile(
    rf'^{_PREFIX}(?:({"|".join(_COUNTERS)})|append_seconds_bucket\{{le="([^"]+)"\}}) (\S+)$',
    re.MULTILINE,
)
_SOURCES_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Counted:
    """The counters of one process since its start."""

    counters: Mapping[str, float]
    # Key: an upper bound in seconds; value: the number of appends that took no longer.
    buckets: Mapping[float, float]

    @classmethod
    def parse(cls, text: str) -> "Counted":
        """Parses Prometheus text; lines of other metrics and invalid lines are skipped."""
        counters: dict[str, float] = {}
        buckets: dict[float, float] = {}
        for name, bound, value in _LINE.findall(text):
            try:
                if name:
                    counters[name] = float(value)
                else:
                    buckets[float(bound)] = float(value)
            except ValueError:
                continue
        return cls(counters, buckets)

    def since(self, before: "Counted") -> "Counted":
        """The counts since `before`; after a restart, all counts of the new process."""
        is_same = all(
            self.counters.get(name, 0) >= count for name, count in before.counters.items()
        )
        if not is_same:
            return self
        return Counted(
            {name: count - before.counters.get(name, 0) for name, count in self.counters.items()},
            {bound: count - before.buckets.get(bound, 0) for bound, count in self.buckets.items()},
        )


@dataclass(frozen=True, slots=True)
class Sample:
    time_s: int  # Seconds since 1970.
    # In the order of `SERIES`; None: the value is not known.
    values: tuple[float | None, ...]


@dataclass(slots=True)
class Samples:
    problem: str = ""  # Why the newest sample is incomplete.
    _kept: deque[Sample] = field(default_factory=lambda: deque(maxlen=KEPT))
    _before: dict[str, Counted] = field(default_factory=dict)
    _before_s: float = 0.0

    def add(self, time_s: float, found: Mapping[str, Counted]) -> None:
        """Adds a sample. `found`: counters by source. A source has no rates before its second sample."""
        passed_s = time_s - self._before_s
        both = [name for name in list(found)[:_SOURCES_MAX] if name in self._before]
        steps = [found[name].since(self._before[name]) for name in both]
        self._before, self._before_s = dict(found), time_s
        values: tuple[float | None, ...] = (None,) * len(SERIES)
        if steps and passed_s > 0:
            rates = (
                sum(step.counters.get(name, 0.0) for step in steps) / passed_s for name in _COUNTERS
            )
            values = (*(round(rate, 1) for rate in rates), _p99_ms(steps))
        whole_s = int(time_s)
        if not self._kept or whole_s > self._kept[-1].time_s:
            self._kept.append(Sample(whole_s, values))

    def after(self, time_s: int) -> list[Sample]:
        """Samples after this time, oldest first."""
        return [each for each in self._kept if each.time_s > time_s]

    @property
    def newest(self) -> Sample | None:
        return self._kept[-1] if self._kept else None


def _p99_ms(steps: list[Counted]) -> float | None:
    """The upper bound of the bucket with the 99th percentile. None: nothing was appended."""
    bounds = sorted({bound for step in steps for bound in step.buckets})
    counts = [sum(step.buckets.get(bound, 0.0) for step in steps) for bound in bounds]
    if not counts or counts[-1] <= 0:
        return None
    wanted = 0.99 * counts[-1]
    found = next(bound for bound, count in zip(bounds, counts, strict=True) if count >= wanted)
    finite = found if found != float("inf") else max((b for b in bounds if b != found), default=0.0)
    return round(1000 * finite, 3)
