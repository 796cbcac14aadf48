"""The index from bookies to their ledgers, which follows the metadata store."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.cluster.ledger_nodes import LedgerNodes, StoredLedger
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import MetadataStore
from rollbook.proto.quorum import Quorum
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.wire.digest import DigestType
from rollbook.recovery import ledger_index as module
from rollbook.recovery.core.ledger_index_rows import row_of
from rollbook.recovery.ledger_index import LedgerIndex

B1, B2, B3, B4 = (BookieId(f"b{number}:3181") for number in range(1, 5))
DEADLINE_S = 10.0
tokens = random.Random(7)


def ledger(ledger_id: int, *members: BookieId) -> LedgerMetadata:
    return LedgerMetadata(
        LedgerId(ledger_id),
        Quorum(len(members), len(members), 1),
        (Fragment(EntryId(0), members),),
        digest_type=DigestType.CRC32C,
        password=b"",
        created_ms=1,
        creation_token=tokens.getrandbits(62),
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_PAUSE_S", 0.001)


@pytest.fixture
async def cluster(rival: MetadataStore) -> Cluster:
    return await initialise(rival, "/ledgers", random.Random(1))


@pytest.fixture
async def nodes(rival: MetadataStore, cluster: Cluster) -> LedgerNodes:
    """Writes metadata like clients and BookKeeper's processes."""
    return LedgerNodes(rival, cluster.root, cluster.layout)


@pytest.fixture
async def client(service: MemoryService) -> AsyncIterator[MetadataStore]:
    async with await service.connect() as client:
        yield client


