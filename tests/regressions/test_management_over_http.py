"""Management of a cluster over HTTP. One recovery server; its bookies exist only as cookies."""

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from rollbook.proto.cluster.cluster_root import open_cluster
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.ids import FIRST_ENTRY, BookieId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.quorum import Quorum
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.wire.digest import DigestType
from tests.regressions.defects import defect
from tests.support import commands, processes

_PATIENCE_S: Final = 60.0
# Looks like a private key in DER and base64, but is not a valid key.
_KEY: Final = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ" + "Dq3Rz7Kx9b" * 8
_COOKIE: Final = '5\nbookieHost: "java-1"\njournalDir: "/j"\nledgerDirs: "1\\t/l"\n'


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite://{tmp_path_factory.mktemp('management')}/metadata.db"


@pytest.fixture(scope="module")
def base(url: str) -> Iterator[str]:
    assert commands.run("cluster", "init", "--metadata", url).returncode == 0
    with processes.family() as children:
        child = children.start_module(
            "rollbook.api.cli.main",
            "server",
            "recovery",
            "--only-http",
            "--metadata",
            url,
            "--http",
            "127.0.0.1:0",
            "--log-level",
            "error",
        )
        (address,) = re.findall(r"http on ([\d.:]+)", child.line(_PATIENCE_S))
        yield f"http://{address}"


def ask(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"content-type": "application/json"}, method=method)
    with urlopen(request, timeout=_PATIENCE_S) as answer:
        return json.load(answer)


@defect(
    "bookies-of-java-break-the-list",
    "GET bookies was a 500 as long as the cluster had a bookie that was not started by Rollbook.",
)
def test_bookie_with_only_a_cookie_is_listed(base: str) -> None:
    """Such a bookie has no incarnation."""
    ask("PUT", f"{base}/api/v1/cookies/java-1", {"text": _COOKIE, "version": None})
    (row,) = ask("GET", f"{base}/api/v1/bookies")["bookies"]
    assert (row["id"], row["state"], row["incarnation"]) == ("java-1", "down", None)
    assert ask("GET", f"{base}/api/v1/bookies/java-1") == row


@defect(
    "routes-do-not-document-400",
    "OpenAPI did not document that a route of management answers 400 to an unknown parameter.",
)
def test_every_route_except_heartbeat_documents_400(base: str) -> None:
    paths = ask("GET", f"{base}/openapi.json")["paths"]
    without = [
        f"{method} {path}"
        for path, operations in paths.items()
        for method, operation in operations.items()
        if "400" not in operation["responses"] and path != "/heartbeat"
    ]
    assert without == []


def refusal(method: str, url: str, body: Any = None) -> tuple[int, str, str]:
    """The status, reason and `Allow` header of a refused request."""
    with pytest.raises(HTTPError) as refused:
        ask(method, url, body)
    error = refused.value
    return error.code, json.load(error)["reason"], error.headers.get("allow", "")


@defect(
    "false-as-a-number",
    "PUT recovery/delay with false set the delay to 0, so that every bookie that restarted was copied.",
)
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("recovery/delay", "delay_s"),
        ("recovery/rate", "bytes_per_s"),
        ("autorecovery/lost_bookie_recovery_delay", "delay_seconds"),
    ],
)
@pytest.mark.parametrize("value", [False, "0"])
def test_false_and_text_are_refused_as_numbers(
    base: str, path: str, field: str, value: Any
) -> None:
    assert refusal("PUT", f"{base}/api/v1/{path}", {field: value})[:2] == (400, "INVALID")


@defect(
    "methods-of-other-routes-allowed",
    "GET of ledgers/7:verify was a 400 about an integer, and `Allow` named methods that it does not take.",
)
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "ledgers/7:verify", "POST"),
        ("DELETE", "ledgers/7:recover", "POST"),
        ("DELETE", "ledgers/bad", "GET"),
    ],
)
def test_allow_header_lists_only_methods_of_the_path(
    base: str, method: str, path: str, allowed: str
) -> None:
    assert refusal(method, f"{base}/api/v1/{path}") == (405, "INVALID", allowed)
    assert refusal("GET", f"{base}/api/v1/ledgers/x")[0] == 400


