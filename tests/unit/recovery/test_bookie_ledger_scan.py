"""A full scan of all ledgers' metadata."""

import random

import pytest

from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.ids import LedgerId
from rollbook.proto.ports import MetadataStore
from rollbook.recovery.bookie_ledger_scan import take_census
from tests.unit.recovery.test_ledger_index import B1, B2, B3, B4, ledger


@pytest.fixture
async def cluster(rival: MetadataStore) -> Cluster:
    return await initialise(rival, "/ledgers", random.Random(1))


async def test_scan_reads_all_ledgers_and_selects_those_naming_a_bookie(
    rival: MetadataStore, cluster: Cluster
) -> None:
    """RI2, AR39: the metadata of all ledgers is read, and those that name the bookie are selected."""
    nodes = LedgerNodes(rival, cluster.root, cluster.layout)
    for ledger_id in range(150):
        await nodes.create(ledger(ledger_id, B1, (B2, B3)[ledger_id % 2]))
    await rival.set(nodes.path(LedgerId(7)), b"garbage")
    heard: list[int] = []
    census = await take_census(nodes, [B2, B4], lambda metadata: heard.append(metadata.ledger_id))
    assert census.ledgers == 150
    assert census.naming == {B2: 75, B4: 0}
    assert census.examples == {B2: 0}
    assert census.unreadable == [7]
    assert sorted(heard) == list(range(0, 150, 2))
