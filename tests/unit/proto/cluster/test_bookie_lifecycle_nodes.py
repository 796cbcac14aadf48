"""Lifecycles in the metadata store: updated from the version that was read, or not at all."""

import random

import pytest

from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes, StoredLifecycle
from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.errors import (
    BadMetadata,
    MetadataConflict,
    NodeExists,
    NoSuchNode,
    SessionExpired,
)
from rollbook.proto.formats.lifecycle import Lifecycle, LifecycleState
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import Check, MetadataStore
from tests.unit.proto.cluster.faulty import Fate, FaultyStore

B1, B2 = BookieId("b1:3181"), BookieId("b2:3181")
DRAINING = Lifecycle(LifecycleState.DRAINING, "aa", 1)
ACTIVE = Lifecycle(LifecycleState.ACTIVE, "bb", 2)


@pytest.fixture
async def cluster(rival: MetadataStore) -> Cluster:
    return await initialise(rival, "/ledgers", random.Random(1))


@pytest.fixture
async def nodes(store: FaultyStore, cluster: Cluster) -> LifecycleNodes:
    return LifecycleNodes(store, cluster)


async def test_a_bookie_without_a_node_is_active(nodes: LifecycleNodes) -> None:
    """BL15."""
    assert await nodes.read(B1) == StoredLifecycle(B1, Lifecycle(), None)
    assert await nodes.list() == []


async def test_lifecycle_is_stored_in_own_tree_of_metadata_store(
    nodes: LifecycleNodes, rival: MetadataStore
) -> None:
    """BL13, BL14. Java could not delete a cookie with a child, so the node is not below the cookie."""
    stored = await nodes.write(await nodes.read(B1), DRAINING)
    assert await nodes.read(B1) == stored == StoredLifecycle(B1, DRAINING, 0)
    stored = await nodes.write(stored, ACTIVE)
    assert await nodes.list() == [StoredLifecycle(B1, ACTIVE, 1)]
    assert await rival.children("/rollbook/lifecycle") == [B1]


@pytest.mark.parametrize("fate", [Fate.ANSWER_LOST, Fate.REQUEST_LOST, Fate.EXPIRED])
async def test_lifecycle_write_is_made_once_despite_lost_replies(
    nodes: LifecycleNodes, store: FaultyStore, fate: Fate
) -> None:
    """LR1."""
    stored = await nodes.write(await nodes.read(B2), DRAINING)
    store.fates.append(fate)
    assert await nodes.write(stored, ACTIVE) == await nodes.read(B2)


async def test_write_from_stale_lifecycle_is_refused(nodes: LifecycleNodes) -> None:
    found = await nodes.read(B1)
    stored = await nodes.write(found, DRAINING)
    with pytest.raises(NodeExists):
        await nodes.write(found, ACTIVE)
    await nodes.write(stored, ACTIVE)
    with pytest.raises(MetadataConflict):
        await nodes.write(stored, Lifecycle(LifecycleState.DRAINED, "cc"))


async def test_write_with_failing_check_or_session_is_refused(
    nodes: LifecycleNodes, store: FaultyStore
) -> None:
    found = await nodes.read(B1)
    with pytest.raises(NoSuchNode):
        await nodes.write(found, DRAINING, checks=[Check("/vote")])
    with pytest.raises(SessionExpired):
        await nodes.write(found, DRAINING, session=store.session + 1)
    assert (await nodes.read(B1)).version is None


async def test_unreadable_lifecycle_is_refused_and_not_listed(
    nodes: LifecycleNodes, rival: MetadataStore
) -> None:
    for bookie in (B1, B2):
        await nodes.write(await nodes.read(bookie), DRAINING)
    await rival.set(nodes.path(B1), b"{")
    with pytest.raises(BadMetadata):
        await nodes.read(B1)
    assert [each.bookie for each in await nodes.list()] == [B2]


async def test_watch_reports_lifecycle_changes(nodes: LifecycleNodes, rival: MetadataStore) -> None:
    """BL18."""
    one, every = await nodes.watch(B1), await nodes.watch()
    await nodes.write(await nodes.read(B1), DRAINING)
    assert (await anext(one)).path == nodes.path(B1)
    while (await anext(every)).path != nodes.path(B1):
        pass
