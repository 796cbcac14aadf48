"""The actions of `rollbook bench append|read|tail`. They create logs, put them under load, print the results
and delete the logs.
"""

import asyncio
import os
import secrets
import signal
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import click

from rollbook.api.cli.bench.load import SendSchedule, Stopwatch, at_pace, flood, in_turn
from rollbook.api.cli.demo.cluster import LOG_SERVERS, demo_cluster
from rollbook.api.cli.latencies import new_latencies, percentiles
from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.output import tell
from rollbook.api.cli.progress_bars import bar
from rollbook.api.client.async_client import DEFAULTS, Client
from rollbook.api.client.log import Log
from rollbook.api.client.reader import RecordBatch
from rollbook.logservice.messages import CaughtUp
from rollbook.proto.errors import NoSuchLog, Outcome, ReaderStalled, RollbookError
from rollbook.proto.runtime.gc_tuning import calm_collector
from rollbook.proto.runtime.logging_setup import configure_logs
from rollbook.proto.runtime.malloc_tuning import keep_freed_memory
from rollbook.proto.stats import Histogram

T = TypeVar("T")

_MIB: Final = 1 << 20
_AT_ONCE: Final = 16  # The number of logs that are created or deleted at the same time.
_BURST_RECORDS: Final = 1_000
_BURSTS_MIN: Final = 100
_BURST_BYTES: Final = 4 * _MIB
_WINDOW_BYTES_IN_ALL: Final = 128 * _MIB
_WARM_UP_S: Final = 1.0
_TICK_S: Final = 0.1
_ARRIVAL_S_MAX: Final = 30.0  # The longest wait until acked records reach the followers.
# The first bytes of a value: the time when the record was due, or 0 if its latency is not measured.
_STAMP: Final = struct.Struct("<q")


