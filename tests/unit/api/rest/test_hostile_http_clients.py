"""Named logs over HTTP with untrusted clients: resources stay bounded and others are served."""

import asyncio
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import h11
import pytest

from rollbook.api.rest import http_connection, request_limits
from rollbook.api.rest.fairness import loop_yield_queue, response_memory
from rollbook.api.rest.log_app import RestServer
from rollbook.api.rest.request_limits import Bounds
from rollbook.api.rest.server import HttpConfig
from rollbook.logservice.core.record_block import pack_block
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import BadConfig
from rollbook.proto.ports import Address
from rollbook.proto.runtime.tls import TlsFiles
from tests.messages import raises_message
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore
from tests.unit.api.rest.http_client import DEADLINE_S, Answer, Client, parse
from tests.unit.api.rest.log_routes import JSON, LOG, NDJSON, RAW
from tests.unit.api.rest.loop_rounds import Loop
from tests.unit.proto.runtime.test_tls import golden

LOOPBACK = Address("127.0.0.1", 0)
TOKEN = "0123456789abcdef-canary"
BOUNDS = Bounds(
    connections=8,
    body_bytes=10_000,
    bodies_bytes=25_000,
    answers_bytes=5_000_000,
    unsent_bytes=1024,
    may_stream=True,
)


class There:
    def __init__(self, core: FakeCore, server: RestServer) -> None:
        self.core = core
        self.server = server
        self.client = Client(server.address)

    @property
    def connections(self) -> int:
        return len(self.server._http._state.connections)


def made() -> FakeCore:
    core = FakeCore(FakeCluster())
    core.cluster.make("ns/log")
    return core


@pytest.fixture
async def there() -> AsyncIterator[There]:
    core = made()
    server = await RestServer.start(core, HttpConfig(LOOPBACK), lambda _: "", bounds=BOUNDS)
    yield There(core, server)
    await server.close()


async def test_unsecured_listener_off_loopback_is_refused() -> None:
    with raises_message(BadConfig):
        HttpConfig(Address("0.0.0.0", 0))


