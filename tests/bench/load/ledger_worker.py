"""Our ledger client under load, in its own process: the twin of `java/…/Peer.java`.

Each input line is a job, and each output line has its figures, with the same names as in the twin.
The client is that of `rollbook.ledger.connect` with its defaults, except for the protocol version,
which the job sets. The process uses the garbage collection settings of our servers
(`calm_collector`). With Python's defaults, all objects would be scanned once a second for 20 ms.
The twin's JVM has such settings, too.
"""

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from rollbook.ledger import ClientConfig, Ledgers, LedgerWriter, connect
from rollbook.proto.runtime.gc_tuning import calm_collector
from tests.bench.load import jobs
from tests.bench.load.jobs import ADDS_BURSTS, ADDS_SAMPLED, Found, Job, Stopwatch, percentiles

PASSWORD: Final = b"secret"


async def _create(ledgers: Ledgers) -> LedgerWriter:
    return await ledgers.create(ensemble=3, write=3, ack=2, password=PASSWORD)


async def _adds(ledgers: Ledgers, job: Job) -> Found:
    async with await _create(ledgers) as writer:
        await writer.append(b"connected")
        append = _append_many if job.get("many") else _append_each
        return await append(writer, job)


async def _append_each(writer: LedgerWriter, job: Job) -> Found:
    """Appends with a future for each entry, in bursts, up to the window."""
    payload, window = b"x" * job["size"], job["window"]
    burst = max(1, window // ADDS_BURSTS)

    def append(clock: _Latencies) -> "asyncio.Future[Any]":
        for number in range(burst):
            future = writer.append(payload)
            if number % ADDS_SAMPLED == 0:
                clock.start(future)
        return future

    return await _keep_going(writer, job, burst, window // burst, append)


async def _append_many(writer: LedgerWriter, job: Job) -> Found:
    """Appends with one future for each `many` entries."""
    many = job["many"]
    payloads = [b"x" * job["size"]] * many

    def append(clock: _Latencies) -> "asyncio.Future[Any]":
        future = writer.append_many(payloads)
        clock.start(future)
        return future

    return await _keep_going(writer, job, many, job["window"] // many, append)


async def _keep_going(
    writer: LedgerWriter,
    job: Job,
    burst: int,
    bursts: int,
    append: Callable[["_Latencies"], "asyncio.Future[Any]"],
) -> Found:
    latencies, stopwatch = _Latencies(), _Stopwatch()
    end_ns = time.perf_counter_ns() + int(job["seconds"] * 1e9)
    under_way: deque[asyncio.Future[Any]] = deque()
    sent = 0
    while sent < job["count"] and time.perf_counter_ns() < end_ns:
        if len(under_way) == bursts:
            await under_way.popleft()
        await writer.ready(burst, burst * job["size"])
        under_way.append(append(latencies))
        sent += burst
    await writer.flush()
    return stopwatch.found(latencies.found_ns, sent, writer.ledger_id)


class _Latencies:
    """Latencies from an append to its confirmation."""

    def __init__(self) -> None:
        self.found_ns: list[int] = []

    def start(self, future: "asyncio.Future[Any]") -> None:
        since_ns = time.perf_counter_ns()

        def on_done(done: "asyncio.Future[Any]") -> None:
            assert done.exception() is None
            self.found_ns.append(time.perf_counter_ns() - since_ns)

        future.add_done_callback(on_done)


async def _read(ledgers: Ledgers, job: Job) -> Found:
    """Reads a closed ledger, with an object for each entry."""
    async with await ledgers.open(job["ledger"], PASSWORD) as reader:
        stopwatch = _Stopwatch()
        entries = payload_bytes = 0
        async with reader.read() as stream:
            while run := await stream.next_run():
                entries += len(run)
                payload_bytes += sum(len(entry.payload) for entry in run)
        return {**stopwatch.read(), "entries": entries, "bytes": payload_bytes}


async def _recover(ledgers: Ledgers, job: Job) -> Found:
    stopwatch = _Stopwatch()
    async with await ledgers.open_recover(job["ledger"], PASSWORD) as reader:
        return {**stopwatch.read(), "last": reader.last_add_confirmed}


async def _recover_idle(ledgers: Ledgers, job: Job) -> Found:
    times = []
    whole = _Stopwatch()
    for _ in range(job["count"]):
        writer = await _create(ledgers)
        for _ in range(10):
            await writer.append(b"x" * job["size"])
        since_ns = time.perf_counter_ns()
        async with await ledgers.open_recover(writer.ledger_id, PASSWORD):
            times.append(time.perf_counter_ns() - since_ns)
        await writer.stop()
    return whole.found(times, job["count"], -1)


async def _tail(ledgers: Ledgers, job: Job) -> Found:
    """Measures from an append to a reader that follows in the same process, at a steady pace.

    A thread keeps the pace, as in the twin: the loop's timers are rounded up to milliseconds, which
    would delay appends. Readers learn of each entry through the next append.
    """
    count = job["count"]
    sent_ns = [0] * count
    latencies = [0] * count
    payload = b"x" * job["size"]
    writer = await _create(ledgers)
    reader = await ledgers.open_tailing(writer.ledger_id, PASSWORD)

    async def follow() -> None:
        async for entry in reader.tail():
            latencies[entry.entry_id] = time.perf_counter_ns() - sent_ns[entry.entry_id]
            if entry.entry_id == count - 1:
                return

    following = asyncio.ensure_future(follow())
    due = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()
    stopwatch = _Stopwatch()
    pacing = asyncio.ensure_future(
        asyncio.to_thread(
            _keep_pace, count, 1 / job["rate"], lambda: loop.call_soon_threadsafe(due.release)
        )
    )
    for number in range(count):
        await due.acquire()
        sent_ns[number] = time.perf_counter_ns()
        writer.append(payload)
    await pacing
    await following
    await reader.close()
    await writer.close()
    return stopwatch.found(latencies, count, writer.ledger_id)


def _keep_pace(count: int, interval_s: float, on_due: Callable[[], object]) -> None:
    start = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, start + number * interval_s - time.perf_counter()))
        on_due()


class _Stopwatch(Stopwatch):
    def found(self, latencies_ns: list[int], count: int, ledger: int) -> Found:
        return self.read() | {"count": count, "ledger": ledger} | percentiles(latencies_ns)


def serve(work: dict[str, Callable[[Ledgers, Job], Awaitable[Found]]]) -> None:
    """Runs the jobs from standard input, with the metadata URL of the command line."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))

    async def run(job: Job) -> Found:
        config = ClientConfig(protocol_version=2 if job["client"] == "v2" else 3)
        async with connect(sys.argv[1], config) as ledgers:
            return await work[job["do"]](ledgers, job)

    calm_collector()
    asyncio.run(jobs.serve(run))


if __name__ == "__main__":
    serve(
        {
            "adds": _adds,
            "read": _read,
            "recover": _recover,
            "recover_idle": _recover_idle,
            "tail": _tail,
        }
    )
