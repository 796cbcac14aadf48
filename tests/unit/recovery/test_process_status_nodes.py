"""Status nodes of recovery processes."""

import random

import pytest

from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import MetadataStore
from rollbook.recovery.process_status_nodes import (
    PresenceNodes,
    ProcessStatus,
    pack_presence,
    unpack_presence,
)
from tests.unit.proto.cluster.faulty import Fate, FaultyStore

FIRST = ProcessStatus("recovery-1", "0.1", 1700, {"worker": {"state": "running", "restarts": 0}})


@pytest.fixture
async def cluster(rival: MetadataStore) -> Cluster:
    return await initialise(rival, "/ledgers", random.Random(1))


@pytest.mark.parametrize("fate", [Fate.OK, Fate.ANSWER_LOST, Fate.REQUEST_LOST])
async def test_process_is_listed_while_its_session_lasts(
    store: FaultyStore, cluster: Cluster, service: MemoryService, fate: Fate
) -> None:
    nodes = PresenceNodes(store, cluster)
    await nodes.prepare()
    store.fates.append(fate)
    await nodes.write(FIRST)
    changed = ProcessStatus(
        "recovery-1", "0.1", 1700, {"worker": {"state": "failed", "restarts": 1}}
    )
    store.fates.append(fate)
    await nodes.write(changed)
    async with await service.connect() as other:
        await PresenceNodes(other, cluster).write(
            FIRST
        )  # A process with the same name has its own node.
        assert await nodes.list() == [changed, FIRST] or await nodes.list() == [FIRST, changed]
    assert await nodes.list() == [changed]


@pytest.mark.parametrize("data", [b"", b"[]", b"1", b"{}", b"\xff"])
def test_unreadable_presence_is_shown_by_its_node_name(data: bytes) -> None:
    assert unpack_presence("00ff", data) == ProcessStatus("00ff")


def test_unknown_presence_fields_are_ignored() -> None:
    data = pack_presence(FIRST).replace(b'{"audit"', b'{"addition": 1, "audit"')
    assert unpack_presence("00ff", data) == FIRST
