"""Appends to many logs while servers are killed, and reports how long each log was unavailable.

python -m tests.bench.load.takeover_worker log://host:port,host:port

A job is {logs, every_s, warm_s, seconds, kill: [pid], stop: [pid], watch: {name: pid}}: one append
to each log, and the next one `every_s` after its ack. A log is unavailable from the kill to the
first ack of its next owner. Each record has the number of its append; at the end all logs are read
and compared with the acks.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rollbook import aio
from rollbook.proto.errors import RollbookError
from tests.bench.load import jobs
from tests.bench.load.jobs import Found, Job
from tests.support.bookies import cpu_s

_OPENED_AT_ONCE = 32
_ASKED_AT_ONCE = 100
_NUMBER_BYTES = 8
_PADDING = bytes(92)
_WATCH_S = 0.05


class _Ack(NamedTuple):
    at: float
    owner_epoch: int
    number: int
    offset: int


class _Load:
    def __init__(self, client: aio.Client, every_s: float) -> None:
        self._client, self._every_s = client, every_s
        self.acks: dict[str, list[_Ack]] = {}
        self.failed = 0
        self.wrong: list[str] = []  # Differences between the logs and the acks.
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False

    async def begin(self, names: list[str]) -> None:
        todo = iter(names)

        async def open_some() -> None:
            for name in todo:
                log = await self._client.open(name, create=True)
                self.acks[name] = [await _append(log, 0)]
                self._tasks.append(asyncio.create_task(self._append_on(log, name)))

        await asyncio.gather(*(open_some() for _ in range(_OPENED_AT_ONCE)))

    async def _append_on(self, log: aio.Log, name: str) -> None:
        await asyncio.sleep(random.random() * self._every_s)
        number = 0
        while not self._is_over:
            number += 1
            try:
                self.acks[name].append(await _append(log, number))
            except RollbookError:  # The record may have been appended.
                self.failed += 1
                await asyncio.sleep(0.05)
            else:
                await asyncio.sleep(self._every_s)

    async def end(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def check(self) -> None:
        todo = iter(self.acks.items())

        async def check_some() -> None:
            for name, acks in todo:
                log = await self._client.open(name)
                self.wrong += [f"{name}: {flaw}" for flaw in _flaws(acks, await _read(log))]

        await asyncio.gather(*(check_some() for _ in range(_OPENED_AT_ONCE)))


async def _append(log: aio.Log, number: int) -> _Ack:
    ack = await log.append(number.to_bytes(_NUMBER_BYTES) + _PADDING)
    return _Ack(time.time(), ack.owner_epoch, number, ack.first_offset)


async def _read(log: aio.Log) -> list[tuple[int, int]]:
    """Offset and number of each record."""
    end = await log.tail_offset()
    return [
        (record.offset, int.from_bytes(record.value[:_NUMBER_BYTES]))
        async for record in log.read(0, end)
    ]


def _flaws(acks: Sequence[_Ack], records: Sequence[tuple[int, int]]) -> list[str]:
    """Checks that offsets are dense, acked records have their offsets, and none is repeated."""
    found = dict(records)
    flaws = [f"{ack} is not there" for ack in acks if found.get(ack.offset) != ack.number]
    if [offset for offset, _ in records] != list(range(len(records))):
        flaws.append("its offsets have holes")
    if len({number for _, number in records}) < len(records):
        flaws.append("an append is there twice")
    return flaws


class _Processes:
    """CPU time of processes over time."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = {**pids, "client": os.getpid()}
        self._seen: list[tuple[float, dict[str, float]]] = []
        self._watching = asyncio.create_task(self._watch())

    def look(self) -> None:
        self._seen.append((time.time(), {each: cpu_s(pid) for each, pid in self._pids.items()}))

    async def _watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_WATCH_S)

    def between(self, start: float, end: float) -> dict[str, float]:
        self._watching.cancel()
        first = next(cpu for at, cpu in self._seen if at >= start)
        last = next((cpu for at, cpu in self._seen if at >= end), self._seen[-1][1])
        return {each: last[each] - first[each] for each in self._pids}


async def _owners(client: aio.Client, names: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for start in range(0, len(names), _ASKED_AT_ONCE):
        some = names[start : start + _ASKED_AT_ONCE]
        found |= {str(each.log): each.address for each in await client.lookup(some)}
    return found


async def _run(client: aio.Client, job: Job) -> Found:
    load = _Load(client, job["every_s"])
    await load.begin(job["logs"])
    await asyncio.sleep(job["warm_s"])
    owners = await _owners(client, job["logs"])
    for pid in job["stop"]:
        os.kill(pid, signal.SIGSTOP)
    processes = _Processes(job["watch"])
    struck_at = time.time()
    processes.look()
    for pid in job["kill"]:
        os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(job["seconds"])
    await load.end()
    away, pauses = {}, {}
    for name, acks in load.acks.items():
        log = f"default/{name}"
        before = max(each.owner_epoch for each in acks if each.at <= struck_at)
        if found := [each.at for each in acks if each.owner_epoch > before]:
            away[log] = found[0] - struck_at
        else:
            pauses[log] = max(b.at - a.at for a, b in pairwise(acks)) - job["every_s"]
    cpu = processes.between(struck_at, struck_at + max(away.values(), default=0.0))
    await load.check()
    return {
        "owners": owners,
        "away_s": away,
        "pauses_s": pauses,
        "cpu_s": cpu,
        "failed": load.failed,
        "acked": sum(map(len, load.acks.values())),
        "wrong": load.wrong,
    }


async def _serve() -> None:
    async with aio.connect(sys.argv[1]) as client:
        await jobs.serve(lambda job: _run(client, job))


if __name__ == "__main__":
    asyncio.run(_serve())
