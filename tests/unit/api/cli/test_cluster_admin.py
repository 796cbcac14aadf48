"""What HTTP management finds in a real cluster: bookies and metadata in this process."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from rollbook.api.cli.cluster.management import ClusterAdmin, StoreWatch
from rollbook.api.cli.cluster.operation_kinds import describe_error, kinds_of
from rollbook.proto.cluster.election import Election
from rollbook.proto.errors import (
    DrainBlocked,
    DuplicateDiffers,
    InvalidRequest,
    LifecycleConflict,
    MetadataUnavailable,
    Missing,
    NoSuchLedger,
    NotEnoughBookies,
    OperationEnded,
)
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import BookieId, EntryId
from rollbook.proto.ports import NO_SESSION, SessionEvent, SessionState
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery.config import WorkerConfig
from rollbook.recovery.operation_runner import OperationRunner
from rollbook.recovery.operations import RUNNER
from rollbook.recovery.tasks import BadCopies
from tests.support.ledger_cluster import LocalCluster
from tests.unit.recovery.test_worker import LOST, PATIENCE_S, Site, site_of

DRAINING, ACTIVE = LifecycleState.DRAINING, LifecycleState.ACTIVE


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    names = ("bk-1", "bk-2", "bk-3", "bk-4")
    async with asyncio.timeout(PATIENCE_S), LocalCluster(tmp_path, names) as cluster:
        yield cluster


@asynccontextmanager
async def desk_of(cluster: LocalCluster) -> AsyncIterator[tuple[Site, ClusterAdmin, StoreWatch]]:
    async with site_of(cluster) as site:
        watch = StoreWatch(site.ledgers.store)
        yield site, ClusterAdmin(site.ledgers, watch, cluster.url), watch


async def carried_out(
    site: Site, admin: ClusterAdmin, kind: str, ledger_id: int
) -> Mapping[str, Any]:
    """Begun, and run as an elected process runs it."""
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


async def test_ledgers_are_found_by_state_by_bookie_and_by_mark(cluster: LocalCluster) -> None:
    """MG3: page by page."""
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
        assert (await carried_out(site, admin, "recover", ids[3]))["result"]["state"] == "closed"


async def test_a_bookie_drains_is_kept_and_is_judged(cluster: LocalCluster) -> None:
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
        with pytest.raises(Missing, match="bk-9"):
            await admin.set_lifecycle("bk-9", DRAINING)


async def test_operations_that_last(cluster: LocalCluster) -> None:
    """What would be refused is refused at once; a key finds its operation whatever has become of the bookies."""
    async with desk_of(cluster) as (site, admin, _):
        await site.write(5)
        lost: dict[str, Any] = {"bookies": [LOST, LOST], "to": [], "skip_open": False}
        with pytest.raises(InvalidRequest, match="takes entries"):
            await admin.begin("recover-bookies", lost, "ops", "k")
        drain: dict[str, Any] = {"bookies": [LOST, "bk-1"], "at_most": 1, "force": False}
        with pytest.raises(DrainBlocked) as blocked:
            await admin.begin("drain", drain, "ops", None)
        assert blocked.value.ids["first_ledgers"]
        for about, error in (
            ({**drain, "bookies": ["bk-9"]}, InvalidRequest),
            ({**drain, "bookies": ["a/b"]}, InvalidRequest),
            ({**lost, "to": [LOST]}, InvalidRequest),
        ):
            with pytest.raises(error):
                await admin.begin(
                    "drain" if "force" in about else "recover-bookies", about, "o", None
                )
        await site.lose()
        begun = await admin.begin("recover-bookies", lost, "ops", "k")
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


async def test_recovery_is_steered(cluster: LocalCluster) -> None:
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


async def test_while_the_store_is_away_nothing_is_asked_of_it(cluster: LocalCluster) -> None:
    """At once: no deadline is waited for."""
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


async def test_the_state_of_the_session_is_followed() -> None:
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
