"""BookKeeper's own HTTP paths, answered by a Java bookie and by a recovery server of ours on the same cluster.

Answers are compared field by field. Where they differ on purpose, `DIFFERENCES` has the request, both answers and the reason.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.interop.cluster import PATIENCE_S, Cluster
from tests.interop.puppet import Client, Digest, Ledger, Protocol, Shape
from tests.support.zookeeper import free_port

_WRITTEN: Final = [b"number %d" % number for number in range(10)]
_NOWHERE: Final = 777_777
_GONE: Final = "gone:3181"


@dataclass(frozen=True)
class Site:
    java: str
    ours: str
    closed: Ledger
    hashed: Ledger  # Has a password and a MAC digest.
    opened: Ledger
    client: Client

    def both(self, method: str, path: str, body: Any = None) -> tuple["Answer", "Answer"]:
        path = path.format(
            closed=self.closed.ledger_id, hashed=self.hashed.ledger_id, opened=self.opened.ledger_id
        )
        return ask(method, f"{self.java}/{path}", body), ask(method, f"{self.ours}/{path}", body)


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any  # Parsed JSON, or text.


def ask(method: str, url: str, body: Any = None) -> Answer:
    data = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"content-type": "application/json"}
    try:
        with urlopen(Request(url, data, headers, method=method), timeout=PATIENCE_S) as answer:
            return Answer(answer.status, _read(answer.read().decode()))
    except HTTPError as error:
        return Answer(error.code, _read(error.read().decode()))


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.fixture(scope="module")
def site(mixed: Cluster) -> Iterator[Site]:
    port = free_port()
    mixed.start_recovery("recovery-1", "--http", f"127.0.0.1:{port}")
    mixed.wait_until(lambda: mixed.auditors() == ["recovery-1"], "our recovery server leads")
    client = mixed.puppet().connect(mixed.metadata, Protocol.V3)
    closed = client.create(Shape(3, 3, 2), password="")
    closed.append(_WRITTEN)
    closed.close()
    hashed = client.create(Shape(2, 2, 2), Digest.MAC, password="hidden")
    hashed.close()
    opened = client.create(Shape(3, 2, 2), password="")
    opened.append(_WRITTEN)
    api = "http://127.0.0.1:{}/api/v1".format
    yield Site(api(mixed.http_port), api(port), closed, hashed, opened, client)
    mixed.end_recovery()
    for ledger in (closed, hashed, opened):
        client.delete(ledger.ledger_id)


SAME: Final = (
    "bookie/list_bookies",
    "bookie/list_bookies?type=rw&print_hostnames=true",
    "bookie/list_bookies?type=ro",
    "bookie/cluster_info",
    "ledger/list",
    "ledger/list?print_metadata=true&page=2",
    "ledger/metadata?ledger_id={closed}",
    "ledger/metadata?ledger_id={opened}",
    "ledger/read?ledger_id={closed}",
    "ledger/read?ledger_id={closed}&start_entry_id=3&end_entry_id=5",
    "ledger/read?ledger_id={closed}&start_entry_id=3&end_entry_id=50",
    "ledger/read?ledger_id={closed}&start_entry_id=30",
    "ledger/read?ledger_id={closed}&page=1",
    "ledger/read?ledger_id={closed}&page=2",
    "ledger/read?ledger_id={opened}",
    "autorecovery/status",
    "autorecovery/who_is_auditor",
    "autorecovery/lost_bookie_recovery_delay",
)


@pytest.mark.parametrize("path", SAME)
def test_java_and_our_server_answer_a_get_alike(site: Site, path: str) -> None:
    javas, ours = site.both("GET", path)
    assert javas.status == 200
    assert ours == javas


def test_java_and_our_server_report_disk_space_alike(site: Site) -> None:
    """Free space is not compared: it may change between the two requests."""
    javas, ours = site.both("GET", "bookie/list_bookie_info")

    def without_free(answer: Answer) -> dict[str, str]:
        free = re.compile(r"Free: \d+\([\d.]+[KMGT]B\)")
        return {name: free.sub("Free: some", text) for name, text in answer.body.items()}

    assert without_free(ours) == without_free(javas)


def test_java_and_our_server_change_settings_alike(site: Site) -> None:
    for change in ("enabled=false", "enabled=true"):
        javas, ours = site.both("PUT", f"autorecovery/status?{change}")
        assert (ours, javas.status) == (javas, 200)
        assert len({str(each) for each in site.both("GET", "bookie/cluster_info")}) == 1
    delay = {"delay_seconds": 1}
    javas, ours = site.both("PUT", "autorecovery/lost_bookie_recovery_delay", delay)
    assert (ours, javas.status) == (javas, 200)
    javas, ours = site.both("PUT", "autorecovery/trigger_audit")
    assert (ours, javas.status) == (javas, 200)


def test_java_and_our_server_delete_a_ledger_alike(site: Site) -> None:
    answers = []
    for server in (site.java, site.ours):
        ledger = site.client.create(Shape(2, 2, 2))
        ledger.close()
        answer = ask("DELETE", f"{server}/ledger/delete?ledger_id={ledger.ledger_id}")
        assert ledger.ledger_id not in site.client.ledgers()
        answers.append((answer.status, answer.body.replace(str(ledger.ledger_id), "N")))
    assert answers[0] == answers[1] == (200, "Deleted ledger: N")


def test_only_java_shows_the_ledger_password(site: Site) -> None:
    javas, ours = site.both("GET", "ledger/metadata?ledger_id={hashed}")
    (theirs,), (own,) = javas.body.values(), ours.body.values()
    assert theirs.pop("password") != "", "Java shows the password"
    assert own.pop("password") == ""
    assert own == theirs


_NO_SENSE: Final = "an invalid request is 400 on all routes"
_METHOD: Final = "another method is 405 on all routes"
_NOTHING: Final = "a missing ledger is 404 on all routes"
_BODY: Final = {"bookie_src": [_GONE], "delete_cookie": False}
DIFFERENCES: Final[tuple[tuple[str, str, Any, int, int, str], ...]] = (
    ("GET", "bookie/list_bookies?type=xx", None, 200, 400, _NO_SENSE),
    ("GET", "ledger/metadata", None, 404, 400, _NO_SENSE),
    ("GET", "ledger/metadata?ledger_id=abc", None, 500, 400, _NO_SENSE),
    ("GET", f"ledger/metadata?ledger_id={_NOWHERE}", None, 500, 404, _NOTHING),
    ("GET", "ledger/read", None, 404, 400, _NO_SENSE),
    ("GET", f"ledger/read?ledger_id={_NOWHERE}", None, 500, 404, _NOTHING),
    ("DELETE", "ledger/delete", None, 404, 400, _NO_SENSE),
    ("DELETE", f"ledger/delete?ledger_id={_NOWHERE}", None, 200, 404, _NOTHING),
    ("GET", "ledger/delete?ledger_id={closed}", None, 404, 405, _METHOD),
    ("POST", "ledger/list", None, 404, 405, _METHOD),
    ("GET", "autorecovery/trigger_audit", None, 404, 405, _METHOD),
    ("GET", "autorecovery/list_under_replicated_ledger", None, 404, 200, "an empty list is 200"),
    ("PUT", "autorecovery/lost_bookie_recovery_delay", None, 404, 400, _NO_SENSE),
    ("PUT", "autorecovery/lost_bookie_recovery_delay", {}, 404, 400, _NO_SENSE),
    ("PUT", "autorecovery/bookie", {}, 500, 400, _NO_SENSE),
    ("PUT", "autorecovery/bookie", _BODY, 200, 400, "an unknown bookie is 400"),
    (
        "PUT",
        "autorecovery/decommission",
        {"bookie_src": _GONE},
        200,
        400,
        "an unknown bookie is 400",
    ),
)


@pytest.mark.parametrize(("method", "path", "body", "javas", "ours", "reason"), DIFFERENCES)
def test_intended_differences_in_status_codes(
    site: Site, method: str, path: str, body: Any, javas: int, ours: int, reason: str
) -> None:
    found = site.both(method, path, body)
    assert tuple(each.status for each in found) == (javas, ours), reason
    if ours >= 400:
        assert found[1].body["outcome"] == "not_applied"


def test_listed_ledger_metadata_is_json_unlike_javas(site: Site) -> None:
    javas, ours = site.both("GET", "ledger/list?print_metadata=true&page=1")
    assert ours.body.keys() == javas.body.keys()
    closed = str(site.closed.ledger_id)
    assert javas.body[closed].startswith("BookieMetadataFormatVersion\t3")
    assert json.loads(ours.body[closed])["quorum"] == "3/3/2"
