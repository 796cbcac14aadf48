"""Metrics pages in a debug bundle: how they are fetched, and which servers get the token."""

import asyncio
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rollbook.api.cli.cluster.actions import make_cluster, run_on_store
from rollbook.api.cli.debug import metrics_scrape as debug_metrics
from rollbook.api.cli.debug.metrics_scrape import ScrapeTarget, gather, places_of
from rollbook.api.cli.log.connection import LogAccess
from rollbook.logservice.core.server_record import ServerRecord, pack_server_record
from rollbook.logservice.ids import ServerId, ServerInfo
from rollbook.logservice.membership import FOLDER
from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.errors import RollbookError
from rollbook.proto.ports import MetadataStore
from tests.support.certificates import Authority

KNOWN = ("log-1~1",)


class Pages(BaseHTTPRequestHandler):
    """Sends `text` with `status`; if `text` is `None`, sends headers one at a time without end."""

    status = 200
    text: bytes | None = b"a_total 1\n"
    shown: str | None = ""
    is_over = threading.Event()

    def do_GET(self) -> None:
        pages = type(self)
        pages.shown = self.headers["authorization"]
        if pages.text is None:
            self.send_response(pages.status)
            with suppress(OSError):  # The client closes the connection.
                while not pages.is_over.wait(0.05):
                    self.send_header("x", "y")
                    self.flush_headers()
            return
        self.send_response(pages.status)
        self.send_header("location", "/elsewhere")
        self.end_headers()
        self.wfile.write(pages.text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[Pages], str]]:
    class Found(Pages):
        is_over = threading.Event()

    with ThreadingHTTPServer(("127.0.0.1", 0), Found) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Found, f"http://127.0.0.1:{server.server_port}"
        Found.is_over.set()
        server.shutdown()


@pytest.fixture
def access(tmp_path: Path) -> LogAccess:
    token = tmp_path / "token"
    token.write_text("secret")
    return LogAccess("x:1", str(token), None, None, None, 1.0)


async def gathered(
    places: Sequence[ScrapeTarget], access: LogAccess
) -> tuple[dict[str, bytes], dict[str, RollbookError]]:
    found: dict[str, bytes] = {}
    missing = await gather(places, access, KNOWN, found.__setitem__)
    return found, missing


async def why_not(place: ScrapeTarget, access: LogAccess) -> str:
    _, missing = await gathered([place], access)
    return str(missing[place.name])


