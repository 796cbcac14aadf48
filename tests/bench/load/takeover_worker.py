"""Appends to many logs, has servers killed meanwhile, and tells how long each log was away.

python -m tests.bench.load.takeover_worker log://host:port,host:port

A job is {logs, every_s, warm_s, seconds, kill: [pid], stop: [pid]}: one append to each log, and the next
one `every_s` after its ack. A log is away from the kill to the first ack of its next owner.
"""

import asyncio
import os
import random
import signal
import sys
import time
from itertools import pairwise
from typing import NamedTuple

from rollbook import aio
from rollbook.proto.errors import RollbookError
from tests.bench.load import jobs
from tests.bench.load.jobs import Found, Job

_OPENED_AT_ONCE = 32
_ASKED_AT_ONCE = 100


class _Ack(NamedTuple):
    at: float
    owner_epoch: int


class _Load:
    def __init__(self, client: aio.Client, every_s: float) -> None:
        self._client, self._every_s = client, every_s
        self.acks: dict[str, list[_Ack]] = {}
        self.failed = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False

    async def begin(self, names: list[str]) -> None:
        todo = iter(names)

        async def open_some() -> None:
            for name in todo:
                log = await self._client.open(name, create=True)
                ack = await log.append(b"first")
                self.acks[name] = [_Ack(time.time(), ack.owner_epoch)]
                self._tasks.append(asyncio.create_task(self._append_on(log, name)))

        await asyncio.gather(*(open_some() for _ in range(_OPENED_AT_ONCE)))

    async def _append_on(self, log: aio.Log, name: str) -> None:
        await asyncio.sleep(random.random() * self._every_s)
        value = os.urandom(100)
        while not self._is_over:
            try:
                ack = await log.append(value)
            except RollbookError:
                self.failed += 1
                await asyncio.sleep(0.05)
                continue
            self.acks[name].append(_Ack(time.time(), ack.owner_epoch))
            await asyncio.sleep(self._every_s)

    async def end(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)


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
    struck_at = time.time()
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
    return {
        "owners": owners,
        "away_s": away,
        "pauses_s": pauses,
        "failed": load.failed,
        "acked": sum(map(len, load.acks.values())),
    }


async def _serve() -> None:
    async with aio.connect(sys.argv[1]) as client:
        await jobs.serve(lambda job: _run(client, job))


if __name__ == "__main__":
    asyncio.run(_serve())
