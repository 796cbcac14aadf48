"""`rollbook log read` while a log's end is unknown: the bookie of its open segment is down."""

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

import rollbook
from rollbook.api.cli.log import connection
from rollbook.api.client.config import LogClientConfig
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.support import bookies, commands, processes
from tests.support.bookies import RunningBookie
from tests.unit.api.cli.shell import Shell

UNAVAILABLE = 5
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Damaged:
    url: str
    closed: int  # Records in closed segments; there is one more.


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damaged]:
    """A log of one copy whose closed segments are on one bookie and whose open one is on another, which is down. The
    log server was started again, so it does not know the end either.
    """
    folder = tmp_path_factory.mktemp("unknown-end")
    metadata = f"sqlite://{folder}/metadata.db"

    async def make() -> None:
        async with await open_metadata_store(metadata, create=True) as store:
            await initialise(store, MetadataUrl.parse(metadata).ledgers_root, random.Random())

    asyncio.run(make())
    with processes.family() as children:

        def start_bookie(name: str) -> RunningBookie:
            quiet = ("--log-level", "error")
            started = bookies.start(children, folder / name, metadata, *quiet, bookie_id=name)
            started.wait_ready(PATIENCE_S)
            return started

        def start_server() -> tuple[processes.Child, str]:
            sizes = ("ENSEMBLE", "WRITE", "ACK")
            server = children.start_module(
                *("rollbook.api.cli.main", "server", "log", "--metadata", metadata),
                *("--server-name", "a", "--listen", "127.0.0.1:0", "--log-level", "error"),
                environment={f"ROLLBOOK_LOG_SERVICE_{size}": "1" for size in sizes},
            )
            return server, f"log://{bookies.address_in(server.line(PATIENCE_S))}"

        def bookie_of(ledger_id: int) -> str:
            words = ("ledger", "show", str(ledger_id), "--metadata", metadata, "-o", "json")
            shown = json.loads(commands.run(*words).stdout)
            name: str = shown["fragments"][0]["ensemble"][0]
            return name

        running = {name: start_bookie(name) for name in ("bk-1", "bk-2")}
        server, url = start_server()
        with rollbook.connect(url) as client:
            log = client.open("orders", create=True)
            log.append(b"record 0")
            first = last = bookie_of(log.segments()[0].ledger_id)
            closed = 0
            while last == first:
                log.roll()
                closed = log.append(b"another record").first_offset
                last = bookie_of(log.segments()[-1].ledger_id)
        server.kill()
        running[last].kill()
        yield Damaged(start_server()[1], closed)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read gives up after 6 seconds, not 15."""
    monkeypatch.setattr(connection, "LogClientConfig", partial(LogClientConfig, heartbeat_s=2.0))


@pytest.mark.usefixtures("soon")
def test_read_prints_closed_segments_and_reports_the_stall(shell: Shell, damaged: Damaged) -> None:
    at = ("--server", damaged.url)
    found = shell.run("log", "read", "orders", *at, "-o", "json", code=UNAVAILABLE)
    assert [each["offset"] for each in json.loads(found)] == [*range(damaged.closed)]
    assert f"the records from {damaged.closed} on cannot be read now" in shell.errors
    assert "STALLED" in shell.errors


@pytest.mark.usefixtures("soon")
def test_range_within_closed_segments_is_complete(shell: Shell, damaged: Damaged) -> None:
    for asked in (("--to", damaged.closed), ("--limit", 1)):
        found = shell.run("log", "read", "orders", *asked, "--server", damaged.url, "-o", "raw")
        assert found.startswith("record 0")
        assert "error" not in shell.errors


@pytest.mark.usefixtures("soon")
def test_position_relative_to_an_unknown_end_is_an_error(shell: Shell, damaged: Damaged) -> None:
    at = ("--server", damaged.url)
    assert not shell.run("log", "read", "orders", "--from", "-1", *at, code=UNAVAILABLE)
    assert "[STALLED]" in shell.errors
