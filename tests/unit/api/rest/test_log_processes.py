"""HTTP of real log servers: who owns a log is found, and a kill neither loses nor repeats a record."""

import asyncio
import http.client
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.proto.cluster.cluster import initialise
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.support import bookies, processes
from tests.support.processes import Child, Family

PATIENCE_S = 60.0
LOG = "/v1/namespaces/default/logs/shop"
RECORDS = f"{LOG}/records"
RAW = {"content-type": "application/octet-stream"}


class Server:
    def __init__(self, children: Family, url: str, name: str) -> None:
        quorum = {f"ROLLBOOK_LOG_SERVICE_{each}": "1" for each in ("ENSEMBLE", "WRITE", "ACK")}
        self.child: Child = children.start_module(
            "rollbook.api.cli.main",
            *("server", "log", "--metadata", url, "--server-name", name, "--log-level", "error"),
            *("--listen", "127.0.0.1:0", "--rest", "127.0.0.1:0"),
            environment=quorum,
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


def test_a_kill_neither_loses_nor_repeats_a_record(servers: list[Server]) -> None:
    places = [each.place for each in servers]
    assert [ask(place, "GET", "/readyz")[0] for place in places] == [200, 200]
    assert ask(places[0], "PUT", LOG)[0] == 201
    first = ask(places[0], "POST", RECORDS, b"first", **RAW, **{"log-forward": "auto"})
    assert first[0] == 201, first
    owner, other = find_owner(servers)
    follower = Follower(places)
    values = [b"first"]
    for seq in range(60):
        value = b"record %d" % seq
        append_surely(places, seq, value)
        values.append(value)
        if seq == 30:
            owner.child.kill()
    follower.wait_for(len(values))
    assert follower.values == [value.decode() for value in values]
    status, headers, _ = ask(other.place, "GET", LOG)
    assert (status, headers["etag"] != "") == (200, True)
    assert list(read_all(other.place)) == values


def read_all(place: str) -> Iterator[bytes]:
    """From answer to answer: one may have fewer records than there are."""
    start, is_there = "0", False
    while not is_there:
        _, headers, body = ask(place, "GET", f"{RECORDS}?from={start}")
        yield from (each["data"].encode() for each in json.loads(body)["records"])
        start, is_there = headers["log-next-offset"], headers["log-up-to-date"] == "true"


def find_owner(servers: list[Server]) -> tuple[Server, Server]:
    """The one that does not send us elsewhere; the other one does, and would ask it for us."""
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


def append_surely(places: list[str], seq: int, value: bytes) -> None:
    """As a shell script would: the same again, here and there, until somebody says that it is done."""
    producer = {"producer-id": "shell", "producer-epoch": "0", "producer-seq": str(seq)}
    deadline = time.monotonic() + PATIENCE_S
    for place in itertools.cycle(places):
        assert time.monotonic() < deadline
        try:
            status, headers, body = ask(place, "POST", RECORDS, value, **RAW, **producer)
            if status == 307:
                place = headers["location"].split("/")[2]
                status, _, body = ask(place, "POST", RECORDS, value, **RAW, **producer)
        except (OSError, http.client.HTTPException):
            continue
        if status in (200, 201):
            return
        assert status in (307, 503, 504), body
        time.sleep(0.02)


class Follower:
    """As a browser's EventSource: it comes back with the last id that it heard."""

    def __init__(self, places: list[str]) -> None:
        self.values: list[str] = []
        self._places = itertools.cycle(places)
        self._last = ""
        self._enough = 0
        self._told = threading.Condition()
        threading.Thread(target=self._follow, daemon=True).start()

    def wait_for(self, count: int) -> None:
        with self._told:
            self._enough = count
            assert self._told.wait_for(lambda: len(self.values) >= count, PATIENCE_S), self.values

    def _follow(self) -> None:
        for place in self._places:
            if self._enough and len(self.values) >= self._enough:
                return
            connection = http.client.HTTPConnection(place, timeout=2)
            headers = {"accept": "text/event-stream"}
            if self._last:
                headers["last-event-id"] = self._last
            try:
                connection.request("GET", f"{RECORDS}?heartbeat_ms=500", b"", headers)
                self._hear(connection.getresponse())
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)
            finally:
                connection.close()

    def _hear(self, answer: http.client.HTTPResponse) -> None:
        number = ""
        while line := answer.readline():
            name, _, value = line.decode().strip().partition(": ")
            if name == "id":
                number = value
            elif name == "data":
                records = json.loads(value).get("records", ())
                with self._told:
                    self._last = number or self._last
                    self.values += [each["data"] for each in records]
                    self._told.notify_all()
                    if self._enough and len(self.values) >= self._enough:
                        return
