"""Latencies that a command has measured, in bounded memory."""

from collections.abc import Iterator
from typing import Final

from rollbook.proto.stats import Histogram

_NS_PER_S: Final = 1_000_000_000


def _bounds_ns() -> Iterator[int]:
    """Returns bounds from a microsecond to a hundred seconds, each 1 % above the previous one."""
    bound = 1_000.0
    while bound < 100 * _NS_PER_S:
        yield round(bound)
        bound *= 1.01


_BOUNDS_NS: Final = tuple(_bounds_ns())


def new_latencies() -> Histogram:
    """Returns an empty histogram of nanoseconds."""
    return Histogram(_BOUNDS_NS, _NS_PER_S)


def percentiles(latencies: Histogram) -> dict[str, float | None]:
    """Returns the number of latencies, their percentiles and their maximum. A percentile is None if no latency
    exceeds it, because it would then equal the maximum.
    """
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
    timed = latencies.count
    kept = {name: share for name, share in shares.items() if timed * (1 - share) > 1 - 1e-9}
    found = {name: latencies.quantile(share) for name, share in (kept | {"max_ms": 1.0}).items()}
    shown = {name: each and round(each * 1000, 3) for name, each in found.items()}
    return {"timed": timed, **dict.fromkeys(shares), **shown}
