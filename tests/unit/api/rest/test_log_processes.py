"""HTTP of real log servers: owners are found, and killing one loses and repeats no record."""

import asyncio
import http.client
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.rest.script import Script, read_all
from tests.support import bookies, processes
from tests.support.event_source import EventSource
from tests.support.processes import Child, Family

PATIENCE_S = 60.0
LOG = "/v1/namespaces/default/logs/shop"
RECORDS = f"{LOG}/records"
RAW = {"content-type": "application/octet-stream"}


class Server:
    def __init__(self, children: Family, url: str, name: str) -> None:
        settings = {"ENSEMBLE": 1, "WRITE": 1, "ACK": 1, "REBALANCE_AFTER_S": 3600}
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
        self.url = self.child.line(PATIENCE_S).split()[1]
        assert self.child.line(PATIENCE_S).startswith("ready: ")

    @property
    def place(self) -> str:
        return self.url.removeprefix("http://")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    url = f"sqlite://{tmp_path}/metadata.db"

    async def make() -> None:
        async with await open_metadata_store(url, create=True) as store:
            await initialise(store, MetadataUrl.parse(url).ledgers_root, random.Random())

    asyncio.run(make())
    with processes.family() as children:
        bookie = bookies.start(children, tmp_path / "bk-1", url, "--log-level", "error")
        bookie.wait_ready(PATIENCE_S)
        yield [Server(children, url, name) for name in ("a", "b")]


def ask(
    place: str, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(place, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, answer.read()
    finally:
        connection.close()


def test_killed_owner_loses_and_repeats_no_line_of_a_script(
    servers: list[Server], tmp_path: Path
) -> None:
    """The script in `examples` also loses a response; followers get each line once."""
    places = [each.place for each in servers]
    assert [ask(place, "GET", "/readyz")[0] for place in places] == [200, 200]
    assert ask(places[0], "PUT", LOG)[0] == 201
    with processes.family() as children, ExitStack() as stack:
        script = Script(children, tmp_path, "default/shop", places)
        script.wait_for(1)
        owner, other = find_owner(servers)
        sources = [
            stack.enter_context(EventSource(place, f"{RECORDS}?heartbeat_ms=500"))
            for place in places
        ]
        script.lose_answer()
        script.wait_for(10)
        owner.child.kill()
        script.wait_for(20)
        lines = script.end()
        assert list(read_all(other.place, LOG)) == lines
        sources[places.index(other.place)].wait_for(len(lines))
        assert sources[places.index(other.place)].values == lines
        # One for the lost response; another if the kill was between the owner's append and response.
        assert script.codes.count("200") in (1, 2)
        assert sources[0].refusals == []
    status, headers, _ = ask(other.place, "GET", LOG)
    assert (status, headers["etag"] != "") == (200, True)


def find_owner(servers: list[Server]) -> tuple[Server, Server]:
    """Returns (owner, other); the other one redirects to the owner, or forwards if asked to."""
    roll = f"{LOG}:roll"
    answers = [ask(each.place, "POST", roll, b"", **{"log-forward": "never"}) for each in servers]
    assert sorted(status for status, _, _ in answers) == [200, 307]
    index = [status for status, _, _ in answers].index(200)
    owner, other = servers[index], servers[1 - index]
    _, headers, problem = answers[1 - index]
    assert headers["location"] == f"{owner.url}{roll}"
    assert json.loads(problem)["reason"] == "NOT_OWNER"
    assert ask(other.place, "POST", roll, b"", **{"log-forward": "auto"})[0] == 200
    return owner, other
