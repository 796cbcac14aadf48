"""Advice to users who cannot reach a log server, and which settings take precedence."""

import asyncio
import re
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from rollbook.api.cli import name_completion
from rollbook.api.cli.context_option import at_context
from rollbook.api.cli.log.commands import with_access
from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.log.writer_epoch_actions import acquire_writer
from rollbook.api.cli.main import rollbook
from rollbook.api.client.url import parse_log_url
from rollbook.api.context_file import Context, Contexts, load, path, save
from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.grpc.server import GrpcServer
from rollbook.proto.errors import (
    BadConfig,
    BeyondTail,
    ConnectionLost,
    InvalidRequest,
    NoSuchLog,
    ServerUnreachable,
)
from rollbook.proto.ports import Address
from rollbook.proto.runtime.tls import TlsFiles
from tests.support.certificates import Authority
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore

LOOPBACK = Address("127.0.0.1", 0)


def access_to(server: str, authorities: str | None = None) -> LogAccess:
    return LogAccess(server, None, authorities, None, None, timeout_s=60.0)


async def advice(access: LogAccess) -> str:
    with pytest.raises(ServerUnreachable) as found, access.advising():
        await access.use(lambda client: client.limits())
    return found.value.next_step


async def test_http_port_is_recognised_in_advice() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 421 Misdirected Request\r\ncontent-length: 0\r\n\r\n")
        await reader.read()  # Until the client closes: closing earlier may lose the response.
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as http:
        port = http.sockets[0].getsockname()[1]
        told = await advice(access_to(f"log://127.0.0.1:{port}"))
    assert told == "--server log://HOST:7400: that port is for HTTP"
    with pytest.raises(BadConfig, match="an HTTP address") as found:
        parse_log_url(f"http://127.0.0.1:{port}/v1")
    assert found.value.next_step.startswith("write log://HOST:7400")


