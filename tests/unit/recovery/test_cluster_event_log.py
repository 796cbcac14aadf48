"""Cluster events that a server derives while it watches the metadata store."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes, StoredLifecycle
from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.formats.lifecycle import Lifecycle, LifecycleState
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import CreateMode, MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery.cluster_event_log import ClusterEventLog
from rollbook.recovery.core.event_derivation import Event, EventFilter
from rollbook.recovery.core.repair_failures import Failure, LostEntries
from rollbook.recovery.repair_failure_nodes import BadCopies, Failures
from tests.unit.proto.cluster.faulty import FaultyStore
from tests.unit.recovery.test_auditor import until

DEADLINE_S = 20.0
BK1, BK2 = BookieId("bk-1"), BookieId("bk-2")


async def log_of(ledger_id: LedgerId) -> str | None:
    return "default/orders" if ledger_id == 7 else None


@pytest.fixture
async def cluster(service: MemoryService, rival: MetadataStore) -> AsyncIterator[Cluster]:
    async with asyncio.timeout(DEADLINE_S):
        yield await initialise(rival, "/ledgers", random.Random(1))


@asynccontextmanager
async def watching(
    store: MetadataStore, cluster: Cluster, overdue_s: int = 0
) -> AsyncIterator[ClusterEventLog]:
    events = ClusterEventLog(store, cluster, SystemClock(), log_of, overdue_s=overdue_s)
    task = asyncio.create_task(events.run())
    try:
        await events.refresh()
        yield events
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def seen_by(events: ClusterEventLog, count: int) -> list[Event]:
    """Wait for this number of events; return them oldest first."""

    async def are_there() -> bool:
        return len(await all_of(events)) >= count

    await until(are_there)
    found = await all_of(events)
    assert len(found) == count, [each.id for each in found]
    return found


async def all_of(events: ClusterEventLog) -> list[Event]:
    page = await events.page(EventFilter(), "", 1000)
    assert page is not None
    return page[0][::-1]


async def test_two_servers_report_the_same_events(
    cluster: Cluster, store: FaultyStore, rival: MetadataStore
) -> None:
    """EV1: events of registrations, lifecycles and the switch have the same ID on every server."""
    marks = Marks(rival, cluster.root)
    await marks.prepare()
    path = f"{cluster.root}/available/bk-1"
    await rival.create(path, b"", CreateMode.EPHEMERAL)
    async with watching(store, cluster) as ours, watching(rival, cluster) as others:
        assert await all_of(ours) == []
        await rival.delete(path)
        await seen_by(ours, 1)
        await rival.create(path, b"", CreateMode.EPHEMERAL)
        await seen_by(ours, 2)
        nodes, lifecycle = LifecycleNodes(rival, cluster), Lifecycle(LifecycleState.DRAINING, "a1")
        await nodes.write(StoredLifecycle(BK1, Lifecycle(), None), lifecycle)
        await seen_by(ours, 3)
        await marks.disable()
        await seen_by(ours, 4)
        await marks.enable()
        found = await seen_by(ours, 5)
        kinds = ["bookie-lost", "bookie-back", "lifecycle", "recovery-paused", "recovery-resumed"]
        assert [each.kind.value for each in found] == kinds
        assert [each.id for each in await seen_by(others, 5)] == [each.id for each in found]
        async with watching(rival, cluster) as newcomer:
            (known,) = await seen_by(newcomer, 1)
            assert known == found[2], "the lifecycle is stored, so its event is derived again"


async def test_ledger_events_name_their_bookies_and_log(
    cluster: Cluster, store: FaultyStore, rival: MetadataStore
) -> None:
    marks = Marks(rival, cluster.root)
    await marks.prepare()
    await marks.mark(LedgerId(7), [BK1], SystemClock().wall_us() // 1000 - 60_000)
    await marks.mark(LedgerId(8), [BK1], SystemClock().wall_us() // 1000)
    bad, failures = BadCopies(rival, cluster), Failures(rival, cluster)
    await bad.prepare()
    await failures.prepare()
    async with watching(store, cluster, overdue_s=30) as events:
        (overdue,) = await seen_by(events, 1)
        assert (overdue.kind.value, overdue.ledger_id, overdue.bookies) == (
            "ledger-overdue",
            7,
            ("bk-1",),
        )
        assert overdue.log == "default/orders"
        await bad.add(LedgerId(7), {BK2: [EntryId(3)]})
        await seen_by(events, 2)
        await failures.write(LedgerId(9), Failure(1, "X", "x"))
        losses = (LostEntries(EntryId(0), EntryId(4), (BK1, BK2)),)
        await failures.write(LedgerId(9), Failure(2, "X", "x", losses=losses))
        await failures.write(LedgerId(9), Failure(3, "X", "x", losses=losses))
        found = await seen_by(events, 3)
        assert [each.text for each in found[1:]] == [
            "Ledger 7 has bad copies: 3-3 on bk-2.",
            "Ledger 9 has entries without a copy: 0-4.",
        ]
        assert [each.log for each in found[1:]] == ["default/orders", None]
        page = await events.page(EventFilter(bookie="bk-2"), "", 10)
        assert page is not None
        assert len(page[0]) == 2


async def test_unreadable_lifecycles_cause_no_events(
    cluster: Cluster, store: FaultyStore, rival: MetadataStore
) -> None:
    nodes = LifecycleNodes(rival, cluster)
    await nodes.write(
        StoredLifecycle(BK1, Lifecycle(), None), Lifecycle(LifecycleState.DRAINING, "a1")
    )
    async with watching(store, cluster) as events:
        await seen_by(events, 1)
        await rival.create(f"{nodes.folder}/bk-3", b"\xff nonsense")
        await nodes.write(
            StoredLifecycle(BK2, Lifecycle(), None), Lifecycle(LifecycleState.DRAINING, "a2")
        )
        assert [each.bookies for each in await seen_by(events, 2)] == [("bk-1",), ("bk-2",)]
