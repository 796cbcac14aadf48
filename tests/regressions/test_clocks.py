"""A log server with a wrong clock neither loses records nor appends them twice."""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollbook.api.client.async_client import Client, connect
from rollbook.logservice.core.record_block import pack_block
from rollbook.logservice.ids import LogName, ProducerRef
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.messages import AppendAck
from rollbook.proto.errors import RollbookError
from tests.regressions.defects import defect
from tests.support import bookies, commands, log_processes
from tests.support.log_processes import LogProcesses, RunningLogServer

DAY_S = 86_400
SWEEP_S = 0.3
BRIEF_S = 5.0
PATIENCE_S = 60.0
KEPT = LogConfig(retention_age_s=7 * DAY_S)
BRIEFLY_KEPT = LogConfig(retention_age_s=1)
# gRPC deadlines stay right: they use `time.time` and the clock of gRPC's core, which are not
# patched.
SKEWED = """
import runpy, sys, time
ahead_ns = int(sys.argv.pop(1)) * 1_000_000_000
right = time.time_ns
time.time_ns = lambda: right() + ahead_ns
runpy.run_module("rollbook.api.cli.main", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogProcesses]:
    monkeypatch.setenv("ROLLBOOK_LOG_SERVICE_SWEEP_INTERVAL_S", str(SWEEP_S))
    with log_processes.running(tmp_path) as found:
        yield found


def start_skewed(cluster: LogProcesses, name: str, ahead_s: int) -> RunningLogServer:
    """Starts a log server whose wall clock is this far ahead."""
    child = cluster.children.start(
        sys.executable,
        "-c",
        SKEWED,
        str(ahead_s),
        "server",
        "log",
        "--log-level",
        "error",
        "--metadata",
        cluster.metadata,
        "--listen",
        "127.0.0.1:0",
        "--server-name",
        name,
    )
    address = str(bookies.address_in(child.line(bookies.PATIENCE_S)))
    cluster.servers[name] = RunningLogServer(child, address)
    return cluster.servers[name]


async def until_swept(client: Client) -> None:
    """Returns after several sweeps: a record that is kept for a second has expired."""
    log = await client.open("swept", create=BRIEFLY_KEPT)
    await log.append(b"expires")
    await log.roll()
    async with asyncio.timeout(PATIENCE_S):
        while await log.head_offset() == 0:
            await asyncio.sleep(0.1)


def end(cluster: LogProcesses, name: str) -> None:
    """Kills the server with SIGKILL."""
    cluster.servers.pop(name).child.kill()


@defect(
    "slow-clock-expires-acknowledged-records",
    "Records that a server with a slow clock had acknowledged were gone within seconds.",
)
async def test_slow_clock_does_not_expire_acked_records(
    cluster: LogProcesses,
) -> None:
    slow = start_skewed(cluster, "slow", -40 * DAY_S)
    acked: list[bytes] = []
    async with connect(f"log://{slow.address}") as client:
        log = await client.open("orders", create=KEPT)
        for value in (b"1", b"2"):
            try:
                await log.append(value, timeout_s=BRIEF_S)
                acked.append(value)
                await log.roll()
            except RollbookError:
                break  # The server may refuse: then no record is promised to be kept.
    end(cluster, "slow")
    right = cluster.start_server("right")
    async with connect(f"log://{right.address}") as client:
        log = await client.open("orders")
        await log.append(b"last")
        await log.roll()
        await until_swept(client)
        assert [record.value async for record in log.read("earliest")] == [*acked, b"last"]


@defect(
    "fast-clock-appends-a-retry-twice",
    "An owner whose clock was two days ahead forgot producers, and appended their retries again.",
)
async def test_fast_clock_does_not_append_a_retry_twice(
    cluster: LogProcesses,
) -> None:
    once = bytes(pack_block([b"once"], producer=ProducerRef(b"key", 0, 0)))

    async def append(address: str) -> AppendAck:
        """Retries at that server until it owns the log, or raises its error."""
        async with connect(f"log://{address}") as client, asyncio.timeout(PATIENCE_S):
            log = LogName.parse("orders")
            await client.open("orders", create=True)
            line = client.append_streams.to(address)
            ref = line.bind(log, is_ordered=False)
            while True:
                result: asyncio.Future[AppendAck | RollbookError | None] = (
                    asyncio.get_running_loop().create_future()
                )

                def tell(
                    ack: AppendAck | None,
                    error: RollbookError | None,
                    result: "asyncio.Future[AppendAck | RollbookError | None]" = result,
                ) -> None:
                    result.set_result(error or ack)

                line.submit(ref, once, None, tell)
                match await result:
                    case AppendAck() as ack:
                        return ack
                    case RollbookError() as error:
                        if error.code.reason not in ("NOT_OWNER", "OWNER_CHANGING"):
                            raise error
                await asyncio.sleep(0.1)

    first = await append(cluster.start_server("right").address)
    end(cluster, "right")
    fast = start_skewed(cluster, "fast", 2 * DAY_S)
    try:
        again = await append(fast.address)
    except RollbookError:
        pass  # The server may refuse.
    else:
        assert again == replace(first, is_duplicate=True, owner_epoch=again.owner_epoch)
    end(cluster, "fast")
    later = await append(cluster.start_server("right-again").address)
    assert later == replace(first, is_duplicate=True, owner_epoch=later.owner_epoch)


@defect(
    "wrong-clock-owns-logs",
    "A server whose clock was years wrong owned logs, and nothing said so.",
)
async def test_server_with_wrong_clock_owns_no_log_and_reports_it(cluster: LogProcesses) -> None:
    fast = start_skewed(cluster, "fast", 400 * DAY_S)
    async with connect(f"log://{fast.address}") as client:
        log = await client.open("orders", create=True)
        with pytest.raises(RollbookError) as caught:
            await log.append(b"x", timeout_s=BRIEF_S)
        assert caught.value.code.reason == "CLOCK_DISAGREES"
        assert f"{400 * DAY_S} s ahead of the metadata store's" in str(caught.value)
    done = commands.run("cluster", "health", "--metadata", cluster.metadata, "--output", "json")
    assert b'"wrong clock"' in done.stdout
    right = cluster.start_server("right")
    async with connect(f"log://{fast.address}") as client:  # It redirects to the owner.
        log = await client.open("orders")
        assert (await log.append(b"x")).first_offset == 0
        state = await log.state()
        assert state.owner == right.address