# --- The commands -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """The load that a command puts on its logs."""

    size: int
    writers: int  # The number of writers for each log.
    records: int  # The maximum number of records in total.
    rate: float | None  # The records per second of all writers together; None: as fast as possible.
    in_flight: int | None

    def of_each(self, writers: int) -> int:
        """Returns the number of records for each of `writers` writers."""
        return max(1, self.records // writers)


def measure_appends(
    access: LogAccess,
    size: int,
    records: int | None,
    logs: int,
    writers: int,
    rate: float | None,
    seconds: float,
    in_flight: int | None,
    keep: bool,
    output: str,
) -> None:
    load = Load(size, writers, records or sys.maxsize, rate, in_flight)

    async def measure(client: Client) -> dict[str, Any]:
        async with new_logs(client, logs, keep) as made:
            await _append_all(made, load, min(_WARM_UP_S, seconds / 2), new_latencies())
            latencies, cost = new_latencies(), _Cost()
            with _ticking("appending", seconds):
                count = await _append_all(made, load, seconds, latencies)
            return {
                **_names(made, keep),
                "writers": logs * writers,
                "record_bytes": size,
                **cost.of(count, size),
                **percentiles(latencies),
            }

    tell(_run(access, measure, logs * writers), output, "records_per_s")


def measure_reads(
    access: LogAccess,
    size: int,
    records: int,
    logs: int,
    readers: int,
    how: str,
    keep: bool,
    output: str,
) -> None:
    load = Load(size, 1, records, None, None)

    async def measure(client: Client) -> dict[str, Any]:
        async with new_logs(client, logs, keep) as made:
            with bar("appending", records) as advance:
                unmeasured = new_latencies()
                filled = await _append_all(made, load, sys.maxsize, unmeasured, on_sent=advance)
            count = readers * filled
            latencies, cost = new_latencies(), _Cost()
            with bar("reading", count) as advance:
                reading = [
                    _read_all(log, how, latencies, advance) for log in made for _ in range(readers)
                ]
                found = sum(await _together(reading))
            assert found == count, f"{found:,} records of {count:,}"
            return {
                **_names(made, keep),
                "readers": logs * readers,
                "record_bytes": size,
                **cost.of(count, size),
                **percentiles(latencies),
            }

    tell(_run(access, measure, logs), output, "records_per_s")


def measure_tails(
    access: LogAccess,
    size: int,
    records: int | None,
    logs: int,
    writers: int,
    rate: float,
    seconds: float,
    keep: bool,
    output: str,
) -> None:
    load = Load(size, writers, records or sys.maxsize, rate, None)

    async def measure(client: Client) -> dict[str, Any]:
        async with new_logs(client, logs, keep) as made:
            latencies = new_latencies()
            async with _followed(made, latencies) as followers:
                warming_s = min(_WARM_UP_S, seconds / 2)
                before = await _append_all(made, load, warming_s, new_latencies(), stamps=False)
                cost = _Cost()
                with _ticking("appending", seconds):
                    count = await _append_all(made, load, seconds, new_latencies())
                facts = cost.of(count, size)
                await followers.reach(before + count)
            return {
                **_names(made, keep),
                "writers": logs * writers,
                "record_bytes": size,
                **facts,
                **percentiles(latencies),
            }

    tell(_run(access, measure, logs * writers), output, "p99_ms")


# --- Appending, reading, following --------------------------------------------------------------


async def _append_all(
    logs: Sequence[Log],
    load: Load,
    seconds: float,
    latencies: Histogram,
    *,
    stamps: bool = True,
    on_sent: Callable[[int], object] | None = None,
) -> int:
    """Appends through `load.writers` writers to each log. Returns the number of acked records."""
    count = len(logs) * load.writers
    of_each = load.of_each(count)
    burst = [os.urandom(load.size) for _ in range(_burst_records(load.size, of_each))]
    interval_ns = 0.0 if load.rate is None else count * 1e9 / load.rate
    begun_ns = time.perf_counter_ns()
    end = time.perf_counter() + seconds

    def value_of(due_ns: int) -> bytes:
        if load.size < _STAMP.size:
            return burst[0]
        return _STAMP.pack(due_ns if stamps else 0) + burst[0][_STAMP.size :]

    def clock(records: int = of_each) -> Stopwatch:
        return Stopwatch(latencies, records, end - time.perf_counter(), on_sent)

    async def append(number: int) -> int:
        async with logs[number % len(logs)].writer() as writer:
            if load.rate is not None:
                pace = SendSchedule(begun_ns + round(number * interval_ns / count), interval_ns)
                in_flight = load.in_flight or sys.maxsize
                return await at_pace(writer, value_of, clock(), pace, in_flight)
            if load.in_flight is not None:
                return await in_turn(writer, burst, clock(), load.in_flight)
            rest = of_each % len(burst)
            whole = await flood(writer, burst, clock(of_each - rest))
            if whole < of_each - rest:
                return whole  # The time limit has passed.
            return whole + await flood(writer, burst[:rest], clock(rest))

    return sum(await _together([append(number) for number in range(count)]))


def _burst_records(size: int, records: int) -> int:
    """Returns the number of records in a burst. One record of each burst is timed, so bursts are smaller if
    there are few records.
    """
    return max(1, min(_BURST_RECORDS, records // _BURSTS_MIN, _BURST_BYTES // max(1, size)))


async def _read_all(
    log: Log, how: str, latencies: Histogram, advance: Callable[[int], object]
) -> int:
    count, asked_ns = 0, time.perf_counter_ns()
    async for batch in log.read_batches(0, await log.tail_offset()):
        latencies.observe(time.perf_counter_ns() - asked_ns)
        found = len(batch.values() if how == "values" else batch.records())
        count += found
        advance(found)
        asked_ns = time.perf_counter_ns()
    return count


class _Followers:
    """The followers, one for each log. They count the records that they receive, and measure latencies."""

    def __init__(self, latencies: Histogram) -> None:
        self.received = 0
        self._latencies = latencies
        self._has_news = asyncio.Event()

    async def follow(self, log: Log, is_ready: asyncio.Event) -> None:
        """Follows the log, and sets `is_ready` when the server has confirmed the position."""
        async for event in log.events("latest"):
            if isinstance(event, RecordBatch):
                self._take(event.values())
            elif isinstance(event, CaughtUp):
                is_ready.set()

    def _take(self, values: Sequence[bytes]) -> None:
        now_ns = time.perf_counter_ns()
        for value in values:
            (due_ns,) = _STAMP.unpack_from(value)
            if due_ns:
                self._latencies.observe(now_ns - due_ns)
        self.received += len(values)
        self._has_news.set()

    async def reach(self, count: int) -> None:
        """Waits until the followers have received `count` records. Raises `ReaderStalled`."""
        try:
            async with asyncio.timeout(_ARRIVAL_S_MAX):
                while self.received < count:
                    self._has_news.clear()
                    await self._has_news.wait()
        except TimeoutError:
            raise ReaderStalled(
                "followers did not get all acked records", told=self.received, acked=count
            ) from None


@asynccontextmanager
async def _followed(logs: Sequence[Log], latencies: Histogram) -> AsyncIterator[_Followers]:
    followers = _Followers(latencies)
    ready = [asyncio.Event() for _ in logs]
    try:
        async with asyncio.TaskGroup() as group:
            pairs = zip(logs, ready, strict=True)
            tasks = [group.create_task(followers.follow(*pair)) for pair in pairs]
            for each in ready:
                await each.wait()
            yield followers
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as group_of_errors:
        raise group_of_errors.exceptions[0] from None


# --- The cluster, the logs and the results ------------------------------------------------------


def _run(
    access: LogAccess, work: Callable[[Client], Awaitable[dict[str, Any]]], writers: int
) -> dict[str, Any]:
    """Runs the work on the named cluster or on a new one. After SIGTERM or Ctrl-C, the work still deletes its logs."""
    configure_logs(level="error", as_json=False)
    calm_collector()
    keep_freed_memory()
    window = min(DEFAULTS.window_bytes, _WINDOW_BYTES_IN_ALL // writers)
    window = max(window, DEFAULTS.batch_bytes_max)

    async def run() -> dict[str, Any]:
        task = asyncio.current_task()
        assert task is not None
        # SIGTERM stops the command like Ctrl-C.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        async with _somewhere(access) as there:
            return await there.use(work, window_bytes=window)

    try:
        with access.advising():
            return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@asynccontextmanager
async def _somewhere(access: LogAccess) -> AsyncIterator[LogAccess]:
    """Yields access to the named cluster, or to a new one that runs until the context ends."""
    if access.server:
        yield access
        return
    click.echo("starting three bookies and two log servers …", err=True)
    with tempfile.TemporaryDirectory(
        prefix="rollbook-bench-", ignore_cleanup_errors=True
    ) as folder:
        async with demo_cluster(folder) as cluster:
            addresses = ",".join(cluster.addresses[name] for name in LOG_SERVERS)
            yield replace(access, server=f"log://{addresses}")


@asynccontextmanager
async def new_logs(client: Client, count: int, keep: bool) -> AsyncIterator[Sequence[Log]]:
    """Creates logs. At the end it waits for creations in progress, and deletes all logs unless `keep` is set."""
    prefix = f"bench-{secrets.token_hex(4)}"
    openings: dict[str, asyncio.Task[Log]] = {}

    async def make(name: str) -> None:
        openings[name] = asyncio.create_task(client.open(name, create=True))
        await asyncio.shield(openings[name])

    try:
        await _some_at_once(make, [f"{prefix}-{number + 1}" for number in range(count)])
        yield [opening.result() for opening in openings.values()]
    finally:
        await asyncio.gather(*openings.values(), return_exceptions=True)
        if not keep:
            await _delete(client, [name for name in openings if _may_be_there(openings[name])])


def _may_be_there(opening: asyncio.Task[Log]) -> bool:
    error = opening.exception()
    return not (isinstance(error, RollbookError) and error.outcome is Outcome.NOT_APPLIED)


async def _delete(client: Client, names: Sequence[str]) -> None:
    """Deletes the logs; reports a failure without hiding the error that ended the bench."""

    async def delete(name: str) -> None:
        try:
            await client.delete(name, grace_s=0)
        except NoSuchLog:
            pass  # The log was not created.
        except RollbookError as error:
            click.echo(f"not deleted: {name} [{error.code.reason}]", err=True)

    await _some_at_once(delete, names)


async def _some_at_once(work: Callable[[str], Awaitable[None]], names: Sequence[str]) -> None:
    todo = list(reversed(names))

    async def one_after_the_other() -> None:
        while todo:
            await work(todo.pop())

    await _together([one_after_the_other() for _ in range(_AT_ONCE)])


async def _together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs all work at the same time; the first failure cancels the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except BaseExceptionGroup as group_of_errors:
        raise group_of_errors.exceptions[0] from None
    return [task.result() for task in tasks]


@contextmanager
def _ticking(label: str, seconds: float) -> Iterator[None]:
    """Shows a progress bar by time, since records are not counted during the measurement."""
    with bar(label, int(seconds / _TICK_S)) as advance:

        async def tick() -> None:
            while True:
                await asyncio.sleep(_TICK_S)
                advance(1)

        ticking = asyncio.ensure_future(tick())
        try:
            yield
        finally:
            ticking.cancel()


class _Cost:
    """Measures time and CPU from this object's creation on."""

    def __init__(self) -> None:
        self._begun, self._cpu = time.perf_counter(), time.process_time()

    def of(self, records: int, size: int) -> dict[str, Any]:
        elapsed, cpu = time.perf_counter() - self._begun, time.process_time() - self._cpu
        return {
            "records": records,
            "seconds": round(elapsed, 3),
            "records_per_s": round(records / elapsed),
            "mib_per_s": round(records * size / elapsed / _MIB, 2),
            "client_cpu_us_per_record": round(cpu / max(1, records) * 1e6, 2),
        }


def _names(logs: Sequence[Log], keep: bool) -> dict[str, Any]:
    """Returns the names of the logs if they are kept; otherwise only their number."""
    return {"logs": [str(log.name) for log in logs] if keep else len(logs)}
