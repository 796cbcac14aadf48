"""What users of other log services expect of `import rollbook` on their first day."""

import asyncio
import copy
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest

import rollbook
import rollbook.aio
from rollbook.api.access.core.access_file import digest_of
from rollbook.proto import errors
from rollbook.proto.errors import (
    BadConfig,
    InvalidRequest,
    NoSuchLog,
    RollbookError,
    ServerUnreachable,
    Unauthorized,
)
from rollbook.proto.v1 import log_pb2
from tests.regressions import lone_server
from tests.regressions.defects import defect
from tests.regressions.lone_server import Site

_TOKENS = {"one": "one" * 8, "two": "two" * 8}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with two principals that have all rights."""
    folder = tmp_path_factory.mktemp("site")
    sections = (
        f'[principals.{name}]\ntokens = [{{ sha256 = "{digest_of(token)}" }}]\n'
        'admin = ["*"]\nread = ["*"]\nappend = ["*"]\n'
        for name, token in _TOKENS.items()
    )
    (folder / "access.toml").write_text("".join((*sections, "# end\n")))
    for name, token in _TOKENS.items():
        (folder / f"{name}.token").write_text(f"{token}\n")
    with lone_server.running(folder, "--access-file", str(folder / "access.toml")) as found:
        yield found


def token_file(site: Site, name: str) -> str:
    return str(Path(site.metadata.removeprefix("sqlite://")).with_name(f"{name}.token"))


_NAMES = """
import rollbook.errors, rollbook.aio, rollbook.wal
from rollbook.errors import NoSuchLog
from rollbook import Client, Cursor, Log, LogName, Record, RecordBatch, Writer, WriterMode, errors
from rollbook.aio import Client, Cursor, Log, Record, RecordBatch, Writer, connect
assert errors.NoSuchLog is NoSuchLog and issubclass(NoSuchLog, rollbook.RollbookError)
import sys
with rollbook.connect(sys.argv[1], token=sys.argv[2]) as client:
    log = client.open("names", create=True)
    with log.writer() as writer:
        assert type(writer) is rollbook.Writer
    assert type(client) is rollbook.Client and type(log) is rollbook.Log
    assert type(log.cursor("c")) is rollbook.Cursor
