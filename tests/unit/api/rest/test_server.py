"""HTTP with untrusted clients: resources stay bounded, and requests need the token."""

import asyncio
import os
import random
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from rollbook.api.access.operator_token_file import token_of
from rollbook.api.access.watched_file import WatchedFile
from rollbook.api.rest import http_connection, request_limits
from rollbook.api.rest.bookie_admin_server import AdminServer
from rollbook.api.rest.server import HttpConfig, HttpServer
from rollbook.proto.errors import BadConfig
from rollbook.proto.ports import Address
from rollbook.proto.runtime.tls import TlsFiles
from tests.messages import raises_message
from tests.unit.api.rest.fake_admin import FakeAdmin
from tests.unit.api.rest.http_client import DEADLINE_S, Client, parse

LOOPBACK = Address("127.0.0.1", 0)
TOKEN = "0123456789abcdef-canary"
STATE = "/api/v1/bookie/state"


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\nand no more\n")
    path.chmod(0o600)
    return str(path)


@pytest.fixture
async def client(token_file: str) -> AsyncIterator[Client]:
    server = await AdminServer.start(FakeAdmin(), HttpConfig(LOOPBACK, token_file=token_file))
    yield Client(server.address)
    await server.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    paths = f"{folder}/certificate.pem", f"{folder}/key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=bookie",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-out",
            paths[0],
            "-keyout",
            paths[1],
        ],
        check=True,
        capture_output=True,
    )
    return paths


async def test_server_with_a_token_needs_an_authenticator(token_file: str) -> None:
    """Regression: a server made without its authenticator served everybody."""
    for config in (
        HttpConfig(LOOPBACK, token_file=token_file),
        HttpConfig(LOOPBACK, knows_callers=True),
    ):
        with pytest.raises(AssertionError, match="open"):
            await HttpServer.start(FastAPI(), config, (), None)


