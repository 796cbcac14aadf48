"""Apache Kafka under load, through aiokafka: a log is a topic of one partition with three replicas.

    python -m tests.bench.load.aiokafka_worker host:port,host:port,…

It runs in a virtual environment without Rollbook. In a flood its batches may be as large as the
server accepts. By default it would send 16 KiB at a time, each of which has to be synced.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import NodeNotReadyError

from tests.bench.load import jobs, logs_jobs
from tests.bench.load.logs_jobs import Clock

_REPLICAS: Final = 3
_BATCH_BYTES_MAX: Final = 1_000_000
_PIECE: Final = 10_000
_TIMEOUT_S: Final = 60.0
_PAUSE_S: Final = 0.05
_SAFE: Final[dict[str, Any]] = {"acks": "all", "enable_idempotence": True}
_EXISTS: Final = 36  # TOPIC_ALREADY_EXISTS


class AioKafka:
    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        self._patient = AIOKafkaProducer(
            bootstrap_servers=servers, max_batch_size=_BATCH_BYTES_MAX, linger_ms=5, **_SAFE
        )
        self._quick = AIOKafkaProducer(bootstrap_servers=servers, **_SAFE)

    async def __aenter__(self) -> "AioKafka":
        for each in (self._admin, self._patient, self._quick):
            await each.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in (self._patient, self._quick):
            await each.stop()
        await self._admin.close()

    async def make(self, log: str) -> None:
        new = NewTopic(log, 1, _REPLICAS)
        answer = await _patiently(lambda: self._admin.create_topics([new]))
        code = answer.topic_errors[0][1]
        if code not in (0, _EXISTS):
            raise OSError(f"{log} cannot be made: {answer.topic_errors[0]}")
        async with asyncio.timeout(_TIMEOUT_S):
            while await self._leader(log) < 0:
                await asyncio.sleep(_PAUSE_S)

    async def flood(self, log: str, burst: Sequence[bytes], clock: Clock) -> int:
        send = self._patient.send
        return await logs_jobs.flood_by_futures(
            lambda value: send(log, value, partition=0), burst, clock, lambda ack: ack.offset
        )

    async def append(self, log: str, value: bytes) -> None:
        await self._quick.send_and_wait(log, value, partition=0)

    async def try_append(self, log: str, value: bytes) -> None:
        await self.append(log, value)  # The client retries.

    async def submit(self, log: str, value: bytes) -> Awaitable[Any]:
        future: Awaitable[Any] = await self._quick.send(log, value, partition=0)
        return future

    async def flush(self) -> None:
        await self._quick.flush()

    async def tail(
        self, log: str, on_value: Callable[[bytes], None], is_ready: asyncio.Event
    ) -> None:
        """Is ready when it has read the existing records."""
        consumer, partition = await self._consumer(log), TopicPartition(log, 0)
        try:
            ends = await consumer.end_offsets([partition])
            consumer.seek(partition, ends[partition] - 1)
            await consumer.getone()
            is_ready.set()
            async for message in consumer:
                on_value(message.value)
        finally:
            await consumer.stop()

    async def replay(self, log: str, how: str, count: int) -> AsyncIterator[tuple[int, int]]:
        """Ignores `how`: each record is an object."""
        del how
        consumer = await self._consumer(log)
        await consumer.seek_to_beginning()
        while count > 0:
            found = await consumer.getmany(
                timeout_ms=int(_TIMEOUT_S * 1000), max_records=min(_PIECE, count)
            )
            if not found:
                raise TimeoutError(f"nothing of {count} records")
            for messages in found.values():
                count -= len(messages)
                yield len(messages), sum([len(message.value) for message in messages])
        await consumer.stop()

    async def lagging(self) -> int:
        """How many logs have no leader, or replicas that are not in sync."""
        topics = await _patiently(self._admin.describe_topics)
        return sum(
            part["leader"] < 0 or len(part["isr"]) < len(part["replicas"])
            for topic in topics
            for part in topic["partitions"]
        )

    async def owner(self, log: str) -> str:
        return str(await self._leader(log))

    async def opened_at(self, log: str) -> float | None:
        del log
        return None

    async def roll(self, log: str) -> None:
        raise NotImplementedError(f"nobody rolls {log}")

    async def _leader(self, log: str) -> int:
        """The number of the node; negative if there is no leader yet."""
        (found,) = await _patiently(lambda: self._admin.describe_topics([log]))
        return int(found["partitions"][0]["leader"]) if found["partitions"] else -1

    async def _consumer(self, log: str) -> Any:
        consumer = AIOKafkaConsumer(bootstrap_servers=self._servers)
        await consumer.start()
        consumer.assign([TopicPartition(log, 0)])
        return consumer


async def _patiently(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Retries, because the admin client may use a dead connection to a node that was restarted."""
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            try:
                return await ask()
            except NodeNotReadyError:
                await asyncio.sleep(_PAUSE_S)


async def _serve() -> None:
    async with AioKafka(sys.argv[1]) as stream:
        await jobs.serve(lambda job: logs_jobs.run_kafka(stream, job))


if __name__ == "__main__":
    logging.disable()  # That a node which was killed cannot be reached is no news.
    asyncio.run(_serve())
