"""Every route returns each error that the service raises as the matching problem."""

import base64
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from rollbook.api.rpc_methods import METHODS, CallKind
from rollbook.logservice.core.record_block import Block, pack_block
from rollbook.logservice.ids import LogName
from rollbook.proto import errors
from rollbook.proto.errors import NotOwner, RollbookError, every_error
from tests.unit.api.rest.http_client import Answer
from tests.unit.api.rest.log_routes import LINES, LOG, ROUTES, SSE, Route, Site, operations_of, site

OURS = [error for error in every_error() if error.__module__ == errors.__name__]
IDS = {"head": 5, "log": "ns/log", "is_last": True, "uid": b"\x00\xff", "marks": ("a", "b")}
IDS_AS_JSON = {"head": 5, "log": "ns/log", "is_last": True, "uid": "00ff", "marks": ["a", "b"]}


@pytest.fixture(scope="module")
def there() -> Site:
    """Shared by the module, since it is slow to make."""
    return site()


def raised(error: type[RollbookError]) -> RollbookError:
    return error("what happened", next_step="do something", retry_after_ms=1500, **IDS)


def assert_problem(problem: Any, said: RollbookError) -> None:
    assert problem["reason"] == said.code.reason
    assert problem["type"] == f"urn:rollbook:problem:{said.code.reason}"
    assert (problem["outcome"], problem["retryable"]) == (said.outcome.value, said.retryable)
    assert (problem["detail"], problem["next_step"]) == ("what happened", "do something")
    assert problem["retry_after_ms"] == 1500
    assert problem["ids"] == {**IDS_AS_JSON, "retry_after_ms": 1500}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
async def test_every_route_returns_every_error_as_a_problem(route: Route, there: Site) -> None:
    for kind in OURS:
        said = raised(kind)
        there.core.failures[route.core_name].append(said)
        answer = await there.ask(route.method, route.path, route.body, **route.headers)
        assert not there.core.failures[route.core_name], "the route did not call the core"
        # The owner is unknown, so the client is not redirected.
        assert answer.status == (503 if kind is NotOwner else kind.code.http)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["retry-after"] in ("2", "1")
        assert_problem(answer.json, said)


def test_route_table_covers_every_method_and_operation(there: Site) -> None:
    reached = {route.core_name for route in ROUTES}
    assert reached == {
        each.core_name for each in METHODS if each.kind is not CallKind.APPEND_STREAM
    }
    served = operations_of(there.app)
    assert len(served) > 30
    for operation in served:
        assert any(map(operation.serves, ROUTES)), operation.id


async def test_error_during_a_stream_is_its_last_event(there: Site) -> None:
    there.core.cluster.logs[LogName("ns", "log")].append(pack_block([b"x"] * 3), None)
    for headers in (SSE, LINES):
        for kind in OURS:
            said = raised(kind)
            # The stream fails after its first event.
            there.core.failures["read_stream_later"].clear()
            there.core.events = None
            async with there.open("GET", f"{LOG}/records?from=0", b"", **headers) as stream:
                parts = stream.parts()
                while b"caught_up" not in await anext(parts):
                    pass
                there.core.failures["read_stream_later"].append(said)
                there.core.cluster.logs[LogName("ns", "log")].tell()
                there.core.cluster.logs[LogName("ns", "log")].append(pack_block([b"y"]), None)
                rest = b"".join([part async for part in parts])
            if headers is SSE:
                assert rest.startswith(b"event: error\ndata: ")
                problem = json.loads(rest.partition(b"data: ")[2])
            else:
                problem = json.loads(rest)
                assert problem["event"] == "error"
            assert_problem(problem, said)


async def test_unexpected_stream_error_is_logged_and_its_text_hidden(there: Site) -> None:
    """The log entry has the path of the request."""
    log = there.core.cluster.logs[LogName("ns", "log")]
    log.append(pack_block([b"x"]), None)
    with capture_logs() as logged:
        async with there.open("GET", f"{LOG}/records?from=0", b"", **LINES) as stream:
            parts = stream.parts()
            while b"caught_up" not in await anext(parts):
                pass
            there.core.failures["read_stream_later"].append(ZeroDivisionError("secret"))
            log.append(pack_block([b"y"]), None)
            rest = b"".join([part async for part in parts])
    assert json.loads(rest)["event"] == "error"
    assert b"secret" not in rest
    (failed,) = logged
    assert (failed["event"], failed["path"]) == ("http_request_failed", f"{LOG}/records")


async def test_not_owner_redirects_to_a_known_owner() -> None:
    there = site(lambda address: {"10.0.0.5:7400": "https://log-2:7480"}.get(address, ""))
    for route in ROUTES:
        for owner, status in (("10.0.0.5:7400", 307), ("10.0.0.6:7400", 503), ("", 503)):
            there.core.failures[route.core_name].append(NotOwner(owner=owner, owner_epoch=7))
            answer = await there.ask(route.method, route.path, route.body, **route.headers)
            assert (answer.status, answer.reason) == (status, "NOT_OWNER")
            assert answer.headers["log-owner"] == owner
            assert answer.headers["log-epoch"] == "7"
            if status == 307:
                assert answer.headers["location"] == f"https://log-2:7480{route.path}"
            else:
                assert answer.headers["retry-after"] == "1"


