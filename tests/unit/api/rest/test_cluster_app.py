"""HTTP management: every route, every role, errors and operations."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from rollbook.api.access import audit
from rollbook.api.access.audit import AuditLog
from rollbook.api.access.authenticator import Authenticator
from rollbook.api.access.core.access_file import digest_of
from rollbook.api.access.core.grants import Duty, Grants
from rollbook.api.access.management_rights import Managing
from rollbook.api.rest import bookie_management_routes
from rollbook.api.rest.cluster_app import OPEN_PATHS, make_app
from rollbook.api.rest.operation_registry import RunningOperations
from rollbook.api.rest.server import HttpConfig, HttpServer
from rollbook.proto.errors import OutcomeUnknown
from rollbook.proto.ports import Address
from rollbook.proto.runtime.prometheus_text import Metrics
from rollbook.recovery.core.event_derivation import Event, EventKind
from tests.unit.api.rest.fake_cluster import FakeCluster, a_bookie, a_ledger
from tests.unit.api.rest.http_client import DEADLINE_S, Answer, Client

API = "/api/v1"
LOOPBACK = Address("127.0.0.1", 0)
CALLBACK = f"{API}/callbacks/{0:032x}"
LIFECYCLE = f"{API}/bookies/bk-1/lifecycle"
# Every route that changes something, with the least right that it needs.
ACTS: dict[tuple[str, str], tuple[Any, Duty, str]] = {
    ("PUT", LIFECYCLE): ({"state": "draining"}, Duty.OPERATE, "SetLifecycle"),
    ("DELETE", f"{API}/bookies/bk-2?give_up=1"): (None, Duty.REMOVE, "RemoveBookie"),
    ("POST", f"{API}/ledgers/7:verify"): (None, Duty.OPERATE, "VerifyLedger"),
    ("POST", f"{API}/ledgers/7:recover"): (None, Duty.OPERATE, "RecoverLedger"),
    ("PUT", f"{API}/cookies/bk-1"): ({"text": "5\n"}, Duty.REMOVE, "PutCookie"),
    ("DELETE", f"{API}/cookies/bk-1"): (None, Duty.REMOVE, "DeleteCookie"),
    ("POST", f"{API}/cookies/bk-1:generate"): (
        {"journal_dirs": ["/j"], "ledger_dirs": ["/l"]},
        Duty.REMOVE,
        "GenerateCookie",
    ),
    ("GET", f"{API}/ledger/read?ledger_id=7"): (None, Duty.REMOVE, "ReadEntries"),
    ("DELETE", f"{API}/ledger/delete?ledger_id=7"): (None, Duty.REMOVE, "DeleteLedger"),
    ("PUT", f"{API}/autorecovery/status?enabled=true"): (
        None,
        Duty.OPERATE,
        "SetRecoverySwitch",
    ),
    ("PUT", f"{API}/autorecovery/lost_bookie_recovery_delay"): (
        {"delay_seconds": 60},
        Duty.OPERATE,
        "SetLostBookieDelay",
    ),
    ("PUT", f"{API}/autorecovery/trigger_audit"): (None, Duty.OPERATE, "Audit"),
    ("PUT", f"{API}/autorecovery/bookie"): (
        {"bookie_src": ["bk-2"]},
        Duty.OPERATE,
        "RecoverBookies",
    ),
    ("PUT", f"{API}/autorecovery/decommission"): (
        {"bookie_src": "bk-2"},
        Duty.OPERATE,
        "RecoverBookies",
    ),
    ("PUT", f"{API}/bookies/bk-1/pages/gc"): (None, Duty.OPERATE, "AskBookie"),
    ("DELETE", f"{API}/ledgers/7"): (None, Duty.REMOVE, "DeleteLedger"),
    ("POST", f"{API}/bookies:drain"): ({"bookies": ["bk-1"]}, Duty.OPERATE, "DrainBookies"),
    ("POST", f"{API}/recovery/bookies"): ({"bookies": ["bk-2"]}, Duty.OPERATE, "RecoverBookies"),
    ("POST", f"{API}/operations/{0:032x}:cancel"): (None, Duty.OPERATE, "CancelOperation"),
    ("POST", f"{API}/recovery:audit"): (None, Duty.OPERATE, "Audit"),
    ("PUT", f"{API}/recovery/switch"): ({"enabled": False}, Duty.OPERATE, "SetRecoverySwitch"),
    ("PUT", f"{API}/recovery/delay"): ({"delay_s": 60}, Duty.OPERATE, "SetLostBookieDelay"),
    ("PUT", f"{API}/recovery/rate"): ({"bytes_per_s": 0}, Duty.OPERATE, "SetRecoveryRate"),
    ("POST", f"{API}/callbacks"): ({"url": "https://h/x"}, Duty.REMOVE, "CreateCallback"),
    ("POST", f"{CALLBACK}:test"): (None, Duty.REMOVE, "TestCallback"),
    ("DELETE", CALLBACK): (None, Duty.REMOVE, "DeleteCallback"),
}
OVERRIDES: dict[tuple[str, str], tuple[Any, Duty, str]] = {
    ("PUT", LIFECYCLE): ({"state": "draining", "force": True}, Duty.REMOVE, "SetLifecycle"),
    ("POST", f"{API}/bookies:drain"): (
        {"bookies": ["bk-1"], "force": True},
        Duty.REMOVE,
        "DrainBookies",
    ),
    ("POST", f"{API}/recovery:audit"): ({"anyway": True}, Duty.REMOVE, "Audit"),
}
LOOKS = (
    "settings",
    "cluster",
    "cluster/health",
    "bookies",
    "bookies/bk-1",
    "bookies/bk-1/lifecycle",
    "ledgers",
    "ledgers/bad",
    "ledgers/7",
    "recovery",
    "operations",
    "cookies",
    "cookies/bk-1",
    "events",
    "callbacks",
    f"callbacks/{0:032x}",
    f"callbacks/{0:032x}/deliveries",
    "bookies/bk-1/pages/status",
    *(f"bookie/{each}" for each in ("list_bookies", "list_bookie_info", "cluster_info")),
    "ledger/list",
    "ledger/metadata?ledger_id=7",
    *(f"autorecovery/{each}" for each in ("status", "who_is_auditor")),
    "autorecovery/lost_bookie_recovery_delay",
    "autorecovery/list_under_replicated_ledger",
)
ROLES = {
    "nobody": Grants(("*",), ("*",)),
    "looker": Grants(monitor=True),
    "hand": Grants(operate=True),
    "boss": Grants(read=("*",), admin=("*",)),
    "denied": Grants(admin=("*",), deny=("team/salaries",)),
}


@asynccontextmanager
async def served(
    cluster: FakeCluster, authenticator: Authenticator | None = None
) -> AsyncIterator[Client]:
    operations = RunningOperations()
    told = authenticator.audit if authenticator else AuditLog(lambda: 0)
    app = make_app(cluster, Managing(told), operations, Metrics())
    config = HttpConfig(LOOPBACK, knows_callers=authenticator is not None)
    server = await HttpServer.start(app, config, OPEN_PATHS, authenticator)
    try:
        yield Client(server.address)
    finally:
        await server.close()
        await operations.close()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[Client]:
    async with served(cluster) as client:
        yield client


def access_file(folder: Path) -> str:
    lines = []
    for name, grants in ROLES.items():
        flags = {"monitor": grants.monitor, "operate": grants.operate}
        lists = {each: list(getattr(grants, each)) for each in ("read", "append", "admin", "deny")}
        lines.append(f'[principals.{name}]\ntokens = [{{ sha256 = "{digest_of(name)}" }}]')
        lines += [f"{key} = {json.dumps(value)}" for key, value in (flags | lists).items() if value]
    path = folder / "access.toml"
    path.write_text("\n".join([*lines, "# end", ""]))
    path.chmod(0o600)
    return str(path)


async def ask(client: Client, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    if body is None:
        return await client.ask(method, path, b"", **headers)
    headers["content-type"] = "application/json"
    return await client.ask(method, path, json.dumps(body).encode(), **headers)


def document() -> dict[str, Any]:
    return make_app(
        FakeCluster(), Managing(AuditLog(lambda: 0)), RunningOperations(), Metrics()
    ).openapi()


# --- Reading ----------------------------------------------------------------------------------


async def test_each_page_of_the_cluster_is_served(cluster: FakeCluster, client: Client) -> None:
    for path in LOOKS:
        assert (await client.get(f"{API}/{path}")).status == 200, path
    bookies = (await client.get(f"{API}/bookies?limit=1")).json
    assert ([each["id"] for each in bookies["bookies"]], bookies["next_after"]) == (
        ["bk-1"],
        "bk-1",
    )
    rest = (await client.get(f"{API}/bookies?after=bk-1")).json
    assert ([each["id"] for each in rest["bookies"]], rest["next_after"]) == (["bk-2"], None)
    assert (await client.get(f"{API}/bookies/bk-9")).reason == "NOT_FOUND"
    assert (await client.get(f"{API}/ledgers/8")).reason == "LEDGER_NOT_FOUND"
    for wrong in ("ledgers?state=broken", "ledgers?after=x", "ledgers?colour=red", "ledgers/x"):
        assert (await client.get(f"{API}/{wrong}")).status == 400, wrong


async def test_ledgers_are_listed_in_pages_of_a_hundred(
    cluster: FakeCluster, client: Client
) -> None:
    cluster.ledger_rows = [a_ledger(number) for number in range(250)]
    seen: list[int] = []
    after: Any = -1
    for size in (100, 100, 50):
        page = (await client.get(f"{API}/ledgers?after={after}&state=closed")).json
        assert len(page["ledgers"]) == size
        seen += [each["ledger_id"] for each in page["ledgers"]]
        after = page["next_after"]
    assert seen == list(range(250))
    assert after is None


async def test_events_are_paged_and_filtered_by_kind_bookie_and_log(
    cluster: FakeCluster, client: Client
) -> None:
    """Events are sorted newest first."""
    for number in range(5):
        name = f"bk-{number % 2}"
        cluster.memory.add([Event(f"n{number}@1.0", EventKind.LIFECYCLE, number, "n", (name,))])
    first = (await client.get(f"{API}/events?limit=2")).json
    assert [each["id"] for each in first["events"]] == ["n4@1.0", "n3@1.0"]
    rest = (await client.get(f"{API}/events?after={first['next_after']}")).json
    assert ([each["at_ms"] for each in rest["events"]], rest["next_after"]) == ([2, 1, 0], None)
    some = (await client.get(f"{API}/events?bookie=bk-1&kind=lifecycle")).json["events"]
    assert [each["bookies"] for each in some] == [["bk-1"], ["bk-1"]]
    for nothing in ("kind=auditor", "log=default/a", "bookie=bk-9"):
        assert (await client.get(f"{API}/events?{nothing}")).json["events"] == []
    assert (await client.get(f"{API}/events?kind=nonsense")).status == 400
    unknown = await client.get(f"{API}/events?after=gone")
    assert (unknown.status, "without `after`" in unknown.json["next_step"]) == (404, True)


async def test_callback_secret_is_shown_once_and_never_audited(
    cluster: FakeCluster, client: Client, tmp_path: Path
) -> None:
    """Only administrators see the path of the URL; the audit has neither secret nor path."""
    wanted = {"url": "https://hooks.example.com/5ec3e7-path", "kinds": ["lifecycle"], "bookie": "b"}
    with structlog.testing.capture_logs() as logs:
        made = await ask(client, "POST", f"{API}/callbacks", wanted)
    assert (made.status, made.json["secret"]) == (201, "5ec3e7-key")
    assert made.headers["location"] == f"{API}/callbacks/{made.json['id']}"
    assert "5ec3e7" not in str(logs)
    assert "https://hooks.example.com" in str(logs)
    authenticator = Authenticator(None, access_file(tmp_path))
    async with served(cluster, authenticator) as guarded:
        for role, is_shown in (("looker", False), ("hand", False), ("boss", True)):
            guarded.headers = {"authorization": f"Bearer {role}"}
            for path in ("callbacks", f"callbacks/{0:032x}"):
                answer = await guarded.get(f"{API}/{path}")
                assert (b"5ec3e7-path" in answer.body) is is_shown
                assert b"5ec3e7-key" not in answer.body
    gone = await ask(client, "DELETE", f"{API}/callbacks/{made.json['id']}")
    assert gone.json["url"] == wanted["url"]
    assert (await ask(client, "DELETE", f"{API}/callbacks/{made.json['id']}")).status == 404
    for wrong in (
        {},
        {"url": 5},
        {"url": "http://10.0.0.1/"},
        {**wanted, "secret": "mine"},
        {**wanted, "kinds": ["test"]},
        {**wanted, "kinds": "lifecycle"},
        {**wanted, "bookie": ""},
    ):
        assert (await ask(client, "POST", f"{API}/callbacks", wrong)).status == 400, wrong
    for path in ("callbacks/x", "callbacks/x/deliveries"):
        assert (await client.get(f"{API}/{path}")).status == 404
    assert (await ask(client, "POST", f"{API}/callbacks/x:test")).status == 404


async def test_metadata_outage_is_503_except_cluster_and_settings(
    cluster: FakeCluster, client: Client
) -> None:
    cluster.is_away = True
    for path in LOOKS:
        answer = await client.get(f"{API}/{path}")
        if path in ("cluster", "settings"):
            assert answer.status == 200
        else:
            assert (answer.status, answer.reason) == (503, "METADATA_UNAVAILABLE"), path
    assert (await client.get(f"{API}/cluster")).json["metadata_reachable"] is False
    drain = await ask(client, "PUT", LIFECYCLE, {"state": "draining"})
    assert (drain.status, drain.json["outcome"]) == (503, "not_applied")


# --- Changing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [f"{CALLBACK}:test", f"{API}/ledgers/7:verify"])
async def test_verb_path_allows_only_post(path: str, client: Client) -> None:
    for method in ("OPTIONS", "GET", "DELETE"):
        answer = await ask(client, method, path)
        assert (answer.status, answer.headers["allow"]) == (405, "POST"), method


async def test_illegal_lifecycle_transition_lists_the_allowed_ones(
    cluster: FakeCluster, client: Client
) -> None:
    drained = await ask(client, "PUT", LIFECYCLE, {"state": "drained"})
    assert (drained.status, drained.reason) == (409, "LIFECYCLE_CONFLICT")
    assert drained.json["ids"]["allowed"] == ["draining"]
    draining = (await ask(client, "PUT", LIFECYCLE, {"state": "draining"})).json
    assert (draining["state"], draining["allowed"]) == ("draining", ["active"])
    for wrong in ({"state": "draining-failed"}, {"state": "gone"}, {"colour": "red"}, {}):
        assert (await ask(client, "PUT", LIFECYCLE, wrong)).status == 400, wrong
    assert cluster.calls == [("lifecycle", "bk-1", "draining", False)]


async def test_bookie_removal_needs_the_give_up_count(cluster: FakeCluster, client: Client) -> None:
    refused = await ask(client, "DELETE", f"{API}/bookies/bk-2")
    assert (refused.status, refused.reason) == (400, "NOT_CONFIRMED")
    assert (await ask(client, "DELETE", f"{API}/bookies/bk-2?give_up=1")).status == 200
    asked = await ask(
        client, "POST", f"{API}/bookies:safe-to-remove", {"bookies": ["bk-1", "bk-2"]}
    )
    many = {"bookies": [f"bk-{'x' * 200}-{number}" for number in range(250)]}
    assert (await ask(client, "POST", f"{API}/bookies:safe-to-remove", many)).status == 200
    ids = [each["id"] for each in (await client.get(f"{API}/operations")).json["operations"]]
    assert max(map(len, ids)) < 300
    assert (asked.status, asked.json["safe_to_remove"]) == (200, False)
    assert cluster.calls == [("remove", "bk-2", 1)]


async def test_lost_reply_has_outcome_unknown(cluster: FakeCluster, client: Client) -> None:
    cluster.raises = OutcomeUnknown("no reply", next_step="GET …/lifecycle says what it is now")
    answer = await ask(client, "PUT", LIFECYCLE, {"state": "draining"})
    assert (answer.status, answer.json["outcome"]) == (503, "unknown")
    assert "lifecycle" in answer.json["next_step"]


async def test_slow_drain_continues_as_an_operation(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain first reads all ledgers, which may take longer than a request may last."""
    monkeypatch.setattr(bookie_management_routes, "_PATIENCE_S", 0.05)
    cluster.rows.append(a_bookie("b<1>"))
    cluster.may_finish = asyncio.Event()
    with structlog.testing.capture_logs() as logs:
        begun = await ask(client, "PUT", LIFECYCLE, {"state": "draining"})
        again = await ask(client, "PUT", LIFECYCLE, {"state": "draining"})
        assert (begun.status, again.status) == (202, 202)
        assert begun.json["id"] == again.json["id"]
        cluster.may_finish.set()
        async with asyncio.timeout(DEADLINE_S):
            while (found := (await client.get(begun.headers["location"])).json)["state"] != "done":
                await asyncio.sleep(0.01)
    assert found["result"]["lifecycle"] == "draining"
    acts = [each["event"] for each in logs if each["event"].startswith("act_")]
    assert acts == ["act_begun", "act_done"], "the second caller joins the first one's operation"
    cluster.may_finish.clear()
    strange = await ask(client, "PUT", f"{API}/bookies/b<1>/lifecycle", {"state": "draining"})
    assert (await client.get(strange.headers["location"])).status == 200