# --- Listening --------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "bookie.example"])
def test_off_loopback_tls_and_a_token_are_needed(host: str) -> None:
    address = Address(host, 8001)
    for token_file, tls in ((None, None), ("t", None), (None, TlsFiles("c"))):
        with raises_message(BadConfig):
            HttpConfig(address, token_file, tls)
    HttpConfig(address, "t", TlsFiles("c"))
    HttpConfig(address, insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_loopback_needs_no_tls_or_token(host: str) -> None:
    HttpConfig(Address(host, 8001))


async def test_occupied_port_is_reported() -> None:
    server = await AdminServer.start(FakeAdmin(), HttpConfig(LOOPBACK))
    try:
        with raises_message(BadConfig):
            await AdminServer.start(FakeAdmin(), HttpConfig(server.address))
    finally:
        await server.close()
    again = await AdminServer.start(FakeAdmin(), HttpConfig(server.address))
    await again.close()


def read_token(path: str) -> str:
    return token_of(WatchedFile(path, is_token=True))


def test_a_token_is_read_from_a_private_file(token_file: str, tmp_path: Path) -> None:
    """G7."""
    assert read_token(token_file) == TOKEN
    os.chmod(token_file, 0o604)
    with pytest.raises(BadConfig, match="others may read"):
        read_token(token_file)
    os.chmod(token_file, 0o640)
    if os.geteuid() == 0:  # A secret owned by root may be group-readable (Kubernetes, Compose).
        assert read_token(token_file) == TOKEN
        os.chown(token_file, 65_534, -1)
    with pytest.raises(BadConfig, match="others may read"):
        read_token(token_file)
    with pytest.raises(BadConfig, match="cannot be read"):
        read_token(str(tmp_path / "none"))
    for content in (b"short\n", b"\n", b"", b"x" * 5_000, b"\xff" * 20):
        path = tmp_path / "bad"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(BadConfig) as caught:
            read_token(str(path))
        assert (
            content.decode(errors="replace").strip() not in str(caught.value) or not content.strip()
        )


# --- Access -----------------------------------------------------------------------------------


async def test_only_the_exact_token_is_accepted(client: Client) -> None:
    wrong: tuple[dict[str, str], ...] = (
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": TOKEN},
        {"authorization": f"Bearer {TOKEN.upper()}"},
        {"cookie": f"token={TOKEN}"},
        {"authorization": "Bearer \xfc"},
    )
    for headers in wrong:
        for path in (STATE, "/metrics", "/openapi.json", "/nope"):
            answer = await client.get(path, **headers)
            assert (answer.status, answer.reason) == (401, "UNAUTHORIZED"), headers
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert TOKEN.encode() not in answer.body
    right = {"authorization": f"bearer {TOKEN}"}
    assert (await client.get(STATE, **right)).status == 200
    assert (await client.get("/nope", **right)).status == 404
    assert (await client.get(f"{STATE}?token={TOKEN}")).status == 401


async def test_changed_token_file_applies_at_once_unless_invalid(
    client: Client, token_file: str
) -> None:
    async def statuses(*tokens: str) -> list[int]:
        return [(await client.get(STATE, authorization=f"Bearer {each}")).status for each in tokens]

    new = "fedcba9876543210-canary"
    assert await statuses(TOKEN, new) == [200, 401]
    path = Path(token_file)
    path.write_text(f"{new}\n")
    assert await statuses(TOKEN, new) == [401, 200]
    path.write_text("short\n")
    assert await statuses("short", new) == [401, 200]
    path.unlink()
    assert await statuses("", new) == [401, 200]


async def test_probes_need_no_token(client: Client) -> None:
    for path in ("/heartbeat", "/health", "/ready", "/api/v1/bookie/is_ready"):
        assert (await client.get(path)).status == 200


async def test_without_a_token_only_loopback_names_are_served() -> None:
    """Else a page whose host name resolves to this server could read and change things."""
    server = await AdminServer.start(FakeAdmin(), HttpConfig(LOOPBACK))
    client, port = Client(server.address), server.address.port
    try:
        for host in ("127.0.0.1", f"127.0.0.1:{port}", "localhost", f"LOCALHOST:{port}", "[::1]:1"):
            assert (await client.get(STATE, host=host)).status == 200, host
        for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "localhost@evil"):
            answer = await client.get(STATE, host=host)
            assert (answer.status, answer.reason) == (421, "INVALID"), host
    finally:
        await server.close()


