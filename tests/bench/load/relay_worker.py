"""Slow readers of one log through a server that relays.

python -m tests.bench.load.relay_worker ENTRY OWNER
"""

import asyncio
import sys
from typing import Any

import grpc

from rollbook.api.client.channels import Channels, Security
from rollbook.api.rpc_methods import READ_STREAM, RELAY_KEY
from rollbook.proto.v1 import log_pb2
from tests.bench.load import jobs
from tests.bench.load.jobs import Found, Job, Stopwatch

_PAUSE_S = 1.0  # Between two events that a reader takes.
_AGAIN_S = 0.1


async def _read_slowly(log: str, found: Found) -> None:
    """Reads on its own connection, and reconnects if the connection is closed."""
    channels = Channels(Security())
    request = log_pb2.ReadStreamRequest(log=log, start="0").SerializeToString()
    ask = channels.to(sys.argv[1]).unary_stream(READ_STREAM.path)
    try:
        while True:
            call = ask(request, metadata=((RELAY_KEY, sys.argv[2]),))
            try:
                while (await call.read()) is not grpc.aio.EOF:
                    found["events"] += 1
                    await asyncio.sleep(_PAUSE_S)
            except (grpc.aio.AioRpcError, asyncio.CancelledError):
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
            found["again"] += 1
            await asyncio.sleep(_AGAIN_S)
    finally:
        await channels.close()


async def _run(job: Job) -> Found:
    stopwatch, found = Stopwatch(), {"events": 0, "again": 0}
    readers: list[asyncio.Task[Any]] = [
        asyncio.ensure_future(_read_slowly(job["log"], found)) for _ in range(job["readers"])
    ]
    await asyncio.sleep(job["seconds"])
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    return stopwatch.read() | found


if __name__ == "__main__":
    asyncio.run(jobs.serve(_run))