async def test_slow_queries_do_not_block_changes(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MG4. A forced drain of `x` and a drain of `x-forced` are different operations."""
    monkeypatch.setattr(bookie_management_routes, "_PATIENCE_S", 0.05)
    cluster.may_finish = asyncio.Event()
    cluster.rows += [a_bookie("x"), a_bookie("x-forced")]
    judge = f"{API}/bookies:safe-to-remove"
    judged = [await ask(client, "POST", judge, {"bookies": [f"b{each}"]}) for each in range(8)]
    assert [each.status for each in judged] == [202, 202, 503, 503, 503, 503, 503, 503]
    wanted: dict[str, Any] = {"state": "draining"}
    plain = await ask(client, "PUT", f"{API}/bookies/x-forced/lifecycle", wanted)
    forced = await ask(client, "PUT", f"{API}/bookies/x/lifecycle", {**wanted, "force": True})
    assert (plain.status, forced.status) == (202, 202)
    assert plain.json["id"] != forced.json["id"]


async def test_long_work_is_listed_as_operations(cluster: FakeCluster, client: Client) -> None:
    """The response has the operation's URL, and the caller's idempotency key is passed on."""
    started = await ask(client, "POST", f"{API}/ledgers/7:verify", **{"idempotency-key": "k 1"})
    assert (started.status, started.json["kind"]) == (202, "verify")
    assert (await client.get(started.headers["location"])).json == started.json
    wanted = {"bookies": ["bk-1", "bk-2"], "at_most": 1}
    drain = await ask(client, "POST", f"{API}/bookies:drain", wanted)
    moved = await ask(client, "POST", f"{API}/recovery/bookies", {"bookies": ["bk-2"]})
    assert (drain.status, moved.status) == (202, 202)
    assert [(call[0], call[3]) for call in cluster.calls] == [
        ("verify", "k 1"),
        ("drain", None),
        ("recover-bookies", None),
    ]
    listed = (await client.get(f"{API}/operations")).json["operations"]
    assert [each["kind"] for each in listed] == ["recover-bookies", "drain", "verify"]
    cancelled = await ask(client, "POST", f"{drain.headers['location']}:cancel")
    assert (cancelled.status, cancelled.json["cancel_asked"]) == (200, True)
    for wrong in ("verify-7-9", "0" * 32 + "x", "..", "%2e%2e"):
        assert (await client.get(f"{API}/operations/{wrong}")).status in (400, 404), wrong
    wrong_bodies: tuple[dict[str, Any], ...] = (
        {"bookies": []},
        {"bookies": ["bk-1"], "at_most": 0},
        {"bookies": "bk-1"},
        {},
    )
    for body in wrong_bodies:
        assert (await ask(client, "POST", f"{API}/bookies:drain", body)).status == 400, body
    long = await ask(client, "POST", f"{API}/ledgers/7:verify", **{"idempotency-key": "k" * 201})
    assert long.status == 400


async def test_operation_of_one_server_cannot_be_cancelled(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an operation has a readable ID."""
    monkeypatch.setattr(bookie_management_routes, "_PATIENCE_S", 0.05)
    cluster.may_finish = asyncio.Event()
    begun = await ask(client, "PUT", LIFECYCLE, {"state": "draining"})
    assert begun.status == 202
    where = begun.headers["location"]
    refused = await ask(client, "POST", f"{where}:cancel")
    assert (refused.status, refused.json["detail"]) == (409, "it cannot be cancelled")
    assert refused.json["ids"]["state"] == "running"
    cluster.may_finish.set()
    while (await client.get(where)).json["state"] == "running":
        await asyncio.sleep(0.01)
    refused = await ask(client, "POST", f"{where}:cancel")
    assert (refused.status, refused.json["detail"]) == (409, "it has ended")
    await ask(client, "DELETE", f"{API}/ledgers/7")
    await ask(client, "DELETE", f"{API}/ledgers/7?force=true")
    await ask(client, "DELETE", f"{API}/bookies/bk-2")
    await ask(client, "DELETE", f"{API}/bookies/bk-2?give_up=1")
    found = (await client.get(f"{API}/operations")).json["operations"]
    assert [each["id"] for each in reversed(found)][1:] == [
        "delete-7-2",
        "forced-delete-7-3",
        "remove-bk-2-4",
        "give-up-1-remove-bk-2-5",
    ]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "recovery/switch", {"enabled": "yes"}),
        ("PUT", "recovery/switch", {"enabled": 1}),
        ("POST", "recovery:audit", {"anyway": "true"}),
        ("PUT", "bookies/bk-1/lifecycle", {"state": "draining", "force": "on"}),
        ("POST", "bookies:drain", {"bookies": ["bk-1"], "force": 1}),
        ("POST", "recovery/bookies", {"bookies": ["bk-2"], "skip_open": "no"}),
    ],
)
async def test_only_true_and_false_are_booleans(
    cluster: FakeCluster, client: Client, method: str, path: str, body: dict[str, Any]
) -> None:
    assert (await ask(client, method, f"{API}/{path}", body)).status == 400
    assert not cluster.calls


