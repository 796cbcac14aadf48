"""Acknowledged records can be read at once, also at servers that do not own the log."""

import asyncio
import http.client
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollbook
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.regressions.defects import defect
from tests.support import bookies, commands, processes
from tests.support.event_source import EventSource
from tests.support.processes import Child, Family

PATIENCE_S = 60.0
SOON_S = 15.0  # The bookies are informed of a last entry after 30 s.
LOGS = "/v1/namespaces/default/logs"
RAW = {"content-type": "application/octet-stream"}
BLOCK = bytes(8 * 1024)


class Server:
    def __init__(self, children: Family, url: str, name: str) -> None:
        settings = {"ENSEMBLE": 1, "WRITE": 1, "ACK": 1, "TAIL_MEMORY_BYTES": 8 * len(BLOCK)}
        self.child: Child = children.start_module(
            "rollbook.api.cli.main",
            "server",
            "log",
            "--metadata",
            url,
            "--server-name",
            name,
            "--log-level",
            "error",
            "--listen",
            "127.0.0.1:0",
            "--rest",
            "127.0.0.1:0",
            environment={
                f"ROLLBOOK_LOG_SERVICE_{key}": str(each) for key, each in settings.items()
            },
        )
        self.name = name
        self.place = self.child.line(PATIENCE_S).split()[1].removeprefix("http://")
        self.address = self.child.line(PATIENCE_S).split(" on ")[1].strip()

    def ask(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.place, timeout=PATIENCE_S)
        try:
            connection.request(method, f"{LOGS}/{path}", body, headers)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read()
        finally:
            connection.close()

    def append(self, log: str, value: bytes) -> None:
        status, _, answer = self.ask("POST", f"{log}/records", value, **RAW)
        assert status == 201, answer

    def read(self, log: str, start: int) -> int:
        """Reads until a response says that it is up to date, and returns the number of records."""
        count = 0
        while True:
            path = f"{log}/records?from={start + count}"
            how = {"log-timeout-ms": f"{SOON_S * 1000:.0f}"}
            status, headers, answer = self.ask("GET", path, b"", **how)
            assert status == 200, answer
            count += len(json.loads(answer)["records"])
            if headers["log-up-to-date"] == "true":
                return count


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folder = tmp_path_factory.mktemp("acked")
    with processes.family() as children:
        yield start_cluster(children, folder)


def start_cluster(children: Family, folder: Path) -> list[Server]:
    url = f"sqlite://{folder}/metadata.db"

    async def make() -> None:
        async with await open_metadata_store(url, create=True) as store:
            await initialise(store, MetadataUrl.parse(url).ledgers_root, random.Random())

    asyncio.run(make())
    bookie = bookies.start(children, folder / "bk-1", url, "--log-level", "error")
    bookie.wait_ready(PATIENCE_S)
    return [Server(children, url, name) for name in ("a", "b")]


def make_log(servers: list[Server], name: str, **config: Any) -> tuple[Server, Server]:
    """Creates the log and returns its owner and the other server."""
    body = json.dumps(config).encode() if config else b""
    headers = {"content-type": "application/json"} if config else {}
    status, _, answer = servers[0].ask("PUT", name, body, **headers)
    assert status in (200, 201), answer
    roll = f"{name}:roll"
    answers = [each.ask("POST", roll, b"", **{"log-forward": "never"})[0] for each in servers]
    index = answers.index(200)
    return servers[index], servers[1 - index]


@defect(
    "reader-at-non-owner-lacks-last-batch",
    "At a server that does not own the log the last acknowledged batch could not be read for up to a minute, and"
    " the answer said that it was up to date.",
)
def test_range_read_at_non_owner_has_the_last_acked_batch(servers: list[Server]) -> None:
    """RL6."""
    owner, other = make_log(servers, "range")
    for number in range(3):
        owner.append("range", b"x")
        assert other.read("range", 0) == number + 1
        assert other.read("range", number) == 1
        assert other.read("range", number + 1) == 0


@defect(
    "last-batch-after-a-roll-is-not-read-elsewhere",
    "When a log had begun a new segment, its last acknowledged batch could not be read at another server until the"
    " next one was appended.",
)
def test_batch_acked_after_a_roll_is_readable_at_non_owner(servers: list[Server]) -> None:
    """RL6."""
    owner, other = make_log(servers, "rolled")
    for number in range(2):
        owner.append("rolled", b"x")
        assert owner.ask("POST", "rolled:roll")[0] == 200
        owner.append("rolled", b"y")
        assert other.read("rolled", 0) == 2 * number + 2


@defect(
    "long-poll-at-non-owner-lacks-last-batch",
    "At a server that does not own the log a request that waits for records did not return an acknowledged one.",
)
def test_long_poll_at_non_owner_returns_acked_records(servers: list[Server]) -> None:
    owner, other = make_log(servers, "poll")
    owner.append("poll", b"x")
    status, _, answer = other.ask("GET", f"poll/records?from=0&wait_ms={int(SOON_S * 1000)}")
    assert status == 200
    assert len(json.loads(answer)["records"]) == 1


