"""Apache Kafka under load, through confluent-kafka: a log is a topic of one partition with three replicas.

    python -m tests.bench.load.confluent_worker host:port,host:port,… synced|unsynced

It runs in a virtual environment without Rollbook. In a flood, producers linger for 5 ms, which is
the default. Where latency is measured they do not linger.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.load import jobs, logs_jobs
from tests.bench.load.logs_jobs import Clock

_REPLICAS: Final = 3
_PIECE: Final = 10_000
_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.1
_PAUSE_S: Final = 0.05
_SAFE: Final = {"acks": "all", "enable.idempotence": True}
# The topic's own setting goes before the server's: as often as Kafka does it by default.
_UNSYNCED: Final = {"flush.messages": str(2**63 - 1)}


class Confluent:
    def __init__(self, servers: str, settings: dict[str, str]) -> None:
        # Killed nodes need no log lines.
        self._servers = {"bootstrap.servers": servers, "log_level": 2}
        self._settings = settings
        self._admin = AdminClient(self._servers)
        self._patient = Producer({**self._servers, **_SAFE})
        self._quick = Producer({**self._servers, **_SAFE, "linger.ms": 0})
        self._shared = Producer({**self._servers, **_SAFE, "linger.ms": 0})
        threading.Thread(target=self._poll_for_ever, daemon=True).start()

    async def make(self, log: str) -> None:
        topic = NewTopic(log, 1, _REPLICAS, config=self._settings)
        try:
            await asyncio.wrap_future(self._admin.create_topics([topic])[log])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        for producer in (self._patient, self._quick, self._shared):
            async with asyncio.timeout(_TIMEOUT_S):
                while await asyncio.to_thread(_leader, producer, log) < 0:
                    await asyncio.sleep(_PAUSE_S)

    async def flood(self, log: str, burst: Sequence[bytes], clock: Clock) -> int:
        """Blocks the event loop, which has nothing else to do."""
        sent = acked = 0
        producer = self._patient

        def on_ack(error: Any, message: Any) -> None:
            nonlocal acked
            _check(error)
            acked += 1
            if message.offset() != acked:  # The first record was there before.
                raise AssertionError(f"{message.offset()} is not {acked}")

        while clock.goes_on(sent):
            on_sampled = clock.sample()

            def on_last_ack(error: Any, message: Any, tell: Any = on_sampled) -> None:
                on_ack(error, message)
                tell(None)

            for value in burst[:-1]:
                _produce(producer, log, value, on_ack)
            _produce(producer, log, burst[-1], on_last_ack)
            sent += len(burst)
            producer.poll(0)
        producer.flush(_TIMEOUT_S)
        return acked

    async def append(self, log: str, value: bytes) -> None:
        """Waits in the library, which is the fastest way."""
        is_done = False

        def on_ack(error: Any, _: Any) -> None:
            nonlocal is_done
            _check(error)
            is_done = True

        _produce(self._quick, log, value, on_ack)
        while not is_done:
            self._quick.poll(_TIMEOUT_S)

    async def try_append(self, log: str, value: bytes) -> None:
        await self._submit(log, value)  # The client retries.

    async def submit(self, log: str, value: bytes) -> Awaitable[Any]:
        return self._submit(log, value)

    def _submit(self, log: str, value: bytes) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        acked: asyncio.Future[None] = loop.create_future()

        def tell(error: Any) -> None:
            if acked.done():
                return
            if error is None:
                acked.set_result(None)
            else:
                acked.set_exception(KafkaException(error))

        def on_ack(error: Any, _: Any) -> None:
            loop.call_soon_threadsafe(tell, error)

        self._shared.produce(log, value, partition=0, on_delivery=on_ack)
        return acked

    async def flush(self) -> None:
        await asyncio.to_thread(self._shared.flush, _TIMEOUT_S)

    async def tail(
        self, log: str, on_value: Callable[[bytes], None], is_ready: asyncio.Event
    ) -> None:
        """Polls in a thread, as usual, and notifies the loop.

        Is ready when it has read the existing records.
        """
        loop = asyncio.get_running_loop()
        consumer = self._consumer()
        is_over = threading.Event()

        def follow() -> None:
            end = consumer.get_watermark_offsets(TopicPartition(log, 0), _TIMEOUT_S)[1]
            consumer.assign([TopicPartition(log, 0, end - 1)])
            _check(consumer.poll(_TIMEOUT_S).error())
            loop.call_soon_threadsafe(is_ready.set)
            while not is_over.is_set():
                if (message := consumer.poll(_POLL_S)) is not None:
                    _check(message.error())
                    loop.call_soon_threadsafe(on_value, message.value())
            consumer.close()

        following = loop.run_in_executor(None, follow)
        try:
            await asyncio.shield(following)
        finally:
            is_over.set()
            await following

    async def replay(self, log: str, how: str, count: int) -> AsyncIterator[tuple[int, int]]:
        """Ignores `how`: each record is a message object."""
        del how
        consumer = self._consumer()
        consumer.assign([TopicPartition(log, 0, 0)])
        while count > 0:
            messages = consumer.consume(min(_PIECE, count), _TIMEOUT_S)
            if not messages:
                raise TimeoutError(f"nothing of {count} records")
            for message in messages:
                _check(message.error())
            count -= len(messages)
            yield len(messages), sum([len(message.value()) for message in messages])
        consumer.close()

    async def lagging(self) -> int:
        """How many logs have no leader, or replicas that are not in sync."""
        topics = (await asyncio.to_thread(self._admin.list_topics, timeout=_TIMEOUT_S)).topics
        return sum(
            part.leader < 0 or len(part.isrs) < len(part.replicas)
            for topic in topics.values()
            for part in topic.partitions.values()
        )

    async def owner(self, log: str) -> str:
        return str(await asyncio.to_thread(_leader, self._admin, log))

    async def opened_at(self, log: str) -> float | None:
        del log
        return None

    async def roll(self, log: str) -> None:
        raise NotImplementedError(f"nobody rolls {log}")

    def _consumer(self) -> Any:
        group = {"group.id": "bench", "enable.auto.commit": False}
        return Consumer({**self._servers, **group})

    def _poll_for_ever(self) -> None:
        while True:
            self._shared.poll(_POLL_S)


def _produce(producer: Any, log: str, value: bytes, on_ack: Callable[[Any, Any], None]) -> None:
    while True:
        try:
            producer.produce(log, value, partition=0, on_delivery=on_ack)
        except BufferError:  # It accepts no more until acks are polled.
            producer.poll(_POLL_S)
        else:
            return


def _leader(client: Any, log: str) -> int:
    """The number of the node; negative if there is no leader yet."""
    found = client.list_topics(log, _TIMEOUT_S).topics[log]
    return -1 if found.error or not found.partitions else int(found.partitions[0].leader)


def _check(error: Any) -> None:
    if error is not None:
        raise KafkaException(error)


if __name__ == "__main__":
    stream = Confluent(sys.argv[1], {} if sys.argv[2] == "synced" else _UNSYNCED)
    asyncio.run(jobs.serve(lambda job: logs_jobs.run_kafka(stream, job)))
