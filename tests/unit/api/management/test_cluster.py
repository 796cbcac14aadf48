"""Cluster management on a real cluster: bookies and metadata in this process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from rollbook.api.cli.bookie_admin_client import AdminClient
from rollbook.api.cli.ledger import segment_guard
from rollbook.api.cli.server.operation_handlers import describe_error, kinds_of
from rollbook.api.management.cluster import ClusterManagement
from rollbook.api.management.store_calls import StoreWatch
from rollbook.proto.cluster.cookies import CookieNodes
from rollbook.proto.cluster.election import Election
from rollbook.proto.errors import (
    BookieFailed,
    ConnectionLost,
    DrainBlocked,
    DuplicateDiffers,
    InvalidRequest,
    LifecycleConflict,
    MetadataConflict,
    MetadataUnavailable,
    Missing,
    NodeExists,
    NoSuchLedger,
    NotEnoughBookies,
    OperationEnded,
    PartOfLog,
    RollbookError,
)
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.ports import NO_SESSION, SessionEvent, SessionState
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery.cluster_event_log import ClusterEventLog
from rollbook.recovery.config import WorkerConfig
from rollbook.recovery.operation_nodes import RUNNER
from rollbook.recovery.operation_runner import OperationRunner
from rollbook.recovery.repair_failure_nodes import BadCopies
from tests.messages import raises_message
from tests.support.ledger_cluster import LocalCluster
from tests.unit.recovery.test_worker import LOST, PATIENCE_S, Site, site_of

DRAINING, ACTIVE = LifecycleState.DRAINING, LifecycleState.ACTIVE


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    names = ("bk-1", "bk-2", "bk-3", "bk-4")
    async with asyncio.timeout(PATIENCE_S), LocalCluster(tmp_path, names) as cluster:
        yield cluster


@asynccontextmanager
async def desk_of(
    cluster: LocalCluster,
) -> AsyncIterator[tuple[Site, ClusterManagement, StoreWatch]]:
    async with site_of(cluster) as site:
        watch = StoreWatch(site.ledgers.store)
        yield site, ClusterManagement(site.ledgers, events_of(site), watch, cluster.url), watch


def events_of(site: Site) -> ClusterEventLog:
    async def no_log(_: LedgerId) -> str | None:
        return None

    ledgers = site.ledgers
    return ClusterEventLog(ledgers.store, ledgers.cluster, SystemClock(), no_log)


async def carried_out(
    site: Site, admin: ClusterManagement, kind: str, ledger_id: int
) -> Mapping[str, Any]:
    """Starts an operation and runs it as the elected process does; returns its final state."""
    begun = await admin.begin(kind, {"ledger_id": ledger_id}, "ops", None)
    async with running_operations(site):
        while (found := await admin.operation(begun["id"]))["ended_ms"] is None:
            await asyncio.sleep(0.01)
    return found


@asynccontextmanager
async def running_operations(site: Site) -> AsyncIterator[None]:
    ledgers = site.ledgers
    kinds = kinds_of(ledgers, WorkerConfig(grace_s=0.1), "runner")
    store, cluster = ledgers.store, ledgers.cluster
    runner = OperationRunner(store, cluster, SystemClock(), kinds, describe_error)
    folder = f"{cluster.own_root}/{RUNNER}"
    election = Election(store, folder, BookieId("runner"), above=cluster.own_root)
    task = asyncio.create_task(election.serve(runner.lead))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_ledgers_are_filtered_by_state_bookie_and_mark(cluster: LocalCluster) -> None:
    """MG3: results are paged."""
    async with desk_of(cluster) as (site, admin, _):
        ids = [await site.write(1, is_closed=number != 3) for number in range(5)]
        await site.mark(ids[1])
        rows, rest = await admin.ledgers(-1, 3, bookie=LOST)
        assert ([row["ledger_id"] for row in rows], rest) == (ids[:3], ids[2])
        rows, rest = await admin.ledgers(ids[2], 3, bookie=LOST)
        assert ([row["ledger_id"] for row in rows], rest) == (ids[3:], None)
        for wanted, expected in (
            ({"state": "open"}, [ids[3]]),
            ({"short": True}, [ids[1]]),
            ({"short": False, "bookie": str(LOST)}, [ids[0], *ids[2:]]),
            ({"bookie": "bk-9"}, []),
        ):
            rows, _ = await admin.ledgers(-1, 100, **wanted)
            assert [row["ledger_id"] for row in rows] == expected, wanted
        found = await admin.ledger(ids[1])
        assert (found["short"], found["missing"]) == (True, [LOST])
        assert found["fragments"][0]["places"] == ["writable"] * 3
        with pytest.raises(NoSuchLedger):
            await admin.ledger(10**6)
        bad = BadCopies(site.store, site.ledgers.cluster)
        await bad.prepare()
        await bad.add(ids[1], {LOST: [EntryId(0)]})
        (row,), rest = await admin.bad_ledgers(-1, 100)
        assert (row["ledger_id"], row["bookies"], row["first_entry"], rest) == (
            ids[1],
            LOST,
            0,
            None,
        )
        assert (await carried_out(site, admin, "verify", ids[0]))["result"]["verdict"] == "sound"
        recovered = await carried_out(site, admin, "recover", ids[3])
        assert recovered["result"]["state"] == "closed"
        assert (recovered["done"], recovered["total"]) == (1, 1)


async def test_bookie_is_drained_judged_and_undrained(cluster: LocalCluster) -> None:
    async with desk_of(cluster) as (site, admin, _):
        await site.write(5)
        found = await admin.set_lifecycle(LOST, DRAINING)
        assert (found["lifecycle"], found["ledgers_at_start"]) == ("draining", 1)
        with pytest.raises(LifecycleConflict) as conflict:
            await admin.set_lifecycle(LOST, DRAINING)
        assert conflict.value.ids["allowed"] == ("active",)
        assert (await admin.judge_removal([LOST]))["ledgers_naming_them"] == 1
        assert (await admin.set_lifecycle(LOST, ACTIVE))["allowed"] == ["draining"]
        await admin.set_lifecycle("bk-1", DRAINING)
        with pytest.raises(NotEnoughBookies):
            await admin.set_lifecycle(LOST, DRAINING)
        with raises_message(Missing):
            await admin.set_lifecycle("bk-9", DRAINING)


async def test_long_operations_are_checked_at_once_and_found_by_key(cluster: LocalCluster) -> None:
    """Invalid ones are refused at once; a repeated key returns its operation, even an ended one."""
    async with desk_of(cluster) as (site, admin, _):
        await site.write(5)
        lost: dict[str, Any] = {"bookies": [LOST, LOST], "to": [], "skip_open": False}
        with raises_message(InvalidRequest):
            await admin.begin("recover-bookies", lost, "ops", "k")
        drain: dict[str, Any] = {"bookies": [LOST, "bk-1"], "at_most": 1, "force": False}
        with pytest.raises(DrainBlocked) as blocked:
            await admin.begin("drain", drain, "ops", None)
        assert blocked.value.ids["first_ledgers"]
        for about, error in (
            ({**drain, "bookies": ["bk-9"]}, InvalidRequest),
            ({**drain, "bookies": ["a/b"]}, InvalidRequest),
            ({**lost, "to": [LOST]}, InvalidRequest),
            ({**lost, "bookies": ["bk-9"]}, InvalidRequest),
        ):
            with pytest.raises(error):
                await admin.begin(
                    "drain" if "force" in about else "recover-bookies", about, "o", None
                )
        await site.lose()
        cookies = CookieNodes(site.store, site.ledgers.cluster.root)
        kept = await cookies.read(LOST)
        assert kept is not None
        await cookies.delete(LOST)
        with raises_message(InvalidRequest):
            await admin.begin("recover-bookies", {**lost, "bookies": [LOST, "bk-9"]}, "ops", "k")
        begun = await admin.begin(
            "recover-bookies", lost, "ops", "k"
        )  # A ledger names the bookie, so its cookie is not needed.
        await cookies.create(kept.cookie)
        async with running_operations(site):
            while (found := await admin.operation(begun["id"]))["ended_ms"] is None:
                await asyncio.sleep(0.01)
        assert (found["state"], found["result"]["repaired"]) == ("done", 1)
        assert await admin.begin("recover-bookies", lost, "ops", "k") == found
        with pytest.raises(DuplicateDiffers):
            await admin.begin("drain", drain, "ops", "k")
        assert (await admin.begin("recover-bookies", lost, "somebody", "k"))["id"] != begun["id"]
        with pytest.raises(OperationEnded):
            await admin.cancel(begun["id"])
        with pytest.raises(Missing):
            await admin.cancel("0" * 32)
        page, rest = await admin.operations("", 1)
        others, none = await admin.operations(rest or "", 1)
        assert [each["id"] for each in (*page, *others)][1:] == [begun["id"]]
        assert none is None


async def test_next_steps_name_http_routes(cluster: LocalCluster) -> None:
    """They name no shell command or option."""
    async with desk_of(cluster) as (site, admin, _):
        ledger_id = await site.write(5, is_closed=False)
        lost: dict[str, Any] = {"bookies": [LOST], "to": [], "skip_open": False}
        drain: dict[str, Any] = {"bookies": [LOST, "bk-1"], "at_most": 1, "force": False}
        unknown = {**drain, "bookies": ["bk-9"]}
        steps = []

        async def refused(act: Awaitable[Any]) -> None:
            with pytest.raises(RollbookError) as caught:
                await act
            steps.append(caught.value.next_step)

        await refused(admin.begin("recover-bookies", lost, "ops", None))
        await refused(admin.begin("drain", drain, "ops", None))
        await refused(admin.begin("drain", unknown, "ops", None))
        await refused(admin.remove(LOST, None))
        await site.lose()
        await refused(admin.remove(LOST, None))
        for name in ("bk-1", "bk-3", "bk-4"):
            await cluster.stop(BookieId(name))
        await refused(admin.delete_ledger(ledger_id, force=False))
    live, *others = steps
    assert live == (
        "stop it first, or make it read-only: PUT /api/v1/bookies/{id}/pages/readonly; "
        "to empty it while it serves: POST /api/v1/bookies:drain"
    )
    assert others == [
        "start more bookies first, or use force=true to copy what can be copied",
        "GET /api/v1/bookies lists the bookies",
        "stop it first; to move its copies before that: POST /api/v1/bookies:drain",
        "drain them first: POST /api/v1/bookies:drain; or confirm the number: give_up=0",
        "use force=true to delete it although its writer may continue for a while",
    ]


async def test_a_segment_of_a_log_is_not_recovered(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused at once, and no operation is started."""

    async def log_of(*_: Any) -> str:
        return "shop/orders"

    monkeypatch.setattr(segment_guard, "_log_of", log_of)
    async with desk_of(cluster) as (site, admin, _):
        about = {"ledger_id": await site.write(1)}
        with raises_message(PartOfLog) as refused:
            await admin.begin("recover", about, "ops", None)
        assert refused.value.next_step.endswith(
            "POST /v1/namespaces/shop/logs/orders:transfer there"
        )
        with pytest.raises(PartOfLog) as refused:
            await admin.delete_ledger(about["ledger_id"], force=True)
        assert refused.value.next_step == (
            "at a log server: POST /v1/namespaces/shop/logs/orders:truncate, or DELETE /v1/namespaces/shop/logs/orders"
        )
        assert await admin.operations("", 100) == ([], None)


