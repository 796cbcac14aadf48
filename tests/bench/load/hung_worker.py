"""Our ledger client while bookies of its ensemble hang.

It stops them itself, by their pids, when it is under full load, so that the measurement starts
then.
"""

import asyncio
import os
import random
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from rollbook.ledger import Ledgers, LedgerWriter
from rollbook.proto.ids import EntryId
from tests.bench.load.jobs import Found, Job, percentiles
from tests.bench.load.ledger_worker import PASSWORD, serve

_BURST: Final = 100
_BURSTS: Final = 10  # Under way.
_CALM_S: Final = 3.0  # With all bookies.
_STANDSTILL_S: Final = 3.0  # Less than a deadline.


@contextmanager
def _hung(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def _write(ledgers: Ledgers, job: Job) -> Found:
    """Measures the longest time without a confirmation, and the rate before and after it."""
    writer = await ledgers.create(ensemble=3, write=3, ack=job["ack"], password=PASSWORD)
    async with writer:
        await writer.append(b"connected")
        pids: dict[str, int] = job["pids"]
        victim = pids[writer.metadata.fragments[-1].ensemble[0]]
        before = await _keep_adding(writer, _CALM_S)
        with _hung(victim):
            times = [time.perf_counter(), *await _keep_adding(writer, job["seconds"])]
    pause_s, end = max((b - a, b) for a, b in pairwise(times))
    after = [each for each in times if each >= end]
    return {"pause_s": pause_s, "before": _pace(before), "after": _pace(after)}


def _pace(confirmed_at: list[float]) -> float:
    return _BURST * (len(confirmed_at) - 1) / (confirmed_at[-1] - confirmed_at[0])


async def _keep_adding(writer: LedgerWriter, seconds: float) -> list[float]:
    """Returns the times at which bursts were confirmed."""
    payloads = [b"x" * 100] * _BURST
    confirmed_at: list[float] = []
    under_way: deque[asyncio.Future[Any]] = deque()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        if len(under_way) == _BURSTS:
            await under_way.popleft()
        await writer.ready(_BURST, _BURST * 100)
        future = writer.append_many(payloads)
        future.add_done_callback(lambda _: confirmed_at.append(time.perf_counter()))
        under_way.append(future)
    await writer.flush()
    return confirmed_at


async def _read(ledgers: Ledgers, job: Job) -> Found:
    """Reads random entries of a closed ledger one by one, with each of its bookies stopped in turn."""
    async with await ledgers.create(ensemble=3, write=3, ack=2, password=PASSWORD) as writer:
        payloads = [b"x" * 1024] * 500
        for _ in range(job["count"] // 500):
            await writer.ready(500, 500 * 1024)
            writer.append_many(payloads)
    pids: dict[str, int] = job["pids"]
    calm = await _read_singly(ledgers, writer.ledger_id, job["count"])
    found = percentiles(calm) | {"slowest_ns": max(calm)}
    for number, bookie in enumerate(writer.metadata.fragments[-1].ensemble):
        with _hung(pids[bookie]):
            latencies = await _read_singly(ledgers, writer.ledger_id, job["count"])
        mine = percentiles(latencies)
        found[f"hung_{number}"] = mine | {"slowest_ns": max(latencies)}
    return found


async def _read_singly(ledgers: Ledgers, ledger_id: int, count: int) -> list[int]:
    ids, latencies = random.Random(1), []
    async with await ledgers.open(ledger_id, PASSWORD) as reader:
        for _ in range(count):
            entry_id = EntryId(ids.randrange(reader.last_add_confirmed))
            since_ns = time.perf_counter_ns()
            async with reader.read(entry_id, entry_id) as stream:
                (entry,) = await stream.next_run()
            latencies.append(time.perf_counter_ns() - since_ns)
            assert entry.entry_id == entry_id
    return latencies


async def _outrun(ledgers: Ledgers, job: Job) -> Found:
    """Appends whenever the window has room, while all bookies except one are stopped."""
    size, burst, most = 4096, 8, 0
    payload = bytes(size)
    pids: list[int] = list(job["pids"].values())
    async with await ledgers.create(ensemble=3, write=3, ack=2, password=PASSWORD) as writer:
        await writer.append(b"connected")
        _forget_peak()
        before = _memory("VmRSS")
        end = time.perf_counter() + job["seconds"]
        stopped_at = time.perf_counter() + job["seconds"] / 3
        sent, is_stopped = 0, False
        while (now := time.perf_counter()) < end:
            if not is_stopped and now >= stopped_at:
                is_stopped = True
                asyncio.get_running_loop().call_later(_STANDSTILL_S, _signal, pids[1:], "SIGCONT")
                _signal(pids[1:], "SIGSTOP")
            await writer.ready(burst, burst * size)
            for _ in range(burst):
                writer.append(payload)
            most = max(most, writer.kept_bytes)
            sent += burst * size
        _signal(pids[1:], "SIGCONT")
        peak = _memory("VmHWM")
    return {"kept_bytes": most, "grown_bytes": peak - before, "sent_bytes": sent}


def _signal(pids: list[int], name: str) -> None:
    for pid in pids:
        os.kill(pid, signal.Signals[name])


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _memory(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


if __name__ == "__main__":
    serve({"write": _write, "read": _read, "outrun": _outrun})
