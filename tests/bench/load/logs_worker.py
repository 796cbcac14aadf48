"""Our client of named logs under load: `rollbook.aio` with its defaults.

python -m tests.bench.load.logs_worker log://host:port

It does not import gRPC itself, like a program that imports `rollbook` first. An earlier import of
gRPC would prevent Rollbook's settings for gRPC (`api/grpc/__init__.py`), and make small messages a
third more expensive.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from rollbook import aio
from rollbook.api.cli.bench import load as bench_load
from rollbook.api.client.channels import Channels, Security
from rollbook.api.rpc_methods import READ_STREAM
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.quorum import Quorum
from rollbook.proto.v1 import log_pb2
from tests.bench.load import jobs, logs_jobs
from tests.bench.load.jobs import Found, Job, Stopwatch
from tests.bench.load.logs_jobs import Clock

_ALL_READ_S: Final = 60.0


class OurLogs:
    def __init__(self, client: aio.Client) -> None:
        self._client = client
        self._logs: dict[str, aio.Log] = {}
        self._writers: dict[str, aio.Writer] = {}
        self._attending = AsyncExitStack()
        self._followed = 0

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
        await self.append(log, value)  # The client retries.

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
        """Is ready when it has caught up."""
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
        """Lets `readers` clients request the whole log, each on its own connection, and read
        nothing.
        """
        async with self._stared_at(log, readers):
            await asyncio.sleep(seconds)

    @asynccontextmanager
    async def _stared_at(self, log: str, readers: int) -> AsyncIterator[None]:
        request = log_pb2.ReadStreamRequest(log=log, start="0").SerializeToString()
        owner = await self.owner(log)
        channels = [Channels(Security()) for _ in range(readers)]
        calls = [each.to(owner).unary_stream(READ_STREAM.path)(request) for each in channels]
        try:
            for call in calls:
                await call.initial_metadata()
            yield
        finally:
            for channel in channels:
                await channel.close()

    async def thin(self, log: str) -> None:
        """Creates a log with a single copy."""
        self._logs[log] = await self._client.open(log, create=LogConfig(quorum=Quorum(1, 1, 1)))

    async def attend(self, log: str) -> None:
        """Starts two readers of the whole log: one that reads all appends, and one that reads
        nothing.
        """
        is_ready = asyncio.Event()
        self._followed = 0
        self._attending = AsyncExitStack()
        await self._attending.enter_async_context(self._stared_at(log, 1))
        following = asyncio.ensure_future(self.tail(log, self._count, is_ready))
        self._attending.callback(following.cancel)
        await is_ready.wait()

    def _count(self, _value: bytes) -> None:
        self._followed += 1

    async def followed(self, count: int) -> None:
        """Ends both readers when `count` records have been read."""
        async with asyncio.timeout(_ALL_READ_S), self._attending:
            while self._followed < count:
                await asyncio.sleep(0.1)

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
    alone: dict[str, Callable[..., Awaitable[None]]] = {
        "stare": ours.stare,
        "thin": ours.thin,
        "attend": ours.attend,
        "followed": ours.followed,
    }
    do = job.pop("do")
    if do == "placed":
        return {"owner": await ours.owner(job["log"])}
    if do not in alone:
        return await logs_jobs.run(ours, job | {"do": do})
    del job["client"]
    stopwatch = Stopwatch()
    await alone[do](**job)
    return stopwatch.read()


if __name__ == "__main__":
    asyncio.run(_serve())
