"""A producer that its log has forgotten can append again, without duplicates."""

import asyncio
from collections.abc import Iterator

import pytest

from rollbook.api.client.async_client import Client, connect
from rollbook.api.wal.aio import ExclusiveWriter, StateMachine
from rollbook.logservice.core.record_block import pack_block
from rollbook.logservice.ids import LogName, ProducerRef
from rollbook.logservice.log_config import LogConfig, WriterMode
from rollbook.logservice.messages import AppendAck
from rollbook.proto.errors import RollbookError
from tests.regressions.defects import defect
from tests.support import log_processes
from tests.support.log_processes import LogProcesses

MEMORY_S = 1
SILENCE_S = 1.3  # Longer than MEMORY_S, so that the log forgets the producer.
PRODUCERS_MAX = 8192  # The number of producers that a log remembers.


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogProcesses]:
    with log_processes.running(tmp_path_factory.mktemp("forgotten")) as found:
        found.start_server("log-1")
        yield found


async def values_of(client: Client, name: str) -> list[bytes]:
    log = await client.open(name)
    return [record.value async for record in log.read()]


@defect(
    "idle-producer-is-refused-forever",
    "A client that was silent for longer than the log remembers got PRODUCER_GAP on every append.",
)
async def test_a_client_appends_after_a_long_silence(cluster: LogProcesses) -> None:
    async with connect(cluster.url) as client:
        log = await client.open("silent", create=LogConfig(dedupe_age_s=MEMORY_S))
        await log.append(b"before")
        await asyncio.sleep(SILENCE_S)
        await log.append(b"after")
        await log.append(b"and again")
        assert await values_of(client, "silent") == [b"before", b"after", b"and again"]


@defect(
    "idle-writer-is-refused-forever",
    "A writer that was silent for longer than the log remembers failed with PRODUCER_GAP.",
)
async def test_writer_appends_after_a_long_silence(cluster: LogProcesses) -> None:
    async with connect(cluster.url) as client:
        log = await client.open("silent-writer", create=LogConfig(dedupe_age_s=MEMORY_S))
        async with log.writer() as writer:
            await writer.submit(b"before")
            await asyncio.sleep(SILENCE_S)
            submitted = [writer.submit(b"%d" % number) for number in range(100)]
            assert [await each for each in submitted] == list(range(1, 101))
        expected = [b"before", *(b"%d" % number for number in range(100))]
        assert await values_of(client, "silent-writer") == expected


@defect(
    "idle-leader-loses-its-term",
    "An exclusive writer or a WAL leader lost its term when the log had forgotten its producer.",
)
async def test_an_idle_leader_keeps_its_term(cluster: LogProcesses) -> None:
    config = LogConfig(writer_mode=WriterMode.EXCLUSIVE, dedupe_age_s=MEMORY_S)

    class Total:
        total = 0

        def apply(self, command: bytes) -> int:
            self.total += int(command)
            return self.total

        def snapshot(self) -> bytes:
            return b"%d" % self.total

        def restore(self, snapshot: bytes) -> None:
            self.total = int(snapshot)

    async with connect(cluster.url) as client:
        log = await client.open("exclusive", create=config)
        await client.open("machine", create=config)
        async with (
            ExclusiveWriter(log, "me") as writer,
            StateMachine(client, "machine", Total(), holder="me") as machine,
            machine.lead() as term,
        ):
            await writer.submit(b"1")
            assert await term.propose(b"1") == 1
            epochs = writer.epoch, term.epoch
            await asyncio.sleep(SILENCE_S)
            await writer.submit(b"2")
            assert await term.propose(b"2") == 3
            assert (writer.epoch, term.epoch) == epochs
            assert not term.is_over


@defect(
    "crowded-out-producer-is-refused-forever",
    "A client got PRODUCER_GAP on every append after 8,192 other producers had appended.",
)
async def test_client_appends_after_8192_other_producers(cluster: LogProcesses) -> None:
    async with connect(cluster.url) as client:
        log = await client.open("crowded", create=True)
        await log.append(b"before")
        await append_as_others(client, log.name, PRODUCERS_MAX)
        assert (await log.append(b"after")).first_offset == PRODUCERS_MAX + 1
        assert (await log.append(b"and again")).first_offset == PRODUCERS_MAX + 2


async def append_as_others(client: Client, log: LogName, count: int) -> None:
    """Appends one record for each of `count` producers, on one stream."""
    line = client.append_streams.to(client.owners.address_of(log))
    ref = line.bind(log, is_ordered=False)
    left, is_done, failures = count, asyncio.Event(), list[RollbookError]()

    def on_result(_: AppendAck | None, error: RollbookError | None) -> None:
        nonlocal left
        left -= 1
        if error is not None:
            failures.append(error)
        if not left:
            is_done.set()

    for number in range(count):
        block = bytes(pack_block([b"x"], producer=ProducerRef(b"other-%d" % number, 0, 0)))
        line.submit(ref, block, None, on_result)
    async with asyncio.timeout(60):
        await is_done.wait()
    assert not failures