async def test_request_without_the_token_is_401(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    config = HttpConfig(LOOPBACK, token_file=str(file))
    core = made()
    server = await RestServer.start(core, config, lambda _: "")
    client = Client(server.address)
    for path in (LOG, f"{LOG}/records", "/v1/servers", "/openapi.json", "/nope"):
        for headers in ({}, {"authorization": "Bearer no"}, {"authorization": f"Basic {TOKEN}"}):
            answer = await client.get(path, **headers)
            assert (answer.status, answer.reason) == (401, "UNAUTHORIZED")
    assert (await client.get("/healthz")).status == (await client.get("/readyz")).status == 200
    assert "version" not in (await client.get("/")).json  # The page needs no token.
    assert (await client.get(LOG, authorization=f"Bearer {TOKEN}")).status == 200
    assert len(core.asked) == 1
    await server.close()


# --- Paths, names, pages ----------------------------------------------------------------------


ESCAPED = [
    "/v1/namespaces/ns%2Flogs/logs/log",
    "/v1/namespaces/ns/logs/log%2Frecords",
    "/v1/namespaces/ns/logs/%6cog",
    "/v1/namespaces/ns/logs/log%00",
    "/v1%2Fservers",
    "/v1/namespaces/ns/logs/%2e%2e",
    "/v1/namespaces/%C3%A4/logs/log",
    "/v1/servers%3f",
    "/v1/namespaces/ns/logs/log%",
    "/v1/namespaces/ns/logs/log%zz",
    f"{LOG}%25",
]


async def test_percent_escaped_paths_are_not_found(there: There) -> None:
    for path in ESCAPED:
        answer = await there.client.get(path)
        assert (answer.status, answer.reason) == (404, "NOT_FOUND")
        assert not there.core.asked


UNTIDY = [
    "/v1/namespaces/../logs/log",
    "/v1/namespaces/./logs",
    "//v1/servers",
    "/v1//servers",
    "/v1/../v1/servers",
    "/v1/namespaces/ns/logs/log/",
    "/v1/namespaces/ns/logs/",
]


async def test_paths_are_not_normalised(there: There) -> None:
    for path in UNTIDY:
        answer = await there.client.get(path)
        assert answer.status in (400, 404)
        assert answer.reason in ("INVALID", "NOT_FOUND")
        assert not there.core.asked


async def test_a_colon_may_be_escaped(there: There) -> None:
    for escape in (":", "%3A", "%3a"):
        assert (await there.client.ask("POST", f"{LOG}{escape}roll")).status == 200


async def test_pages_of_other_origins_may_only_read(there: There) -> None:
    others = {"origin": "http://evil.example"}
    for method, path in (("POST", f"{LOG}:seal"), ("DELETE", LOG), ("PUT", LOG)):
        answer = await there.client.ask(method, path, b"", **others)
        assert (answer.status, answer.reason) == (403, "UNAUTHORIZED")
    assert (await there.client.ask("POST", f"{LOG}:seal", b"", origin="null")).status == 403
    assert not there.core.asked
    answer = await there.client.ask("POST", f"{LOG}:roll", b"", origin="http://127.0.0.1")
    assert answer.status == 200
    answer = await there.client.get(LOG, **others)
    assert answer.status == 200
    assert (
        "access-control-allow-origin" not in answer.headers
    )  # The browser hides the response from the page.
    assert (await there.client.get(LOG, host="evil.example")).status == 421


# --- Sizes ------------------------------------------------------------------------------------


async def test_oversized_body_is_refused_before_it_is_read(there: There) -> None:
    said = f"POST {LOG}/records HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {10**15}\r\n\r\n"
    answer = parse(await there.client.say(said.encode()))
    assert (answer.status, answer.reason) == (413, "TOO_LARGE")
    assert answer.json["ids"] == {"limit": 10_000}
    answer = await there.client.ask("POST", f"{LOG}/records", b"x" * 10_001, **RAW)
    assert answer.status == 413
    answer = await there.client.ask("POST", f"{LOG}/records", b"x" * 10_000, **RAW)
    assert answer.status == 201
    chunks = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
    head = f"POST {LOG}/records HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = parse(await there.client.say(head.encode() + chunks * 3))
    assert (answer.status, answer.reason) == (413, "TOO_LARGE")


async def test_all_bodies_together_are_bounded(there: There) -> None:
    """G8."""
    head = (
        f"POST {LOG}/records HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9000\r\n"
        "expect: 100-continue\r\n\r\n"
    ).encode()
    with ExitStack() as held:
        for _ in range(2):
            reader, writer = await asyncio.open_connection(*_place(there))
            held.callback(writer.close)
            writer.write(head)
            async with asyncio.timeout(DEADLINE_S):  # The server has reserved room for the body.
                assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        answer = await there.client.ask("POST", f"{LOG}/records", b"x" * 9000, **RAW)
        assert (answer.status, answer.reason) == (503, "OVERLOADED")
        assert answer.headers["retry-after"] == "1"
        assert (await there.client.ask("POST", f"{LOG}/records", b"small", **RAW)).status == 201
    async with asyncio.timeout(DEADLINE_S):
        while (await there.client.ask("POST", f"{LOG}/records", b"x" * 9000, **RAW)).status != 201:
            pass


@asynccontextmanager
async def unread_answers(there: There, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Requests responses of 2 MB each, more than the kernel buffers, and does not read them."""
    log = there.core.cluster.logs[LogName("ns", "log")]
    if not log.tail:
        log.append(pack_block([b"x" * 2_000_000]), None)
        log.append(pack_block([b"small"]), None)
    asked = f"GET {LOG}/records HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
    held = [await asyncio.open_connection(*_place(there), limit=1) for _ in range(count)]
    for reader, writer in held:
        writer.write(asked)
        async with asyncio.timeout(DEADLINE_S):
            assert await reader.read(15) == b"HTTP/1.1 200 OK"
    yield [reader for reader, _ in held]
    for _, writer in held:
        writer.transport.abort()


async def test_large_answers_together_are_bounded(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_memory, "_PATIENCE_S", 100)
    async with unread_answers(there, 2):
        answer = await there.client.get(f"{LOG}/records")
        assert (answer.status, answer.reason) == (503, "OVERLOADED")
        assert answer.headers["retry-after"] == "1"
        assert (await there.client.get(f"{LOG}/records?from=1")).status == 200
    async with asyncio.timeout(DEADLINE_S):
        while (answer := await there.client.get(f"{LOG}/records")).status != 200:
            pass
    assert len(answer.json["records"][0]["data"]) == 2_000_000


async def test_unread_large_response_is_dropped_to_make_room(there: There) -> None:
    async with unread_answers(there, 1) as (alone,), unread_answers(there, 1) as (other,):
        async with asyncio.timeout(DEADLINE_S):
            while (await there.client.get(f"{LOG}/records")).status != 200:
                await asyncio.sleep(0.01)
        async with asyncio.timeout(DEADLINE_S):
            taken = [len(await alone.read()), len(await other.read())]
    assert min(taken) < 2_000_000


NO_REQUESTS = [
    b"GET " + b"/" * 20_000 + b" HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00",
    b"GET\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(3000)) + b"\r\n",
    b"GET / HTTP/1.1\r\nhost : x\r\n\r\n",
    b"GET / HTTP/1.1\r\nx: \x00\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


async def test_malformed_request_gets_a_problem_and_is_not_served(there: There) -> None:
    for said in NO_REQUESTS:
        answer = parse(await there.client.say(said))
        assert (answer.status, answer.reason) in (
            (400, "INVALID"),
            (421, "INVALID"),
            (404, "NOT_FOUND"),
        )
        assert not there.core.asked


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"x" * 2**20, 400),
        (
            b"POST %s/records HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9000000\r\n\r\n"
            % LOG.encode()
            + bytes(5_000_000),
            413,
        ),
    ],
    ids=["head", "body"],
)
async def test_client_still_sending_gets_the_refusal(
    monkeypatch: pytest.MonkeyPatch, said: bytes, status: int
) -> None:
    """Regression: closing a connection with an unread body lost the response."""
    for each in (request_limits, http_connection):
        monkeypatch.setattr(each, "LINGER_S", DEADLINE_S)
    server = await RestServer.start(made(), HttpConfig(LOOPBACK), lambda _: "")
    loop = asyncio.get_running_loop()
    for _ in range(5):
        with socket.socket() as connection:
            connection.setblocking(False)
            async with asyncio.timeout(DEADLINE_S):
                await loop.sock_connect(connection, (server.address.host, server.address.port))
                await loop.sock_sendall(connection, said)  # Before the client reads at all.
                heard = b""
                while b"}" not in heard:
                    found = await loop.sock_recv(connection, 65536)
                    assert found, heard
                    heard += found
            assert parse(heard).status == status
    await server.close()


async def test_body_is_read_in_large_slices_and_paused_after_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Covers a body with a length, and bytes sent after a refusal."""
    turns: list[tuple[bool, int, bool]] = []
    receive = http_connection.HttpConnection.data_received

    def seen(self: http_connection.HttpConnection, data: bytes) -> None:
        receive(self, data)
        is_forgotten = self._unheard is not None
        reads_at_once: int = self.transport.max_size  # type: ignore[attr-defined]  # asyncio's own.
        turns.append((is_forgotten, reads_at_once, self.transport.is_reading()))

    monkeypatch.setattr(http_connection.HttpConnection, "data_received", seen)
    server = await RestServer.start(made(), HttpConfig(LOOPBACK), lambda _: "")
    client = Client(server.address)
    kind = {"content-type": "application/octet-stream"}
    answer = await client.ask("POST", f"{LOG}/records", bytes(500_000), **kind)
    assert answer.status == 201
    assert {reads for _, reads, _ in turns[1:-1]} == {
        128 * 1024
    }  # The first turn has the head, which waits for admission.
    assert turns[-1][1] == 16 * 1024, "the next request is parsed again"
    turns.clear()
    await client.say(b"GET / HTTP/1.1\r\nx : y\r\n\r\n" + bytes(100_000))
    forgotten = [turn for turn in turns if turn[0]]
    assert forgotten
    assert {turn[1:] for turn in forgotten} == {(128 * 1024, False)}
    await server.close()


@pytest.mark.parametrize("is_sent", [False, True])
async def test_refused_expect_100_request_is_closed_promptly(
    there: There, monkeypatch: pytest.MonkeyPatch, *, is_sent: bool
) -> None:
    """Regression: the connection stayed open for a body. A client that sends it gets the response, too."""
    for each in (request_limits, http_connection):
        monkeypatch.setattr(each, "LINGER_S", 0.2 if is_sent else 2 * DEADLINE_S)
    path = f"POST {LOG}/records HTTP/1.1\r\nhost: 127.0.0.1\r\nexpect: 100-continue\r\n"
    body = bytes(5_000) if is_sent else b""
    for more, status in (
        ("content-length: 10001", 413),
        ("origin: http://evil.example\r\ncontent-length: 9", 403),
    ):
        answer = parse(await there.client.say(f"{path}{more}\r\n\r\n".encode() + body))
        assert answer.status == status
    assert not there.core.asked


async def test_expect_100_request_gets_100_continue(there: There) -> None:
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection(*_place(there))
        writer.write(
            f"POST {LOG}/records HTTP/1.1\r\nhost: 127.0.0.1\r\nexpect: 100-continue\r\n"
            f"content-type: {RAW['content-type']}\r\ncontent-length: 1\r\n\r\n".encode()
        )
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"x")
        assert b" 201 " in await reader.readuntil(b"\r\n\r\n")
        writer.close()


async def test_too_long_body_after_100_continue_gets_413(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays open while the client sends: closing it could lose the response."""
    for each in (request_limits, http_connection):
        monkeypatch.setattr(each, "LINGER_S", 2 * DEADLINE_S)
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection(*_place(there))
        asks = _CHUNKED.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n")
        writer.write(asks)
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"%x\r\n%s\r\n" % (10_001, bytes(10_001)))
        assert b" 413 " in await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"}")
        ending = asyncio.create_task(reader.read())
        assert (await there.client.get("/healthz")).status == 200
        assert not ending.done(), "the server has not closed the connection"
        writer.write(b"0\r\n\r\n")
        await ending
        writer.close()


_HEAD = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"
_CHUNKED = (
    f"POST {LOG}/records HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n"
    f"content-type: {RAW['content-type']}\r\n\r\n"
).encode()
BOMBS = {
    "headers": _HEAD + b"a:b\r\n" * 2000 + b"\r\n",
    "fields": b"GET /healthz?" + b"a&" * 7000 + _HEAD[12:] + b"\r\n",
    "chunks": _CHUNKED + b"1\r\nx\r\n" * 3000,
    "headers that trail": _CHUNKED + b"1\r\nx\r\n0\r\n" + b"a:\r\n" * 2000 + b"\r\n",
    "headers that trail behind an extension": (
        _CHUNKED + b"1\r\nx\r\n00;x=y \r\n" + b"a:\r\n" * 2000 + b"\r\n"
    ),
    "headers behind another request": _HEAD + b"\r\n" + _HEAD + b"a:b\r\n" * 2000 + b"\r\n",
}


@pytest.mark.parametrize("bomb", BOMBS)
async def test_request_with_too_many_parts_is_rejected(there: There, bomb: str) -> None:
    said = await there.client.say(BOMBS[bomb])
    if "behind another" in bomb:
        assert said.startswith(b"HTTP/1.1 200 OK")
        said = said[said.index(b"HTTP/1.1 400") :]
    answer = parse(said)
    assert (answer.status, answer.reason) == (400, "INVALID")
    assert bomb.split(maxsplit=1)[0] in answer.json["detail"]
    assert not there.core.asked


@pytest.fixture
async def begun(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[int]]:
    """The round of the loop in which each request started; time limits are disabled."""
    monkeypatch.setattr(loop_yield_queue, "_REST_S", 3600)
    monkeypatch.setattr(http_connection, "_FIRST_WAITS_S_MAX", 3600)
    found: list[int] = []
    served, loop = request_limits.Guard.__call__, Loop()

    async def seen(self: request_limits.Guard, scope: Any, receive: Any, send: Any) -> None:
        found.append(loop.rounds)
        await served(self, scope, receive, send)

    monkeypatch.setattr(request_limits.Guard, "__call__", seen)
    yield found
    loop.end()


async def test_pipelined_requests_start_several_rounds_apart(
    there: There, begun: list[int]
) -> None:
    """Regression: 400 requests on 20 connections blocked the loop for 85 ms."""
    ask = "GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n%s\r\n"
    said = (ask % "" * 9 + ask % "connection: close\r\n").encode()
    answers = await asyncio.gather(*(there.client.say(said) for _ in range(3)))
    assert [answer.count(b"HTTP/1.1 200") for answer in answers] == [10] * 3
    assert all(b > a + http_connection._ROUNDS_OF_REQUEST - 2 for a, b in pairwise(begun))


async def test_concurrent_connections_start_several_rounds_apart(
    there: There, begun: list[int]
) -> None:
    """Regression: the requests of 20 connections started in one round of the loop, for 7 ms."""
    said = _HEAD + b"connection: close\r\n\r\n"
    answers = await asyncio.gather(*(there.client.say(said) for _ in range(7)))
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    assert len(begun) == 7
    assert all(b > a + http_connection._ROUNDS_OF_REQUEST - 2 for a, b in pairwise(begun))


async def test_connections_completing_a_head_start_several_rounds_apart(
    there: There, begun: list[int]
) -> None:
    async with asyncio.timeout(DEADLINE_S):
        halves = [await asyncio.open_connection(*_place(there)) for _ in range(5)]
        for _, writer in halves:
            writer.write(_HEAD)
        connections: Any = there.server._http._state.connections
        while sum(len(each.conn.trailing_data[0]) == len(_HEAD) for each in connections) < 5:
            await asyncio.sleep(0)
        for _, writer in halves:
            writer.write(b"\r\n")
        for reader, writer in halves:
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            writer.close()
    assert len(begun) == 5
    assert all(b > a + http_connection._ROUNDS_OF_REQUEST - 2 for a, b in pairwise(begun))


async def test_second_request_of_a_connection_skips_the_queue(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection(*_place(there))
        for _ in range(2):
            writer.write(_HEAD + b"\r\n")
            assert (await reader.readuntil(b"OK\n")).startswith(b"HTTP/1.1 200")
            monkeypatch.setattr(
                loop_yield_queue.AdmissionQueue, "wait", lambda *_: asyncio.Event().wait()
            )
        writer.close()


async def test_first_request_waits_a_bounded_time_for_admission(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_yield_queue, "_REST_S", 2 * DEADLINE_S)
    monkeypatch.setattr(http_connection, "_FIRST_WAITS_S_MAX", 0.001)
    endless = loop_yield_queue.AdmissionQueue(10**9)
    await endless.wait()
    monkeypatch.setattr(loop_yield_queue.AdmissionQueue, "wait", endless.wait)
    assert (await there.client.get("/healthz")).status == 200


async def test_body_in_many_small_chunks_is_accepted(there: There) -> None:
    chunks = b"8\r\nxxxxxxx\n\r\n" * 1000 + b"0\r\n\r\n"
    said = _CHUNKED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + chunks
    assert parse(await there.client.say(said)).status == 201


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_chunked_body_is_read_in_bounded_slices(
    monkeypatch: pytest.MonkeyPatch, *, is_encrypted: bool
) -> None:
    """Regression: all received bytes were parsed at once; 32-byte chunks blocked the loop for 42 ms."""
    sizes: list[int] = []
    receive = http_connection.HttpConnection.data_received

    def seen(self: http_connection.HttpConnection, data: bytes) -> None:
        sizes.append(len(data))
        receive(self, data)

    monkeypatch.setattr(http_connection.HttpConnection, "data_received", seen)
    files = TlsFiles(golden("server-a")) if is_encrypted else None
    core = made()
    server = await RestServer.start(core, HttpConfig(LOOPBACK, tls=files), lambda _: "")
    trusting = ssl.create_default_context(cafile=golden("authority-a"))
    trusting.check_hostname = False
    client = Client(server.address, tls=trusting if is_encrypted else None)
    chunk = b"20\r\n" + b"x" * 32 + b"\r\n"
    said = _CHUNKED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    answer = parse(await client.say(said + chunk * 20_000 + b"0\r\n\r\n"))
    assert answer.status == 201
    assert len(core.cluster.logs[LogName("ns", "log")].blocks) == 1
    assert sum(sizes) > 20_000 * len(chunk)
    assert max(sizes) <= 2 * 16 * 1024  # A TLS record may have started in the read before.
    await server.close()


def parsed(*pieces: bytes) -> list[Any]:
    """Returns the events that the parser makes of these bytes."""
    parser, events = http_connection._Parser(), []
    for piece in pieces:
        parser.receive_data(piece)
        while (event := parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            events.append(event)
    return events


CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


def test_parsing_does_not_depend_on_how_a_body_is_split() -> None:
    for head, body in (
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4000\r\n\r\n", b"0\r\n1" * 1000),
        (CHUNKED, b"bb8\r\n" + b"0\n" * 1500 + b"\r\n0\r\na: b\r\n\r\n"),
    ):
        pieces = [body[at : at + 1] for at in range(len(body))]
        for events in (parsed(head, *pieces), parsed(head + body)):
            assert isinstance(events[-1], h11.EndOfMessage)


def test_chunks_of_at_least_32_bytes_are_unlimited() -> None:
    """Shorter chunks are limited to 1024: a line of JSON is usually longer."""
    enough, less = b"20\r\n%s\r\n" % (b"x" * 32), b"1f\r\n%s\r\n" % (b"x" * 31)
    for chunks in (enough * 5000, (enough * 4 + less) * 1024):
        assert isinstance(parsed(CHUNKED, chunks, b"0\r\n\r\n")[-1], h11.EndOfMessage)
    with pytest.raises(h11.RemoteProtocolError, match="1024 chunks"):
        parsed(CHUNKED, less * 1025)


@pytest.mark.parametrize("end", [b"0\r\n", b"000\r\n", b"0;a=b\r\n", b"0 \t\r\n"])
def test_trailers_are_limited_however_the_bytes_are_split(end: bytes) -> None:
    some, many = b"a: b\r\n" * 99 + b"\r\n", b"a: b\r\n" * 101 + b"\r\n"
    for before in (b"", b"1\r\nx\r\n"):
        said = CHUNKED + before + end
        for cut in range(len(CHUNKED), len(said) + 1):
            assert isinstance(parsed(said[:cut], said[cut:] + some)[-1], h11.EndOfMessage)
            with pytest.raises(h11.RemoteProtocolError, match="may have 100 headers"):
                parsed(said[:cut], said[cut:] + many)
        next_one = CHUNKED[:-2] + b"a: b\r\n" * 97 + b"\r\n"
        assert isinstance(parsed(said + b"\r\n" + next_one)[-1], h11.EndOfMessage)


async def test_repeated_header_or_query_field_is_rejected(there: There) -> None:
    """A proxy on the way may have used the other value."""

    async def say(method: str, path: str, *headers: str) -> Answer:
        common = ("host: 127.0.0.1", "connection: close", f"content-type: {RAW['content-type']}")
        head = "\r\n".join((f"{method} {path} HTTP/1.1", *common, *headers, "", ""))
        return parse(await there.client.say(head.encode()))

    for name in (
        "Log-Expected-Offset",
        "Producer-Seq",
        "Idempotency-Key",
        "Content-Type",
        "If-None-Match",
    ):
        answer = await say("POST", f"{LOG}/records", f"{name}: 0", f"{name.lower()}: 1")
        assert (answer.status, answer.reason) == (400, "INVALID")
        assert name.lower() in answer.json["detail"]
    answer = await say("POST", f"{LOG}/records", "content-length: 0", "transfer-encoding: chunked")
    assert (answer.status, answer.reason) == (400, "INVALID")
    for query in ("from=0&from=1", "from=0&fr%6fm=1", "fr+om&fr%20om=", "from=0&x=&from"):
        answer = await say("GET", f"{LOG}/records?{query}")
        assert (answer.status, answer.reason) == (400, "INVALID")
        assert "more than once" in answer.json["detail"]
    assert not there.core.asked
    assert (await say("GET", "/v1/owners?log=ns/log&log=ns/b", "x: 1", "x: 2")).status == 200
    assert (await say("GET", "/v1/owners?prefix=ns/&prefix=ns/")).status == 400
    assert (await say("GET", "/v1/tails?log=ns/log&log=ns/b&prefix=n/&prefix=ns/")).status == 200
    there.core.cluster.logs[LogName("ns", "log")].append(pack_block([b"x"]), None)
    etag = (await say("GET", f"{LOG}/records/0")).headers["etag"]
    known = ('if-none-match: "x"', f'if-none-match: "y", {etag}')
    assert (await say("GET", f"{LOG}/records/0", *known)).status == 304


async def test_only_query_fields_declared_as_lists_may_be_repeated(there: There) -> None:
    """The server checks this before a route is known, by a table of its own."""
    lists = set[tuple[str, str]]()
    for path, operations in (await there.client.get("/openapi.json")).json["paths"].items():
        for field in operations.get("get", {}).get("parameters", ()):
            if field["in"] == "query":
                name = field["name"]
                is_list = '"array"' in json.dumps(field["schema"])
                lists |= {(path, name)} if is_list else set()
                where = re.sub(r"\{\w+\}", "x", path)
                answer = await there.client.get(f"{where}?{name}=x&{name}=x")
                assert (b"more than once" in answer.body) != is_list, (path, name)
    assert lists == {("/v1/owners", "log"), ("/v1/tails", "log"), ("/v1/tails", "prefix")}


async def test_incomplete_body_appends_nothing(there: There) -> None:
    """A client that dies before its request ends has requested nothing."""
    head = f"POST {LOG}/records HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {RAW['content-type']}"
    for rest in (
        "content-length: 99\r\n\r\nhalf",
        "transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ):
        for is_rude in (False, True):
            _, writer = await asyncio.open_connection(*_place(there))
            writer.write(f"{head}\r\n{rest}".encode())
            while not there.connections:
                await asyncio.sleep(0.005)
            if is_rude:
                writer.transport.abort()
            else:
                writer.close()
            async with asyncio.timeout(DEADLINE_S):
                while there.connections:
                    await asyncio.sleep(0.005)
    assert not there.core.asked


# --- Connections ------------------------------------------------------------------------------


def _place(there: There) -> tuple[str, int]:
    return there.server.address.host, there.server.address.port


async def test_idle_connections_make_room_for_new_ones(there: There) -> None:
    idle = [await asyncio.open_connection(*_place(there)) for _ in range(8)]
    for _ in range(20):
        assert (await there.client.get("/healthz")).status == 200
        assert there.connections <= 8
    async with asyncio.timeout(DEADLINE_S):
        assert await idle[0][0].read() == b""  # The server closed the oldest one.
    for _, writer in idle:
        writer.close()


async def test_queued_connection_with_half_a_head_makes_room(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each further byte put such a connection back into the queue."""
    with monkeypatch.context() as patch:
        halves = await _queue_for_ever(there, patch, _HEAD)
    assert (await there.client.get("/healthz")).status == 200
    async with asyncio.timeout(DEADLINE_S):
        assert await halves[0][0].read() == b""
    for _, writer in halves:
        writer.close()


async def test_queued_connection_with_a_whole_head_is_kept(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = await _queue_for_ever(there, monkeypatch, _HEAD + b"\r\n")
    assert await there.client.say(_HEAD + b"\r\n") == b""
    assert there.connections == 8
    for _, writer in waiting:
        writer.close()


async def test_head_in_pieces_shares_one_admission_time_limit(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: asyncio.Queue[float] = asyncio.Queue()

    async def wait(_: loop_yield_queue.AdmissionQueue, patience_s: float) -> None:
        told.put_nowait(patience_s)
        await asyncio.sleep(0)

    monkeypatch.setattr(loop_yield_queue.AdmissionQueue, "wait", wait)
    monkeypatch.setattr(http_connection.HttpConnection, "_first_may_wait_s", 600.0)
    _, writer = await asyncio.open_connection(*_place(there))
    left_s = []
    async with asyncio.timeout(DEADLINE_S):
        for piece in (_HEAD[:5], _HEAD[5:9], _HEAD[9:]):
            writer.write(piece)
            left_s.append(await told.get())
    assert left_s[0] == 600.0
    assert left_s[1] < 600.0
    assert left_s[2] < left_s[1]
    writer.close()


async def _queue_for_ever(
    there: There, patch: pytest.MonkeyPatch, said: bytes
) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Opens eight connections that sent these bytes and wait in the admission queue."""
    in_line = asyncio.Semaphore(0)

    async def wait(*_: Any) -> None:
        in_line.release()
        await asyncio.Event().wait()

    patch.setattr(loop_yield_queue.AdmissionQueue, "wait", wait)
    async with asyncio.timeout(DEADLINE_S):
        callers = [await asyncio.open_connection(*_place(there)) for _ in range(8)]
        for _, writer in callers:
            writer.write(said)
        for _ in callers:
            await in_line.acquire()
    return callers


async def test_unsent_bytes_in_the_kernel_are_limited(there: There) -> None:
    """Without a limit the kernel buffers 4 MiB for each follower."""
    _, writer = await asyncio.open_connection(*_place(there))
    await there.client.get("/healthz")
    for connection in there.server._http._state.connections:
        taken = connection.transport.get_extra_info("socket")
        assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 64 * 1024
    writer.close()


async def test_served_followers_stay_connected_when_others_wait(there: There) -> None:
    follow = f"GET {LOG}/records HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n"
    followers = [await asyncio.open_connection(*_place(there)) for _ in range(8)]
    async with asyncio.timeout(DEADLINE_S):
        for reader, writer in followers:
            writer.write(follow.encode())
            await reader.readuntil(b"caught_up")
        assert await there.client.say(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n") == b""
        there.core.cluster.logs[LogName("ns", "log")].append(pack_block([b"all hear"]), None)
        for reader, writer in followers:
            await reader.readuntil(b"all hear")
            writer.close()
        while there.core.readers:
            await asyncio.sleep(0.01)
        assert (await there.client.get("/healthz")).status == 200


async def test_stalled_follower_is_closed_and_slow_one_is_kept(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "_EXCHANGE_S", 0.2)
    log = there.core.cluster.logs[LogName("ns", "log")]
    for _ in range(40):
        log.append(pack_block([b"x" * 200_000]), None)
    follow = f"GET {LOG}/records HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n"
    loop = asyncio.get_running_loop()
    sockets = [socket.socket() for _ in range(2)]
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        each.setblocking(False)
        await loop.sock_connect(each, _place(there))
        await loop.sock_sendall(each, follow.encode())
    slow = sockets[1]
    async with asyncio.timeout(DEADLINE_S):
        taken = 0
        while there.connections == 2 or taken < 2_000_000:
            taken += len(await loop.sock_recv(slow, 65536))
        assert there.connections == 1
        while taken < 40 * 200_000:
            taken += len(await loop.sock_recv(slow, 65536))
    for each in sockets:
        each.close()


async def test_slow_head_is_closed_and_slow_body_gets_408(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "_EXCHANGE_S", 0.2)
    monkeypatch.setattr(request_limits, "_BODY_S", 0.1)
    assert await there.client.say(b"GET /healthz HTTP/1.1\r\nhost: 127.") == b""
    head = f"POST {LOG}/records HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9\r\n\r\nslow"
    answer = parse(await there.client.say(head.encode()))
    assert (answer.status, answer.reason) == (408, "INVALID")


async def test_readiness_is_checked_on_every_probe() -> None:
    answers = iter((False, True))
    server = await RestServer.start(
        made(), HttpConfig(LOOPBACK), lambda _: "", is_ready=lambda: next(answers)
    )
    client = Client(server.address)
    answer = await client.get("/readyz")
    assert (answer.status, answer.reason) == (503, "OWNER_CHANGING")
    assert (await client.get("/readyz")).body == b"OK\n"
    await server.close()


async def test_closing_server_ends_its_followers(there: There) -> None:
    reader, writer = await asyncio.open_connection(*_place(there))
    follow = f"GET {LOG}/records HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n"
    writer.write(follow.encode())
    async with asyncio.timeout(DEADLINE_S):
        await reader.readuntil(b"caught_up")
        await there.server.close()
        await reader.read()
    writer.close()
    assert not there.core.readers


async def test_pipelined_appends_are_all_applied(there: There) -> None:
    one = (
        f"POST {LOG}/records HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {NDJSON['content-type']}"
    )
    body = b'{"data":"x"}\n'
    said = f"{one}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    last = said.replace(b"host:", b"connection: close\r\nhost:")
    answers = await there.client.say(said * 20 + last)
    assert answers.count(b"HTTP/1.1 201") == 21
    found = json.loads((await there.client.get(f"{LOG}/records", **JSON)).body)
    assert [each["offset"] for each in found["records"]] == list(range(21))
