"""Log administration over HTTP: configuration, verbs, writer epochs, cursors, the cluster, OpenAPI."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from rollbook import __version__
from rollbook.api.rest.log_app import make_app
from rollbook.api.rest.message_json import from_json, to_json
from rollbook.api.rest.message_schema import example_of, schema_of
from rollbook.api.rest.metrics_and_settings import MetricsPage
from rollbook.api.rpc_methods import METHODS, CallKind
from rollbook.logservice import messages
from rollbook.logservice.ids import CursorName, LogName, Offset
from rollbook.logservice.log_config import LogConfig, WriterMode
from rollbook.logservice.position_syntax import AtCursor
from rollbook.proto.errors import BadConfig, InvalidRequest, LogDeleted, MetadataUnavailable
from rollbook.proto.runtime.prometheus_text import Metrics
from tests.unit.api.grpc.samples import sample
from tests.unit.api.rest.http_client import Answer
from tests.unit.api.rest.log_routes import EPOCH, JSON, LOG, NDJSON, Site

NAME = LogName("ns", "log")


async def said(there: Site, method: str, path: str, body: Any, **headers: str) -> Answer:
    return await there.ask(method, path, json.dumps(body).encode(), **JSON, **headers)


# --- Configuration ----------------------------------------------------------------------------


async def test_log_is_created_once_and_other_config_refused(there: Site) -> None:
    path = "/v1/namespaces/ns/logs/new"
    answer = await said(there, "PUT", path, {"retention_age_s": 60, "writer_mode": "exclusive"})
    assert (answer.status, answer.headers["location"]) == (201, path)
    config = there.core.cluster.logs[LogName("ns", "new")].config
    assert (config.retention_age_s, config.writer_mode) == (60, WriterMode.EXCLUSIVE)
    again = await said(there, "PUT", path, {"retention_age_s": 60})
    assert (again.status, again.json["was_created"]) == (200, False)
    assert again.headers["etag"] == answer.headers["etag"]
    assert (await there.ask("PUT", path)).status == 200
    other = await said(there, "PUT", path, {"retention_age_s": 61})
    assert (other.status, other.reason) == (409, "LOG_EXISTS")
    assert "retention_age_s" in other.json["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"7",
        b'"x"',
        b'{"retention":1}',
        b'{"roll_bytes":"1"}',
        b'{"roll_bytes":1}',
        b'{"roll_bytes":null}',
        b'{"writer_mode":"OPEN"}',
        b'{"labels":["a"]}',
        b"\xff",
        b'{"labels":{"a":1}}',
        b'{"quorum":{"ensemble":3}}',
        b'{"quorum":3}',
        b'{"roll_age_s":1.5}',
        b'{"roll_bytes":true}',
        b'{"roll_bytes":1e30}',
        b'{"roll_bytes":%d}' % 10**30,
    ],
)
async def test_invalid_configuration_is_rejected(there: Site, body: bytes) -> None:
    for method in ("PUT", "PATCH"):
        answer = await there.ask(method, LOG, body, **JSON)
        assert answer.status == 400
        assert answer.reason in ("INVALID", "BAD_CONFIG")
    assert there.core.cluster.logs[NAME].config == LogConfig()
    assert not there.core.asked


async def test_invalid_quorum_is_rejected(there: Site) -> None:
    for quorum in ({"ensemble": 1, "write": 2, "ack": 2}, {"ensemble": 0, "write": 0, "ack": 0}):
        answer = await said(there, "PATCH", LOG, {"quorum": quorum})
        assert answer.status == 400, answer.body


async def test_update_with_a_stale_etag_conflicts(there: Site) -> None:
    etag = (await there.get(LOG)).headers["etag"]
    answer = await said(there, "PATCH", LOG, {"description": "x"}, **{"if-match": etag})
    assert (answer.status, answer.json["config"]["description"]) == (200, "x")
    assert answer.headers["etag"] != etag
    late = await said(there, "PATCH", LOG, {"description": "y"}, **{"if-match": etag})
    assert (late.status, late.reason) == (409, "CONFLICT")
    answer = await said(there, "PATCH", LOG, {"retention_age_s": None}, **{"if-match": "*"})
    assert answer.json["config"]["retention_age_s"] is None
    assert (await there.ask("PATCH", LOG, b"{}")).status == 400  # The content type is missing.


async def test_limit_is_checked_against_the_other_limits_of_the_log(there: Site) -> None:
    """It is not checked against the defaults of limits that the request leaves out."""
    for name, value, status in (
        ("record_bytes_max", 1000, 200),
        ("batch_bytes_max", 2000, 200),
        ("record_bytes_max", 2001, 400),
        ("record_bytes_max", 2000, 200),
    ):
        answer = await said(there, "PATCH", LOG, {name: value}, **{"if-match": "*"})
        assert answer.status == status, answer.body
    config = there.core.cluster.logs[NAME].config
    assert (config.record_bytes_max, config.batch_bytes_max) == (2000, 2000)


async def test_logs_are_listed_in_pages(there: Site) -> None:
    for number in range(5):
        there.core.cluster.make(f"ns/a{number}")
    there.core.cluster.make("other/a9")
    found, token = [], ""
    while True:
        path = f"/v1/namespaces/ns/logs?prefix=a&limit=2&page_token={token}"
        answer = await there.get(path)
        found += answer.json["logs"]
        if not (token := answer.json["next_page"]):
            break
    assert found == [f"ns/a{number}" for number in range(5)]
    assert len((await there.get("/v1/logs")).json["logs"]) == 7


async def test_full_listing_reads_states_ten_at_a_time(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row equals the GET of its log, and a page has at most 100 logs."""
    for number in range(150):
        there.core.cluster.make(f"many/log-{number:03}")
    under_way, most, found_before = 0, 0, there.core.get_log

    async def counted(request: messages.GetLog, due: float) -> messages.LogState:
        nonlocal under_way, most
        under_way, most = under_way + 1, max(most, under_way + 1)
        await asyncio.sleep(0)
        under_way -= 1
        if request.log.name == "log-007":
            raise LogDeleted  # It was deleted after it was listed.
        return await found_before(request, due)

    monkeypatch.setattr(there.core, "get_log", counted)
    page = (await there.get("/v1/namespaces/many/logs?view=full&limit=10000")).json
    assert len(page["logs"]) == 99
    assert page["logs"][3] == (await there.get("/v1/namespaces/many/logs/log-003")).json
    assert most == 10
    more = f"/v1/namespaces/many/logs?view=full&page_token={page['next_page']}"
    rest = (await there.get(more)).json
    assert ([each["log"] for each in rest["logs"]][::49], rest["next_page"]) == (
        ["many/log-100", "many/log-149"],
        "",
    )
    assert (await there.get("/v1/logs?view=all")).reason == "INVALID"


