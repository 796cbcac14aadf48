"""Pages of other origins: what the settings allow them, and how Chromium enforces it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from rollbook.api.cli.server.log import load_log_settings
from rollbook.api.rest.cross_origin import check_origins
from rollbook.api.rest.log_app import RestServer
from rollbook.api.rest.server import HttpConfig
from rollbook.proto.errors import BadConfig
from tests.messages import raises_message
from tests.rest import browser
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore
from tests.unit.api.rest.http_client import Answer, Client
from tests.unit.api.rest.log_routes import LOG, RAW
from tests.unit.api.rest.test_hostile_http_clients import LOOPBACK, TOKEN

SHOP = "https://shop.example"
RECORDS = f"{LOG}/records"
URL = "sqlite:///metadata.db"


@asynccontextmanager
async def served(*origins: str, token_file: str | None = None) -> AsyncIterator[Client]:
    core = FakeCore(FakeCluster())
    core.cluster.make("ns/log")
    config = HttpConfig(LOOPBACK, token_file=token_file, origins=origins)
    server = await RestServer.start(core, config, lambda _: "")
    client = Client(server.address)
    client.headers = {"authorization": f"Bearer {TOKEN}"} if token_file else {}
    for record in (b"one", b"two"):
        assert (await client.ask("POST", RECORDS, record, **RAW)).status == 201
    client.headers = {}
    try:
        yield client
    finally:
        await server.close()


async def preflight(client: Client, origin: str, method: str, headers: str = "") -> Answer:
    asked = {"origin": origin, "access-control-request-method": method}
    if headers:
        asked["access-control-request-headers"] = headers
    return await client.ask("OPTIONS", RECORDS, b"", **asked)


def is_allowed(answer: Answer, origin: str) -> bool:
    allowed = answer.headers.get("access-control-allow-origin")
    assert allowed in (None, origin)
    assert "access-control-allow-credentials" not in answer.headers
    return allowed == origin


async def test_page_of_a_named_origin_may_read_and_append() -> None:
    async with served("http://other.example", SHOP) as client:
        answer = await client.get(f"{RECORDS}/1", origin=SHOP)
        assert (answer.status, answer.body) == (200, b"two")
        assert is_allowed(answer, SHOP)
        seen = answer.headers["access-control-expose-headers"].split(", ")
        assert {"log-offset", "log-uid", "etag"} <= set(seen)
        assert "content-length" not in seen
        assert answer.headers["vary"] == "Origin"
        answer = await client.ask("POST", RECORDS, b"three", origin=SHOP, **RAW)
        assert answer.status == 201
        assert is_allowed(answer, SHOP)
        assert "location" in answer.headers["access-control-expose-headers"]


async def test_preflight_needs_no_token_and_allows_known_headers(tmp_path: Path) -> None:
    """A browser sends no token with a preflight request."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    async with served(SHOP, token_file=str(file)) as client:
        asked = "authorization,content-type,log-meta-till,producer-seq,x-evil"
        answer = await preflight(client, SHOP, "POST", asked)
        assert answer.status == 204
        assert is_allowed(answer, SHOP)
        assert "POST" in answer.headers["access-control-allow-methods"]
        allowed = answer.headers["access-control-allow-headers"]
        assert allowed == "authorization, content-type, log-meta-till, producer-seq"
        # The page can read the refusal.
        answer = await client.get(RECORDS, origin=SHOP)
        assert (answer.status, answer.reason) == (401, "UNAUTHORIZED")
        assert is_allowed(answer, SHOP)
        other = await preflight(client, "https://evil.example", "POST")
        assert other.status == 401
        assert not is_allowed(other, "https://evil.example")


async def test_pages_of_unlisted_origins_are_not_allowed() -> None:
    others = ("https://shop.example.evil", "http://shop.example", f"{SHOP}:444", "null", "*")
    async with served(SHOP) as client:
        for origin in others:
            answer = await client.get(RECORDS, origin=origin)
            assert not is_allowed(answer, origin)
            # A cache must not give it the response to the named origin.
            assert answer.headers["vary"] == "Origin"
            assert not is_allowed(await preflight(client, origin, "GET"), origin)
            answer = await client.ask("POST", RECORDS, b"x", origin=origin, **RAW)
            assert answer.status == 403
            assert not is_allowed(answer, origin)