@defect(
    "metadata-without-names-of-bookkeeper",
    "GET ledger/metadata returned text that lacked BookKeeper's field names.",
)
def test_metadata_of_a_ledger_has_bookkeepers_names(base: str, url: str) -> None:
    ledger_id = asyncio.run(make_ledger(url))
    (found,) = ask("GET", f"{base}/api/v1/ledger/metadata?ledger_id={ledger_id}").values()
    assert (found["ensembleSize"], found["state"], found["lastEntryId"]) == (2, "OPEN", -1)
    assert found["allEnsembles"] == {"0": [{"id": "java-1"}, {"id": "java-2"}]}
    assert found["password"] == "", "it is a secret"


async def make_ledger(url: str) -> int:
    async with await open_metadata_store(url) as store:
        cluster = await open_cluster(store, MetadataUrl.parse(url).ledgers_root)
        nodes = LedgerNodes(store, cluster.root, cluster.layout)
        ensemble = (BookieId("java-1"), BookieId("java-2"))
        stored = await nodes.create_new(
            lambda ledger_id: LedgerMetadata(
                ledger_id,
                Quorum(2, 2, 2),
                (Fragment(FIRST_ENTRY, ensemble),),
                password=b"s3cret",
                digest_type=DigestType.CRC32C,
                created_ms=1_795_219_200_000,
                creation_token=7,
            )
        )
        return stored.metadata.ledger_id


@defect(
    "recovery-of-an-unknown-bookie",
    "`rollbook recovery bookie` with a mistyped id ended with zeros and exit code 0.",
)
def test_recovery_of_an_unknown_bookie_is_refused(base: str, url: str) -> None:
    for flag in ("--yes", "--dry-run"):
        done = commands.run("recovery", "bookie", "typo", flag, "--metadata", url)
        assert done.returncode == 2, done.stdout
        assert b"the cluster has no bookie typo" in done.stderr


@defect(
    "refusals-of-the-dashboard-in-json",
    "A request that the dashboard refused was answered with JSON where a person expects a page.",
)
@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/dashboard/ledgers", {}, 405),
        ("DELETE", "/dashboard", {}, 405),
        ("GET", "/dashboard/ledgers", {"Host": "rollbook.example"}, 421),
        ("POST", "/dashboard/logs", {"Origin": "http://evil.example"}, 403),
    ],
)
def test_dashboard_refusals_are_html_pages(
    base: str, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(f"{base}{path}", headers=headers, method=method), timeout=_PATIENCE_S)
    error = refused.value
    assert (error.code, error.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert error.headers["content-security-policy"]
    assert b"<h1>" in error.read()


@defect(
    "keys-in-base64-shown",
    "The page of the metadata showed a private key that a node had in base64.",
)
def test_metadata_page_hides_a_private_key_in_base64(base: str, url: str) -> None:
    pem = f"-----BEGIN PRIVATE KEY-----\n{_KEY}\n-----END PRIVATE KEY-----\n"
    wrapped = b64encode(pem.encode()).decode()
    node = {"site": wrapped, "body": f"{_KEY[:64]}\n{_KEY[64:]}", "lines": [_KEY[:64], _KEY[64:]]}
    asyncio.run(make_node(url, "/keys-of-a-site", json.dumps(node).encode()))
    with urlopen(f"{base}/dashboard/metadata?path=/keys-of-a-site", timeout=_PATIENCE_S) as page:
        shown = page.read().decode()
    assert "site" in shown
    assert not [part for part in (wrapped[:40], _KEY[:40], _KEY[70:100]) if part in shown]


async def make_node(url: str, path: str, value: bytes) -> None:
    async with await open_metadata_store(url) as store:
        await store.create(path, value)
