"""The admin pages of a bookie: every route, operations, audit and rights."""

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from rollbook.api.access.audit import AuditLog
from rollbook.api.access.authenticator import Authenticator
from rollbook.api.access.core.access_file import digest_of
from rollbook.api.rest.bookie_admin_server import OPEN_PATHS, AdminServer, make_app
from rollbook.api.rest.bookie_models import LogLevel
from rollbook.api.rest.operation_registry import Facts, RunningOperations
from rollbook.api.rest.server import HttpConfig
from rollbook.bookie.stats import Stats
from rollbook.proto.errors import BadConfig, BookieFailed, Overloaded
from rollbook.proto.ports import Address
from rollbook.proto.runtime.logging_setup import LEVELS, configure_logs
from rollbook.proto.stats import MetricKind, metrics_of
from tests.unit.api.rest.fake_admin import SUMMARY, FakeAdmin
from tests.unit.api.rest.http_client import DEADLINE_S, Answer, Client

API = "/api/v1/bookie"


@pytest.fixture
async def admin() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
async def client(admin: FakeAdmin) -> AsyncIterator[Client]:
    server = await AdminServer.start(admin, HttpConfig(Address("127.0.0.1", 0)))
    yield Client(server.address)
    await server.close()


async def until_ended(client: Client, started: Answer) -> dict[str, Any]:
    assert started.status == 202
    path = started.headers["location"]
    assert path == f"{API}/operations/{started.json['id']}"
    async with asyncio.timeout(DEADLINE_S):
        while True:
            operation: dict[str, Any] = (await client.get(path)).json
            if operation["state"] != "running":
                return operation
            await asyncio.sleep(0.01)


# --- Probes -----------------------------------------------------------------------------------


async def test_probes_distinguish_unready_from_failed_bookies(
    admin: FakeAdmin, client: Client
) -> None:
    probes = ("/heartbeat", "/health", "/ready", f"{API}/is_ready")
    assert [(await client.get(path)).status for path in probes] == [200, 200, 200, 200]
    assert (await client.get("/heartbeat")).body == b"OK\n"

    admin.not_ready = "it is not registered"
    answers = [await client.get(path) for path in probes]
    assert [answer.status for answer in answers] == [200, 200, 503, 503]
    assert answers[2].reason == "UNAVAILABLE"
    assert answers[2].json["detail"] == "it is not registered"

    admin.failed_with = "the journal has stopped"
    answers = [await client.get(path) for path in probes]
    assert [answer.status for answer in answers] == [200, 503, 503, 503]
    assert answers[1].json["next_step"] == "restart the bookie"


async def test_metrics_page_has_exactly_the_declared_metrics(
    admin: FakeAdmin, client: Client
) -> None:
    admin.stats.refusals["LEDGER_FENCED"] = 2
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.body.decode())
    shown = {
        (family.name.removeprefix("rollbook_bookie_"), family.type)
        for family in families
        if family.name.startswith("rollbook_")
    }
    told = {(metric.name.removesuffix("_total"), metric.kind.value) for metric in metrics_of(Stats)}
    assert shown == told | {("rollbook_build_info", "gauge")}
    assert b'rollbook_bookie_refusals_total{reason="LEDGER_FENCED"} 2.0' in answer.body
    assert b"process_resident_memory_bytes" in answer.body