async def test_default_responses_have_no_cors_headers() -> None:
    async with served() as client:
        for answer in (
            await client.get(RECORDS, origin=SHOP),
            await preflight(client, SHOP, "GET"),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control")]
            assert "vary" not in answer.headers


async def test_star_lets_every_page_read_and_none_change() -> None:
    async with served("*", "https://till.example") as client:
        answer = await client.get(RECORDS, origin=SHOP)
        assert answer.status == 200
        assert is_allowed(answer, SHOP)
        asked = await preflight(client, SHOP, "DELETE")
        assert asked.headers["access-control-allow-methods"] == "GET, HEAD"
        refused = await client.ask("POST", RECORDS, b"x", origin=SHOP, **RAW)
        assert refused.status == 403
        named = await client.ask("POST", RECORDS, b"x", origin="https://till.example", **RAW)
        assert named.status == 201


async def test_only_chromium_pages_of_a_named_origin_can_read() -> None:
    if browser.path() is None:
        pytest.skip(browser.missing())
    async with page_server() as shop, page_server() as evil, served(shop) as client:
        records = f"http://{client.address}{RECORDS}"
        await asyncio.to_thread(visit, shop, evil, records)


def visit(shop: str, evil: str, records: str) -> None:
    script = f"""
        window.values = [];
        window.source = new EventSource({json.dumps(records)} + "?from=earliest");
        source.addEventListener("records", event =>
            values.push(...JSON.parse(event.data).records.map(record => record.data)));
    """
    fetched = f"fetch({json.dumps(records)} + '/0')"
    with browser.Page() as page:
        page.open(f"{shop}/")
        page.wait_for("a page")
        page.run(script)
        assert page.wait_until("values.length == 2 && values.join()") == "one,two"
        shown = f"{fetched}.then(answer => answer.headers.get('Log-Offset'))"
        assert page.run_to_its_end(shown) == "0"
        appended = f"""fetch({json.dumps(records)}, {{method: 'POST', body: 'three',
            headers: {{'Content-Type': 'application/octet-stream', 'Log-Meta-Till': '4'}}}}
            ).then(answer => answer.status)"""
        assert page.run_to_its_end(appended) == 201
        assert page.wait_until("values.length == 3 && values[2]") == "three"
        page.open(f"{evil}/")
        page.wait_until(f"location.origin == {json.dumps(evil)} && !!document.body")
        page.run(script)
        page.wait_until("source.readyState == EventSource.CLOSED")
        assert page.run("values.length") == 0
        refused = f"{fetched}.then(() => 'read', error => error.name)"
        assert page.run_to_its_end(refused) == "TypeError"


@asynccontextmanager
async def page_server() -> AsyncIterator[str]:
    """Serves an origin with one page."""

    async def show(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):  # Chromium opens connections ahead of need.
            await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n"
        writer.write(head + b"<title>a page</title>a page")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(show, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


# --- Settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["localhost:3000", f"{SHOP}/", "http://*.example", "null", ""])
def test_invalid_origin_setting_is_refused(origin: str) -> None:
    with raises_message(BadConfig):
        check_origins([origin], "rest_origin", asks_for_tokens=False)


def test_valid_origin_settings_are_accepted() -> None:
    known = ["HTTPS://Shop.Example:443", "http://[::1]:3000", "tauri://localhost", "*"]
    check_origins(known, "rest_origin", asks_for_tokens=False)


def test_origins_are_read_from_flags_environment_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rollbook.toml"
    file.write_text(f'[log_server]\nrest = "127.0.0.1:0"\nrest_origin = ["{SHOP}"]\n')

    def found(*typed: str) -> tuple[str, ...]:
        settings = load_log_settings(str(file), metadata=URL, server_name="a", rest_origin=typed)
        return settings.server.rest_origin

    assert found() == (SHOP,)
    monkeypatch.setenv("ROLLBOOK_REST_ORIGIN", "http://a.example, http://b.example")
    assert found() == ("http://a.example", "http://b.example")
    assert found("http://c.example") == ("http://c.example",)


def test_origins_without_rest_or_star_with_tokens_are_refused() -> None:
    with raises_message(BadConfig):
        load_log_settings(metadata=URL, rest_origin=(SHOP,))
    with raises_message(BadConfig):
        load_log_settings(
            metadata=URL, rest="127.0.0.1:0", rest_origin=("*",), access_file="access.toml"
        )
