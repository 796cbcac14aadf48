"""Our client of named logs under load: what `rollbook.aio` gives to anybody, with its defaults.

python -m tests.bench.load.logs_worker log://host:port

It does not load gRPC by itself, no more than a program does that imports `rollbook` first: whoever is earlier keeps
what that has to say to gRPC from being heard (`api/grpc/__init__.py`), which costs a small message a third.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from rollbook import aio
from rollbook.api.cli import bench_load
from rollbook.api.client.channels import Channels, Security
from rollbook.api.grpc.methods import READ_STREAM
from rollbook.proto.v1 import log_pb2
from tests.bench.load import jobs, logs_jobs
from tests.bench.load.jobs import Found, Job, Stopwatch
from tests.bench.load.logs_jobs import Clock


class OurLogs:
    def __init__(self, client: aio.Client) -> None:
        self._client = client
        self._logs: dict[str, aio.Log] = {}
        self._writers: dict[str, aio.Writer] = {}

    async def make(self, log: str) -> None:
        await self._open(log)

    async def _open(self, name: str) -> aio.Log:
        if (log := self._logs.get(name)) is None:
            log = self._logs[name] = await self._client.open(name, create=True)
        return log

    async def flood(self, log: str, burst: Sequence[bytes], clock: Clock) -> int:
        opened = await self._open(log)
        first = await opened.tail_offset()
        async with opened.writer() as writer:
            return await bench_load.flood(writer, burst, clock, first)

    async def append(self, log: str, value: bytes) -> None:
        await (await self._open(log)).append(value)

    async def try_append(self, log: str, value: bytes) -> None:
        await self.append(log, value)  # It tries again by itself.

    async def submit(self, log: str, value: bytes) -> Awaitable[Any]:
        if (writer := self._writers.get(log)) is None:
            writer = self._writers[log] = (await self._open(log)).writer()
        return await writer.send(value)

    async def flush(self) -> None:
        for writer in self._writers.values():
            await writer.flush()

    async def tail(
        self, log: str, on_value: Callable[[bytes], None], is_ready: asyncio.Event
    ) -> None:
        """Ready when it is told that there is nothing before it."""
        async for event in (await self._open(log)).events("latest"):
            if isinstance(event, aio.RecordBatch):
                for value in event.values():
                    on_value(value)
            else:
                is_ready.set()

    async def replay(self, log: str, how: str, count: int) -> AsyncIterator[tuple[int, int]]:
        opened = await self._open(log)
        if how == "values":
            async for batch in opened.read_batches(0, count):
                values = batch.values()
                yield len(values), sum(map(len, values))
        else:
            size = 0
            async for record in opened.read(0, count):
                size += len(record.value)
            yield count, size

    async def stare(self, log: str, readers: int, seconds: float) -> None:
        """So many ask for all of it, each on a connection of its own, and read nothing."""
        request = log_pb2.ReadStreamRequest(log=log, start="0").SerializeToString()
        owner = await self.owner(log)
        channels = [Channels(Security()) for _ in range(readers)]
        calls = [each.to(owner).unary_stream(READ_STREAM.path)(request) for each in channels]
        for call in calls:
            await call.initial_metadata()
        await asyncio.sleep(seconds)
        for channel in channels:
            await channel.close()

    async def roll(self, log: str) -> None:
        await (await self._open(log)).roll()

    async def owner(self, log: str) -> str:
        (found,) = await self._client.lookup([log])
        return found.address

    async def opened_at(self, log: str) -> float | None:
        events = await (await self._open(log)).journal()
        return next(each.time_us for each in events if each.kind == "log_opened") / 1e6


async def _serve() -> None:
    async with aio.connect(sys.argv[1]) as client:
        ours = OurLogs(client)
        await jobs.serve(lambda job: _run(ours, job))


async def _run(ours: OurLogs, job: Job) -> Found:
    if job["do"] != "stare":
        return await logs_jobs.run(ours, job)
    stopwatch = Stopwatch()
    await ours.stare(job["log"], job["readers"], job["seconds"])
    return stopwatch.read()


if __name__ == "__main__":
    asyncio.run(_serve())
