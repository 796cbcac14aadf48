"""A log is deleted and another one is created under its name: state of the first is not reused.

Uses a log server and a bookie as processes, over HTTP and through the Python client.
"""

import json
import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest

import rollbook
from rollbook.api.client.sync import SyncClient
from rollbook.proto.errors import LogDeleted, RollbookError
from tests.regressions import lone_server
from tests.regressions.defects import defect
from tests.regressions.lone_server import PATIENCE_S, Site

REPLACED = "LOG_REPLACED"
_numbers = count()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with lone_server.running(tmp_path_factory.mktemp("site"), sweep_interval_s=0.1) as site:
        yield site


@pytest.fixture
def client(site: Site) -> Iterator[SyncClient]:
    with rollbook.connect(site.url) as client:
        yield client


def fresh_name() -> str:
    return f"log-{next(_numbers)}"


def replace(client: SyncClient, name: str, *values: bytes) -> None:
    """Deletes the log and creates another one with the same name and these values."""
    client.delete(name, grace_s=0)
    due = time.monotonic() + PATIENCE_S
    while True:
        try:
            log = client.open(name, create=True)
        except LogDeleted:  # The name is taken until the ledgers are deleted.
            assert time.monotonic() < due
            time.sleep(0.02)
        else:
            break
    for value in values:
        log.append(value)


def reason_of(act: Callable[[], object]) -> str:
    try:
        act()
    except RollbookError as error:
        return error.code.reason
    return "granted"


@defect(
    "resumed-in-another-log",
    "An EventSource resumed in the log that had replaced its own, and missed that log's first records.",
)
def test_event_source_of_a_replaced_log_is_refused(site: Site, client: SyncClient) -> None:
    name = fresh_name()
    log = client.open(name, create=True)
    log.append_many([b"a", b"b"])
    records = f"/v1/namespaces/default/logs/{name}/records"
    status, _, told = site.ask(records, accept="text/event-stream")
    (last_id,) = [line[4:] for line in told.decode().splitlines() if line.startswith("id: ")]
    assert (status, last_id.partition("@")[0]) == (200, "2")
    replace(client, name, b"0", b"1", b"2", b"3")
    status, _, told = site.ask(records, accept="text/event-stream", last_event_id=last_id)
    assert status == 412, told
    assert json.loads(told)["reason"] == REPLACED


@defect(
    "expected-offset-of-another-log",
    "An append that expected an offset of a deleted log was granted in the log that has its name.",
)
def test_expected_offset_of_a_deleted_log_is_refused(client: SyncClient) -> None:
    name = fresh_name()
    assert client.open(name, create=True).append_many([b"a", b"b"]).next_offset == 2
    log = client.open(name)
    replace(client, name, b"0", b"1")
    assert reason_of(lambda: log.append(b"c", expect=2)) == REPLACED
    assert client.open(name).append(b"2", expect=2).first_offset == 2


@defect(
    "record-cached-across-deletion-of-its-log",
    "Caches kept a record forever under a URL that later belonged to a record of another log.",
)
def test_only_record_urls_with_uid_are_cached_as_immutable(site: Site, client: SyncClient) -> None:
    name = fresh_name()
    client.open(name, create=True).append(b"same")
    path = f"/v1/namespaces/default/logs/{name}/records/0"
    _, first, _ = site.ask(path)
    assert "immutable" not in first["cache-control"]
    assert site.ask(path, if_none_match=first["etag"])[0] == 304
    named = f"{path}?uid={first['log-uid']}"
    assert "immutable" in site.ask(named)[1]["cache-control"]
    replace(client, name, b"same")
    status, second, _ = site.ask(path, if_none_match=first["etag"])
    assert (status, second["etag"] == first["etag"]) == (200, False)
    assert site.ask(named)[0] == 412


@defect(
    "handle-of-another-log",
    "A handle that was opened before its log was deleted read, wrote and moved cursors in the next one.",
)
def test_handles_of_a_replaced_log_are_refused(client: SyncClient) -> None:
    name = fresh_name()
    log = client.open(name, create=True)
    log.append_many([b"a", b"b"])
    cursor, writer = log.cursor("c"), log.writer()
    cursor.commit(2)
    assert writer.submit(b"c").result() == 2
    replace(client, name, b"0", b"1", b"2")
    client.open(name).cursor("c").commit(1)
    reasons = {
        "append": reason_of(lambda: log.append(b"x")),
        "submit": reason_of(lambda: writer.submit(b"x").result()),
        "read": reason_of(lambda: list(log.read(2))),
        "tail": reason_of(log.tail_offset),
        "find": reason_of(lambda: log.find("latest")),
        "truncate": reason_of(lambda: log.truncate(1)),
        "commit": reason_of(lambda: cursor.commit(3)),
        "new cursor": reason_of(lambda: log.cursor("d").commit(3)),
        "get cursor": reason_of(cursor.get),
        "delete cursor": reason_of(cursor.delete),
        "cursors": reason_of(log.cursors),
        "acquire": reason_of(lambda: log.acquire_writer("me")),
        "state": reason_of(log.state),
        "update": reason_of(lambda: log.update(description="mine")),
        "roll": reason_of(log.roll),
        "segments": reason_of(log.segments),
        "journal": reason_of(log.journal),
        "seal": reason_of(log.seal),
    }
    assert set(reasons.values()) == {REPLACED}, reasons
    present = client.open(name)
    assert [record.value for record in present.read()] == [b"0", b"1", b"2"]
    assert present.cursor("c").get().offset == 1


@defect(
    "etag-of-another-log",
    "A change of a log's configuration by the ETag of a deleted log was granted in the next one.",
)
def test_etag_of_a_deleted_log_is_refused(client: SyncClient) -> None:
    name = fresh_name()
    etag = client.open(name, create=True).state().etag
    replace(client, name)
    log = client.open(name)
    assert reason_of(lambda: log.update(etag=etag, description="mine")) == REPLACED
    assert reason_of(lambda: client.delete(name, etag=etag)) == REPLACED
    assert log.update(etag=log.state().etag, description="mine").config.description == "mine"