async def test_unreadable_log_is_listed_with_its_error(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: logs after a log whose bookies were down were never listed."""
    for number in range(4):
        there.core.cluster.make(f"many/log-{number}")
    errors = {"log-1": MetadataUnavailable("no store"), "log-3": ValueError("a flaw")}
    found_before = there.core.get_log

    async def failing(request: messages.GetLog, due: float) -> messages.LogState:
        if (error := errors.get(request.log.name)) is not None:
            raise error
        return await found_before(request, due)

    monkeypatch.setattr(there.core, "get_log", failing)
    path = "/v1/namespaces/many/logs?view=full"
    page = (await there.get(f"{path}&limit=3")).json
    assert [each["log"] for each in page["logs"]] == [f"many/log-{number}" for number in range(3)]
    found = [each.get("error", {}).get("reason") for each in page["logs"]]
    assert found == [None, MetadataUnavailable.code.reason, None]
    assert page["logs"][1]["error"]["detail"] == "no store"
    assert page["next_page"] == "many/log-2"
    with pytest.raises(ValueError, match="flaw"):  # An internal error is not reported as the log's.
        await there.get(f"{path}&page_token=many/log-2")


async def test_full_listing_ends_its_page_at_the_deadline(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each batch of ten logs had the whole deadline. The next page continues after it."""
    for number in range(25):
        there.core.cluster.make(f"many/log-{number:02}")
    dues: list[float] = []
    found_before = there.core.get_log

    async def stalled(request: messages.GetLog, due: float) -> messages.LogState:
        dues.append(due)
        if request.log.name == "log-05":
            await asyncio.Event().wait()
        return await found_before(request, due)

    monkeypatch.setattr(there.core, "get_log", stalled)
    path = "/v1/namespaces/many/logs?view=full"
    page = (await there.get(path, **{"log-timeout-ms": "200"})).json
    assert (len(page["logs"]), page["next_page"]) == (10, "many/log-09")
    late = page["logs"][5]
    assert (late["log"], late["error"]["reason"]) == ("many/log-05", "DEADLINE")
    dues.clear()
    rest = (await there.get(f"{path}&page_token={page['next_page']}")).json
    assert (len(rest["logs"]), rest["next_page"]) == (15, "")
    assert (len(dues), len(set(dues))) == (15, 1)


async def test_head_of_a_log_returns_its_state_in_headers(there: Site) -> None:
    answer = await there.ask("HEAD", LOG)
    names = ("head", "tail", "sealed", "epoch", "owner")
    told = {name: answer.headers[f"log-{name}"] for name in names}
    assert told == {
        "head": "0",
        "tail": "0",
        "sealed": "false",
        "epoch": "1",
        "owner": "127.0.0.1:7400",
    }


# --- Verbs, epochs, cursors -------------------------------------------------------------------


async def test_truncate_moves_the_head_unless_a_cursor_guards(there: Site) -> None:
    await there.ask("POST", f"{LOG}/records", b'{"data":"x"}\n' * 10, **NDJSON)
    await said(there, "PUT", f"{LOG}/cursors/c", {"offset": 4})
    plan = await said(there, "POST", f"{LOG}:truncate", {"before": "cursor:c", "dry_run": True})
    assert plan.json["new_head"] == 4
    assert there.core.asked[-1] == messages.Truncate(NAME, AtCursor(CursorName("c")), dry_run=True)
    assert (await said(there, "POST", f"{LOG}:truncate", {"before": 4})).json["new_head"] == 4
    await said(there, "PUT", f"{LOG}/cursors/c", {"offset": 5, "is_protected": True})
    answer = await said(there, "POST", f"{LOG}:truncate", {"before": 6})
    assert (answer.status, answer.reason, answer.json["ids"]) == (409, "GUARDED", {"guards": ["c"]})
    for body in ({}, {"before": None}, {"before": 1.5}, {"before": "x"}, {"before": 1, "x": 2}):
        assert (await said(there, "POST", f"{LOG}:truncate", body)).reason == "INVALID"


async def test_writer_epoch_is_acquired_renewed_and_released(there: Site) -> None:
    grant = await said(there, "POST", f"{LOG}/writer", {"holder": "me", "mode": "fail"})
    assert (grant.status, grant.json["writer_epoch"], grant.json["holder"]) == (201, 1, "me")
    held = await said(there, "POST", f"{LOG}/writer", {"holder": "another"})
    assert (held.status, held.reason) == (409, "WRITER_HELD")
    assert (await there.ask("PUT", f"{LOG}/writer", b"", **EPOCH)).status == 200
    stale = await there.ask("PUT", f"{LOG}/writer", b"", **{"log-writer-epoch": "0"})
    assert (stale.status, stale.reason) == (412, "WRITER_FENCED")
    assert (await there.ask("DELETE", f"{LOG}/writer", b"", **EPOCH)).status == 204
    assert (await there.ask("PUT", f"{LOG}/writer")).reason == "INVALID"
    for body in ({}, {"holder": ""}, {"holder": "me", "ttl_ms": -1}, {"holder": "x" * 256}):
        assert (await said(there, "POST", f"{LOG}/writer", body)).reason == "INVALID"


async def test_cursor_is_committed_listed_and_deleted(there: Site) -> None:
    path = f"{LOG}/cursors/c"
    assert (await there.get(path)).reason == "CURSOR_NOT_FOUND"
    new = {"if-none-match": "*"}
    first = await said(there, "PUT", path, {"offset": 3, "blob_b64": "AP8="}, **new)
    assert (first.status, first.json["blob_b64"]) == (200, "AP8=")
    assert (await said(there, "PUT", path, {"offset": 3}, **new)).reason == "CONFLICT"
    seen = {"if-match": first.headers["etag"]}
    moved = await said(there, "PUT", path, {"offset": 4}, **seen)
    assert (moved.json["offset"], moved.json["blob_b64"]) == (4, "AP8=")
    assert (await said(there, "PUT", path, {"offset": 5}, **seen)).reason == "CONFLICT"
    assert [each["name"] for each in (await there.get(f"{LOG}/cursors")).json["cursors"]] == ["c"]
    assert (await there.ask("DELETE", path)).status == 204
    assert there.core.asked[-1] == messages.DeleteCursor(NAME, CursorName("c"))
    for bad in ({"if-match": "x"}, {"if-none-match": "y"}, {"if-match": '"1"', **new}):
        assert (await said(there, "PUT", path, {"offset": 1}, **bad)).reason == "INVALID"
    for body in ({}, {"offset": "1"}, {"offset": 1, "blob_b64": "?"}, {"offset": 1, "name": "d"}):
        assert (await said(there, "PUT", path, body)).reason == "INVALID"


async def test_servers_owners_and_limits_are_served(there: Site) -> None:
    (server,) = (await there.get("/v1/servers")).json["servers"]
    assert (server["server_id"], server["state"], server["url"]) == ("a", "serving", "")
    answer = await there.ask("POST", "/v1/servers/127.0.0.1:7400:drain")
    assert (answer.status, answer.json) == (202, {"logs_left": 1})
    assert there.core.asked[-1] == messages.DrainServer("127.0.0.1:7400")
    await there.ask("POST", "/v1/servers/a~1:resume")
    assert there.core.asked[-1] == messages.DrainServer("a~1", resume=True)
    assert len((await there.get("/v1/owners?log=ns/log&log=ns/none")).json["owners"]) == 1
    assert (await there.get("/v1/owners")).reason == "INVALID"
    assert (await there.get("/v1/owners?log=../x")).reason == "INVALID"
    assert (await there.get("/v1/limits")).json["cursor_blob_bytes_max"] == 4096


@pytest.mark.parametrize("name", [".", "..", "-a", "A", "a b", "ä", "a" * 256, "a,b", "~", "%"])
async def test_invalid_names_are_rejected_on_every_path(there: Site, name: str) -> None:
    for path in (f"/v1/namespaces/{name}/logs/log", f"/v1/namespaces/ns/logs/{name}"):
        answer = await there.get(path)
        assert (answer.status, answer.reason) == (400, "INVALID"), path
    assert (await there.get(f"{LOG}/cursors/{name}")).reason == "INVALID"
    assert (await there.get(f"/v1/namespaces/{name}/logs")).reason == "INVALID"
    assert not there.core.asked


async def test_request_time_out_is_504_with_its_outcome(there: Site) -> None:
    there.core.holds.add("get_log")
    answer = await there.get(LOG, **{"log-timeout-ms": "1"})
    assert (answer.status, answer.reason, answer.json["outcome"]) == (
        504,
        "DEADLINE",
        "not_applied",
    )
    there.core.holds = {"roll_log"}
    answer = await there.ask("POST", f"{LOG}:roll", b"", **{"log-timeout-ms": "1"})
    assert (answer.status, answer.json["outcome"]) == (504, "unknown")
    there.core.holds = set()
    for bad in ("0", "x", "600001"):
        assert (await there.get(LOG, **{"log-timeout-ms": bad})).reason == "INVALID"
    assert (await there.get(LOG, **{"log-forward": "maybe"})).reason == "INVALID"


async def test_unknown_path_is_404_and_wrong_method_405(there: Site) -> None:
    for method, path, status in (
        ("GET", "/v1/", 404),
        ("GET", "/v2/logs", 404),
        ("GET", f"{LOG}/", 404),
        ("GET", f"{LOG}/nope", 404),
        ("POST", f"{LOG}:explode", 404),
        ("PUT", f"{LOG}:explode", 404),
        ("POST", LOG, 405),
        ("TRACE", LOG, 405),
        ("GET", f"{LOG}:roll", 405),
        ("PUT", f"{LOG}:roll", 405),
    ):
        answer = await there.ask(method, path)
        assert answer.status == status, (method, path)
        assert answer.headers["content-type"] == "application/problem+json"
        assert ("a colon starts a verb" in answer.json.get("next_step", "")) == ("explode" in path)
    assert not there.core.asked


async def test_response_405_lists_all_allowed_methods(there: Site) -> None:
    """The framework has several routes for one path and would list only the first one's."""
    for path, by_method in there.app.openapi()["paths"].items():
        real = re.sub(r"\{\w+\}", "0", path)
        answer = await there.ask("OPTIONS", real)
        assert answer.status == 405
        told = set(answer.headers["allow"].split(", "))
        if "HEAD" in told and "GET" in told:  # GET implies HEAD, which is not always documented.
            told -= {"HEAD"} - {method.upper() for method in by_method}
        assert told == {method.upper() for method in by_method}, path


# --- Messages and OpenAPI ---------------------------------------------------------------------


def every_message_class() -> Iterator[Any]:
    seen = set()
    for method in METHODS:
        if method.kind is not CallKind.APPEND_STREAM:
            for kind in (method.request, method.answer):
                if isinstance(kind, type) and kind not in seen:
                    seen.add(kind)
                    yield kind


@pytest.mark.parametrize("kind", list(every_message_class()), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_full", [True, False])
def test_every_message_round_trips_as_json(kind: Any, is_full: bool) -> None:
    said = sample(kind, is_full=is_full)
    if kind in (messages.LogJournal, messages.ServerStats):  # They have types that no request has.
        json.dumps(to_json(said))
        return
    assert from_json(json.loads(json.dumps(to_json(said))), kind) == said


@pytest.mark.parametrize("kind", list(every_message_class()), ids=lambda kind: kind.__name__)
def test_every_example_matches_its_schema(kind: Any) -> None:
    schema, example = schema_of(kind), example_of(kind)
    assert set(schema["required"]) == set(schema["properties"]) == set(example)
    assert set(to_json(sample(kind))) == set(example)


def test_invalid_field_is_rejected_by_name() -> None:
    good = {"offset": 1}
    given = {"log": NAME, "name": CursorName("c"), "expected_version": None}
    commit = messages.CommitCursor(NAME, CursorName("c"), Offset(1))
    assert from_json(good, messages.CommitCursor, **given) == commit
    for bad, text in (
        ({}, "offset is missing"),
        ({"offset": "1"}, "offset: expected an integer, not a string"),
        ({"offset": 2**63}, "offset: a number must be from -"),
        ({"offset": 1, "log": "a"}, "unknown field 'log'; expected: "),
        ({"offset": 1, "may_rewind": 1}, "may_rewind: expected true or false, not an integer"),
        ([], "not an array"),
    ):
        with pytest.raises(InvalidRequest, match=text.replace("[", r"\[")):
            from_json(bad, messages.CommitCursor, **given)
    with pytest.raises(BadConfig):
        from_json({"roll_entries": 1}, LogConfig)


async def test_openapi_describes_every_operation(there: Site) -> None:
    document = (await there.get("/openapi.json")).json
    assert len(document["paths"]) > 20
    names = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            names.append(operation["operationId"])
            assert operation["description" if path.startswith("/v1") else "responses"]
            assert operation["responses"]["default"]["content"]["application/problem+json"]
            good = [code for code in operation["responses"] if code.startswith("2")]
            assert good, (method, path)
            for content in operation.get("requestBody", {}).get("content", {}).values():
                assert "schema" in content
    assert len(names) == len(set(names))
    append = document["paths"]["/v1/namespaces/{namespace}/logs/{log}/records"]["post"]
    headers = {each["name"].lower() for each in append["parameters"] if each["in"] == "header"}
    assert headers == {
        "log-timeout-ms",
        "log-forward",
        "log-uid",
        "log-expected-offset",
        "log-writer-epoch",
        "if-match",
        "if-none-match",
        "producer-id",
        "producer-epoch",
        "producer-seq",
        "idempotency-key",
        "log-key",
        "log-event-time-us",
        "log-meta-*",
    }
    assert {"200", "201", "307", "400", "409", "412", "413", "428", "503"} <= set(
        append["responses"]
    )
    assert "OFFSET_MISMATCH" in append["responses"]["412"]["description"]
    acquire = document["paths"]["/v1/namespaces/{namespace}/logs/{log}/writer"]["post"]
    assert "WRITER_FENCED" in acquire["responses"]["412"]["description"]
    assert append["requestBody"]["content"]["application/x-ndjson"]["example"]


def test_operations_with_parameters_document_400(there: Site) -> None:
    def look() -> None:
        """Refreshes nothing."""

    app = make_app(there.routing, lambda: True, MetricsPage(Metrics(), look))
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            if operation.get("parameters"):
                assert "400" in operation["responses"], (method, path)


async def test_interface_root_links_to_existing_pages(there: Site) -> None:
    answer = await there.get("/v1")
    assert answer.status == 200
    assert (answer.json["name"], answer.json["version"]) == ("rollbook", __version__)
    for path in answer.json["links"].values():
        assert (await there.get(path)).status == 200, path


async def test_browsers_get_a_page_at_the_root_and_programs_json(there: Site) -> None:
    page = await there.get("/", accept="text/html,application/xhtml+xml,*/*;q=0.8")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    text = page.body.decode()
    assert f"<h1>Rollbook {__version__}</h1>" in text
    paths = re.findall('href="(.+?)"', text)
    assert {"/openapi.json", "/v1", "/v1/logs"} <= set(paths)
    for path in paths:
        assert (await there.get(path)).status == 200, path
    for accept in ("*/*", "text/html;q=0.1, application/json", "image/png", "text/html;q=much"):
        answer = await there.get("/", accept=accept)  # curl sends the first one.
        assert answer.json == (await there.get("/v1")).json
    assert page.headers["vary"] == answer.headers["vary"] == "Accept"
    assert (await there.ask("HEAD", "/")).status == 200


async def test_a_server_with_tokens_does_not_say_its_version_at_the_root(there: Site) -> None:
    there.app = make_app(there.routing, lambda: True, asks_for_tokens=True)
    assert "version" not in (await there.get("/")).json
    assert __version__ not in (await there.get("/", accept="text/html")).body.decode()


async def test_browser_is_redirected_to_a_known_dashboard(there: Site) -> None:
    urls = ["", "http://127.0.0.1:7500", "http://127.0.0.1:7500"]
    there.app = make_app(there.routing, lambda: True, dashboard=lambda: urls.pop(0))
    assert (await there.get("/", accept="text/html")).status == 200
    led = await there.get("/", accept="text/html")
    assert (led.status, led.headers["location"]) == (303, "http://127.0.0.1:7500")
    answer = await there.get("/", accept="application/json")
    assert (answer.status, answer.json["links"]["dashboard"]) == (200, "http://127.0.0.1:7500")
