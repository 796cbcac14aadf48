"""A bookie that follows its lifecycle state while it leaves the cluster."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from rollbook.bookie.bookie import Bookie
from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes
from rollbook.proto.cluster.cluster_root import open_cluster
from rollbook.proto.formats.lifecycle import Lifecycle, LifecycleState
from rollbook.proto.formats.service_info import BookieServiceInfo, unpack_service_info
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import MetadataStore
from tests.support.ledger_cluster import LocalCluster

B1 = BookieId("bk-1")
DEADLINE_S = 30.0


class Site:
    def __init__(self, cluster: LocalCluster, store: MetadataStore, nodes: LifecycleNodes) -> None:
        self.cluster = cluster
        self.store = store
        self.nodes = nodes
        self._tokens = iter(f"{number:032x}" for number in range(1, 100))

    @property
    def bookie(self) -> Bookie:
        return self.cluster.bookies[B1]

    async def put(self, state: LifecycleState) -> None:
        found = await self.nodes.read(B1)
        await self.nodes.write(found, Lifecycle(state, next(self._tokens)))

    async def seen(self, *, read_only: bool) -> BookieServiceInfo | None:
        folder = "available/readonly" if read_only else "available"
        node = await self.store.get(f"/ledgers/{folder}/{B1}")
        return unpack_service_info(B1, node.value) if node else None

    async def is_seen_to_drain(self) -> bool:
        info = await self.seen(read_only=True)
        return info is not None and info.is_draining and await self.seen(read_only=False) is None

    async def is_seen_writable(self) -> bool:
        info = await self.seen(read_only=False)
        return info is not None and not info.is_draining


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await holds():
            await asyncio.sleep(0.02)


async def site_of(cluster: LocalCluster) -> Site:
    store = cluster._store
    return Site(cluster, store, LifecycleNodes(store, await open_cluster(store, "/ledgers")))


async def test_draining_bookie_is_read_only_and_registers_as_draining(tmp_path: Path) -> None:
    """B15; BL4, BL15, BL18, BL19: it refuses entries, and its registration shows that it drains."""
    async with LocalCluster(tmp_path, [B1]) as cluster:
        site = await site_of(cluster)
        await until(site.is_seen_writable)
        await site.put(LifecycleState.DRAINING)
        await until(site.is_seen_to_drain)
        assert site.bookie.storage.refuses_adds
        assert "draining" in site.bookie.space.standing.reason
        await site.put(LifecycleState.ACTIVE)
        await until(site.is_seen_writable)
        assert not site.bookie.storage.refuses_adds


async def test_leaving_bookie_serves_reads_in_every_state(tmp_path: Path) -> None:
    """BL4, BL8, BL12: in each state it refuses entries but serves reads."""
    async with LocalCluster(tmp_path, [B1]) as cluster, cluster.connect() as ledgers:
        site = await site_of(cluster)
        await ledgers.until_writable(1, DEADLINE_S)
        writer = await ledgers.create(ensemble=1, write=1, ack=1)
        await writer.append(b"kept")
        await writer.close()
        for state in LifecycleState:
            await site.put(LifecycleState.ACTIVE)
            await until(site.is_seen_writable)
            if state is LifecycleState.ACTIVE:
                continue
            await site.put(state)
            await until(site.is_seen_to_drain)
            assert site.bookie.storage.refuses_adds
            async with await ledgers.open(writer.ledger_id) as reader:
                assert [entry.payload async for entry in reader.read()] == [b"kept"]


async def test_bookie_started_during_a_drain_is_never_writable(tmp_path: Path) -> None:
    """B15; BL13, BL15: its state was set while it was down; it applies it before it registers."""
    async with LocalCluster(tmp_path, [B1]) as cluster:
        site = await site_of(cluster)
        await cluster.stop(B1)
        await site.put(LifecycleState.DRAINED)
        watch = await site.store.watch(f"/ledgers/available/{B1}")
        await cluster.start(B1)
        await until(site.is_seen_to_drain)
        await watch.close()
        assert [event async for event in watch] == [], "it was not writable for a moment"


async def test_unreadable_lifecycle_counts_as_leaving(tmp_path: Path) -> None:
    """B15; BL15."""
    async with LocalCluster(tmp_path, [B1]) as cluster:
        site = await site_of(cluster)
        await site.put(LifecycleState.ACTIVE)
        await site.store.set(site.nodes.path(B1), b"garbage")
        await until(site.is_seen_to_drain)
        assert "cannot be read" in site.bookie.space.standing.reason
