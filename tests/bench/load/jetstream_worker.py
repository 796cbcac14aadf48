"""NATS JetStream under load, through nats-py: a log is a file stream with three replicas and one subject.

    python -m tests.bench.load.jetstream_worker nats://host:port,nats://host:port,…

It runs in a virtual environment without Rollbook.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import nats
import nats.errors
from nats.js.api import DeliverPolicy, StorageType, StreamConfig
from nats.js.errors import NoStreamResponseError, ServiceUnavailableError

from tests.bench.load import jobs, logs_jobs
from tests.bench.load.logs_jobs import Clock

_REPLICAS: Final = 3
_WINDOW: Final = 4_000  # The default of nats-py.
_PIECE: Final = 1_000
_ANSWER_S: Final = 5.0  # The default of nats-py. Without a leader there is no response.
_TIMEOUT_S: Final = 60.0
_PAUSE_S: Final = 0.05
_QUICK_S: Final = 0.25  # A longer wait for a dead leader would find the new one later.


class JetStream:
    def __init__(self, connection: Any) -> None:
        self._stream = connection.jetstream(timeout=_ANSWER_S, publish_async_max_pending=_WINDOW)

    async def make(self, log: str) -> None:
        await _patiently(
            self._stream.add_stream,
            StreamConfig(
                name=log, subjects=[log], storage=StorageType.FILE, num_replicas=_REPLICAS
            ),
        )

    async def flood(self, log: str, burst: Sequence[bytes], clock: Clock) -> int:
        publish = self._stream.publish_async
        return await logs_jobs.flood_by_futures(
            lambda value: publish(log, value, wait_stall=_TIMEOUT_S),
            burst,
            clock,
            lambda ack: ack.seq,
        )

    async def append(self, log: str, value: bytes) -> None:
        await _patiently(self._stream.publish, log, value)

    async def try_append(self, log: str, value: bytes) -> None:
        await self._stream.publish(log, value, timeout=_QUICK_S)

    async def submit(self, log: str, value: bytes) -> Awaitable[Any]:
        future: Awaitable[Any] = await self._stream.publish_async(log, value, wait_stall=_TIMEOUT_S)
        return future

    async def flush(self) -> None:
        await self._stream.publish_async_completed()

    async def tail(
        self, log: str, on_value: Callable[[bytes], None], is_ready: asyncio.Event
    ) -> None:
        async def tell(message: Any) -> None:
            on_value(message.data)

        await self._stream.subscribe(
            log, cb=tell, ordered_consumer=True, deliver_policy=DeliverPolicy.NEW
        )
        is_ready.set()
        await asyncio.Event().wait()

    async def replay(self, log: str, how: str, count: int) -> AsyncIterator[tuple[int, int]]:
        """Ignores `how`: each record is a message object."""
        del how
        read = size = 0
        is_over = asyncio.Event()

        async def tell(message: Any) -> None:
            nonlocal read, size
            read += 1
            size += len(message.data)
            if read == count:
                is_over.set()

        subscription = await self._stream.subscribe(log, cb=tell, ordered_consumer=True)
        async with asyncio.timeout(2 * _TIMEOUT_S):
            await is_over.wait()
        await subscription.unsubscribe()
        yield read, size

    async def owner(self, log: str) -> str:
        info = await self._stream.stream_info(log)
        leader: str = info.cluster.leader
        return leader

    async def opened_at(self, log: str) -> float | None:
        del log
        return None

    async def roll(self, log: str) -> None:
        raise NotImplementedError(f"nobody rolls {log}")


async def _patiently(call: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
    """Retries, because on a busy machine a new stream may have no leader for a while."""
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            with suppress(nats.errors.TimeoutError, NoStreamResponseError, ServiceUnavailableError):
                await call(*arguments)
                return
            await asyncio.sleep(_PAUSE_S)


async def _silence(_: Exception) -> None:
    """Drops errors about killed nodes."""


async def _serve() -> None:
    connection = await nats.connect(
        sys.argv[1].split(","), max_reconnect_attempts=-1, error_cb=_silence
    )
    try:
        stream = JetStream(connection)
        await jobs.serve(lambda job: logs_jobs.run(stream, job))
    finally:
        await connection.close()


if __name__ == "__main__":
    asyncio.run(_serve())