class FakePeers:
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, str]] = []

    async def ask(self, request: Any, address: str, due: float) -> Any:
        self.asked.append((request, address))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def forwarded(there: Site, answer: Any, forward: str | None) -> tuple[Answer, FakePeers]:
    peers = FakePeers(answer)
    there.routing._peers = peers
    there.core.failures["roll_log"].append(NotOwner(owner="10.0.0.5:7400", owner_epoch=7))
    headers = {"log-forward": forward} if forward else {}
    return await there.ask("POST", f"{LOG}:roll", b"", **headers), peers


async def test_server_forwards_to_the_owner_as_log_forward_says() -> None:
    from rollbook.logservice.ids import SegmentId
    from rollbook.logservice.messages import RollLog, RollLogAnswer

    done = RollLogAnswer(SegmentId(3))
    for known in ("", "http://b:7480"):
        there = site(lambda _, known=known: known)  # type: ignore[misc]  # The default argument binds the loop variable.
        answer, asked = await forwarded(there, done, "auto")
        assert (answer.status, answer.json) == (200, {"segment_id": 3})
        assert asked.asked == [(RollLog(LogName("ns", "log")), "10.0.0.5:7400")]
        answer, asked = await forwarded(there, done, "never")
        assert (answer.status, asked.asked) == (307 if known else 503, [])
        answer, asked = await forwarded(there, done, None)  # Forwards only if no URL is known.
        assert (answer.status, len(asked.asked)) == ((307, 0) if known else (200, 1))
    answer, _ = await forwarded(there, NotOwner(owner="c:1", owner_epoch=8), "auto")
    assert (answer.status, answer.headers["log-owner"]) == (307, "c:1")


async def test_unexpected_error_propagates_to_the_server(there: Site) -> None:
    there.core.failures["get_log"].append(ZeroDivisionError("secret"))
    with pytest.raises(ZeroDivisionError):  # Starlette raises it again after its response.
        await there.get(LOG)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
async def test_unknown_query_field_or_header_is_rejected(there: Site, route: Route) -> None:
    """If it were ignored, a misspelt condition would let an append through."""
    mark = "&" if "?" in route.path else "?"
    headers = dict(route.headers)
    wrong = (
        (f"{route.path}{mark}limti=1", headers),
        (route.path, headers | {"log-timeout-mss": "1000"}),
        (route.path, headers | {"producer-sequence": "0"}),
    )
    there.core.asked.clear()
    for path, sent in wrong:
        answer = await there.ask(route.method, path, route.body, **sent)
        assert (answer.status, answer.reason) == (400, "INVALID"), path
    assert not there.core.asked


@pytest.mark.parametrize(
    "route",
    [each for each in ROUTES if each.core_name != "watch_tail"],  # That stream never ends.
    ids=lambda route: route.name,
)
async def test_openapi_names_the_headers_of_each_response(there: Site, route: Route) -> None:
    (operation,) = (each for each in operations_of(there.app) if each.serves(route))
    there.core.failures.clear()
    there.core.cluster.logs.clear()
    there.core.cluster.make("ns/log").append(pack_block([b"x"], keys=[b"k"]), None)
    good = await there.ask(route.method, route.path, route.body, **route.headers)
    there.core.failures[route.core_name].append(errors.Overloaded(retry_after_ms=1500))
    refused = await there.ask(route.method, route.path, route.body, **route.headers)
    responses = operation.described["responses"]
    for answer in (good, refused):
        names = {"etag", "location", "retry-after"} & set(answer.headers)
        names |= {name for name in answer.headers if name.startswith("log-")}
        known = responses.get(str(answer.status), responses["default"]).get("headers", {})
        assert names <= {name.lower() for name in known}, answer.status
        always = {name.lower() for name, said in known.items() if said.get("required")}
        assert always <= set(answer.headers), answer.status


def test_openapi_has_security_and_examples_everywhere(there: Site) -> None:
    document = there.app.openapi()
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert document["paths"]["/healthz"]["get"]["security"] == []
    for operation in operations_of(there.app):
        said = operation.described
        assert {"token": []} in said["security"]
        assert {"401", "403", "429"} <= set(said["responses"])
        for parameter in said.get("parameters", ()):
            assert "example" in parameter, (operation.id, parameter["name"])
            assert "null" not in json.dumps(parameter["schema"]), (operation.id, parameter["name"])
        for status, response in said["responses"].items():
            for kind, content in response.get("content", {}).items():
                if kind == "application/problem+json" and status != "default":
                    assert content["examples"], (operation.id, status)
                    for reason, example in content["examples"].items():
                        assert example["value"]["reason"] == reason
                        assert example["value"]["status"] == int(status)
    append = document["paths"]["/v1/namespaces/{namespace}/logs/{log}/records"]["post"]
    assert set(append["responses"]["422"]["content"]) == {"application/problem+json"}
    block = append["requestBody"]["content"]["application/vnd.rollbook.batch"]["schema"]
    text = block["description"].rpartition(" ")[2]
    assert Block(base64.b64decode(text)).value(0) == b"paid 1"
