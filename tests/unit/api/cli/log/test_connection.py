"""Advice for users that cannot reach a log server, or may name it another way."""

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
from rollbook.api.cli.log.ownership import acquire_writer
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


async def test_whoever_asks_the_port_of_http_is_told_so() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 421 Misdirected Request\r\ncontent-length: 0\r\n\r\n")
        await reader.read()  # Until it hangs up: closed before, what was written may be lost.
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as http:
        port = http.sockets[0].getsockname()[1]
        told = await advice(access_to(f"log://127.0.0.1:{port}"))
    assert told == "--server log://HOST:7400: that port is for HTTP"
    with pytest.raises(BadConfig, match="an HTTP address") as found:
        parse_log_url(f"http://127.0.0.1:{port}/v1")
    assert found.value.next_step.startswith("write log://HOST:7400")


async def test_whoever_asks_the_port_of_https_is_told_so(tmp_path: Path) -> None:
    """Such a port speaks TLS, but agrees to no HTTP/2: each user was advised to start a server."""
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


async def test_whoever_is_not_understood_is_told_how_to_speak(tmp_path: Path) -> None:
    """Users were advised to start a server that was running."""
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


def test_advice_has_the_flags_that_were_given() -> None:
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


def test_advice_names_the_context_in_place_of_what_it_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server beside an exported ROLLBOOK_CONTEXT was refused."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    context = Context("log+tls://y:1", token_file="prod.token", tls_authorities="theirs.pem")
    save(Contexts("prod", {"prod": context}))
    for name in ("prod", None):
        access = at_context(access_to("log://x:1", "my ca.pem"), name, is_named=False)
        assert (access.server, access.token_file) == ("log+tls://y:1", "prod.token")
        assert access.flags == " --context prod --tls-authorities 'my ca.pem'"
        assert not access.insecure


async def test_advice_is_of_what_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--server was advised beside a context, without the token that the context gives."""
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
def test_a_lost_answer_to_a_writer_is_asked_for_again(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was mode "steal", as for programs; then --steal, which fences who has it by now."""

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


def test_what_is_typed_comes_before_what_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server could not be typed beside an exported context, which may be of another cluster."""
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
    assert meant(server="log://x:1").context == "", "nor does the current one count"
    assert meant().token_file == "prod.token"
    for words, exported in (
        (("--server", "log://x:1", "--context", "prod"), {}),
        ((), {"server": "log://x:1", "context": "prod"}),
    ):
        with pytest.raises(InvalidRequest):
            meant(*words, **exported)


def test_a_context_may_show_its_token_in_the_clear(
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
def test_a_file_of_contexts_that_makes_no_sense_is_said_to(
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
def test_what_no_token_has_is_said_without_the_token(tmp_path: Path, text: str) -> None:
    """A traceback of gRPC was."""
    file = tmp_path / "token.file"
    file.write_text(f"{text}\n", encoding="utf-8")
    with pytest.raises(BadConfig, match=r"token\.file") as found:
        replace(access_to("log://x:1"), token_file=str(file)).token()
    assert text not in str(found.value)
    file.write_text("token\n")
    assert replace(access_to("log://x:1"), token_file=str(file)).token() == "token"
