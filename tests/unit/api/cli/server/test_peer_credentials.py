"""TLS between log servers, bookies and clients as real processes: the network shows no secret."""

import asyncio
import random
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import rollbook
from rollbook.api.cli.server.peer_credentials import report_untrusted
from rollbook.logservice.config import LogServerConfig
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.errors import ServerUnreachable
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.support import bookies, commands
from tests.support.capture import Capture
from tests.support.certificates import Authority
from tests.support.processes import Family, family

NAME = "logs.example.com"  # The one name in the certificates of both log servers.
RECORD = b"a record that nobody on the network may read"
TOKEN = "A-token-that-nobody-on-the-network-may-read"
QUIET = ("--log-level", "error")


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, Authority]]:
    """Three bookies that require client certificates, and two log servers; yields the URL for
    clients and the authority.
    """
    authority = Authority.make(folder)
    bookie_tls = authority.issue("bookie", "IP:127.0.0.1,DNS:localhost")
    log_tls = authority.issue("log", f"DNS:{NAME}")
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    url = f"sqlite://{folder}/metadata.db"
    asyncio.run(_initialise(url))
    with family() as children:
        found = [
            bookies.start(
                children,
                folder / f"bk-{number}",
                url,
                *QUIET,
                "--tls-listen",
                "127.0.0.1:0",
                "--tls-certificate",
                bookie_tls.certificate,
                "--tls-key",
                bookie_tls.key,
                "--tls-authorities",
                authority.certificate,
                bookie_id=f"bk-{number}",
            )
            for number in (1, 2, 3)
        ]
        for each in found:
            each.wait_ready()
        words = (
            "--metadata",
            url,
            "--listen",
            "127.0.0.1:0",
            *QUIET,
            "--tls-certificate",
            log_tls.certificate,
            "--tls-key",
            log_tls.key,
            "--tls-authorities",
            authority.certificate,
            "--tls-name",
            NAME,
            "--token-file",
            str(folder / "token"),
            "--bookie-authorities",
            authority.certificate,
            "--bookie-certificate",
            log_tls.certificate,
            "--bookie-key",
            log_tls.key,
        )
        servers = [_start(children, name, *words) for name in ("log-1", "log-2")]
        yield "log+tls://" + ",".join(servers), authority


def _start(children: Family, name: str, *words: str) -> str:
    command = ("server", "log", "--server-name", name, *words)
    child = children.start(sys.executable, "-m", "rollbook.api.cli.main", *command)
    return str(bookies.address_in(child.line(bookies.PATIENCE_S)))


async def _initialise(url: str) -> None:
    async with await open_metadata_store(url, create=True) as store:
        await initialise(store, MetadataUrl.parse(url).ledgers_root, random.SystemRandom())


@pytest.mark.skipif(not hasattr(socket, "AF_PACKET"), reason="captures packets as Linux does")
def test_no_record_and_no_token_is_readable_on_the_network(tmp_path: Path) -> None:
    """Both log servers' certificates have the same name, and each is asked for the other's logs."""
    try:
        capture = Capture(RECORD, TOKEN.encode(), interface="lo")
    except PermissionError:
        pytest.skip("capture: only root may look at packets; to enable: run as root")
    try:
        with cluster(tmp_path) as (url, authority):
            tls = authority.issue("client", "DNS:client.example.com")
            shown: dict[str, Any] = {
                "token": TOKEN,
                "authorities": authority.certificate,
                "certificate": tls.certificate,
                "key": tls.key,
            }
            with rollbook.connect(url, tls_name=NAME, wait_s=30, **shown) as client:
                for number in range(6):
                    log = client.open(f"orders-{number}", create=True)
                    log.append(RECORD)
                    assert [record.value for record in log.read(0, 1)] == [RECORD]
            with pytest.raises(ServerUnreachable):
                rollbook.connect(url, **shown).close()  # 127.0.0.1 is not in their certificates.
            words = (
                "--server",
                url,
                "--token-file",
                str(tmp_path / "token"),
                "--tls-name",
                NAME,
                "--tls-authorities",
                authority.certificate,
                "--tls-certificate",
                tls.certificate,
                "--tls-key",
                tls.key,
            )
            read = commands.run("log", "read", "orders-1", *words, "-o", "raw")
            assert read.returncode == 0, read.stderr
            ledgers = commands.run(
                "ledger",
                "verify",
                "--metadata",
                f"sqlite://{tmp_path}/metadata.db",
                "0",
                "--bookie-authorities",
                authority.certificate,
                "--bookie-certificate",
                tls.certificate,
                "--bookie-key",
                tls.key,
            )
            assert ledgers.returncode == 0, ledgers.stderr
        capture.await_control()
    finally:
        capture.end()
    assert not capture.seen[RECORD]
    assert not capture.seen[TOKEN.encode()]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--tls-name", NAME), "tls_name would not be used"),
        (("--peer-authorities", "a.pem"), "peer_authorities would not be used"),
        (("--bookie-certificate", "a.pem"), "which sign the bookies' certificates"),
        (
            ("--bookie-authorities", "a.pem", "--bookie-key", "b"),
            "would not be used without bookie_cert",
        ),
    ],
)
def test_unused_tls_settings_are_refused(flags: tuple[str, ...], said: str) -> None:
    found = commands.run("server", "log", "--metadata", "sqlite:///tmp/none.db", *flags)
    assert found.returncode == 2
    assert said in found.stderr.decode()


def test_a_certificate_that_other_servers_would_refuse_is_reported(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    (tmp_path / "other").mkdir()
    other = Authority.make(tmp_path / "other")
    tls = authority.issue("log", f"DNS:{NAME},DNS:log-1")

    def reported(host: str, **settings: Any) -> list[str]:
        config = LogServerConfig(
            "sqlite:///m.db", tls_certificate=tls.certificate, tls_key=tls.key, **settings
        )
        with capture_logs() as events:
            report_untrusted(config, host)
        assert all(each["event"] == "peers_not_trusted" for each in events)
        assert all("--peer-authorities FILE" in each["next_step"] for each in events)
        return [each["reason"] for each in events]

    trusted = {"peer_authorities": authority.certificate}
    assert reported("log-1", **trusted) == []
    assert reported("log-9", tls_name=NAME, **trusted) == []
    assert reported("log-1", tls_authorities=authority.certificate) == []
    assert reported("127.0.0.1") == []  # All other servers are on this host, too.
    (reason,) = reported("log-9", **trusted)
    assert "Hostname mismatch" in reason
    for settings in ({}, {"peer_authorities": other.certificate}):
        (reason,) = reported("log-1", **settings)
        assert "certificate" in reason