def test_metric_names_follow_the_conventions() -> None:
    names = [metric.name for metric in metrics_of(Stats)]
    assert len(names) == len(set(names))
    for metric in metrics_of(Stats):
        assert re.fullmatch(r"[a-z][a-z_]*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER), metric.name
        assert metric.help.endswith("."), metric.name
        assert "latency" not in metric.name, metric.name


def test_design_page_lists_the_metrics() -> None:
    design = (Path(__file__).parents[4] / "bookie" / "DESIGN.md").read_text()
    rows = [
        f"| `{metric.name}{f'{{{metric.label}}}' if metric.label else ''}` | {metric.kind.value} "
        f"| {metric.help} |"
        for metric in metrics_of(Stats)
    ]
    table = "\n".join(["| metric | kind | |", "|---|---|---|", *rows, ""])
    assert table in design, f"bookie/DESIGN.md must have:\n{table}"


# --- Reading ----------------------------------------------------------------------------------


async def test_bookkeeper_pages_use_bookkeeper_field_names(
    admin: FakeAdmin, client: Client
) -> None:
    async def ask(path: str) -> Any:
        answer = await client.get(f"{API}/{path}")
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        return answer.json

    assert await ask("state") == {
        "running": True,
        "readOnly": False,
        "shuttingDown": False,
        "availableForHighPriorityWrites": True,
    }
    assert await ask("info") == {"freeSpace": 1, "totalSpace": 100}
    assert await ask("sanity") == {"passed": True, "readOnly": False}
    assert await ask("gc") == {"is_in_force_gc": False}
    assert await ask("gc_details") == [
        {
            "forceCompacting": False,
            "majorCompacting": False,
            "minorCompacting": False,
            "lastMajorCompactionTime": 0,
            "lastMinorCompactionTime": 5,
            "majorCompactionCounter": 0,
            "minorCompactionCounter": 1,
        }
    ]
    assert (await ask("last_log_mark"))["journal"] == 2
    assert await ask("list_disk_file?file_type=entrylog") == {"entrylog": ["1.log"]}
    assert set(await ask("list_disk_file")) == {"journal", "entrylog", "index"}
    sources = await client.get("/api/v1/settings")
    assert sources.json["settings"][0]["source"] == "--journal-dir"
    settings = await client.get("/api/v1/config/server_config")
    assert settings.json == {"storage": {"journal_dir": "/journal"}}


async def test_status_page_shows_id_state_and_directories(client: Client) -> None:
    status = (await client.get(f"{API}/status")).json
    assert (status["bookie_id"], status["state"]) == ("bk-1", "writable")
    assert [each["path"] for each in status["directories"]] == ["/journal", "/a", "/b"]


async def test_ledgers_are_listed_in_pages(client: Client) -> None:
    page = (await client.get(f"{API}/ledgers?limit=2")).json
    assert [each["ledger_id"] for each in page["ledgers"]] == [7, 8]
    assert page["ledgers"][0] == SUMMARY
    page = (await client.get(f"{API}/ledgers?limit=2&after={page['next_after']}")).json
    assert [each["ledger_id"] for each in page["ledgers"]] == [9]
    assert page["next_after"] is None
    for query in ("limit=0", "limit=1001", "limit=x", "after=-2", "after=9223372036854775808"):
        answer = await client.get(f"{API}/ledgers?{query}")
        assert (answer.status, answer.reason) == (400, "INVALID")
        assert answer.json["fields"][0]["field"] == f"query.{query.partition('=')[0]}"
    answer = await client.get(f"{API}/ledgers?limti=2")
    assert (answer.status, answer.json["next_step"]) == (400, "did you mean limit?")


async def test_ledger_page_shows_the_ledger_or_404(admin: FakeAdmin, client: Client) -> None:
    ledger = (await client.get(f"{API}/ledgers/7")).json
    assert ledger["places"][0]["file"] == "1.log"
    assert ledger["doubts"] == [{"first_entry": 3, "last_entry": 4}]
    missing = await client.get(f"{API}/ledgers/8")
    assert (missing.status, missing.reason) == (404, "LEDGER_NOT_FOUND")
    assert missing.json["ids"] == {"ledger_id": 8}
    assert missing.json["outcome"] == "not_applied"
    assert (await client.get(f"{API}/ledgers/-1")).reason == "INVALID"
    assert (await client.get(f"{API}/ledgers/seven")).reason == "INVALID"


async def test_doubts_are_shown_and_settled(admin: FakeAdmin, client: Client) -> None:
    page = (await client.get(f"{API}/doubts?limit=1")).json
    assert page["ledgers"] == [
        {"ledger_id": 7, "ranges": [{"first_entry": -1, "last_entry": 2**63 - 1}]}
    ]
    assert (page["everything"], page["next_after"]) == (False, 7)
    assert (await client.get(f"{API}/doubts?after=7")).json["ledgers"] == []

    ranges = [{"first_entry": 0, "last_entry": 9}]
    settled = {"stamp": page["stamp"], "ledger_id": 7, "ranges": ranges}
    path = f"{API}/doubts/settled"
    assert (await client.put(path, settled)).status == 200
    assert (await client.put(path, {"stamp": page["stamp"], "everything": True})).status == 200
    assert admin.done == ["settle 7 [(0, 9)]", "settle everything 1-1"]
    assert (await client.put(path, {**settled, "stamp": "0-0"})).reason == "SUPERSEDED"
    for wrong in ({"stamp": "1-1"}, {**settled, "everything": True}):
        assert (await client.put(path, wrong)).reason == "INVALID"
    assert len(admin.done) == 2


async def test_unexpected_error_is_logged_and_its_text_hidden(
    admin: FakeAdmin,
    client: Client,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is logged as one event."""
    admin.raises = RuntimeError("the password is canary")
    answer = await client.get(f"{API}/ledgers/7")
    assert (answer.status, answer.reason) == (500, "INTERNAL")
    assert b"canary" not in answer.body
    assert capsys.readouterr().out.count("http_request_failed") == 1
    assert not caplog.records
    assert (await client.get("/health")).status == 200


# --- Changing ---------------------------------------------------------------------------------


async def test_a_bookie_is_made_read_only_and_back(admin: FakeAdmin, client: Client) -> None:
    path = f"{API}/state/readonly"
    assert (await client.get(path)).json == {"readOnly": False}
    assert (await client.put(path, {"readOnly": True})).json == {"readOnly": True}
    assert (await client.get(f"{API}/state")).json["readOnly"] is True
    assert (await client.put(path, {"readOnly": False})).json == {"readOnly": False}

    admin.is_read_only = admin.disk_is_full = True
    refused = await client.put(path, {"readOnly": False})
    assert (refused.status, refused.reason) == (503, "BOOKIE_READ_ONLY")
    assert refused.json["next_step"] == "Make room."

    bodies: list[Any] = [{}, {"readOnly": "perhaps"}, {"readOnly": True, "x": 1}, [], "x", 1]
    for body in bodies:
        assert (await client.put(path, body)).reason == "INVALID"
    for bad in (b"", b"{", b"\xff", b"[" * 60_000):
        assert (await client.put(path, bad)).reason == "INVALID"
    answer = await client.put(path, {"readOnly": True}, **{"content-type": "text/plain"})
    assert (
        answer.reason == "INVALID"
    )  # A browser sends text/plain across origins without a preflight.


async def test_triggered_work_is_an_operation_with_a_result(
    admin: FakeAdmin, client: Client
) -> None:
    gc, both = {"ledgers": 3}, {"garbage": {"ledgers": 3}, "compaction": {"logs": 1}}
    cases: list[tuple[str, Any, list[str], dict[str, Any]]] = [
        ("gc", None, ["gc"], gc),
        ("gc", {}, ["gc"], gc),
        ("gc", {"forceMajor": True}, ["gc", "major"], both),
        ("gc", {"forceMajor": True, "forceMinor": True}, ["gc", "major"], both),
        ("gc", {"forceMinor": True}, ["gc", "minor"], both),
        ("gc", {"force": True}, ["gc --force"], gc),
        ("gc", {"force": True, "forceMinor": True}, ["gc --force", "minor"], both),
        ("scrub", None, ["scrub"], {"bytes": 100}),
        ("ledgers/7/verify", None, ["verify"], {"ledger_id": 7, "damaged": []}),
    ]
    admin.may_finish.set()
    for path, body, done, result in cases:
        ended = await until_ended(client, await client.put(f"{API}/{path}", body))
        assert (ended["state"], ended["result"]) == ("done", result)
        assert ended["started_ms"] <= ended["ended_ms"]
        assert admin.done == done
        admin.done.clear()
    listed = (await client.get(f"{API}/operations")).json["operations"]
    assert [each["kind"] for each in listed] == [
        "verify-7",
        "scrub",
        "minor-compaction",
        "gc",
        "minor-compaction",
        "major-compaction",
        "major-compaction",
        "gc",
        "gc",
    ]
    unknown = await client.get(f"{API}/operations/gc-77")
    assert (unknown.status, unknown.reason) == (404, "NOT_FOUND")


async def test_a_second_trigger_joins_the_first(admin: FakeAdmin, client: Client) -> None:
    first, second = [await client.put(f"{API}/gc") for _ in range(2)]
    assert first.json["id"] == second.json["id"]
    assert (await client.get(f"{API}/gc")).json == {"is_in_force_gc": True}
    admin.may_finish.set()
    assert (await until_ended(client, first))["state"] == "done"
    assert (await client.get(f"{API}/gc")).json == {"is_in_force_gc": False}
    assert admin.done == ["gc"]


@pytest.mark.parametrize(
    ("error", "reason"), [(BookieFailed("x"), "BOOKIE_FAILED"), (KeyError("canary"), "INTERNAL")]
)
async def test_failed_operation_reports_its_reason(
    admin: FakeAdmin, client: Client, error: Exception, reason: str
) -> None:
    admin.may_finish.set()
    admin.raises = error
    ended = await until_ended(client, await client.put(f"{API}/scrub"))
    assert (ended["state"], ended["result"]) == ("failed", None)
    assert ended["problem"]["reason"] == reason
    assert "canary" not in str(ended)


async def test_concurrent_operations_are_limited(admin: FakeAdmin) -> None:
    operations = RunningOperations()
    for number in range(8):
        operations.start(f"verify-{number}", admin.scrub)
    with pytest.raises(Overloaded):
        operations.start("verify-8", admin.scrub)
    operations.start("verify-7", admin.scrub)  # Joins the running one.
    for number in range(2):  # Queries have a limit of their own.
        operations.start(f"judge-{number}", admin.scrub, is_look=True)
    with pytest.raises(Overloaded):
        operations.start("judge-2", admin.scrub, is_look=True)
    await operations.close()


async def test_closing_ends_running_operations_as_failed(admin: FakeAdmin) -> None:
    operations = RunningOperations()
    operations.start("gc", lambda: admin.collect_garbage(force=False))
    await asyncio.sleep(0)
    await operations.close()
    (operation,) = operations.newest_first()
    assert operation.ended_ms is not None
    assert operation.describe()["state"] == "failed"


async def test_oldest_operations_are_forgotten_beyond_a_hundred(admin: FakeAdmin) -> None:
    admin.may_finish.set()
    operations = RunningOperations()
    for _ in range(250):
        operations.start("gc", lambda: admin.collect_garbage(force=False))
        while operations.is_running("gc"):
            await asyncio.sleep(0)
    known = operations.newest_first()
    assert (len(known), known[0].id, known[-1].id) == (100, "gc-250", "gc-151")


async def test_queries_do_not_displace_changes_or_running_operations() -> None:
    """MG4."""
    may_end = asyncio.Event()

    async def wait() -> Facts:
        await may_end.wait()
        return {}

    async def look() -> Facts:
        return {}

    operations = RunningOperations()
    running = operations.start("drain", wait)
    for number in range(250):
        await operations.await_result(f"judge-{number}", look, 1.0, is_look=number > 150)
    assert operations.find(running.id).ended_ms is None
    assert len([each for each in operations.newest_first() if not each.is_look]) == 99
    may_end.set()
    await operations.close()


async def test_each_joined_caller_gets_its_own_error() -> None:
    async def fail() -> Facts:
        await asyncio.sleep(0)
        raise BadConfig("no", bookie="bk-1")

    operations = RunningOperations()
    joined = (operations.await_result("drain", fail, 1.0) for _ in range(2))
    one, other = await asyncio.gather(*joined, return_exceptions=True)
    assert isinstance(one, BadConfig)
    assert isinstance(other, BadConfig)
    assert one is not other
    assert (one.message, one.ids) == (other.message, other.ids) == ("no", {"bookie": "bk-1"})
    await operations.close()


async def test_compaction_is_suspended_and_resumed(client: Client) -> None:
    suspend, resume = f"{API}/gc/suspend_compaction", f"{API}/gc/resume_compaction"
    assert (await client.put(suspend, {"suspendMajor": True})).json == {
        "isMajorGcSuspended": True,
        "isMinorGcSuspended": False,
    }
    assert (await client.put(suspend, {"suspendMinor": True})).json["isMinorGcSuspended"] is True
    resumed = await client.put(resume, {"resumeMajor": True, "resumeMinor": True})
    assert resumed.json == (await client.get(suspend)).json
    assert resumed.json == {"isMajorGcSuspended": False, "isMinorGcSuspended": False}
    for path in (suspend, resume):
        for body in ({}, {"x": True}, None):
            assert (await client.put(path, body)).reason == "INVALID"


async def test_scrubbing_is_suspended_and_resumed(client: Client) -> None:
    for path, expected in (("scrub/suspend", True), ("scrub/resume", False)):
        assert (await client.put(f"{API}/{path}")).json["is_suspended"] is expected
        assert (await client.get(f"{API}/scrub")).json["is_suspended"] is expected
    assert (await client.get(f"{API}/space")).json["garbage"] == {"deleted": 3}


async def test_a_missing_ledger_cannot_be_verified(admin: FakeAdmin, client: Client) -> None:
    ended = await until_ended(client, await client.put(f"{API}/ledgers/8/verify"))
    assert (ended["state"], ended["problem"]["reason"]) == ("failed", "LEDGER_NOT_FOUND")


async def test_the_log_level_is_changed(client: Client) -> None:
    before = (await client.get("/api/v1/log_level")).json
    try:
        for level in LEVELS:
            assert (await client.put("/api/v1/log_level", {"level": level})).status == 200
            assert (await client.get("/api/v1/log_level")).json == {"level": level}
        assert (await client.put("/api/v1/log_level", {"level": "loud"})).reason == "INVALID"
    finally:
        await client.put("/api/v1/log_level", before)
    assert LogLevel.model_json_schema()["properties"]["level"]["enum"] == list(LEVELS)


async def test_every_change_to_a_bookie_is_audited(admin: FakeAdmin, client: Client) -> None:
    """G9: with the principal and the change; the table has each route that changes something."""
    admin.may_finish.set()
    told: dict[str, tuple[Any, dict[str, Any]]] = {
        f"{API}/state/readonly": ({"readOnly": True}, {"method": "SetReadOnly"}),
        f"{API}/doubts/settled": (
            {"stamp": "1-1", "ledger_id": 7, "ranges": []},
            {"method": "SettleDoubts", "ledger_id": 7},
        ),
        "/api/v1/log_level": (
            (await client.get("/api/v1/log_level")).json,
            {"method": "SetLogLevel"},
        ),
        f"{API}/gc": (
            {"force": True},
            {"method": "CollectGarbage", "operation": "gc-1", "force": True},
        ),
        f"{API}/gc/suspend_compaction": (
            {"suspendMajor": True},
            {"method": "SuspendCompaction", "major": True, "minor": False},
        ),
        f"{API}/gc/resume_compaction": ({"resumeMajor": True}, {"method": "ResumeCompaction"}),
        f"{API}/scrub": (None, {"method": "Scrub", "operation": "scrub-2"}),
        f"{API}/scrub/suspend": (None, {"method": "SuspendScrub"}),
        f"{API}/scrub/resume": (None, {"method": "ResumeScrub"}),
        f"{API}/ledgers/{{ledger_id}}/verify": (None, {"method": "VerifyLedger", "ledger_id": 7}),
    }
    changing = [path for path, method, _ in operations_of(openapi()) if method != "get"]
    assert sorted(changing) == sorted(told)
    for path, (body, fact) in told.items():
        with structlog.testing.capture_logs() as logs:
            answer = await client.put(path.replace("{ledger_id}", "7"), body)
            if answer.status == 202:
                await until_ended(client, answer)
        assert answer.status in (200, 202), path
        begun = ["act_begun"] if answer.status == 202 else []
        acts = [each for each in logs if each["event"].startswith("act_")]
        assert [each["event"] for each in acts] == [*begun, "act_done"], path
        for act in acts:
            assert act.items() >= {"principal": "anybody", **fact}.items(), path
            assert act["peer"].startswith("127.0.0.1:")


async def test_audit_records_how_an_operation_ended(admin: FakeAdmin, client: Client) -> None:
    """G9: the end is recorded once, for the caller that started it; later callers join it."""
    compact = {"forceMajor": True, "force": True}
    with structlog.testing.capture_logs() as logs:
        started = await client.put(f"{API}/gc", compact)
        await client.put(f"{API}/gc", compact)
        admin.raises = BookieFailed("a disk")
        admin.may_finish.set()
        await until_ended(client, started)
    acts = [each for each in logs if each["event"].startswith("act_")]
    assert [each["event"] for each in acts] == ["act_begun", "act_begun", "act_failed"]
    about = {"method": "Compact", "major": True, "force": True, "operation": started.json["id"]}
    for act in acts:
        assert act.items() >= about.items()
    assert [each.get("joins") for each in acts] == [False, True, None]
    assert acts[-1]["reason"] == "BOOKIE_FAILED"


async def test_operation_stopped_at_its_start_is_audited_as_unknown() -> None:
    """G9. Regression: the audit had no entry for such an operation."""
    operations, audit = RunningOperations(), AuditLog(lambda: 0)

    async def work() -> dict[str, Any]:
        with audit.act(principal="anybody", method="Scrub"):
            await asyncio.Event().wait()
        return {}

    with structlog.testing.capture_logs() as logs:
        operation = operations.start("scrub", work)
        await operations.close()
    (act,) = [each for each in logs if each["event"].startswith("act_")]
    assert (act["event"], act["outcome"]) == ("act_failed", "unknown")
    assert operation.describe()["state"] == "failed"
    assert not operations.is_running("scrub")


async def test_audit_logs_the_act_that_raises_the_log_level(
    client: Client, log: io.StringIO
) -> None:
    """G9: acts after it are logged, too."""
    configure_logs(stream=log)
    await client.put("/api/v1/log_level", {"level": "error"})
    await client.put(f"{API}/state/readonly", {"readOnly": True})
    told = [json.loads(line) for line in log.getvalue().splitlines()]
    acts = [each["method"] for each in told if each["event"] == "act_done"]
    assert acts == ["SetLogLevel", "SetReadOnly"]
    assert "log_level_changed" not in {each["event"] for each in told}


async def test_audit_records_a_refused_change(admin: FakeAdmin, client: Client) -> None:
    admin.is_read_only = admin.disk_is_full = True
    with structlog.testing.capture_logs() as logs:
        await client.put(f"{API}/state/readonly", {"readOnly": False})
    (act,) = [each for each in logs if each["event"] == "act_failed"]
    assert (act["method"], act["reason"]) == ("SetReadOnly", "BOOKIE_READ_ONLY")
    assert act["outcome"] == "not_applied"


@pytest.mark.parametrize(
    ("rights", "may"),
    [
        ("monitor = true", (200, 403, 403)),
        ("operate = true", (200, 200, 403)),
        ('admin = ["*"]', (200, 200, 200)),
        ('read = ["*"]', (403, 403, 403)),
        ('admin = ["*"]\ndeny = ["a/b"]', (403, 403, 403)),
    ],
)
async def test_bookie_pages_enforce_rights(
    rights: str, may: tuple[int, int, int], tmp_path: Path
) -> None:
    """MG1: `monitor` reads, `operate` changes, and settling doubts needs `admin = "*"`."""
    path = tmp_path / "access.toml"
    path.write_text(
        f'[principals.one]\ntokens = [{{ sha256 = "{digest_of("secret")}" }}]\n{rights}\n# end\n'
    )
    path.chmod(0o600)
    config = HttpConfig(Address("127.0.0.1", 0), knows_callers=True)
    server = await AdminServer.start(
        FakeAdmin(), config, authenticator=Authenticator.of("", str(path))
    )
    settled = {"stamp": "1-1", "ledger_id": 7, "ranges": [{"first_entry": 0, "last_entry": 1}]}
    try:
        client = Client(server.address)
        assert (await client.get("/heartbeat")).status == 200
        assert (await client.get("/metrics")).status == 401
        client.headers = {"authorization": "Bearer secret"}
        assert {(await client.get(each)).status for each in ("/metrics", f"{API}/state")} == {
            may[0]
        }
        for (where, body), expected in zip(
            ((f"{API}/state/readonly", {"readOnly": True}), (f"{API}/doubts/settled", settled)),
            may[1:],
            strict=True,
        ):
            assert (await client.put(where, body)).status == expected, where
    finally:
        await server.close()


# --- OpenAPI ----------------------------------------------------------------------------------


def openapi() -> dict[str, Any]:
    return make_app(FakeAdmin(), RunningOperations(), AuditLog(lambda: 0)).openapi()


def operations_of(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]


def test_every_operation_has_an_id_and_a_problem_schema() -> None:
    found = operations_of(openapi())
    ids = [operation["operationId"] for _, _, operation in found]
    assert len(ids) == len(set(ids)) == len(found) > 25
    for path, method, operation in found:
        assert re.fullmatch(r"[a-z_]+", operation["operationId"])
        problem = operation["responses"]["default"]["content"]["application/problem+json"]
        assert problem["schema"] == {"$ref": "#/components/schemas/Problem"}
        assert "422" not in operation["responses"], (path, method)


def test_every_openapi_schema_is_referenced_and_has_examples() -> None:
    document = openapi()
    schemas = document["components"]["schemas"]
    referred = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert referred == set(schemas)
    for name, schema in schemas.items():
        for field, value in schema["properties"].items():
            assert "examples" in value or "$ref" in str(value), f"{name}.{field}"


async def test_every_route_is_served_as_openapi_says(client: Client) -> None:
    """Other methods get a 405 whose Allow header lists only documented methods."""
    document = (await client.get("/openapi.json")).json
    assert document == openapi()
    values = {"ledger_id": "7", "operation_id": "gc-1"}
    for path, operations in document["paths"].items():
        real = re.sub(r"\{(\w+)\}", lambda found: values[found[1]], path)
        for method in ("GET", "PUT", "POST", "DELETE", "PATCH"):
            if method.lower() in operations:
                continue
            answer = await client.ask(method, real)
            assert (answer.status, answer.reason) == (405, "INVALID"), (method, path)
            assert {each.lower() for each in answer.headers["allow"].split(", ")} <= set(operations)
        if "get" in operations and path != f"{API}/operations/{{operation_id}}":
            assert (await client.get(real)).status == 200, path


async def test_unknown_paths_are_problems(client: Client) -> None:
    for path in ("/", "/docs", "/redoc", f"{API}/ledgers/7/", f"{API}/nope", "/metrics/x", "/%00"):
        answer = await client.get(path)
        assert (answer.status, answer.reason) == (404, "NOT_FOUND"), path


def test_paths_without_a_token_are_documented() -> None:
    assert set(OPEN_PATHS) <= set(openapi()["paths"])