async def test_entries_and_space_are_read_from_bookies(cluster: LocalCluster) -> None:
    async with desk_of(cluster) as (site, admin, _):
        ledger_id = await site.write(5)
        found = await admin.entries(ledger_id, 2, None)
        assert list(found) == [2, 3, 4]
        assert list(await admin.entries(ledger_id, 1, 1)) == [1]
        assert await admin.entries(ledger_id, 9, None) == {}
        with pytest.raises(NoSuchLedger):
            await admin.entries(10**6, 0, None)
        space = await admin.space()
        assert list(space) == ["bk-1", "bk-2", "bk-3", "bk-4"]
        assert all(0 < free <= total for free, total in space.values())


async def test_a_cookie_is_kept_while_its_bookie_is_in_use(cluster: LocalCluster) -> None:
    async with desk_of(cluster) as (site, admin, _):
        ledger_id = await site.write(1)
        found = await admin.cookie(LOST)
        assert LOST in [each["bookie"] for each in await admin.cookies()]
        with raises_message(LifecycleConflict):
            await admin.delete_cookie(LOST)
        await site.lose()
        with raises_message(LifecycleConflict):
            await admin.delete_cookie(LOST)
        with raises_message(LifecycleConflict):
            await admin.put_cookie(LOST, found["text"], found["version"])
        assert (await admin.delete_ledger(ledger_id, force=False))["state"] == "deleted"
        with pytest.raises(NoSuchLedger):
            await admin.delete_ledger(ledger_id, force=False)
        assert await admin.delete_cookie(LOST) == found
        for ask in (admin.cookie, admin.delete_cookie):
            with pytest.raises(Missing):
                await ask(LOST)
        assert (await admin.put_cookie(LOST, found["text"], None))["text"] == found["text"]
        with pytest.raises(NodeExists):
            await admin.put_cookie(LOST, found["text"], None)
        with pytest.raises(MetadataConflict):
            await admin.put_cookie(LOST, found["text"], 7)
        for text in ("", "5\nnonsense", found["text"].replace(LOST, "bk-9"), "\ud800"):
            with pytest.raises(InvalidRequest):
                await admin.put_cookie(LOST, text, None)
        where = {"journal_dirs": ["/j"], "ledger_dirs": ["/l"], "index_dirs": []}
        made = await admin.generate_cookie("bk-9", where)
        assert (made["version"], "bk-9" in made["text"]) == (None, True)
        with pytest.raises(InvalidRequest):
            await admin.generate_cookie("bk-9", where | {"journal_dirs": ["\ud800"]})
        with raises_message(Missing):
            await admin.ask_pages("bk-1", "GET", "/api/v1/bookie/status", None)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", None),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + b"[" * 100_000,
            BookieFailed,
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + b"1" * 2**21, BookieFailed),
        (
            b'HTTP/1.1 400 No\r\nContent-Type: application/problem+json\r\n\r\n{"fields": [1]}',
            BookieFailed,
        ),
        (b"HTTP/1.1 500 No\r\nContent-Type: text/html\r\n\r\n<script>", BookieFailed),
        (b"nonsense", ConnectionLost),
        (b"", ConnectionLost),
    ],
)
async def test_invalid_response_of_a_bookie_is_an_error(
    cluster: LocalCluster, answer: bytes, error: type[Exception] | None
) -> None:
    """A redirect is not followed: its empty body is the response."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, site_of(cluster) as site:
        client = AdminClient(f"http://127.0.0.1:{port}")
        watch = StoreWatch(site.ledgers.store)
        admin = ClusterManagement(
            site.ledgers, events_of(site), watch, cluster.url, lambda _: client
        )
        with pytest.raises(error) if error else nullcontext():
            assert await admin.ask_pages("bk-1", "GET", "/api/v1/bookie/state", None) == ""


async def test_recovery_switch_delay_and_rate_are_set(cluster: LocalCluster) -> None:
    async with desk_of(cluster) as (site, admin, _):
        await site.mark(await site.write(1))
        await admin.set_switch(enabled=False)
        assert (await admin.set_delay(60), await admin.set_rate(0)) == (
            {"delay_s": 60},
            {"bytes_per_s": "unlimited"},
        )
        await admin.audit(anyway=False)
        found = await admin.recovery()
        assert (found["autorecovery"], found["delay_s"]) == ("paused", 60)
        assert (found["ledgers_marked"], len(found["tasks"])) == (1, 1)
        assert (await admin.health())["health"] == "healthy"


async def test_store_outage_fails_calls_at_once(cluster: LocalCluster) -> None:
    """No call waits for its deadline."""
    async with desk_of(cluster) as (_, admin, watch):
        watch.is_connected = False
        async with asyncio.timeout(1):
            for ask in (admin.bookies, admin.recovery, admin.health):
                with pytest.raises(MetadataUnavailable):
                    await ask()
            with pytest.raises(MetadataUnavailable):
                await admin.set_lifecycle(BookieId("bk-1"), DRAINING)
            with pytest.raises(MetadataUnavailable):
                await admin.begin("verify", {"ledger_id": 0}, "ops", None)
        assert (await admin.cluster())["metadata_reachable"] is False


async def test_store_watch_follows_the_session_state() -> None:
    may_go_on = asyncio.Event()

    class Store:
        async def session_events(self) -> AsyncIterator[SessionEvent]:
            for state in (SessionState.SUSPENDED, SessionState.EXPIRED, SessionState.CONNECTED):
                yield SessionEvent(state, NO_SESSION)
                seen.append(watch.is_connected)
            may_go_on.set()
            await asyncio.Event().wait()

    seen: list[bool] = []
    watch = StoreWatch(cast(Any, Store()))
    watching = asyncio.create_task(watch.run())
    await may_go_on.wait()
    watching.cancel()
    assert seen == [False, False, True]
