"""Limits the average rates and the concurrent streams of a principal (G8).

The state of a rate is a single time, when everything taken so far will be paid for. After that time, more may be
taken immediately. At most one second of unused rate is saved. A caller may take more than it has saved, and
then waits until the excess is paid for. So in any `t` seconds it gets at most `rate * (t + 1)` plus the amount in
progress: a single take, or all calls and stream events that were admitted before the first of them
reported its amount.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Final

from rollbook.api.access.core.turn_queue import FairQueue
from rollbook.proto.errors import BadConfig, Throttled

_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
_SAVED_NS_MAX: Final = _NS_PER_S
_STREAMS_AGAIN_MS: Final = 1000  # An estimate: nobody knows when a stream will end.


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of one principal; None: unlimited."""

    append_records_per_s: int | None = None
    append_bytes_per_s: int | None = None
    read_records_per_s: int | None = None
    read_bytes_per_s: int | None = None
    streams: int | None = None  # Append, read and tail streams that are open at the same time.

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and value < 1:
                raise BadConfig(f"{each.name} has to be above 0")


class TokenBucket:
    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._paid_until_ns: int | None = None  # None: nothing has been taken yet.

    def wait_ns(self, now_ns: int) -> int:
        """The time until more may be taken; 0: now."""
        return 0 if self._paid_until_ns is None else max(0, self._paid_until_ns - now_ns)

    def take(self, amount: int, now_ns: int) -> None:
        saved_since = now_ns - _SAVED_NS_MAX
        start = saved_since if self._paid_until_ns is None else self._paid_until_ns
        self._paid_until_ns = max(start, saved_since) - (-amount * _NS_PER_S // self._per_s)


class Meter:
    """Meters records and bytes in one direction."""

    def __init__(self, records_per_s: int | None, bytes_per_s: int | None) -> None:
        self._records = TokenBucket(records_per_s) if records_per_s else None
        self._bytes = TokenBucket(bytes_per_s) if bytes_per_s else None

    @property
    def is_limited(self) -> bool:
        return self._records is not None or self._bytes is not None

    def wait_ns(self, now_ns: int) -> int:
        rates = (self._records, self._bytes)
        return max((rate.wait_ns(now_ns) for rate in rates if rate is not None), default=0)

    def take(self, records: int, size: int, now_ns: int) -> None:
        if self._records is not None:
            self._records.take(records, now_ns)
        if self._bytes is not None:
            self._bytes.take(size, now_ns)

    def require(self, now_ns: int) -> None:
        """Raises `Throttled`."""
        if wait_ns := self.wait_ns(now_ns):
            raise Throttled(
                "the caller has used more than its quota", retry_after_ms=-(-wait_ns // _NS_PER_MS)
            )


class PrincipalAccount:
    """One principal's use of its quotas, over gRPC and HTTP together."""

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self.appends = Meter(quotas.append_records_per_s, quotas.append_bytes_per_s)
        self.reads = Meter(quotas.read_records_per_s, quotas.read_bytes_per_s)
        self.line = FairQueue()  # Readers that wait until earlier reads are paid for.
        self.streams = 0

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Raises `Throttled`."""
        streams_max = self.quotas.streams
        if streams_max is not None and self.streams >= streams_max:
            raise Throttled(
                f"{streams_max} streams are open, and the quota permits no more",
                retry_after_ms=_STREAMS_AGAIN_MS,
            )
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1
