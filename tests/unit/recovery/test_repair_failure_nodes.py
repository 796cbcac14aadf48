"""Failures of repairs in Rollbook's own metadata tree."""

import random

import pytest

from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.ids import LedgerId
from rollbook.proto.ports import MetadataStore
from rollbook.recovery.core.repair_failures import after_failure
from rollbook.recovery.repair_failure_nodes import Failures
from tests.unit.proto.cluster.faulty import Fate, FaultyStore

L7, L8 = LedgerId(7), LedgerId(8)


@pytest.fixture
async def cluster(rival: MetadataStore) -> Cluster:
    return await initialise(rival, "/ledgers", random.Random(1))


@pytest.mark.parametrize("fate", [Fate.OK, Fate.ANSWER_LOST, Fate.REQUEST_LOST])
async def test_failures_are_overwritten_and_cleared(
    store: FaultyStore, cluster: Cluster, fate: Fate
) -> None:
    """BL22: success or failure is recorded for each ledger."""
    failures = Failures(store, cluster)
    await failures.prepare()
    assert await failures.read(L7) is None
    await failures.clear(L7)
    first = after_failure(None, 1, "BOOKIE_UNREACHABLE", "b1 is away")
    await failures.write(L8, first)
    second = after_failure(first, 2, "OVERLOADED", "busy")
    for failure in (first, second):
        store.fates.append(fate)
        await failures.write(L7, failure)
        assert await failures.read(L7) == failure
    assert [each async for each in failures.ids()] == [L7, L8]
    store.fates.append(fate)
    await failures.clear(L7)
    assert [each async for each in failures.ids()] == [L8]