async def test_tls_serves_https_only_and_needs_a_valid_certificate(
    certificate: tuple[str, str], token_file: str
) -> None:
    config = HttpConfig(LOOPBACK, token_file, TlsFiles(*certificate))
    server = await AdminServer.start(FakeAdmin(), config)
    try:
        tls = ssl.create_default_context(cafile=certificate[0])
        client = Client(server.address, {"authorization": f"Bearer {TOKEN}"}, tls)
        assert (await client.get(STATE)).status == 200
        plain = await Client(server.address).say(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200" not in plain
    finally:
        await server.close()
    broken = HttpConfig(LOOPBACK, token_file, TlsFiles(token_file))
    with pytest.raises(BadConfig):
        await AdminServer.start(FakeAdmin(), broken)


# --- Limits -----------------------------------------------------------------------------------


async def test_large_bodies_are_refused_unread(client: Client) -> None:
    right = {"authorization": f"Bearer {TOKEN}"}
    path = "/api/v1/bookie/state/readonly"
    fits = b'{"readOnly": true}'.ljust(64 * 1024)
    assert (await client.put(path, fits, **right)).status == 200
    answer = await client.put(path, fits + b" ", **right)
    assert (answer.status, answer.reason) == (413, "TOO_LARGE")
    told = await client.put(path, b"{}", **{**right, "content-length": "10000000000"})
    assert told.status == 413
    head = f"PUT {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
    chunk = b"10000\r\n" + bytes(65_536) + b"\r\n"
    chunked = await client.say(f"{head}transfer-encoding: chunked\r\n\r\n".encode() + 3 * chunk)
    assert (
        not chunked or parse(chunked).status == 413
    )  # The kernel may drop the response at the reset.


async def test_a_body_is_not_read_before_the_token_is_shown(client: Client) -> None:
    answer = await client.put("/api/v1/bookie/gc", b"", **{"content-length": "60000"})
    assert answer.status == 401


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 10_000,
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01" + bytes(512),
        b"\r\n" * 20_000,
        b"GET / HTTP/9.9\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    ],
)
async def test_malformed_request_is_refused_and_the_server_survives(
    client: Client, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as impatient:
        impatient.setattr(http_connection, "_EXCHANGE_S", 0.3)
        answer = await client.say(data)
    assert not answer or answer.split(b" ")[1][:1] == b"4", answer
    assert (await client.get("/health")).status == 200


async def test_corrupted_requests_are_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(8001)
    good = f"PUT {STATE}/readonly HTTP/1.1\r\nhost: x\r\nauthorization: Bearer y\r\n\r\n".encode()

    def noise() -> bytes:
        found = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            found[chance.randrange(len(found))] = chance.randrange(256)
        return bytes(found[: chance.randrange(len(found) + 1)])

    with monkeypatch.context() as impatient:
        impatient.setattr(http_connection, "_EXCHANGE_S", 0.2)
        for _ in range(5):
            said = [noise() for _ in range(30)]
            for data, answer in zip(
                said, await asyncio.gather(*map(client.say, said)), strict=True
            ):
                assert not answer or answer.split(b" ")[1][:1] == b"4", data
    assert (await client.get("/health")).status == 200


async def test_slow_request_is_closed_and_slow_body_gets_408(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "_EXCHANGE_S", 0.3)
    slow = [
        b"",
        b"GET /health HTTP/1.1\r\nhost: x\r\n",
        b"PUT /heartbeat HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{",
    ]
    assert await asyncio.gather(*map(client.say, slow)) == [b"", b"", b""]
    monkeypatch.setattr(http_connection, "_EXCHANGE_S", DEADLINE_S)
    monkeypatch.setattr(request_limits, "_BODY_S", 0.1)
    answer = parse(await client.say(slow[2]))
    assert (answer.status, answer.reason) == (408, "INVALID")


async def test_client_that_reads_nothing_is_closed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends many requests and reads no response."""
    monkeypatch.setattr(http_connection, "_EXCHANGE_S", 0.5)
    ask = f"GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n".encode()
    _, writer = await asyncio.open_connection(client.address.host, client.address.port, limit=1_024)
    writer.write(ask * 2_000)
    async with asyncio.timeout(DEADLINE_S):
        try:
            while True:
                writer.write(ask)
                await writer.drain()
                await asyncio.sleep(0.05)
        except ConnectionError:
            pass
    writer.close()
    monkeypatch.undo()
    assert (await client.get("/health")).status == 200


async def test_connections_are_bounded(client: Client) -> None:
    place = client.address.host, client.address.port
    held = [await asyncio.open_connection(*place) for _ in range(request_limits._CONNECTIONS_MAX)]
    reader, writer = held[-1]
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"200 OK" in await reader.readline()  # The last one within the limit is served.
    assert await client.say(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n") == b""  # The next is not.
    for _, writer in held:
        writer.close()
    async with asyncio.timeout(DEADLINE_S):
        while not (
            await client.say(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        ):
            await asyncio.sleep(0.01)


async def test_one_connection_serves_several_requests(client: Client) -> None:
    one = b"GET /heartbeat HTTP/1.1\r\nhost: x\r\n\r\n"
    last = one.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    assert (await client.say(one + one + last)).count(b"200 OK") == 3


async def test_server_closes_with_connections_open(token_file: str) -> None:
    server = await AdminServer.start(FakeAdmin(), HttpConfig(LOOPBACK, token_file=token_file))
    held = [
        await asyncio.open_connection(server.address.host, server.address.port) for _ in range(3)
    ]
    held[1][1].write(b"GET /health HTTP/1.1\r\nhost: x\r\n")
    held[2][1].write(b"PUT /heartbeat HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
    await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_S):
        await server.close()
        for reader, writer in held:
            try:
                await reader.read()
            except ConnectionError:
                pass
            writer.close()
