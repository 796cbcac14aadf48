"""The jobs of `bench logs`, which are the same for Rollbook's client and those of peers.

A client implements creating, appending and reading logs (`LogClient`); the jobs and measurements
are here. Records are random, so that compression gains nothing.
"""

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from tests.bench.load.jobs import Found, Job, Stopwatch, percentiles

_POOL: Final = 1_000  # Different records.
_BEGIN_AT_ONCE: Final = 16
_UNDER_LOAD: Final = 8  # Appenders that do not wait for each other.
_PAUSE_S: Final = 0.005  # Before somebody tries again.
_KILL_AFTER_S: Final = 1.0
_ALL_TOLD_S: Final = 60.0


class LogClient(Protocol):
    async def make(self, log: str) -> None:
        """Creates the log unless it exists."""

    async def flood(self, log: str, burst: Sequence[bytes], clock: "Clock") -> int:
        """Appends bursts, record by record, as fast as possible, until the time is over.

        Checks every ack; returns the number of records, all of which are acked.
        """

    async def append(self, log: str, value: bytes) -> None:
        """Appends a record, which is durable when this returns."""

    async def try_append(self, log: str, value: bytes) -> None:
        """Appends like `append`, but with a short time-out, because the caller retries."""

    async def submit(self, log: str, value: bytes) -> Awaitable[Any]:
        """Appends a record, which is durable when the result has been awaited."""

    async def flush(self) -> None: ...

    async def tail(
        self, log: str, on_value: Callable[[bytes], None], is_ready: asyncio.Event
    ) -> None:
        """Receives every record appended from now on, until it is cancelled."""

    def replay(self, log: str, how: str, count: int) -> AsyncIterator[tuple[int, int]]:
        """Reads all records; yields the numbers of records and bytes of each piece."""

    async def owner(self, log: str) -> str:
        """The address of the server that has to be killed."""

    async def roll(self, log: str) -> None:
        """Starts a new segment with the next record."""

    async def opened_at(self, log: str) -> float | None:
        """When the current owner opened it, by the system's clock; None if unknown."""


class Clock:
    """The end of a flood, and the latencies of sampled appends."""

    def __init__(self, count: int, seconds: float) -> None:
        self._count = count
        self._end = time.perf_counter() + seconds
        self.found_ns: list[int] = []

    def goes_on(self, sent: int) -> bool:
        return sent < self._count and time.perf_counter() < self._end

    def sample(self) -> Callable[[Any], None]:
        """Returns a callback for the ack of a record that is appended now."""
        since_ns = time.perf_counter_ns()
        return lambda _: self.found_ns.append(time.perf_counter_ns() - since_ns)


async def flood_by_futures(
    send: Callable[[bytes], Awaitable["asyncio.Future[Any]"]],
    burst: Sequence[bytes],
    clock: Clock,
    place: Callable[[Any], int],
) -> int:
    """A flood with a client that has a future for each record.

    `place` gets the offset of an ack.
    """
    under_way: deque[list[asyncio.Future[Any]]] = deque()
    sent = acked = 0
    while clock.goes_on(sent):
        futures = [await send(value) for value in burst]
        futures[-1].add_done_callback(clock.sample())
        under_way.append(futures)
        sent += len(futures)
        while under_way and under_way[0][-1].done():
            acked += await _acked(under_way.popleft(), place)
    for futures in under_way:
        acked += await _acked(futures, place)
    return acked


async def _acked(futures: "list[asyncio.Future[Any]]", place: Callable[[Any], int]) -> int:
    acks = [await each for each in futures]
    assert place(acks[-1]) - place(acks[0]) == len(acks) - 1
    return len(acks)


async def run(client: LogClient, job: Job) -> Found:
    return await _JOBS[job["do"]](client, job)


class KafkaClient(LogClient, Protocol):
    async def lagging(self) -> int:
        """How many logs have no leader, or replicas that are not in sync."""


async def run_kafka(client: KafkaClient, job: Job) -> Found:
    if job["do"] == "lagging":
        return {"count": await client.lagging()}
    return await run(client, job)


def _records(size: int) -> list[bytes]:
    return [os.urandom(size) for _ in range(_POOL)]


async def _begin(client: LogClient, log: str) -> None:
    """Appends a record, so that the log has an owner that the client knows."""
    await client.make(log)
    await client.append(log, b"first")


async def _make(client: LogClient, job: Job) -> Found:
    stopwatch = Stopwatch()
    await _begin_all(client, job["logs"])
    return stopwatch.read()


async def _begin_all(client: LogClient, logs: Sequence[str]) -> None:
    todo = deque(logs)

    async def work() -> None:
        while todo:
            await _begin(client, todo.popleft())

    await asyncio.gather(*(work() for _ in range(_BEGIN_AT_ONCE)))


async def _flood(client: LogClient, job: Job) -> Found:
    await _begin(client, job["log"])
    clock, stopwatch = Clock(job["count"], job["seconds"]), Stopwatch()
    count = await client.flood(job["log"], _records(job["size"]), clock)
    return stopwatch.read() | {"count": count} | percentiles(clock.found_ns)