async def test_https_port_is_recognised_in_advice(tmp_path: Path) -> None:
    """Such a port speaks TLS but does not negotiate HTTP/2."""
    authority = Authority.make(tmp_path)
    files = authority.issue("server", "IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)

    def is_met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(is_met, "127.0.0.1", 0, ssl=context) as https:
        url = f"log+tls://127.0.0.1:{https.sockets[0].getsockname()[1]}"
        told = await advice(access_to(url, authority.certificate))
    assert told == "--server log+tls://HOST:7400: that port is for HTTP"


async def test_advice_on_tls_mismatch_names_the_right_option(tmp_path: Path) -> None:
    """Advice to start a server would be wrong while it is running."""
    authority = Authority.make(tmp_path)
    files = authority.issue("server", "IP:127.0.0.1")
    tls = await GrpcServer.start(
        FakeCore(FakeCluster()),
        GrpcConfig(LOOPBACK, tls=TlsFiles(files.certificate, files.key)),
    )
    plain = await GrpcServer.start(FakeCore(FakeCluster()), GrpcConfig(LOOPBACK))
    try:
        assert "--tls-authorities" in await advice(access_to(f"log+tls://{tls.address}"))
        assert f"--server log+tls://{tls.address}" in await advice(access_to(str(tls.address)))
        spoken = access_to(f"log+tls://{plain.address}", authority.certificate)
        assert await advice(spoken) == f"--server log://{plain.address}"
    finally:
        await tls.close(0)
        await plain.close(0)
    assert "rollbook dev" in await advice(access_to("127.0.0.1:1"))


def test_advice_repeats_the_given_flags() -> None:
    access = access_to("log+tls://x:1", "my ca.pem")
    with pytest.raises(NoSuchLog) as found, access.advising("orders"):
        raise NoSuchLog
    assert found.value.next_step == (
        "rollbook log create orders --server log+tls://x:1 --tls-authorities 'my ca.pem'"
    )
    with pytest.raises(BeyondTail) as beyond, access.advising("orders"):
        raise BeyondTail
    assert beyond.value.next_step.startswith("rollbook log show orders --server log+tls://x:1")
    assert replace(access, insecure=True).flags.endswith("'my ca.pem' --insecure")


def test_advice_names_the_context_instead_of_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command with both --context and --server would be refused."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    context = Context("log+tls://y:1", token_file="prod.token", tls_authorities="theirs.pem")
    save(Contexts("prod", {"prod": context}))
    for name in ("prod", None):
        access = at_context(access_to("log://x:1", "my ca.pem"), name, is_named=False)
        assert (access.server, access.token_file) == ("log+tls://y:1", "prod.token")
        assert access.flags == " --context prod --tls-authorities 'my ca.pem'"
        assert not access.insecure


async def test_advice_for_unreachable_context_includes_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replacing the context by --server alone would lose the token that the context gives."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    token = tmp_path / "my token"
    token.write_text("secret")
    save(Contexts("", {"prod": Context("log://127.0.0.1:1", token_file=str(token))}))
    access = at_context(access_to("log://x:1"), "prod", is_named=False)
    assert await advice(access) == (
        "start one at log://127.0.0.1:1, where the context prod says it is, or say where one is: "
        f"--server URL --token-file '{token}', in place of the context prod"
    )


@pytest.mark.parametrize("mode", ["", "wait", "steal"])
def test_lost_writer_acquire_is_retried_with_its_attempt_id(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Advice to add --steal could fence a writer that acquired the log in between."""

    def lose(self: LogAccess, work: object, log: str = "") -> None:
        raise ConnectionLost(next_step='mode "steal"')

    monkeypatch.setattr(LogAccess, "run", lose)
    asked: dict[str, Any] = {
        "wait": mode == "wait",
        "steal": mode == "steal",
        "ttl": "1h",
        "attempt": None,
        "yes": True,
        "output": "raw",
    }
    with pytest.raises(ConnectionLost) as found:
        acquire_writer(access_to("x:1"), "wal", "my host", **asked)
    again = re.fullmatch(
        r"rollbook log writer acquire wal --holder 'my host' --ttl 1h --attempt (\w+)(.*) --server x:1",
        found.value.next_step,
    )
    assert again
    assert again[2] == (f" --{mode}" if mode else "")
    with pytest.raises(ConnectionLost) as found:
        acquire_writer(access_to("x:1"), "wal", "my host", **{**asked, "attempt": again[1]})
    assert f" --attempt {again[1]}" in found.value.next_step


def test_typed_options_override_exported_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exported context may be of another cluster than the typed server."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    contexts = {"prod": Context("log://y:1", "prod.token"), "lab": Context("log://z:1")}
    save(Contexts("prod", contexts))
    found: list[LogAccess] = []
    command = click.command(with_access(found.append))

    def meant(*words: str, **exported: str) -> LogAccess:
        with monkeypatch.context() as patch:
            for name in ("server", "context"):
                patch.delenv(f"ROLLBOOK_{name.upper()}", raising=False)
            for name, value in exported.items():
                patch.setenv(f"ROLLBOOK_{name.upper()}", value)
            command.main(words, standalone_mode=False)
        return found.pop()

    typed = meant("--server", "log://x:1", context="prod")
    assert (typed.server, typed.context, typed.token_file) == ("log://x:1", "", None)
    assert meant("--context", "lab", server="log://x:1").server == "log://z:1"
    assert meant("--context", "lab", context="prod").server == "log://z:1"
    assert meant(server="log://x:1").context == "", "the current context must not apply either"
    assert meant().token_file == "prod.token"
    for words, exported in (
        (("--server", "log://x:1", "--context", "prod"), {}),
        ((), {"server": "log://x:1", "context": "prod"}),
    ):
        with pytest.raises(InvalidRequest):
            meant(*words, **exported)


def test_context_may_send_its_token_unencrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    add = ["context", "add", "lab", "--server", "log://10.0.0.5:7400", "--insecure"]
    rollbook.main(add, standalone_mode=False)
    access = at_context(access_to("log://x:1"), None, is_named=False)
    assert access.insecure
    assert access.flags == " --context lab"
    typed = click.Context(rollbook)
    typed.params = {"context": None, "server": None, "insecure": False}
    assert name_completion._access(typed).insecure
    file = Path(path())
    file.write_text(file.read_text().replace("insecure = true", 'insecure = "false"'))
    with pytest.raises(BadConfig, match="either true or false"):
        load()


@pytest.mark.parametrize(
    "text",
    ["[contexts]\nx = {server = 5}", "current = 5", "[contexts]\nx = 5", "contexts = 5", None],
)
def test_invalid_contexts_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = Path(path())
    file.parent.mkdir()
    if text is None:
        file.mkdir()
    else:
        file.write_text(text)
    with pytest.raises(BadConfig, match="the contexts cannot be read"):
        load()


@pytest.mark.parametrize("text", ["toke€n", "to\tken", "to\u2013ken"])
def test_invalid_token_error_does_not_show_the_token(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token.file"
    file.write_text(f"{text}\n", encoding="utf-8")
    with pytest.raises(BadConfig, match=r"token\.file") as found:
        replace(access_to("log://x:1"), token_file=str(file)).token()
    assert text not in str(found.value)
    file.write_text("token\n")
    assert replace(access_to("log://x:1"), token_file=str(file)).token() == "token"
