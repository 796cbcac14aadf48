"""Lifecycles in their nodes: written from what was found, or not at all."""

import random

import pytest

from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.cluster.lifecycle_nodes import LifecycleNodes, StoredLifecycle
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


async def test_the_state_is_kept_while_the_bookie_is_away(
    nodes: LifecycleNodes, rival: MetadataStore
) -> None:
    """BL13, BL14: in the metadata store, in our own tree: below a cookie Java could not delete it."""
    stored = await nodes.write(await nodes.read(B1), DRAINING)
    assert await nodes.read(B1) == stored == StoredLifecycle(B1, DRAINING, 0)
    stored = await nodes.write(stored, ACTIVE)
    assert await nodes.list() == [StoredLifecycle(B1, ACTIVE, 1)]
    assert await rival.children("/rollbook/lifecycle") == [B1]


@pytest.mark.parametrize("fate", [Fate.ANSWER_LOST, Fate.REQUEST_LOST, Fate.EXPIRED])
async def test_a_change_is_made_once_whatever_is_lost(
    nodes: LifecycleNodes, store: FaultyStore, fate: Fate
) -> None:
    """LR1."""
    stored = await nodes.write(await nodes.read(B2), DRAINING)
    store.fates.append(fate)
    assert await nodes.write(stored, ACTIVE) == await nodes.read(B2)


async def test_who_saw_an_older_state_changes_nothing(nodes: LifecycleNodes) -> None:
    found = await nodes.read(B1)
    stored = await nodes.write(found, DRAINING)
    with pytest.raises(NodeExists):
        await nodes.write(found, ACTIVE)
    await nodes.write(stored, ACTIVE)
    with pytest.raises(MetadataConflict):
        await nodes.write(stored, Lifecycle(LifecycleState.DRAINED, "cc"))


async def test_a_change_is_made_while_its_checks_hold(
    nodes: LifecycleNodes, store: FaultyStore
) -> None:
    found = await nodes.read(B1)
    with pytest.raises(NoSuchNode):
        await nodes.write(found, DRAINING, checks=[Check("/vote")])
    with pytest.raises(SessionExpired):
        await nodes.write(found, DRAINING, session=store.session + 1)
    assert (await nodes.read(B1)).version is None


async def test_one_that_cannot_be_read_is_not_guessed(
    nodes: LifecycleNodes, rival: MetadataStore
) -> None:
    for bookie in (B1, B2):
        await nodes.write(await nodes.read(bookie), DRAINING)
    await rival.set(nodes.path(B1), b"{")
    with pytest.raises(BadMetadata):
        await nodes.read(B1)
    assert [each.bookie for each in await nodes.list()] == [B2]


async def test_changes_are_heard(nodes: LifecycleNodes, rival: MetadataStore) -> None:
    """BL18."""
    one, every = await nodes.watch(B1), await nodes.watch()
    await nodes.write(await nodes.read(B1), DRAINING)
    assert (await anext(one)).path == nodes.path(B1)
    while (await anext(every)).path != nodes.path(B1):
        pass