async def _alone(client: LogClient, job: Job) -> Found:
    log, pool, times = job["log"], _records(job["size"]), []
    await _begin(client, log)
    stopwatch = Stopwatch()
    for number in range(job["count"]):
        since_ns = time.perf_counter_ns()
        await client.append(log, pool[number % _POOL])
        times.append(time.perf_counter_ns() - since_ns)
    return stopwatch.read() | {"count": job["count"]} | percentiles(times)


async def _tailing(client: LogClient, job: Job) -> Found:
    """Measures from the append call to the callback of a consumer in the same process."""
    log, count, interval_s = job["log"], job["count"], 1 / job["rate"]
    sent_ns: dict[bytes, int] = {}
    times: list[int] = []
    all_told, is_ready = asyncio.Event(), asyncio.Event()

    def on_value(value: bytes) -> None:
        times.append(time.perf_counter_ns() - sent_ns.pop(value))
        if len(times) == count:
            all_told.set()

    await _begin(client, log)
    following = asyncio.ensure_future(client.tail(log, on_value, is_ready))
    try:
        await is_ready.wait()
        start = time.perf_counter()
        stopwatch = Stopwatch()
        for number in range(count):
            await asyncio.sleep(max(0.0, start + number * interval_s - time.perf_counter()))
            value = os.urandom(job["size"])
            sent_ns[value] = time.perf_counter_ns()
            await client.submit(log, value)
        async with asyncio.timeout(_ALL_TOLD_S):
            await all_told.wait()
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
    await client.flush()
    return stopwatch.read() | {"count": count} | percentiles(times)


async def _replay(client: LogClient, job: Job) -> Found:
    stopwatch = Stopwatch()
    records = payload_bytes = 0
    async for count, size in client.replay(job["log"], job["how"], job["count"]):
        records += count
        payload_bytes += size
    assert records == job["count"], f"{records} records of {job['count']}"
    return stopwatch.read() | {"count": records, "bytes": payload_bytes}


async def _round_robin(client: LogClient, job: Job) -> Found:
    """Appends one record to each existing log in turn, with a window."""
    logs, window, pool = job["logs"], job["window"], _records(job["size"])
    under_way: deque[Awaitable[Any]] = deque()
    clock, stopwatch = Clock(job["count"], job["seconds"]), Stopwatch()
    sent = 0
    while clock.goes_on(sent):
        if len(under_way) == window:
            await under_way.popleft()
        under_way.append(await client.submit(logs[sent % len(logs)], pool[sent % _POOL]))
        sent += 1
    for each in under_way:
        await each
    return stopwatch.read() | {"count": sent}


async def _steps(client: LogClient, job: Job) -> Found:
    """Appends single records to each log in turn, some at a time. Servers cannot batch them."""
    logs, pool = job["logs"], _records(job["size"])
    clock, stopwatch = Clock(job["count"], job["seconds"]), Stopwatch()
    sent = 0

    async def work() -> None:
        nonlocal sent
        while clock.goes_on(sent):
            number = sent
            sent += 1
            await client.append(logs[number % len(logs)], pool[number % _POOL])

    await asyncio.gather(*(work() for _ in range(job["at_once"])))
    return stopwatch.read() | {"count": sent}


async def _roll(client: LogClient, job: Job) -> Found:
    stopwatch = Stopwatch()
    for _ in range(job["count"]):
        await client.append(job["log"], b"of a segment")
        await client.roll(job["log"])
    return stopwatch.read()


async def _failover(client: LogClient, job: Job) -> Found:
    """Kills the owner; measures the time without acks, and when the next owner had the log."""
    log, pool = job["log"], _records(job["size"])
    acked_at = [time.time()]
    is_over = asyncio.Event()
    longest = (0.0, 0.0)  # Length and end of the longest pause.

    async def work() -> None:
        nonlocal longest
        while not is_over.is_set():
            try:
                await client.try_append(log, pool[len(acked_at) % _POOL])
            except Exception:  # noqa: BLE001  # The job continues after any error.
                await asyncio.sleep(_PAUSE_S)
                continue
            now = time.time()
            longest = max(longest, (now - acked_at[-1], now))
            acked_at.append(now)

    await _begin(client, log)
    workers = [asyncio.ensure_future(work()) for _ in range(_UNDER_LOAD)]
    await asyncio.sleep(_KILL_AFTER_S)
    os.kill(job["pids"][await client.owner(log)], signal.SIGKILL)
    killed_at, longest = time.time(), (0.0, 0.0)
    before = len(acked_at)
    while time.time() < killed_at + job["seconds"] or len(acked_at) < before + 100:
        await asyncio.sleep(_PAUSE_S)
        assert time.time() < killed_at + _ALL_TOLD_S, "nothing was acked any more"
    is_over.set()
    await asyncio.gather(*workers)
    gap_s, over_at = longest
    found = {"gap_s": gap_s, "rate": before / _KILL_AFTER_S}
    if (opened_at := await client.opened_at(log)) is not None:
        found |= {"to_opened_s": opened_at - killed_at, "to_ack_s": over_at - opened_at}
    return found


_JOBS: Final[dict[str, Callable[[LogClient, Job], Awaitable[Found]]]] = {
    "make": _make,
    "flood": _flood,
    "alone": _alone,
    "tailing": _tailing,
    "replay": _replay,
    "round_robin": _round_robin,
    "steps": _steps,
    "roll": _roll,
    "failover": _failover,
}
