"""Clients outside the servers' network reach only one log server, through its published port."""

from collections.abc import Iterator
from typing import Any

import pytest

import rollbook
from rollbook.api.client.config import LogClientConfig
from tests.regressions.defects import defect
from tests.support import log_processes
from tests.support.log_processes import LogProcesses

HURRIED = LogClientConfig(timeout_s=5.0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogProcesses]:
    """Two log servers whose names only they can resolve; `log-1` has a published port."""
    with log_processes.running(tmp_path_factory.mktemp("relays")) as found:
        found.start_inside("log-1")
        found.start_inside("log-2")
        yield found


def connected(cluster: LogProcesses) -> Any:
    return rollbook.connect(f"log://{cluster.servers['log-1'].address}", HURRIED)


def log_of(client: Any, server: str, prefix: str) -> Any:
    """Creates logs until this server owns one: the name of a log decides its placement."""
    for number in range(50):
        log = client.open(f"{prefix}-{number}", create=True)
        log.append(b"first")
        (owner,) = client.lookup([str(log.name)])
        if owner.address.startswith(f"{server}.invalid"):
            return log
    raise AssertionError(f"no log was placed on {server}")


@defect(
    "client-outside-is-sent-to-unknown-names",
    "A client that could reach only one log server was sent to names it could not resolve, and failed after 10 s.",
)
def test_client_works_through_one_published_port(cluster: LogProcesses) -> None:
    with connected(cluster) as client:
        for server in ("log-1", "log-2"):
            log = log_of(client, server, f"of-{server}")
            ack = log.append(b"paid 3", key=b"3")
            with log.writer() as writer:
                writer.submit(b"shipped 3")
            values = [record.value for record in log.read(start=ack.first_offset)]
            assert values == [b"paid 3", b"shipped 3"]
            log.cursor("mine").commit(2)
            tail = log.tail(start=0)
            assert next(iter(tail)).value == b"first"
            assert log.seal() == 3


@defect(
    "client-outside-loses-owner-that-dies",
    "A client that could not reach the owner failed when the owner died: it could not reach the next owner either.",
)
def test_owner_killed_behind_relay_loses_and_repeats_no_record(
    cluster: LogProcesses,
) -> None:
    """RY3: records are appended exactly once and in order, before and after the owner changes."""
    with connected(cluster) as client:
        log = log_of(client, "log-2", "killed")
        with log.writer() as writer:
            for number in range(1000):
                writer.submit(b"%d" % number)
            writer.flush()
            for number in range(1000, 2000):
                writer.submit(b"%d" % number)
            cluster.servers["log-2"].child.kill()
            for number in range(2000, 3000):
                writer.submit(b"%d" % number)
        values = [record.value for record in log.read()]
    assert values == [b"first", *(b"%d" % number for number in range(3000))]