async def test_unexpected_error_reports_outcome_and_next_step(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GET changes nothing, so its outcome is not_applied."""

    async def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("canary")

    for name in ("recovery", "delete_ledger", "begin"):
        monkeypatch.setattr(cluster, name, fail)
    for method, path, outcome in (
        ("GET", "recovery", "not_applied"),
        ("DELETE", "ledgers/7", "unknown"),
        ("POST", "ledgers/7:verify", "unknown"),
    ):
        answer = await ask(client, method, f"{API}/{path}")
        assert (answer.status, answer.json["outcome"]) == (500, outcome)
        assert answer.json["title"] == "The server failed unexpectedly."
        assert answer.json["next_step"] == "read the server's log, then ask again"


async def test_a_lost_reply_names_the_operation(cluster: FakeCluster, client: Client) -> None:
    where = f"{API}/operations/{7:032x}"
    cluster.raises = OutcomeUnknown("no reply", operation=where, next_step="ask")
    answer = await ask(client, "POST", f"{API}/ledgers/7:verify")
    assert (answer.status, answer.json["outcome"]) == (503, "unknown")
    assert answer.json["ids"] == {"operation": where}


async def test_deletion_cookies_and_bookie_pages_reach_the_cluster(
    cluster: FakeCluster, client: Client
) -> None:
    gone = await ask(client, "DELETE", f"{API}/ledgers/7?force=true")
    assert gone.json == {"ledger_id": 7, "state": "deleted"}
    put = await ask(client, "PUT", f"{API}/cookies/bk-1", {"text": "5\n", "version": 3})
    assert (put.status, put.json["version"]) == (200, 1)
    assert (await ask(client, "DELETE", f"{API}/cookies/bk-9")).status == 404
    page = f"{API}/bookies/bk-1/pages"
    said = await ask(client, "PUT", f"{page}/readonly", {"readOnly": True})
    assert said.json == {"bookie": "bk-1", "answer": {"readOnly": True}}
    assert (await client.get(f"{page}/status")).status == 200
    assert cluster.calls == [
        ("delete", 7, True),
        ("put cookie", "bk-1", "5\n", 3),
        ("pages", "bk-1", "PUT", "/api/v1/bookie/state/readonly", {"readOnly": True}),
        ("pages", "bk-1", "GET", "/api/v1/bookie/status", None),
    ]
    for wrong in ("log_level", "..", "status/x", "doubts", "%2e%2e"):
        assert (await client.get(f"{page}/{wrong}")).status in (400, 404), wrong
        assert (await ask(client, "PUT", f"{page}/{wrong}")).status in (400, 404, 405), wrong
    many = {str(number): 1 for number in range(17)}
    assert (await ask(client, "PUT", f"{page}/gc", many)).status == 400
    assert (await ask(client, "PUT", f"{API}/cookies/bk-1", {"text": "x" * 32_769})).status == 400


async def test_bookkeeper_paths_return_bookkeeper_responses(
    cluster: FakeCluster, client: Client
) -> None:
    cluster.rows[1].update(state="read-only", address="10.0.0.6:3181")
    for path, expected in {
        "bookie/list_bookies": {"bk-1": None},
        "bookie/list_bookies?type=ro&print_hostnames=true": {"bk-2": "10.0.0.6"},
        "bookie/list_bookie_info": {
            "bk-1": ": {Free: 999, Total: 1234567(1.234MB)},",
            "bk-2": ": {Free: 1000(1KB), Total: 5000000000000000(5000TB)},",
            "ClusterInfo: ": "{Free: 1999(1.999KB), Total: 5000000001234567(5000TB)}",
        },
        "bookie/cluster_info": {
            "auditorElected": True,
            "auditorId": "recovery-1",
            "clusterUnderReplicated": True,
            "ledgerReplicationEnabled": True,
            "totalBookiesCount": 2,
            "writableBookiesCount": 1,
            "readonlyBookiesCount": 1,
            "unavailableBookiesCount": 0,
        },
        "ledger/list": {"7": None},
        "ledger/list?page=2": {},
        "ledger/read?ledger_id=7&start_entry_id=3": {"3": "one\ufffd"},
        "ledger/read?ledger_id=7&page=2": {"Entries for page: ": "2", "1000": "one\ufffd"},
        "autorecovery/status": {"enabled": True},
        "autorecovery/list_under_replicated_ledger": [7],
        "autorecovery/list_under_replicated_ledger?missingreplica=bk-2": [7],
        "autorecovery/list_under_replicated_ledger?excludingmissingreplica=bk-2": [],
    }.items():
        answer = await client.get(f"{API}/{path}")
        assert (answer.status, answer.json) == (200, expected), path
    named = (await client.get(f"{API}/ledger/list?print_metadata=true")).json
    assert json.loads(named["7"])["ledger_id"] == 7
    assert (await client.get(f"{API}/autorecovery/who_is_auditor")).body == b"Auditor: recovery-1"
    gone = await ask(client, "DELETE", f"{API}/ledger/delete?ledger_id=7")
    assert gone.json == "Deleted ledger: 7"
    moved = await ask(client, "PUT", f"{API}/autorecovery/bookie", {"bookie_src": ["bk-2"]})
    assert (moved.status, moved.json["kind"]) == (202, "recover-bookies")
    for wrong in (
        "ledger/read",
        "ledger/read?ledger_id=7&start_entry_id=5&end_entry_id=2",
        "ledger/list?page=0",
        "ledger/list?page=101",
        "bookie/list_bookies?type=x",
    ):
        assert (await client.get(f"{API}/{wrong}")).status == 400, wrong
    refused = await ask(
        client, "PUT", f"{API}/autorecovery/bookie", {"bookie_src": ["b"], "delete_cookie": True}
    )
    assert refused.status == 400


# --- Rights -----------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
async def test_each_role_may_call_exactly_its_routes(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MG1: `monitor` reads, `operate` changes, `admin = "*"` removes and overrides."""
    monkeypatch.setattr(audit, "_FRUITLESS_PER_S", 1_000)  # Each refusal is logged.
    authenticator = Authenticator(None, access_file(tmp_path))
    shown = {"authorization": f"Bearer {role}"}
    async with served(FakeCluster(), authenticator) as client:
        client.headers = shown
        for path in (*(f"{API}/{each}" for each in LOOKS), "/metrics"):
            expected = 200 if ROLES[role].may_manage(Duty.LOOK) else 403
            assert (await client.get(path)).status == expected, path
        safe = await ask(client, "POST", f"{API}/bookies:safe-to-remove", {"bookies": ["bk-1"]})
        assert safe.status == (200 if ROLES[role].may_manage(Duty.LOOK) else 403)
        for table in (ACTS, OVERRIDES):
            for (method, path), act in table.items():
                body, duty, name = act
                with structlog.testing.capture_logs() as logs:
                    answer = await ask(client, method, path, body)
                told = [each for each in logs if each.get("method") == name]
                assert {each["principal"] for each in told} == {role}, path
                if ROLES[role].may_manage(duty):
                    assert answer.status in (200, 201, 202, 409), path
                    events = {"act_begun", "act_done", "act_failed"}
                    assert {each["event"] for each in told} <= events
                else:
                    assert (answer.status, answer.reason) == (403, "UNAUTHORIZED"), path
                    assert [each["event"] for each in told] == ["access_refused"]
        client.headers = {}
        assert (await client.get(f"{API}/bookies")).status == 401
        assert (await client.get("/heartbeat")).status == 200


def test_grants_map_to_management_duties() -> None:
    found = {
        role: [duty for duty in Duty if grants.may_manage(duty)] for role, grants in ROLES.items()
    }
    assert found == {
        "nobody": [],
        "looker": [Duty.LOOK],
        "hand": [Duty.LOOK, Duty.OPERATE],
        "boss": list(Duty),
        "denied": [],
    }


async def test_a_page_of_another_origin_changes_nothing(
    cluster: FakeCluster, client: Client
) -> None:
    for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
        answer = await ask(client, "PUT", LIFECYCLE, {"state": "draining"}, **headers)
        assert answer.status in (403, 421)
    assert cluster.calls == []


# --- OpenAPI ----------------------------------------------------------------------------------


def test_every_route_that_acts_is_in_the_table_of_roles() -> None:
    real = {
        "{bookie_id}": "bk-1",
        "{ledger_id}": "7",
        "{operation_id}": f"{0:032x}",
        "{callback_id}": f"{0:032x}",
        "{page}": "gc",
    }
    tested = {(method, path.partition("?")[0].replace("bk-2", "bk-1")) for method, path in ACTS}
    tested.add(("POST", f"{API}/bookies:safe-to-remove"))
    acting = set()
    for path, operations in document()["paths"].items():
        for name, value in real.items():
            path = path.replace(name, value)
        acting |= {(method.upper(), path) for method in operations if method != "get"}
    assert acting == tested - {("GET", f"{API}/ledger/read")}


def test_openapi_has_an_example_of_everything() -> None:
    found = document()
    schemas = found["components"]["schemas"]
    assert set(re.findall(r"#/components/schemas/(\w+)", str(found))) == set(schemas)
    for name, schema in schemas.items():
        for field, value in schema.get("properties", {}).items():
            assert "examples" in value or "$ref" in str(value), f"{name}.{field}"
    ids = [each["operationId"] for paths in found["paths"].values() for each in paths.values()]
    assert len(ids) == len(set(ids)) > 20
    for operations in found["paths"].values():
        for operation in operations.values():
            told = operation["responses"].get("422", {}).get("description", "DUPLICATE_DIFFERS")
            assert told == "DUPLICATE_DIFFERS"
            for parameter in operation.get("parameters", ()):
                assert "example" in parameter


async def test_hostile_bookie_name_is_returned_unchanged(
    cluster: FakeCluster, client: Client
) -> None:
    name = "<script>\u202e\x00alert(1)</script>" + "x" * 65536
    cluster.rows = [a_bookie(name)]
    answer = await client.get(f"{API}/bookies")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["bookies"][0]["id"] == name
