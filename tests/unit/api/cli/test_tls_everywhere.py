"""Log servers, bookies and clients that speak TLS to each other, as real processes: nothing readable is on the network."""

import asyncio
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rollbook
from rollbook.proto.cluster.cluster import initialise
from rollbook.proto.errors import ServerUnreachable
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.support import bookies, commands
from tests.support.certificates import Authority
from tests.support.processes import Family, family

NAME = "logs.example.com"  # The one name in the certificates of both log servers.
RECORD = b"a record that nobody on the network may read"
CONTROL = b"a control that shows that the capture sees the loopback interface"
TOKEN = "A-token-that-nobody-on-the-network-may-read"
ETH_P_ALL = 3
QUIET = ("--log-level", "error")


class Capture:
    """All packets of the loopback interface, as far as some words are in them."""

    def __init__(self, *words: bytes) -> None:
        self.seen: dict[bytes, int] = dict.fromkeys(words, 0)
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.2)
        self._is_over = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._is_over:
            try:
                packet = self._socket.recv(70_000)
            except TimeoutError:
                continue
            for word in self.seen:
                self.seen[word] += word in packet

    def await_control(self) -> None:
        """Everything that was sent before has been looked at when this returns."""
        deadline_s = time.monotonic() + bookies.PATIENCE_S
        while not self.seen[CONTROL] and time.monotonic() < deadline_s:
            server = socket.create_server(("127.0.0.1", 0))
            with server, socket.create_connection(server.getsockname()) as talking:
                talking.sendall(CONTROL)
            time.sleep(0.1)

    def end(self) -> None:
        self._is_over = True
        self._thread.join()
        self._socket.close()


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, Authority]]:
    """Three bookies that serve nobody without a certificate, and two log servers; yields the clients' URL."""
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
                *(children, folder / f"bk-{number}", url, *QUIET, "--tls-listen", "127.0.0.1:0"),
                *("--tls-certificate", bookie_tls.certificate, "--tls-key", bookie_tls.key),
                *("--tls-authorities", authority.certificate),
                bookie_id=f"bk-{number}",
            )
            for number in (1, 2, 3)
        ]
        for each in found:
            each.wait_ready()
        words = (
            *("--metadata", url, "--listen", "127.0.0.1:0", *QUIET),
            *("--tls-certificate", log_tls.certificate, "--tls-key", log_tls.key),
            *("--tls-authorities", authority.certificate, "--tls-name", NAME),
            *("--token-file", str(folder / "token"), "--bookie-authorities", authority.certificate),
            *("--bookie-certificate", log_tls.certificate, "--bookie-key", log_tls.key),
        )
        servers = [_start(children, name, *words) for name in ("log-1", "log-2")]
        yield "log+tls://" + ",".join(servers), authority


def _start(children: Family, name: str, *words: str) -> str:
    command = (*("server", "log", "--server-name", name), *words)
    child = children.start(sys.executable, "-m", "rollbook.api.cli.main", *command)
    return str(bookies.address_in(child.line(bookies.PATIENCE_S)))


async def _initialise(url: str) -> None:
    async with await open_metadata_store(url, create=True) as store:
        await initialise(store, MetadataUrl.parse(url).ledgers_root, random.SystemRandom())


@pytest.mark.skipif(not hasattr(socket, "AF_PACKET"), reason="captures packets as Linux does")
def test_no_record_and_no_token_is_readable_on_the_network(tmp_path: Path) -> None:
    """One name is in both log servers' certificates; each of them is asked for a log that the other one owns."""
    try:
        capture = Capture(RECORD, TOKEN.encode(), CONTROL)
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
                *("--server", url, "--token-file", str(tmp_path / "token"), "--tls-name", NAME),
                *("--tls-authorities", authority.certificate),
                *("--tls-certificate", tls.certificate, "--tls-key", tls.key),
            )
            read = commands.run("log", "read", "orders-1", *words, "-o", "raw")
            assert read.returncode == 0, read.stderr
            ledgers = commands.run(
                *("ledger", "verify", "--metadata", f"sqlite://{tmp_path}/metadata.db", "0"),
                *("--bookie-authorities", authority.certificate),
                *("--bookie-certificate", tls.certificate, "--bookie-key", tls.key),
            )
            assert ledgers.returncode == 0, ledgers.stderr
        capture.await_control()
    finally:
        capture.end()
    assert capture.seen[CONTROL]
    assert not capture.seen[RECORD]
    assert not capture.seen[TOKEN.encode()]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--tls-name", NAME), "tls_name would not be used"),
        (("--bookie-certificate", "a.pem"), "who signs the bookies' certificates"),
        (("--bookie-authorities", "a.pem", "--bookie-key", "b"), "no use without bookie_cert"),
    ],
)
def test_settings_of_tls_that_would_not_be_used_are_refused(
    flags: tuple[str, ...], said: str
) -> None:
    found = commands.run("server", "log", "--metadata", "sqlite:///tmp/none.db", *flags)
    assert found.returncode == 2
    assert said in found.stderr.decode()
