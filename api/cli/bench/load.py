"""Puts load on a client of named logs, and measures latencies. `rollbook bench` and the project's benchmarks use
this module.
"""

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rollbook.api.client.producer_batch import Submission
from rollbook.api.client.writer import Writer
from rollbook.proto.errors import Overloaded
from rollbook.proto.stats import Histogram

_NS_PER_S: Final = 1_000_000_000


class LoadTimer(Protocol):
    """Decides when the load ends, and measures some of the appends."""

    def goes_on(self, sent: int) -> bool: ...

    def sample(self) -> Callable[[Any], None]:
        """Starts timing an append. Returns a function to call when the append is acked."""


class Stopwatch:
    """Times the appends of one writer, and ends them after a number of records or a number of seconds, whichever
    is reached first.

    `on_sent` receives the number of records that were submitted since its last call.
    """

    def __init__(
        self,
        latencies: Histogram,
        records: int,
        seconds: float,
        on_sent: Callable[[int], object] | None = None,
    ) -> None:
        self._on_sent = on_sent
        self._reported = 0
        self._latencies = latencies
        self._records = records
        self._end_ns = time.perf_counter_ns() + round(seconds * _NS_PER_S)

    def goes_on(self, sent: int, due_ns: int = 0) -> bool:
        """Returns whether to append another record. A record that is due after the end is not appended."""
        if self._on_sent is not None:
            self._on_sent(sent - self._reported)
            self._reported = sent
        return sent < self._records and max(due_ns, time.perf_counter_ns()) < self._end_ns

    def sample(self) -> Callable[[Any], None]:
        return self.sample_since(time.perf_counter_ns())

    def sample_since(self, begun_ns: int) -> Callable[[Any], None]:
        observe = self._latencies.observe
        return lambda _: observe(time.perf_counter_ns() - begun_ns)


async def flood(
    writer: Writer, burst: Sequence[bytes], clock: LoadTimer, first: int | None = None
) -> int:
    """Appends bursts, record by record, as fast as possible. Returns the number of records; all of them are acked.

    It checks every ack, and times the last record of each burst. `first` is the offset of the first record if
    this is the only writer; the offsets of all other records must then follow without a gap.
    """
    under_way: deque[list[Submission]] = deque()
    sent = acked = 0
    submit = writer.submit

    def take_results() -> int:
        return _acked(under_way.popleft(), None if first is None else first + acked)

    while clock.goes_on(sent):
        submissions = []
        for value in burst:
            try:
                submission = submit(value)
            except Overloaded:
                await writer.ready()
                submission = submit(value)
            submissions.append(submission)
        submission.add_done_callback(clock.sample())
        under_way.append(submissions)
        sent += len(submissions)
        await asyncio.sleep(0)
        while under_way and under_way[0][-1].done():
            acked += take_results()
    await writer.flush()
    while under_way:
        acked += take_results()
    return acked


def _acked(submissions: list[Submission], first: int | None) -> int:
    """Returns the number of acked records. If `first` is given, it checks that their offsets begin there and have
    no gaps.
    """
    offsets = [each.result() for each in submissions]
    if first is not None:
        assert offsets[0] == first, f"{offsets[0]} is not {first}"
        assert offsets[-1] - first == len(offsets) - 1
    return len(offsets)


async def in_turn(writer: Writer, values: Sequence[bytes], clock: Stopwatch, in_flight: int) -> int:
    """Keeps `in_flight` appends in flight and times each. Returns the number of records; all of them are acked."""
    under_way: deque[Submission] = deque()
    sent = 0
    while clock.goes_on(sent):
        if len(under_way) == in_flight:
            await under_way.popleft()
        submission = await writer.send(values[sent % len(values)])
        submission.add_done_callback(clock.sample())
        under_way.append(submission)
        sent += 1
    for each in under_way:
        await each
    return sent


@dataclass(frozen=True, slots=True)
class SendSchedule:
    """The times when records are due. A late record does not postpone later ones."""

    start_ns: int
    interval_ns: float

    def due_ns(self, number: int) -> int:
        return self.start_ns + round(number * self.interval_ns)


async def at_pace(
    writer: Writer,
    value_of: Callable[[int], bytes],
    clock: Stopwatch,
    pace: SendSchedule,
    in_flight: int = sys.maxsize,
) -> int:
    """Appends records when `pace` says that they are due, and measures each latency from that time, which
    `value_of` receives. Returns the number of records; all of them are acked.
    """
    under_way: deque[Submission] = deque()
    sent = 0
    while clock.goes_on(sent, due_ns := pace.due_ns(sent)):
        await asyncio.sleep(max(0, due_ns - time.perf_counter_ns()) / _NS_PER_S)
        while under_way and (under_way[0].done() or len(under_way) >= in_flight):
            await under_way.popleft()
        submission = await writer.send(value_of(due_ns))
        submission.add_done_callback(clock.sample_since(due_ns))
        under_way.append(submission)
        sent += 1
    for each in under_way:
        await each
    return sent
