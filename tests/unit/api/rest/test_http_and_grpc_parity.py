"""HTTP is a full peer of gRPC: each field of each call can be set through both interfaces.

The tests send requests to every route: plain ones (`log_routes.py`), and those below, which set every parameter.
Each field of each message must then reach the core with at least two values, and each parameter of a request must
change the call to the core. Tables list the exceptions with their reasons; a stale reason fails the test. (The codec
tests check that message classes match the protobuf messages.)
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

import pytest

from rollbook.api import rest
from rollbook.api.rpc_methods import METHODS
from rollbook.logservice.core.record_block import CEILING, Block, check_block
from rollbook.proto.errors import Overloaded
from tests.unit.api.rest.http_client import Answer
from tests.unit.api.rest.log_routes import (
    JSON,
    LOG,
    NDJSON,
    RAW,
    ROUTES,
    SSE,
    Route,
    Site,
    operations_of,
    site,
)

OTHER = "/v1/namespaces/ns2/logs/log2"
_CONFIG: Final = {
    "quorum": {"ensemble": 5, "write": 4, "ack": 3},
    "roll_bytes": 1 << 20,
    "roll_entries": 100,
    "roll_age_s": 10,
    "retention_age_s": 10,
    "retention_bytes": 10,
    "writer_mode": "exclusive",
    "dedupe_batches": 10,
    "dedupe_age_s": 10,
    "record_bytes_max": 10_000,
    "batch_bytes_max": 2 << 20,
    "batch_records_max": 10,
    "tail_cache_bytes": 1 << 20,
    "delete_grace_s": 10,
    "degraded_segments": False,
    "labels": {"team": "shop"},
    "description": "orders",
}
_OTHER_CONFIG: Final = {"retention_age_s": None, "quorum": {"ensemble": 3, "write": 3, "ack": 2}}
_RECORD: Final = {"data": "x", "key": "k", "headers": {"h": "v"}, "event_time_us": 5}
_RECORDS: Final = json.dumps({"records": [_RECORD, {"data": "y"}]}).encode()
_PRODUCER: Final = {"producer-id": "p", "producer-epoch": "1", "producer-seq": "2"}
_TOLD: Final = {
    "log-key": "k",
    "log-event-time-us": "5",
    "log-meta-*": "v",
}  # The star is a valid name.
_CONDITION: Final = {"log-expected-offset": "3", "log-writer-epoch": "4"}


def _said(core_name: str, method: str, path: str, body: Any, **headers: str) -> Route:
    return Route(core_name, method, path, json.dumps(body).encode(), {**JSON, **headers})


_SAID = (
    Route("list_logs", "GET", "/v1/logs?prefix=a&page_token=b/c&limit=3&view=full"),
    Route("list_logs", "GET", "/v1/namespaces/ns2/logs?prefix=a&page_token=b/c&limit=3"),
    _said("ensure_log", "PUT", OTHER, _CONFIG),
    Route("get_log", "GET", OTHER),
    Route("get_tail", "HEAD", OTHER),
    _said("update_log", "PATCH", OTHER, _CONFIG, **{"if-match": '"e"'}),
    _said("update_log", "PATCH", OTHER, _OTHER_CONFIG),
    Route("delete_log", "DELETE", f"{OTHER}?grace_ms=7", headers={"if-match": '"e"'}),
    Route("list_deleted_logs", "GET", "/v1/deleted-logs?namespace=ns2&prefix=a&limit=3"),
    _said("undelete_log", "POST", f"{OTHER}:undelete", {"uid": "7" * 32, "to": "ns2/log3"}),
    Route("append", "POST", f"{OTHER}/records", b"x", {**RAW, **_TOLD, **_PRODUCER, **_CONDITION}),
    Route("append", "POST", f"{OTHER}/records", _RECORDS, {**JSON, "if-none-match": "*"}),
    Route("append", "POST", f"{OTHER}/records", b'{"data":"z"}\n', {**NDJSON, "if-match": '"3"'}),
    Route("append", "POST", f"{OTHER}/records", b"x", {**RAW, "idempotency-key": "once"}),
    Route("seal", "POST", f"{OTHER}:seal", b"x", {**RAW, **_TOLD, **_PRODUCER, **_CONDITION}),
    Route("seal", "POST", f"{OTHER}:seal", _RECORDS, {**JSON, "if-none-match": "*"}),
    Route("seal", "POST", f"{OTHER}:seal", b"x", {**RAW, "if-match": '"3"'}),
    Route("seal", "POST", f"{OTHER}:seal", b"x", {**RAW, "idempotency-key": "once"}),
    Route("read", "GET", f"{OTHER}/records?from=5&limit=6&max_bytes=7&wait_ms=8&on_truncated=skip"),
    Route(
        "read_stream",
        "GET",
        f"{OTHER}/records?from=5&until=9&until_timestamp_us=10&on_truncated=fail&heartbeat_ms=200",
        headers={**SSE, "last-event-id": "6"},
    ),
    Route("read_stream", "GET", f"{LOG}/records?from=7", headers=SSE),
    Route("read_stream", "GET", f"{OTHER}/records?from=7&at_tail=stop", headers=SSE),
    Route("read", "GET", f"{OTHER}/records/8"),
    Route("get_tail", "GET", f"{OTHER}/tail?consistency=cached"),
    Route("watch_tail", "GET", f"{OTHER}/tail?interval_ms=20&heartbeat_ms=200", headers=SSE),
    Route(
        "watch_tails",
        "GET",
        "/v1/tails?log=ns2/log2&prefix=ns2/l&interval_ms=30&heartbeat_ms=200",
    ),
    Route("get_tail", "POST", f"{OTHER}:barrier"),
    Route("find_offset", "GET", f"{OTHER}/offsets?at=5"),
    Route("find_offset", "GET", f"{OTHER}/offsets?timestamp_us=5"),
    _said(
        "truncate",
        "POST",
        f"{OTHER}:truncate",
        {"before": 5, "dry_run": True, "force_roll": True},
    ),
    Route("roll_log", "POST", f"{OTHER}:roll"),
    _said("transfer_log", "POST", f"{OTHER}:transfer", {"to": "b"}),
    _said(
        "acquire_writer",
        "POST",
        f"{OTHER}/writer",
        {"holder": "you", "mode": "steal", "ttl_ms": 5, "attempt": "5c1c9a1e"},
    ),
    Route("renew_writer", "PUT", f"{OTHER}/writer", headers={"log-writer-epoch": "2"}),
    Route("release_writer", "DELETE", f"{OTHER}/writer", headers={"log-writer-epoch": "2"}),
    Route("begin_producer", "POST", f"{OTHER}/producers/q"),
    Route("list_cursors", "GET", f"{OTHER}/cursors?page_token=c&limit=7"),
    Route("get_cursor", "GET", f"{OTHER}/cursors/d"),
    _said(
        "commit_cursor",
        "PUT",
        f"{OTHER}/cursors/d",
        {"offset": 5, "blob_b64": "eA==", "is_protected": True, "may_rewind": True},
        **{"if-match": '"3"'},
    ),
    _said(
        "commit_cursor",
        "PUT",
        f"{OTHER}/cursors/d",
        {"offset": 5},
        **{"if-none-match": "*"},
    ),
    Route("delete_cursor", "DELETE", f"{OTHER}/cursors/d", headers={"if-match": '"3"'}),
    Route("delete_cursor", "DELETE", f"{OTHER}/cursors/d", headers={"if-none-match": "*"}),
    Route("list_segments", "GET", f"{OTHER}/segments?start=1&limit=2"),
    Route("get_journal", "GET", f"{OTHER}/journal?limit=2"),
    Route("lookup", "GET", "/v1/owners?log=ns2/log2"),
    Route("drain_server", "POST", "/v1/servers/b:drain"),
)

UID: Final = "5c1c9a1ef0e34b0c8d1f2a3b4c5d6e7f"
FULL = (
    *_SAID,
    *(
        replace(each, headers={**each.headers, "log-uid": UID})
        for each in _SAID
        if each.path.startswith(OTHER) and each.core_name != "ensure_log"
    ),
    Route("read", "GET", f"{OTHER}/records/8?uid={UID}"),
)

NOT_OVER_HTTP: Final = {
    "AppendStream": "HTTP has connections, and requests that follow each other on one",
    "GetTail.beyond": "only servers wait for each other's logs; clients watch the tail",
    "GetTail.wait_ms": "used together with `beyond`",
    "ReadStream.at_tail": "the server reads the log's end once and makes it the end of the range",
}
ONLY_OVER_HTTP: Final = {
    "log-timeout-ms": "gRPC has deadlines of its own",
    "log-forward": "clients of gRPC find owners by themselves",
    "view": "gRPC asks GetLog of each, on one connection",
    "encoding": "the encoding of values in JSON: gRPC has bytes",
    "watch_tails.accept": "a list or a stream, and its format: clients of gRPC cancel a stream",
    "get_tail.last-event-id": "browsers reconnect to a stream that has ended; clients of gRPC do not",
    "read_record.if-none-match": "caches send it; gRPC has no caches",
}


LEFT_OUT: Final = {  # Keys are the names on the design page.
    ":fork": ("POST", f"{LOG}:fork"),
    ":verify": ("POST", f"{LOG}:verify"),
    "L/stats": ("GET", f"{LOG}/stats"),
    "/v1/cluster": ("GET", "/v1/cluster"),
    "/v1/ownership": ("GET", "/v1/ownership"),
}


class Asked(NamedTuple):
    operation: str
    request: Route
    messages: tuple[Any, ...]


@pytest.fixture(scope="module")
def there() -> Site:
    return site()


@pytest.fixture
async def asked(there: Site) -> list[Asked]:
    return [
        Asked(_operation(there, request), request, await _ask(there, request))
        for request in (*ROUTES, *FULL)
    ]


async def _ask(there: Site, request: Route) -> tuple[Any, ...]:
    """Returns the calls to the core, which fails each one so that nothing changes."""
    there.core.asked.clear()
    there.core.failures.clear()
    there.core.cluster.logs.clear()
    name = request.core_name
    if name == "read_stream":  # The start is looked up first, so the logs must exist.
        for log in ("ns/log", "ns2/log2"):
            there.core.cluster.make(log)
    there.core.failures[name].append(Overloaded())
    await there.ask(request.method, request.path, request.body, **request.headers)
    return tuple(there.core.asked)


def _operation(there: Site, request: Route) -> str:
    (found,) = (each.id for each in operations_of(there.app) if each.serves(request))
    return found


def _leaves(message: Any, at: str) -> Iterator[tuple[str, Any]]:
    for each in fields(message):
        value = getattr(message, each.name)
        if each.name == "block" and value is not None:
            yield f"{at}.block", value
            yield f"{at}.block.producer", check_block(value, CEILING).producer
            for record in Block(value).records():
                kept = record._asdict().items()
                yield from ((f"{at}.block.{name}", repr(field)) for name, field in kept)
        elif is_dataclass(value) and not isinstance(value, type) and each.name != "log":
            yield f"{at}.{each.name}", value
            yield from _leaves(value, f"{at}.{each.name}")
        else:
            yield f"{at}.{each.name}", value


async def test_every_method_field_can_be_set_over_http(asked: list[Asked]) -> None:
    seen: dict[str, list[Any]] = defaultdict(list)
    for each in asked:
        for message in each.messages:
            kind = type(message).__name__
            for name, value in ((kind, True), *_leaves(message, kind)):
                if value not in seen[name]:
                    seen[name].append(value)
    lacking = set()
    for method in METHODS:
        if method.name not in seen:
            lacking.add(method.name)
            continue
        for field in fields(method.request):
            if len(seen[f"{method.name}.{field.name}"]) < 2:
                lacking.add(f"{method.name}.{field.name}")
    # Nested fields count, too: conditions, configurations, records.
    for field_name in ("UpdateLog.config", "Append.condition", "Seal.condition", "Append.block"):
        names = [name for name in seen if name.startswith(f"{field_name}.")]
        assert names
        lacking |= {name for name in names if len(seen[name]) < 2 and not _is_servers(name)}
    assert lacking == set(NOT_OVER_HTTP)


async def test_calls_that_no_interface_has_are_documented(there: Site) -> None:
    """The design page lists them with a reason until they are built."""
    page = (Path(rest.__file__).parent / "DESIGN.md").read_text()
    (reasons,) = re.findall(r"(?s)\*\*Left out\*\*.*?\n\n", page)
    assert set(re.findall(r"`([:/L][\w/:]+)` \(", reasons)) == set(LEFT_OUT)
    for method, path in LEFT_OUT.values():
        assert (await there.ask(method, path)).status == 404, path
    names = " ".join(method.name for method in METHODS)
    assert not re.findall("Fork|Verify|Cluster|Ownership", names)


def _is_servers(name: str) -> bool:
    return name.endswith(".block.timestamp_us")  # The server sets this field of a block.


async def test_every_http_parameter_reaches_the_core(there: Site, asked: list[Asked]) -> None:
    reaches: dict[str, set[str]] = defaultdict(set)
    for each in asked:
        if each.request in FULL:
            for name, without in _each_left_out(each.request):
                if await _ask(there, without) != each.messages:
                    reaches[each.operation].add(name)
    lacking = set()
    for operation in operations_of(there.app):
        for name in _sayable(operation.described) - reaches[operation.id]:
            lacking.add(f"{operation.id}.{name}")
    reasons = {
        each: reason
        for each in lacking
        if (reason := ONLY_OVER_HTTP.get(each) or ONLY_OVER_HTTP.get(each.partition(".")[2]))
    }
    assert lacking == set(reasons)
    assert set(reasons.values()) == set(ONLY_OVER_HTTP.values()), "a stale reason"


def _sayable(operation: Mapping[str, Any]) -> set[str]:
    """Returns query fields, headers and body fields; paths are covered by two requests each."""
    names = {each["name"] for each in operation.get("parameters", ()) if each["in"] != "path"}
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    names |= set(body.get("schema", {}).get("properties", {}))
    return names


def _each_left_out(request: Route) -> Iterator[tuple[str, Route]]:
    path, _, query = request.path.partition("?")
    pairs = parse_qsl(query)
    for name, _ in pairs:
        rest = urlencode([each for each in pairs if each[0] != name])
        yield name, replace(request, path=f"{path}?{rest}")
    for name in request.headers:
        rest_of_headers = {key: value for key, value in request.headers.items() if key != name}
        yield name, replace(request, headers=rest_of_headers)
    if request.headers.get("content-type") == JSON["content-type"]:
        body = json.loads(request.body)
        for name in body:
            kept = {key: value for key, value in body.items() if key != name}
            yield name, replace(request, body=json.dumps(kept).encode())


async def test_until_timestamp_is_rejected_outside_a_stream(there: Site) -> None:
    answer: Answer = await there.get(f"{OTHER}/records?until_timestamp_us=5")
    assert (answer.status, answer.reason) == (400, "INVALID")
