"""Management of a cluster over HTTP. One recovery server, without bookies: cookies alone make some."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.regressions.defects import defect
from tests.support import commands, processes

_PATIENCE_S: Final = 60.0
_COOKIE: Final = '5\nbookieHost: "java-1"\njournalDir: "/j"\nledgerDirs: "1\\t/l"\n'


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"sqlite://{tmp_path_factory.mktemp('management')}/metadata.db"
    assert commands.run("cluster", "init", "--metadata", url).returncode == 0
    with processes.family() as children:
        child = children.start_module(
            *("rollbook.api.cli.main", "server", "recovery", "--only-http", "--metadata", url),
            *("--http", "127.0.0.1:0", "--log-level", "error"),
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
def test_a_bookie_that_has_a_cookie_alone_is_listed(base: str) -> None:
    """It has no incarnation."""
    ask("PUT", f"{base}/api/v1/cookies/java-1", {"text": _COOKIE, "version": None})
    (row,) = ask("GET", f"{base}/api/v1/bookies")["bookies"]
    assert (row["id"], row["state"], row["incarnation"]) == ("java-1", "down", None)
    assert ask("GET", f"{base}/api/v1/bookies/java-1") == row


@defect(
    "routes-do-not-document-400",
    "OpenAPI did not document that a route of management answers 400 to an unknown parameter.",
)
def test_every_route_but_the_probe_documents_400(base: str) -> None:
    paths = ask("GET", f"{base}/openapi.json")["paths"]
    without = [
        f"{method} {path}"
        for path, operations in paths.items()
        for method, operation in operations.items()
        if "400" not in operation["responses"] and path != "/heartbeat"
    ]
    assert without == []


def refusal(method: str, url: str, body: Any = None) -> tuple[int, str, str]:
    """Its status, reason and `Allow`."""
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
def test_false_and_text_are_no_numbers(base: str, path: str, field: str, value: Any) -> None:
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
def test_a_path_allows_its_own_methods_alone(
    base: str, method: str, path: str, allowed: str
) -> None:
    assert refusal(method, f"{base}/api/v1/{path}") == (405, "INVALID", allowed)
    assert refusal("GET", f"{base}/api/v1/ledgers/x")[0] == 400
