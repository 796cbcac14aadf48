"""Access to the gRPC server: certificates and the token."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rollbook.api.client.async_client import Client, connect
from rollbook.api.client.config import LogClientConfig
from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.grpc.server import GrpcServer
from rollbook.proto.errors import BadConfig, Outcome, RollbookError, Unauthorized
from rollbook.proto.ports import Address
from rollbook.proto.runtime.tls import TlsFiles
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore

LOOPBACK = Address("127.0.0.1", 0)
TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    folder = tmp_path_factory.mktemp("tls")
    found = TlsFiles(f"{folder}/certificate.pem", f"{folder}/key.pem")
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
            "/CN=log-server",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-out",
            found.certificate,
            "-keyout",
            found.key,
        ],
        check=True,
        capture_output=True,
    )
    return found


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    os.chmod(path, 0o600)
    return str(path)


@pytest.fixture
async def server(files: TlsFiles, token_file: str) -> AsyncIterator[GrpcServer]:
    core = FakeCore(FakeCluster())
    found = await GrpcServer.start(core, GrpcConfig(LOOPBACK, token_file, files))
    yield found
    await found.close(0)


def client_of(
    server: GrpcServer, scheme: str = "log+tls", timeout_s: float = 60.0, **security: str
) -> Client:
    config = LogClientConfig(timeout_s=timeout_s, attempt_s=timeout_s / 2)
    return connect(f"{scheme}://{server.address}", config, insecure=False, **security)  # type: ignore[arg-type]  # All settings are strings.


async def test_client_with_token_and_tls_appends_and_reads(
    server: GrpcServer, files: TlsFiles
) -> None:
    async with client_of(server, token=TOKEN, authorities=files.certificate) as client:
        log = await client.open("orders", create=True)
        assert (await log.append(b"x")).first_offset == 0
        async with log.writer() as writer:
            assert await writer.submit(b"y") == 1
        assert [record.value async for record in log.read()] == [b"x", b"y"]


@pytest.mark.parametrize("token", ["", "another-token-altogether", TOKEN[:-1]])
async def test_calls_without_the_token_are_unauthorized(
    server: GrpcServer, files: TlsFiles, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(server, token=TOKEN, authorities=files.certificate) as client:
        log = await client.open("orders", create=True)
        shown = (("authorization", f"Bearer {token}"),) if token else ()
        monkeypatch.setattr(client.channels, "shown_to", lambda _: shown)
        with pytest.raises(Unauthorized) as caught:
            await log.append(b"x")
        assert caught.value.outcome is Outcome.NOT_APPLIED
        writer = log.writer()
        submission = writer.submit(b"x")
        with pytest.raises(Unauthorized):
            await submission
        with pytest.raises(Unauthorized):
            await log.state()
        with pytest.raises(Unauthorized):
            await log.events().next()


async def test_unauthorized_appends_are_all_not_applied(
    server: GrpcServer, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for appends that would fill many messages."""
    async with client_of(server, token=TOKEN, authorities=files.certificate) as client:
        log = await client.open("orders", create=True)
        monkeypatch.setattr(client.channels, "shown_to", lambda _: ())
        for _ in range(3):
            told = await asyncio.gather(
                *(log.append(b"x") for _ in range(1000)), return_exceptions=True
            )
            assert {(type(each), getattr(each, "outcome", None)) for each in told} == {
                (Unauthorized, Outcome.NOT_APPLIED)
            }


async def test_health_needs_no_token(server: GrpcServer, files: TlsFiles) -> None:
    with open(files.certificate, "rb") as file:
        credentials = grpc.ssl_channel_credentials(file.read())
    async with grpc.aio.secure_channel(str(server.address), credentials) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_client_without_the_authority_cannot_connect(server: GrpcServer) -> None:
    for scheme in ("log+tls", "log"):
        client = client_of(server, scheme, timeout_s=1, token=TOKEN)
        with pytest.raises(RollbookError) as caught:
            await client.limits()
        assert caught.value.outcome is Outcome.NOT_APPLIED
        await client.close()


async def test_a_new_token_needs_no_restart(
    server: GrpcServer, files: TlsFiles, token_file: str
) -> None:
    with open(token_file, "w") as file:
        file.write("a-new-token-of-ours")
    async with client_of(
        server, token="a-new-token-of-ours", authorities=files.certificate
    ) as client:
        assert (await client.limits()).block_records_max


async def test_unreadable_certificate_or_token_file_is_bad_config(files: TlsFiles) -> None:
    core = FakeCore(FakeCluster())
    with pytest.raises(BadConfig, match="cannot read"):
        await GrpcServer.start(core, GrpcConfig(LOOPBACK, tls=TlsFiles("/nowhere.pem")))
    with pytest.raises(BadConfig, match="cannot read"):
        connect("log+tls://127.0.0.1:7400", authorities="/nowhere.pem")
    with pytest.raises(BadConfig):
        await GrpcServer.start(core, GrpcConfig(LOOPBACK, "/nowhere.token"))


@pytest.mark.parametrize("url", ["http://x", "log://", "log://a:b", "log://a:99999"])
def test_invalid_url_is_bad_config(url: str) -> None:
    with pytest.raises(BadConfig):
        connect(url)
