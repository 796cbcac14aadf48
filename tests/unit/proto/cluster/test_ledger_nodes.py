"""Ledgers in the metadata store: created, read, updated, deleted and listed, with rivals and lost
replies.
"""

import asyncio
import random
from itertools import product

import pytest

from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.errors import (
    BadMetadata,
    InvalidRequest,
    LedgerFenced,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NoSuchCluster,
    NoSuchLedger,
    NoSuchNode,
    SessionExpired,
)
from rollbook.proto.formats.layout import Layout
from rollbook.proto.formats.paths import ledger_path
from rollbook.proto.ids import LEDGER_ID_MAX, BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata, draw_creation_token
from rollbook.proto.ports import Check, MetadataStore
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import DigestType
from tests.golden import metadata as golden
from tests.unit.proto.cluster.faulty import Fate, FaultyStore

ROOT = "/ledgers"
B = [BookieId(f"b{number}:3181") for number in range(5)]
LOST = (Fate.REQUEST_LOST, Fate.ANSWER_LOST)
tokens = random.Random(5)


def ledger(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(
        LedgerId(ledger_id),
        Quorum(3, 3, 2),
        (Fragment(EntryId(0), (B[0], B[1], B[2])),),
        digest_type=DigestType.CRC32C,
        password=b"secret",
        created_ms=1_700_000_000_000,
        creation_token=draw_creation_token(tokens),
    )


@pytest.fixture
async def ledgers(store: FaultyStore) -> LedgerNodes:
    await store.create(ROOT)
    return LedgerNodes(store, ROOT, Layout.HIERARCHICAL)


async def walk(ledgers: LedgerNodes, start: int = 0) -> list[int]:
    return [ledger_id async for ledger_id in ledgers.ids(LedgerId(start))]


# --- Create -----------------------------------------------------------------------------------


async def test_new_ledger_gets_its_parent_nodes(ledgers: LedgerNodes, store: FaultyStore) -> None:
    stored = await ledgers.create_new(ledger)
    assert stored.metadata.ledger_id == 0
    assert await store.children(f"{ROOT}/00/0000") == ["L0000"]
    assert await ledgers.read(LedgerId(0)) == stored


@pytest.mark.parametrize("row", [row for n in (1, 2, 3) for row in product(LOST, repeat=n)])
async def test_ledger_is_created_once_despite_lost_requests_and_replies(
    ledgers: LedgerNodes, store: FaultyStore, row: tuple[Fate, ...]
) -> None:
    """LR1: the creation token proves that the node is ours."""
    await ledgers.create(ledger(1))  # The parents exist.
    store.fates.extend(row)
    wanted = ledger(2)
    assert (await ledgers.create(wanted)).metadata == wanted
    assert await walk(ledgers) == [1, 2]


async def test_create_of_taken_id_raises_node_exists(
    ledgers: LedgerNodes, store: FaultyStore
) -> None:
    first, second = ledger(7), ledger(7)
    await ledgers.create(first)
    for fates in ((), LOST):
        store.fates.extend(fates)
        with pytest.raises(NodeExists):
            await ledgers.create(second)
    assert (await ledgers.read(LedgerId(7))).metadata == first


async def test_create_over_unreadable_node_raises_node_exists(
    ledgers: LedgerNodes, store: FaultyStore
) -> None:
    await ledgers.create(ledger(7))
    await store.set(f"{ROOT}/00/0000/L0007", b"?")
    with pytest.raises(NodeExists):
        await ledgers.create(ledger(7))


async def test_new_ledger_skips_ids_chosen_by_clients(ledgers: LedgerNodes) -> None:
    for taken in (0, 1, 2):
        await ledgers.create(ledger(taken))
    assert (await ledgers.create_new(ledger)).metadata.ledger_id == 3


async def test_parents_removed_during_create_are_created_again(
    ledgers: LedgerNodes, store: FaultyStore, rival: MetadataStore
) -> None:
    await rival.create(f"{ROOT}/00")
    await rival.create(f"{ROOT}/00/0000")

    async def rival_removes() -> None:
        await rival.delete(f"{ROOT}/00/0000")
        await rival.delete(f"{ROOT}/00")

    store.between = rival_removes
    store.fates.append(Fate.REQUEST_LOST)
    await ledgers.create(ledger(3))
    assert await walk(ledgers) == [3]


async def test_parent_removed_between_parent_creations_is_created_again(
    ledgers: LedgerNodes, store: FaultyStore, rival: MetadataStore
) -> None:
    store.writes = 0
    store.before_write[4] = [lambda: rival.delete(f"{ROOT}/00")]  # Leaf, 00/0000, 00, 00/0000.
    await ledgers.create(ledger(3))
    assert await walk(ledgers) == [3]


async def test_concurrent_creates_and_deletes_leave_no_nodes(
    ledgers: LedgerNodes, rival: MetadataStore
) -> None:
    """Each delete removes the empty parents that the next create needs."""
    others = LedgerNodes(rival, ROOT, Layout.HIERARCHICAL)

    async def live(client: LedgerNodes, ids: range) -> None:
        for ledger_id in ids:
            await client.create(ledger(ledger_id))
            await client.delete(LedgerId(ledger_id))

    await asyncio.gather(live(ledgers, range(0, 60, 2)), live(others, range(1, 60, 2)))
    assert await walk(ledgers) == []
    assert await rival.children(ROOT) == []


async def test_ledgers_without_cluster_raise_no_such_cluster_or_ledger(
    rival: MetadataStore,
) -> None:
    nowhere = LedgerNodes(rival, "/nowhere", Layout.HIERARCHICAL)
    with pytest.raises(NoSuchCluster):
        await nowhere.create(ledger(1))
    with pytest.raises(NoSuchCluster):
        await walk(nowhere)
    with pytest.raises(NoSuchLedger):
        await nowhere.read(LedgerId(1))


@pytest.mark.parametrize("layout", [Layout.FLAT, Layout.LEGACY_HIERARCHICAL])
async def test_old_layouts_accept_no_new_ledgers(rival: MetadataStore, layout: Layout) -> None:
    with pytest.raises(InvalidRequest):
        await LedgerNodes(rival, ROOT, layout).create(ledger(1))


# --- Read, update, delete ---------------------------------------------------------------------


async def test_update_from_stale_version_is_refused(ledgers: LedgerNodes) -> None:
    stored = await ledgers.create(ledger(1))
    moved = stored.metadata.with_writer_ensemble(EntryId(5), (B[3], B[1], B[2]))
    newer = await ledgers.update(stored, moved)
    assert (newer.version, (await ledgers.read(LedgerId(1))).metadata) == (1, moved)
    with pytest.raises(MetadataConflict):
        await ledgers.update(stored, stored.metadata.with_recovery_started())


async def test_unchanged_metadata_is_not_written(ledgers: LedgerNodes, store: FaultyStore) -> None:
    stored = await ledgers.create(ledger(1))
    store.writes = 0
    assert await ledgers.update(stored, stored.metadata) == stored
    assert store.writes == 0


@pytest.mark.parametrize("row", [row for n in (1, 2, 3) for row in product(LOST, repeat=n)])
async def test_update_is_made_once_despite_lost_requests_and_replies(
    ledgers: LedgerNodes, store: FaultyStore, row: tuple[Fate, ...]
) -> None:
    """LR1."""
    stored = await ledgers.create(ledger(1))
    store.fates.extend(row)
    assert (await ledgers.update(stored, stored.metadata.with_recovery_started())).version == 1


async def test_close_with_lost_reply_is_recognised_after_repair(
    ledgers: LedgerNodes, store: FaultyStore, rival: MetadataStore
) -> None:
    """The conflict says only that the node changed; applying the close again shows that it was
    made.
    """
    stored = await ledgers.create(ledger(1))
    others = LedgerNodes(rival, ROOT, Layout.HIERARCHICAL)

    async def worker_repairs() -> None:
        found = await others.read(LedgerId(1))
        await others.update(found, found.metadata.with_replacement(EntryId(0), B[0], B[4]))

    store.between = worker_repairs
    store.fates.append(Fate.ANSWER_LOST)
    with pytest.raises(MetadataConflict):
        await ledgers.update(stored, stored.metadata.with_close(EntryId(9), 100))
    found = await ledgers.read(LedgerId(1))
    assert found.metadata.with_close(EntryId(9), 100) == found.metadata


async def test_writer_cannot_close_ledger_after_recovery_began(
    ledgers: LedgerNodes, rival: MetadataStore
) -> None:
    """LM2, LM3: a writer that reads back after recovery began stops."""
    stored = await ledgers.create(ledger(1))
    others = LedgerNodes(rival, ROOT, Layout.HIERARCHICAL)
    await others.update(stored, stored.metadata.with_recovery_started())
    with pytest.raises(MetadataConflict):
        await ledgers.update(stored, stored.metadata.with_close(EntryId(9), 100))
    found = await ledgers.read(LedgerId(1), fresh=True)
    with pytest.raises(LedgerFenced):
        found.metadata.with_close(EntryId(9), 100)


async def test_missing_ledger_is_read_again_after_sync(
    ledgers: LedgerNodes, store: FaultyStore
) -> None:
    """A lagging replica may not have the ledger yet."""
    store.reads = 0
    with pytest.raises(NoSuchLedger):
        await ledgers.read(LedgerId(1))
    assert store.reads == 3


async def test_ledger_without_creation_time_uses_time_of_its_node(
    ledgers: LedgerNodes, store: FaultyStore
) -> None:
    assert (await ledgers.create(ledger(1))).created_ms == 1_700_000_000_000
    await store.create(f"{ROOT}/00/0000/L0002", golden.OPEN_V3)
    node = await store.get(f"{ROOT}/00/0000/L0002")
    assert node is not None
    assert (await ledgers.read(LedgerId(2))).created_ms == node.stat.created_ms


async def test_damaged_metadata_error_names_ledger(
    ledgers: LedgerNodes, store: FaultyStore
) -> None:
    await ledgers.create(ledger(1))
    await store.set(f"{ROOT}/00/0000/L0001", b"BookieMetadataFormatVersion\t3\n\xff")
    with pytest.raises(BadMetadata) as caught:
        await ledgers.read(LedgerId(1))
    assert caught.value.ids == {"ledger_id": 1}


async def test_delete_removes_empty_parents(ledgers: LedgerNodes, store: FaultyStore) -> None:
    for ledger_id in (1, 2, 10_001):
        await ledgers.create(ledger(ledger_id))
    await ledgers.delete(LedgerId(1))
    assert await walk(ledgers) == [2, 10_001]
    store.fates.append(Fate.ANSWER_LOST)
    await ledgers.delete(LedgerId(2), version=0)
    assert await store.children(f"{ROOT}/00") == ["0001"]
    await ledgers.delete(LedgerId(10_001))
    assert await store.children(ROOT) == []


@pytest.mark.parametrize(
    "trouble", [(Fate.NOT_SENT,), (Fate.REQUEST_LOST, Fate.NOT_SENT), (Fate.REQUEST_LOST,) * 9]
)
async def test_delete_succeeds_when_removal_of_parents_fails(
    ledgers: LedgerNodes, store: FaultyStore, trouble: tuple[Fate, ...]
) -> None:
    await ledgers.create(ledger(1))
    store.fates.extend((Fate.OK, *trouble))
    await ledgers.delete(LedgerId(1))
    with pytest.raises(NoSuchLedger):
        await ledgers.read(LedgerId(1))


async def test_delete_and_update_of_missing_ledger_or_version_are_refused(
    ledgers: LedgerNodes,
) -> None:
    await ledgers.create(ledger(1))
    with pytest.raises(MetadataConflict):
        await ledgers.delete(LedgerId(1), version=1)
    with pytest.raises(NoSuchLedger):
        await ledgers.delete(LedgerId(2))
    missing = await ledgers.read(LedgerId(1))
    await ledgers.delete(LedgerId(1))
    with pytest.raises(NoSuchLedger):
        await ledgers.update(missing, missing.metadata.with_recovery_started())


# --- List -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", Layout)
async def test_all_ledgers_are_listed_in_order(rival: MetadataStore, layout: Layout) -> None:
    chance = random.Random(3)
    ids = {chance.randrange(2 ** chance.randrange(1, 33)) for _ in range(60)}
    ids |= {0, 9999, 10_000, 2**31 - 2, 2**31 - 1, 2**31}
    if layout is not Layout.LEGACY_HIERARCHICAL:
        ids |= {LEDGER_ID_MAX, 10**10, 10**18}
    await rival.create(ROOT)
    for ledger_id in sorted(ids, key=lambda _: chance.random()):
        await make_node(rival, ledger_path(layout, LedgerId(ledger_id)))
    for stranger in (
        "LAYOUT",
        "INSTANCEID",
        "available/readonly/b:1",
        "cookies/b:1",
        "00/rollbook",
        "0000",
        "idgen/ID-0000000007",
        "idgen-long/HOB-0000000001",
        "underreplication/ledgers/0000",
        "00/0000/lock",
        "000/0000/x",
        "L12",
        "L00000000012",
        "ID-0000000012",
    ):
        await make_node(rival, stranger)
    ledgers = LedgerNodes(rival, ROOT, layout)
    assert await walk(ledgers) == sorted(ids)
    for start in (1, 10_000, 2**31 - 1, 2**31, 10**10):
        assert await walk(ledgers, start) == sorted(each for each in ids if each >= start)


async def test_failed_listing_raises_metadata_unavailable(
    ledgers: LedgerNodes, store: FaultyStore
) -> None:
    for ledger_id in (1, 10_001):
        await ledgers.create(ledger(ledger_id))
    steps = ledgers.ids()
    assert await anext(steps) == 1
    store.read_fates.append(Fate.NOT_SENT)
    with pytest.raises(MetadataUnavailable):
        await anext(steps)


async def test_directory_deleted_during_listing_counts_as_empty(
    ledgers: LedgerNodes, rival: MetadataStore
) -> None:
    for ledger_id in (1, 10_001, 20_001):
        await ledgers.create(ledger(ledger_id))
    steps = ledgers.ids()
    assert await anext(steps) == 1
    await LedgerNodes(rival, ROOT, Layout.HIERARCHICAL).delete(LedgerId(10_001))
    assert [ledger_id async for ledger_id in steps] == [20_001]


async def test_listing_reads_directories_not_ledgers(
    ledgers: LedgerNodes, store: FaultyStore
) -> None:
    """Its cost grows with the number of directories: listing a million ledgers takes some hundred
    reads.
    """
    for ledger_id in range(300):
        await ledgers.create(ledger(ledger_id))
    store.reads = 0
    assert len(await walk(ledgers)) == 300
    # sync and the root; the root, 00 and 00/0000; the root again, for long ids.
    assert store.reads == 6


async def make_node(store: MetadataStore, path: str) -> None:
    made = ROOT
    for name in path.split("/"):
        made = f"{made}/{name}"
        if await store.get(made) is None:
            await store.create(made)


# --- A swap under a lock ----------------------------------------------------------------------


@pytest.mark.parametrize("fate", [Fate.OK, Fate.ANSWER_LOST, Fate.REQUEST_LOST])
async def test_swap_is_made_once_while_its_checks_hold(
    ledgers: LedgerNodes, store: FaultyStore, rival: MetadataStore, fate: Fate
) -> None:
    """LR1."""
    stored = await ledgers.create(ledger(3))
    await rival.create("/lock")
    wanted = stored.metadata.with_recovery_started()
    store.fates.append(fate)
    swapped = await ledgers.swap(stored, wanted, [Check("/lock")], store.session)
    assert swapped == await ledgers.read(LedgerId(3))


@pytest.mark.parametrize("fate", [Fate.OK, Fate.REQUEST_LOST])
async def test_swap_is_refused_without_its_session_check_or_version(
    ledgers: LedgerNodes, store: FaultyStore, rival: MetadataStore, fate: Fate
) -> None:
    stored = await ledgers.create(ledger(3))
    wanted = stored.metadata.with_recovery_started()
    store.fates.append(fate)
    with pytest.raises(NoSuchNode):
        await ledgers.swap(stored, wanted, [Check("/lock")], store.session)
    await rival.create("/lock")
    with pytest.raises(SessionExpired):
        await ledgers.swap(stored, wanted, [Check("/lock")], store.session + 1)
    store.fates.append(Fate.EXPIRED)
    with pytest.raises(SessionExpired):
        await ledgers.swap(stored, wanted, [Check("/lock")], store.session)
    await rival.set(ledgers.path(LedgerId(3)), b"changed")
    with pytest.raises(MetadataConflict):
        await ledgers.swap(stored, wanted, [Check("/lock")], store.session)