@pytest.fixture
async def index(client: MetadataStore, cluster: Cluster) -> AsyncIterator[LedgerIndex]:
    index = LedgerIndex(client, cluster, SystemClock())
    running = asyncio.get_running_loop().create_task(index.run())
    yield index
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def until(index: LedgerIndex, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await asyncio.sleep(0.001)
            await index.catch_up()


async def ids_naming(index: LedgerIndex, *bookies: BookieId) -> list[int]:
    return sorted([ledger_id async for ledger_id, _ in index.naming(bookies)])


async def moved(nodes: LedgerNodes, ledger_id: int, old: BookieId, new: BookieId) -> StoredLedger:
    stored = await nodes.read(LedgerId(ledger_id))
    changed = stored.metadata.with_replacement(EntryId(0), old, new)
    return await nodes.update(stored, changed)


async def closed(nodes: LedgerNodes, ledger_id: int) -> None:
    stored = await nodes.read(LedgerId(ledger_id))
    await nodes.update(stored, stored.metadata.with_close(EntryId(9), 90))


async def test_index_reads_all_ledgers_and_follows_changes(
    index: LedgerIndex, nodes: LedgerNodes
) -> None:
    """RI1, AR18."""
    for ledger_id in range(200):
        await nodes.create(ledger(ledger_id, B1, (B2, B3)[ledger_id % 2]))
    await until(index, lambda: index.is_ready and len(index) == 200)
    assert index.bookies() == {B1: 200, B2: 100, B3: 100}
    assert await ids_naming(index, B2) == list(range(0, 200, 2))
    assert await ids_naming(index, B2, B3) == list(range(200))
    await nodes.create(ledger(200, B4))
    await nodes.delete(LedgerId(0))
    await closed(nodes, 2)
    await moved(nodes, 2, B2, B4)
    await until(index, lambda: index.count(B4) == 2 and index.count(B2) == 98)
    assert index.unclosed == 199
    assert await ids_naming(index, B4) == [2, 200]


async def test_index_finds_sparse_ledger_ids_in_one_walk(
    cluster: Cluster, nodes: LedgerNodes, client: MetadataStore
) -> None:
    for ledger_id in (1, 2**31 + 5, 2**40):
        await nodes.create(ledger(ledger_id, B1))
    index = LedgerIndex(client, cluster, SystemClock())
    running = asyncio.get_running_loop().create_task(index.run())
    await until(index, lambda: index.is_ready)
    assert await ids_naming(index, B1) == [1, 2**31 + 5, 2**40]
    assert index.walks == 1
    running.cancel()


async def test_changes_during_a_disconnect_are_found(
    index: LedgerIndex,
    nodes: LedgerNodes,
    service: MemoryService,
    client: MetadataStore,
) -> None:
    """RI1: a walk finds created, deleted and open ledgers; a sweep finds moved closed ledgers."""
    for ledger_id in range(10):
        await nodes.create(ledger(ledger_id, B1, B2))
    for ledger_id in range(5):
        await closed(nodes, ledger_id)
    await until(index, lambda: index.is_ready and index.unclosed == 5)
    sweeps = index.sweeps
    line = service.line(client)
    line.suspend()
    await moved(nodes, 3, B2, B4)  # A closed ledger, so no walk reads it again.
    await nodes.delete(LedgerId(1))
    await closed(nodes, 7)
    await moved(nodes, 7, B2, B3)
    await nodes.create(ledger(10, B3))
    line.resume()
    await until(index, lambda: index.count(B3) == 2 and index.count(B1) == 9)
    assert 1 not in await ids_naming(index, B1)
    async with asyncio.timeout(DEADLINE_S):
        await index.swept(sweeps)
    assert await ids_naming(index, B4) == [3]
    assert index.bookies() == {B1: 9, B2: 7, B3: 2, B4: 1}


async def test_unreadable_ledger_keeps_its_previous_bookies(
    index: LedgerIndex, nodes: LedgerNodes, rival: MetadataStore
) -> None:
    """RI1: the index may name too many ledgers, never too few."""
    await nodes.create(ledger(1, B1))
    await nodes.create(ledger(2, B1))
    await until(index, lambda: index.count(B1) == 2)
    await rival.set(nodes.path(LedgerId(1)), b"garbage")
    await until(index, lambda: bool(index.unreadable))
    assert await ids_naming(index, B1) == [1, 2]
    assert list(index.unreadable) == [1]
    await nodes.delete(LedgerId(1))
    await until(index, lambda: not index.unreadable)
    assert await ids_naming(index, B1) == [2]


async def test_index_survives_repeated_disconnects(
    index: LedgerIndex, nodes: LedgerNodes, service: MemoryService, client: MetadataStore
) -> None:
    """The connection breaks after every 20 new ledgers."""
    line = service.line(client)
    for round_ in range(10):
        for each in range(20):
            await nodes.create(ledger(20 * round_ + each, B1))
        line.cut()
    await until(index, lambda: index.is_ready and len(index) == 200)
    assert index.bookies() == {B1: 200}


async def test_listeners_are_notified_of_changed_rows(
    index: LedgerIndex, nodes: LedgerNodes
) -> None:
    heard: list[tuple[int, int]] = []
    forget = index.on_change(lambda ledger_id, row: heard.append((ledger_id, len(row))))
    await nodes.create(ledger(1, B1))
    await until(index, lambda: heard == [(1, 3)])
    await closed(nodes, 1)
    await until(index, lambda: index.unclosed == 0)
    assert heard == [(1, 3)], "its bookies are the same"
    forget()


@pytest.mark.parametrize("seed", range(20))
async def test_index_matches_metadata_after_random_changes(
    index: LedgerIndex,
    nodes: LedgerNodes,
    service: MemoryService,
    client: MetadataStore,
    seed: int,
) -> None:
    """RI1: clients, BookKeeper and connection losses in random order; the index ends up correct."""
    chance, line = random.Random(seed), service.line(client)
    truth: dict[int, LedgerMetadata] = {}
    for step in range(120):
        pick = chance.choice(sorted(truth)) if truth else None
        match chance.randrange(8):
            case 0 | 1 | 2:
                truth[step] = (
                    await nodes.create(ledger(step, *chance.sample([B1, B2, B3, B4], 2)))
                ).metadata
            case 3 if pick is not None:
                await nodes.delete(LedgerId(pick))
                del truth[pick]
            case 4 | 5 if pick is not None:
                stored = await nodes.read(LedgerId(pick))
                if not stored.metadata.is_closed:
                    wanted = stored.metadata.with_close(EntryId(9), 90)
                else:
                    old = chance.choice(stored.metadata.fragments[0].ensemble)
                    new = chance.choice(
                        [b for b in (B1, B2, B3, B4) if not stored.metadata.names(b)]
                    )
                    wanted = stored.metadata.with_replacement(EntryId(0), old, new)
                truth[pick] = (await nodes.update(stored, wanted)).metadata
            case 6:
                line.cut()
            case 7:
                await asyncio.sleep(0.001 * chance.random())
    line.cut()
    expected = {ledger_id: row_of(metadata) for ledger_id, metadata in truth.items()}
    await until(
        index,
        lambda: (
            {each: index.row(LedgerId(each)) for each in range(120)}
            == {each: expected.get(each) for each in range(120)}
        ),
    )
    counts = Counter(
        bookie for metadata in truth.values() for bookie in metadata.fragments[0].ensemble
    )
    assert index.bookies() == counts
    for bookie in counts:
        assert len(await ids_naming(index, bookie)) == counts[bookie]


async def test_interrupted_first_walk_is_followed_by_a_sweep(
    client: MetadataStore,
    cluster: Cluster,
    nodes: LedgerNodes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RI1: the next walk does not read closed ledgers again, one of which was moved."""
    await nodes.create(ledger(1, B1, B2))
    await closed(nodes, 1)
    index = LedgerIndex(client, cluster, SystemClock())
    read_one = index._read_one

    async def read_before_resync(ledger_id: LedgerId) -> None:
        await read_one(ledger_id)
        await moved(nodes, 1, B2, B3)
        index._must_walk = True

    monkeypatch.setattr(index, "_read_one", read_before_resync)
    await index._walk()
    monkeypatch.undo()
    await index._walk()
    assert await ids_naming(index, B3) == []
    keeping = asyncio.get_running_loop().create_task(index._keep())
    await until(index, lambda: index.count(B3) == 1)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_sweep_requested_during_a_sweep_runs_after_it(
    index: LedgerIndex, nodes: LedgerNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await nodes.create(ledger(1, B1, B2))
    await until(index, lambda: index.count(B1) == 1)
    read = index._read

    async def ask_meanwhile(ids: list[int]) -> None:
        monkeypatch.undo()
        await read(ids)
        index.request_sweep()

    monkeypatch.setattr(index, "_read", ask_meanwhile)
    sweeps = index.sweeps
    index.request_sweep()
    async with asyncio.timeout(DEADLINE_S):
        await index.swept(sweeps + 1)