async def test_token_is_sent_only_to_known_log_servers(
    pages: tuple[type[Pages], str], access: LogAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, url = pages
    server, bookie = ScrapeTarget("log-1", url, "log-1~1"), ScrapeTarget("bk-1", url)
    assert await gathered([server], access) == ({"log-1": b"a_total 1\n"}, {})
    assert seen.shown == "Bearer secret"
    assert (await gathered([bookie], access))[0] == {"bk-1": b"a_total 1\n"}
    assert seen.shown is None
    stranger = replace(server, server_id="log-1~2")
    assert (await gathered([stranger], access))[0] == {"log-1": b"a_total 1\n"}
    assert seen.shown is None, "a server of the same name in another cluster"
    monkeypatch.setattr("rollbook.proto.client_credential_safety.is_loopback", lambda host: False)
    await gathered([server], access)
    assert seen.shown is None, "the connection is not encrypted"
    await gathered([server], replace(access, insecure=True))
    assert seen.shown == "Bearer secret"


async def test_pages_that_cannot_be_fetched_are_reported(
    pages: tuple[type[Pages], str], access: LogAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, url = pages
    place = ScrapeTarget("log-1", url, "log-1~1")
    for seen.status in (302, 401, 500):
        assert f"answers {seen.status}" in await why_not(place, access)
    assert "no server answers" in await why_not(replace(place, url="http://127.0.0.1:1"), access)
    assert "no server answers" in await why_not(replace(place, url="http://[x:1"), access)
    assert await gathered([replace(place, url="")], access) == ({}, {}), (
        "a server without a URL is no failure"
    )
    monkeypatch.setattr(debug_metrics, "_PATIENCE_S", 0.2)
    seen.text = None
    assert "takes longer than 0.2 s" in await why_not(place, access)


async def test_number_and_size_of_pages_are_limited(
    pages: tuple[type[Pages], str], access: LogAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = pages
    monkeypatch.setattr(debug_metrics, "_BYTES_MAX", 5)
    monkeypatch.setattr(debug_metrics, "_SERVERS_MAX", 2)
    places = [ScrapeTarget(f"log-{n}", url) for n in range(3)]
    found, missing = await gathered(places, access)
    assert found == {"log-0": b"a_tot", "log-1": b"a_tot"}
    assert "only the first 5 bytes" in str(missing["log-0"])
    assert "more servers" in str(missing["log-2"])


async def test_concurrent_page_requests_are_limited(
    access: LogAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request takes a connection and up to 4 MiB; a finished one makes room for the next."""
    waiting: list[asyncio.Event] = []

    async def page(*_: object) -> bytes:
        waiting.append(asyncio.Event())
        await waiting[-1].wait()
        return b"a_total 1\n"

    async def turns() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    monkeypatch.setattr(debug_metrics, "_page", page)
    monkeypatch.setattr(debug_metrics, "_AT_ONCE", 3)
    places = [ScrapeTarget(f"log-{n}", "http://127.0.0.1:1") for n in range(7)]
    asking = asyncio.create_task(gathered(places, access))
    for asked in (3, 4, 5, 6, 7):
        await turns()
        assert len(waiting) == asked
        waiting[asked - 3].set()
    for each in waiting:
        each.set()
    found, missing = await asking
    assert (len(found), missing) == (7, {})


async def test_page_is_stored_before_the_next_request(
    access: LogAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a hundred pages of 4 MiB would be in memory at the same time."""
    told: list[str] = []

    async def page(place: ScrapeTarget, *_: object) -> bytes:
        told.append(f"asked {place.name}")
        return b"a_total 1\n"

    monkeypatch.setattr(debug_metrics, "_page", page)
    monkeypatch.setattr(debug_metrics, "_AT_ONCE", 1)
    places = [ScrapeTarget(f"log-{n}", "http://127.0.0.1:1") for n in range(3)]
    await gather(places, access, KNOWN, lambda name, _text: told.append(f"kept {name}"))
    assert told == [f"{what} log-{n}" for n in range(3) for what in ("asked", "kept")]


async def test_tls_page_is_read_only_from_a_trusted_server(
    pages: tuple[type[Pages], str], access: LogAccess, tmp_path: Path
) -> None:
    seen, _ = pages
    authority = Authority.make(tmp_path)
    files = authority.issue("log-1", "IP:127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.certificate, files.key)
    with ThreadingHTTPServer(("127.0.0.1", 0), seen) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = ScrapeTarget("log-1", f"https://127.0.0.1:{server.server_port}", "log-1~1")
        believing = replace(access, tls_authorities=authority.certificate)
        assert await gathered([place], believing) == ({"log-1": b"a_total 1\n"}, {})
        assert seen.shown == "Bearer secret"
        seen.shown = ""
        assert "no server answers" in await why_not(place, access)
        assert not seen.shown
        server.shutdown()


def test_slashes_in_a_server_name_are_replaced_in_the_file_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/metadata.db"
    make_cluster(url, None)
    info = ServerInfo(ServerId("../../x~1"), "127.0.0.1:1")

    async def register(store: MetadataStore, cluster: Cluster) -> None:
        record = ServerRecord(info, "0", 0, http="http://127.0.0.1:1")
        for path in (cluster.own_root, f"{cluster.own_root}/{FOLDER}"):
            if await store.get(path) is None:
                await store.create(path, b"")
        await store.create(f"{cluster.own_root}/{FOLDER}/x", pack_server_record(record))

    run_on_store(url, register)
    (place,) = places_of(url)
    assert place == ScrapeTarget("log-server-.._.._x", "http://127.0.0.1:1", "../../x~1")