"""


@defect(
    "public-names-are-elsewhere",
    "Programs had to import types and errors from `rollbook.api…` and `rollbook.proto…`.",
)
def test_public_names_can_be_imported_from_rollbook(site: Site) -> None:
    command = [sys.executable, "-c", _NAMES, site.url, _TOKENS["one"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@defect(
    "connect-needs-a-url",
    "`rollbook.connect()` did not connect to the server or the context that the shell uses.",
)
@pytest.mark.parametrize("named", ["server", "context"])
def test_connect_without_url_uses_the_shells_server_or_context(
    site: Site, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("ROLLBOOK_SERVER", "ROLLBOOK_CONTEXT", "ROLLBOOK_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    if named == "server":
        monkeypatch.setenv("ROLLBOOK_SERVER", site.url)
        monkeypatch.setenv("ROLLBOOK_TOKEN_FILE", token_file(site, "one"))
    else:
        (tmp_path / "rollbook").mkdir()
        (tmp_path / "rollbook" / "contexts.toml").write_text(
            f'current = "here"\n[contexts.here]\nserver = "{site.url}"\n'
            f'token_file = "{token_file(site, "one")}"\n'
        )
    with rollbook.connect() as client:  # type: ignore[call-arg,unused-ignore]  # It was required.
        assert client.open("unnamed", create=True).tail_offset() == 0


@defect("client-reads-no-token-file", "A program had to read the file of its token by itself.")
def test_connect_reads_the_token_file(site: Site, tmp_path: Path) -> None:
    with rollbook.connect(site.url, token_file=token_file(site, "one")) as client:
        client.open("with-file", create=True)
    (tmp_path / "empty").write_text("")
    for wrong in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(BadConfig, match=str(wrong)):
            rollbook.connect(site.url, token_file=str(wrong))


@defect(
    "connect-says-nothing-of-a-wrong-server",
    "`connect` succeeded where nothing listens or the token is unknown; the first call failed after ten seconds.",
)
def test_connect_fails_within_seconds_with_the_reason(site: Site) -> None:
    began_s = time.monotonic()
    with pytest.raises(ServerUnreachable, match="refused"):
        rollbook.connect("log://127.0.0.1:1")
    with pytest.raises(Unauthorized, match="token"):
        rollbook.connect(site.url, token="nobody knows it")
    with pytest.raises(RollbookError, match="HTTP"):
        rollbook.connect(f"log://{site.place}")
    assert time.monotonic() - began_s < 8


@defect(
    "client-has-no-idempotency-key",
    "HTTP appends a record with an Idempotency-Key once; the Python client could not.",
)
def test_idempotency_key_deduplicates_appends_per_principal(site: Site) -> None:
    acks = []
    for _ in range(2):  # Two runs of the program.
        with rollbook.connect(site.url, token=_TOKENS["one"]) as client:
            log = client.open("shop/paid", create=True)
            acks.append(log.append(b"10 EUR", idempotency_key="payment-1"))
    assert [ack.is_duplicate for ack in acks] == [False, True]
    assert acks[0].first_offset == acks[1].first_offset
    # Another principal's keys are separate.
    with rollbook.connect(site.url, token=_TOKENS["two"]) as client:
        ack = client.open("shop/paid").append(b"10 EUR", idempotency_key="payment-1")
        assert not ack.is_duplicate
    status, _, _ = site.ask(  # HTTP and gRPC share the keys of a principal.
        "/v1/namespaces/shop/logs/paid/records",
        "POST",
        b"10 EUR",
        authorization=f"Bearer {_TOKENS['one']}",
        idempotency_key="payment-1",
        content_type="application/octet-stream",
    )
    assert status in (200, 201)
    with rollbook.connect(site.url, token=_TOKENS["two"]) as client:
        assert client.open("shop/paid").tail_offset() == 2


@defect(
    "unary-idempotency-key-is-shared",
    "A gRPC `Append` call with an idempotency key was dropped as a duplicate of another principal's append.",
)
def test_idempotency_key_of_a_unary_append_is_per_principal(site: Site) -> None:
    with rollbook.connect(site.url, token=_TOKENS["one"]) as client:
        client.open("unary", create=True)
    request = log_pb2.AppendRequest(log="default/unary", records=[log_pb2.Record(value=b"10 EUR")])
    request.producer.id = b"once:payment-1"
    found = []
    with grpc.insecure_channel(site.url.removeprefix("log://")) as channel:
        append = channel.unary_unary(
            "/rollbook.v1.LogService/Append",
            log_pb2.AppendRequest.SerializeToString,
            log_pb2.AppendAck.FromString,
        )
        for name in ("one", "two", "one"):
            token = ("authorization", f"Bearer {_TOKENS[name]}")
            ack = append(request, metadata=(token,), timeout=30)
            found.append((ack.first_offset, ack.is_duplicate))
    assert found == [(0, False), (1, False), (0, True)]
    status, _, _ = site.ask(  # HTTP and gRPC share the keys of a principal.
        "/v1/namespaces/default/logs/unary/records",
        "POST",
        b"10 EUR",
        authorization=f"Bearer {_TOKENS['two']}",
        idempotency_key="payment-1",
        content_type="application/octet-stream",
    )
    assert status == 200


@defect(
    "threads-that-poll-one-tail-lose-records",
    "Two threads that polled one tail got some records twice and others never.",
)
def test_threads_that_share_a_tail_get_each_record_once(site: Site) -> None:
    count, batch = 2000, 20
    with rollbook.connect(site.url, token=_TOKENS["one"]) as client:
        log = client.open("shared", create=True)

        def taken(tail: rollbook.Tail) -> list[int]:
            found: list[int] = []
            while (record := tail.poll(30)) is not None:
                found.append(record.offset)
            return found

        with ThreadPoolExecutor(3) as threads, log.tail("earliest") as tail:
            polls = [threads.submit(taken, tail) for _ in range(3)]
            for start in range(0, count, batch):
                log.append_many([b"%d" % number for number in range(start, start + batch)])
            log.seal()
            found = [offset for poll in polls for offset in poll.result(60)]
    assert sorted(found) == list(range(count))


@defect(
    "tasks-that-poll-one-tail-lose-records",
    "Two tasks that polled one tail of `rollbook.aio` never got some records.",
)
def test_tasks_that_share_a_tail_get_each_record_once(site: Site) -> None:
    count, batch = 300, 20

    async def taken(tail: rollbook.aio.Tail) -> list[int]:
        found: list[int] = []
        while (record := await tail.poll(30)) is not None:
            found.append(record.offset)
            await asyncio.sleep(0.002)
        return found

    async def all_taken() -> list[int]:
        async with rollbook.aio.connect(site.url, token=_TOKENS["one"]) as client:
            log = await client.open("shared-by-tasks", create=True)
            tail = log.tail("earliest")
            polls = [asyncio.create_task(taken(tail)) for _ in range(3)]
            for _ in range(0, count, batch):
                await log.append_many([b"x"] * batch)
            await log.seal()
            found = await asyncio.gather(*polls)
            await tail.aclose()
            return [offset for each in found for offset in each]

    assert sorted(asyncio.run(all_taken())) == list(range(count))


@defect(
    "tail-cannot-be-polled",
    "A loop over `log.tail()` was blocked until the next record came.",
)
def test_poll_of_a_tail_returns_records_or_none(site: Site) -> None:
    with rollbook.connect(site.url, token=_TOKENS["one"]) as client:
        log = client.open("polled", create=True)
        log.append_many([b"1", b"2", b"3"])
        with log.tail("earliest", timeout=0.2) as tail:
            first = tail.poll(30)
            assert first is not None
            assert first.value == b"1"
            assert [record.value for record in tail] == [b"2", b"3"]
            assert tail.poll(0) is None
            log.append(b"4")
            fourth = tail.poll(30)
            assert fourth is not None
            assert fourth.value == b"4"
            assert not tail.is_over
            log.seal()
            assert tail.poll(30) is None
            assert tail.is_over
        with ThreadPoolExecutor(1) as threads, client.open("waited", create=True).tail() as tail:
            waits = threads.submit(tail.poll)
            with pytest.raises(TimeoutError):
                waits.result(0.05)  # `poll` is waiting when this times out.
            tail.close()
            assert waits.result(30) is None


@defect(
    "keys-and-times-differ-between-interfaces",
    "A text key was refused by some calls and failed inside others; an event time had to be a number.",
)
def test_keys_and_headers_may_be_text_and_times_datetimes(site: Site) -> None:
    happened = datetime(2026, 1, 31, 12, tzinfo=UTC)
    with rollbook.connect(site.url, token=_TOKENS["one"]) as client:
        log = client.open("text", create=True)
        log.append(b"1", key="käse", headers={"h": "ü"}, event_time=happened)
        with log.writer() as writer:
            writer.submit(b"2", key="käse", headers={"h": "ü"}, event_time=happened)
            with pytest.raises(InvalidRequest, match="event_time=5"):
                writer.submit(b"x", event_time=5)  # type: ignore[arg-type]  # Untyped programs do this.
        log.append_many([b"3"], keys=["käse"], headers=[{"h": "ü"}], event_times=[happened])
        for record in log.read():
            assert record.key == "käse".encode()
            assert dict(record.headers) == {"h": "ü".encode()}
            assert record.event_time == happened
        assert [str(each) for each in client.logs("default/tex*")] == ["default/text"]
        assert log.cursor("c").get(default=None) is None


@defect(
    "unhelpful-repr-of-client-objects",
    "`repr` of clients, writers, batches and errors was unhelpful; batches and errors could not be pickled.",
)
def test_client_objects_have_reprs_and_batches_can_be_pickled(site: Site) -> None:
    with rollbook.connect(site.url, token=_TOKENS["one"]) as client:
        log = client.open("shown", create=True)
        log.append_many([b"1", b"2"])
        (batch,) = log.read_batches()
        batch.values()
        for same in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch)):
            assert same.records() == batch.records()
        assert repr(batch) == "<RecordBatch of 2 records: offsets 0 to 1>"
        assert site.url.removeprefix("log://") in repr(client)
        with log.writer() as writer:
            writer.submit(b"3").result()
            assert "1 acknowledged" in repr(writer)
        with pytest.raises(NoSuchLog) as caught:
            client.open("none")
    for error in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert (str(error), error.ids, error.outcome) == (
            str(caught.value),
            caught.value.ids,
            caught.value.outcome,
        )
    assert "not_applied" in repr(caught.value)
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, RollbookError):
            found = pickle.loads(pickle.dumps(kind("why", next_step="what", log="a/b")))
            assert (type(found), found.next_step, found.ids) == (kind, "what", {"log": "a/b"})
