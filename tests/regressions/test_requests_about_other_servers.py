"""Any log server answers questions about the other log servers."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from rollbook.api.client import sync
from rollbook.api.client.config import LogClientConfig
from rollbook.api.grpc.protobuf_conversion import message_of, pack, unpack
from rollbook.api.rpc_methods import BY_REQUEST
from rollbook.logservice import messages
from rollbook.logservice.core.server_record import ServerRecord, pack_server_record
from rollbook.logservice.ids import ServerId, ServerInfo
from rollbook.logservice.membership import FOLDER
from rollbook.proto.cluster.cluster_root import open_cluster
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import CreateMode
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.regressions.defects import defect
from tests.support import commands, log_processes
from tests.support.log_processes import LogProcesses

_QUICK = LogClientConfig(timeout_s=30.0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogProcesses]:
    with log_processes.running(tmp_path_factory.mktemp("servers")) as found:
        for name in ("log-1", "log-2"):
            found.start_server(name)
        yield found


@defect(
    "drain-at-another-server",
    "`cluster drain` of a server other than the one asked ended in NOT_OWNER after the whole time-out.",
)
def test_drain_command_works_at_any_server(cluster: LogProcesses) -> None:
    at = {"ROLLBOOK_SERVER": f"log://{cluster.servers['log-1'].address}"}
    for command in (("log-2", "--wait"), ("log-2", "--resume"), ("log-1",), ("log-1", "--resume")):
        done = commands.run("cluster", "drain", *command, "-o", "raw", environment=at)
        assert (done.returncode, done.stderr) == (0, b""), command


@defect(
    "drain-over-grpc-at-another-server",
    "A plain gRPC call that drained a server through another server failed with NOT_OWNER.",
)
def test_grpc_drain_works_at_any_server(cluster: LogProcesses) -> None:
    with grpc.insecure_channel(cluster.servers["log-1"].address) as channel:
        for word in (messages.DrainServer("log-2"), messages.DrainServer("log-2", resume=True)):
            call: Any = channel.unary_unary(BY_REQUEST[messages.DrainServer].path)
            answer = call(pack(word).SerializeToString(), timeout=30.0)
            drained = unpack(
                message_of(messages.DrainAnswer).FromString(answer), messages.DrainAnswer
            )
            assert isinstance(drained, messages.DrainAnswer)


@defect(
    "server-counted-twice",
    "`cluster health` counted a log server twice that was killed and started again.",
)
def test_restarted_server_is_counted_once(cluster: LogProcesses) -> None:
    """SV4: the session of the killed process remains for a while, here until the test ends."""
    asyncio.run(_count_servers(cluster))


async def _count_servers(cluster: LogProcesses) -> None:
    address = cluster.servers["log-2"].address
    os.kill(cluster.servers["log-2"].pid, 9)
    async with await open_metadata_store(cluster.metadata) as store:
        found = await open_cluster(store, MetadataUrl.parse(cluster.metadata).ledgers_root)
        first_life = ServerRecord(ServerInfo(ServerId("log-2~00000000"), address), "test", 1)
        await store.create(
            f"{found.own_root}/{FOLDER}/log-2~00000000",
            pack_server_record(first_life),
            CreateMode.EPHEMERAL,
        )
        await asyncio.to_thread(cluster.start_server, "log-2")
        health = ("cluster", "health", "--metadata", cluster.metadata)
        done = await asyncio.to_thread(commands.run, *health)
    assert b"2 of 2 reachable" in done.stdout, done.stdout


@defect(
    "segment-older-than-its-server",
    "`journal` dated the start of a segment before its server was born.",
)
def test_a_segment_begins_after_its_server_was_started(cluster: LogProcesses) -> None:
    with sync.connect(cluster.url, _QUICK) as client:
        log = client.open("journal", create=True)
        log.append(b"before")
        (owner,) = client.lookup(["journal"])
        name = next(n for n, each in cluster.servers.items() if each.address == owner.address)
        os.kill(cluster.servers[name].pid, 9)
        cluster.start_server(name)
        log.append(b"after")
        started = [each for each in log.journal() if each.kind == "segment_started"]
        opened = [each for each in log.journal() if each.kind == "log_opened"]
        assert len(started) == len(opened) == 2
        assert started[0].time_us >= opened[0].time_us
        log.roll()
        rolled = next(each for each in log.journal() if each.kind == "segment_started")
        assert rolled.time_us > started[0].time_us
        view = log.segments()[-1]
        assert view.began_us == rolled.time_us


@defect(
    "single-bookie-reported-healthy",
    "`cluster health` called a single bookie healthy where no log with default copies could be written.",
)
def test_a_single_bookie_is_not_healthy_for_logs_with_two_acks(cluster: LogProcesses) -> None:
    for bookie in cluster.bookies[1:]:
        bookie.terminate()
    for bookie in cluster.bookies[1:]:
        bookie.wait()
    done = commands.run("cluster", "health", "--metadata", cluster.metadata)
    assert (done.returncode, b"unavailable" in done.stdout) == (5, True), done.stdout