@defect(
    "follower-at-non-owner-lacks-last-batch",
    "A follower at a server that does not own the log received the last acknowledged batch up to a minute late.",
)
def test_follower_at_non_owner_gets_each_acked_batch_within_15_s(
    servers: list[Server],
) -> None:
    owner, other = make_log(servers, "follow")
    with EventSource(other.place, f"{LOGS}/follow/records?heartbeat_ms=500") as source:
        for number in range(5):
            owner.append("follow", b"x")
            source.wait_for(number + 1, SOON_S)
            time.sleep(0.1 * (number % 2))  # Appends come both at once and after a pause.


@defect(
    "caught-up-at-non-owner-is-untrue",
    "At a server that does not own the log a follower was informed that it had caught up, with lag 0, before it had"
    " the last acknowledged batch.",
)
def test_caught_up_at_non_owner_includes_the_last_acked_batch(servers: list[Server]) -> None:
    owner, other = make_log(servers, "caught")
    for number in range(3):
        owner.append("caught", b"x")
        connection = http.client.HTTPConnection(other.place, timeout=PATIENCE_S)
        headers = {"accept": "application/x-ndjson"}
        connection.request("GET", f"{LOGS}/caught/records?heartbeat_ms=300", headers=headers)
        told = 0
        with connection.getresponse() as answer:
            for line in answer:
                event = json.loads(line)
                told += len(event.get("records", ()))
                if event["event"] == "caught_up" or not event.get("lag_records", 1):
                    break
        connection.close()
        assert told == number + 1


@defect(
    "stop-at-tail-at-non-owner-lacks-last-batch",
    "At a server that does not own the log a read up to the tail ended before the last acknowledged batch.",
)
def test_read_to_tail_at_non_owner_has_the_last_acked_batch(servers: list[Server]) -> None:
    owner, other = make_log(servers, "stop")
    owner.append("stop", b"x")
    status, _, answer = other.ask("GET", "stop/records?at_tail=stop", accept="application/x-ndjson")
    assert status == 200
    lines = [json.loads(line) for line in answer.splitlines()]
    assert sum(len(line.get("records", ())) for line in lines) == 1


@defect(
    "owner-cannot-read-a-block-pushed-out-of-its-memory",
    "At the owner itself the last block of a log, pushed out of memory by other logs, could not be read for 60 s.",
)
def test_owner_reads_last_block_evicted_by_other_logs(servers: list[Server]) -> None:
    owner, other = make_log(servers, "pushed")
    owner.append("pushed", BLOCK)
    names = [f"busy-{number}" for number in range(12)]
    for each in names:
        if make_log(servers, each)[0] is owner:
            for _ in range(4):
                owner.append(each, BLOCK)
    assert owner.read("pushed", 0) == 1
    assert other.read("pushed", 0) == 1


@defect(
    "tail-cache-below-a-block-hides-it",
    "With `tail_cache_bytes` below one block, the last block of a log could not be read anywhere for 60 s.",
)
def test_last_block_larger_than_the_tail_cache_is_readable(servers: list[Server]) -> None:
    """RD6."""
    owner, other = make_log(servers, "small", tail_cache_bytes=4096)
    with EventSource(owner.place, f"{LOGS}/small/records?heartbeat_ms=500") as source:
        for number in range(3):
            owner.append("small", BLOCK)
            assert owner.read("small", 0) == number + 1
            assert other.read("small", number) == 1
            source.wait_for(number + 1, SOON_S)


@defect(
    "viewing-an-unowned-log-creates-segments",
    "`explain`, `read` and `verify` of a log that nobody owned made an empty segment each time.",
)
def test_viewing_an_unowned_log_creates_no_segment(servers: list[Server]) -> None:
    """RL7."""
    owner, _ = make_log(servers, "quiet")
    owner.append("quiet", b"x")
    url = "log://" + ",".join(each.address for each in servers)
    with rollbook.connect(url) as client:

        def let_go() -> None:
            """Leaves the log without an owner, as after idle time or a restart of all servers."""
            with rollbook.connect(f"log://{owner.address}") as only:
                only.drain(owner.name)
                only.drain(owner.name, resume=True)

        let_go()
        log = client.open("quiet")
        before = log.segments()
        looks = ("explain", "quiet"), ("log", "read", "quiet"), ("log", "verify", "quiet")
        for look in looks:
            done = commands.run(*look, "--server", url)
            assert done.returncode == 0, done.stderr
        assert log.tail_offset() == log.tail_offset("barrier") == 1
        assert [each.value for each in log.read()] == [b"x"]
        assert log.segments() == before
        assert log.append(b"y").first_offset == 1
