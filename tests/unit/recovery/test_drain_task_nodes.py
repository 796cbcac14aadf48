"""Drain tasks in Rollbook's own metadata tree."""

import random

import pytest

from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.formats.replication import UnderreplicatedMark
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.ports import MetadataStore
from rollbook.recovery.drain_task_nodes import DrainTasks
from tests.unit.proto.cluster.faulty import FaultyStore

B1, B2 = BookieId("b1:3181"), BookieId("b2:3181")
L7 = LedgerId(7)


@pytest.fixture
async def cluster(rival: MetadataStore) -> Cluster:
    return await initialise(rival, "/ledgers", random.Random(1))


async def test_drain_tasks_are_stored_outside_bookkeepers_tree(
    store: FaultyStore, cluster: Cluster, rival: MetadataStore
) -> None:
    """BL20: BookKeeper's worker would find the copies sound and delete the mark."""
    tasks = DrainTasks(store, cluster)
    await tasks.prepare()
    await tasks.mark(L7, [B1], 1)
    await tasks.mark(L7, [B2], 2)
    found = await tasks.read(L7)
    assert found is not None
    assert found.mark == UnderreplicatedMark((B1, B2), 2)
    assert await rival.get("/rollbook/drain/0000/0000/0000/0007/urL0000000007") is not None
    assert "underreplication" not in await rival.children("/ledgers")
