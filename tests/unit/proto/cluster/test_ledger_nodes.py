"""Ledgers in their nodes: made, read, changed, deleted, listed, with rivals and lost replies."""

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


async def test_a_new_ledger_has_its_parents_made(ledgers: LedgerNodes, store: FaultyStore) -> None:
    stored = await ledgers.create_new(ledger)
    assert stored.metadata.ledger_id == 0
    assert await store.children(f"{ROOT}/00/0000") == ["L0000"]
    assert await ledgers.read(LedgerId(0)) == stored


@pytest.mark.parametrize("row", [row for n in (1, 2, 3) for row in product(LOST, repeat=n)])
async def test_a_ledger_is_made_once_whatever_is_lost(
    ledgers: LedgerNodes, store: FaultyStore, row: tuple[Fate, ...]
) -> None:
    """LR1: the creation token says that the node is ours."""
    await ledgers.create(ledger(1))  # The parents are there.
    store.fates.extend(row)
    wanted = ledger(2)
    assert (await ledgers.create(wanted)).metadata == wanted
    assert await walk(ledgers) == [1, 2]


async def test_an_id_that_is_taken_is_another_ones(
    ledgers: LedgerNodes, store: FaultyStore
) -> None:
    first, second = ledger(7), ledger(7)
    await ledgers.create(first)
    for fates in ((), LOST):
        store.fates.extend(fates)
        with pytest.raises(NodeExists):
            await ledgers.create(second)
    assert (await ledgers.read(LedgerId(7))).metadata == first


async def test_a_node_that_cannot_be_read_is_not_ours(
    ledgers: LedgerNodes, store: FaultyStore
) -> None:
    await ledgers.create(ledger(7))
    await store.set(f"{ROOT}/00/0000/L0007", b"?")
    with pytest.raises(NodeExists):
        await ledgers.create(ledger(7))


async def test_a_new_ledger_steps_around_ids_that_others_picked(ledgers: LedgerNodes) -> None:
    for taken in (0, 1, 2):
        await ledgers.create(ledger(taken))
    assert (await ledgers.create_new(ledger)).metadata.ledger_id == 3


async def test_parents_removed_under_our_hands_are_made_again(
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


async def test_parents_removed_between_the_making_of_two_are_made_again(
    ledgers: LedgerNodes, store: FaultyStore, rival: MetadataStore
) -> None:
    store.writes = 0
    store.before_write[4] = [lambda: rival.delete(f"{ROOT}/00")]  # Leaf, 00/0000, 00, 00/0000.
    await ledgers.create(ledger(3))
    assert await walk(ledgers) == [3]


async def test_many_clients_make_and_delete_around_each_other(
    ledgers: LedgerNodes, rival: MetadataStore
) -> None:
    """Each delete takes the empty parents along that the next create needs."""
    others = LedgerNodes(rival, ROOT, Layout.HIERARCHICAL)

    async def live(client: LedgerNodes, ids: range) -> None:
        for ledger_id in ids:
            await client.create(ledger(ledger_id))
            await client.delete(LedgerId(ledger_id))

    await asyncio.gather(live(ledgers, range(0, 60, 2)), live(others, range(1, 60, 2)))
    assert await walk(ledgers) == []
    assert await rival.children(ROOT) == []


async def test_without_a_cluster_there_are_no_ledgers(rival: MetadataStore) -> None:
    nowhere = LedgerNodes(rival, "/nowhere", Layout.HIERARCHICAL)
    with pytest.raises(NoSuchCluster):
        await nowhere.create(ledger(1))
    with pytest.raises(NoSuchCluster):
        await walk(nowhere)
    with pytest.raises(NoSuchLedger):
        await nowhere.read(LedgerId(1))


@pytest.mark.parametrize("layout", [Layout.FLAT, Layout.LEGACY_HIERARCHICAL])
async def test_old_layouts_take_no_new_ledgers(rival: MetadataStore, layout: Layout) -> None:
    with pytest.raises(InvalidRequest):
        await LedgerNodes(rival, ROOT, layout).create(ledger(1))


# --- Read, update, delete ---------------------------------------------------------------------


async def test_a_change_needs_the_version_that_was_read(ledgers: LedgerNodes) -> None:
    """A change that another one has overtaken is not made."""
    stored = await ledgers.create(ledger(1))
    moved = stored.metadata.with_writer_ensemble(EntryId(5), (B[3], B[1], B[2]))
    newer = await ledgers.update(stored, moved)
    assert (newer.version, (await ledgers.read(LedgerId(1))).metadata) == (1, moved)
    with pytest.raises(MetadataConflict):
        await ledgers.update(stored, stored.metadata.with_recovery_started())


async def test_what_changes_nothing_is_not_written(
    ledgers: LedgerNodes, store: FaultyStore
) -> None:
    stored = await ledgers.create(ledger(1))
    store.writes = 0
    assert await ledgers.update(stored, stored.metadata) == stored
    assert store.writes == 0


@pytest.mark.parametrize("row", [row for n in (1, 2, 3) for row in product(LOST, repeat=n)])
async def test_an_update_is_made_once_whatever_is_lost(
    ledgers: LedgerNodes, store: FaultyStore, row: tuple[Fate, ...]
) -> None:
    """LR1."""
    stored = await ledgers.create(ledger(1))
    store.fates.extend(row)
    assert (await ledgers.update(stored, stored.metadata.with_recovery_started())).version == 1


async def test_a_close_with_a_lost_reply_and_a_repair_on_top_is_found_done(
    ledgers: LedgerNodes, store: FaultyStore, rival: MetadataStore
) -> None:
    """The conflict says only that the node moved on; evaluating the change again tells the rest."""
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


async def test_two_recoveries_and_a_writer_race_for_one_ledger(
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


async def test_a_missing_ledger_is_looked_for_twice(
    ledgers: LedgerNodes, store: FaultyStore
) -> None:
    """A replica that lags may not have it yet: `sync` first, then believe it."""
    store.reads = 0
    with pytest.raises(NoSuchLedger):
        await ledgers.read(LedgerId(1))
    assert store.reads == 3


async def test_a_ledger_without_a_time_is_as_old_as_its_node(
    ledgers: LedgerNodes, store: FaultyStore
) -> None:
    assert (await ledgers.create(ledger(1))).created_ms == 1_700_000_000_000
    await store.create(f"{ROOT}/00/0000/L0002", golden.OPEN_V3)
    node = await store.get(f"{ROOT}/00/0000/L0002")
    assert node is not None
    assert (await ledgers.read(LedgerId(2))).created_ms == node.stat.created_ms


async def test_damaged_metadata_is_named(ledgers: LedgerNodes, store: FaultyStore) -> None:
    await ledgers.create(ledger(1))
    await store.set(f"{ROOT}/00/0000/L0001", b"BookieMetadataFormatVersion\t3\n\xff")
    with pytest.raises(BadMetadata) as caught:
        await ledgers.read(LedgerId(1))
    assert caught.value.ids == {"ledger_id": 1}


async def test_a_delete_takes_empty_parents_along(ledgers: LedgerNodes, store: FaultyStore) -> None:
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
async def test_a_deleted_ledger_is_not_said_to_be_there_when_its_parents_stay(
    ledgers: LedgerNodes, store: FaultyStore, trouble: tuple[Fate, ...]
) -> None:
    await ledgers.create(ledger(1))
    store.fates.extend((Fate.OK, *trouble))
    await ledgers.delete(LedgerId(1))
    with pytest.raises(NoSuchLedger):
        await ledgers.read(LedgerId(1))


async def test_a_delete_says_what_it_found(ledgers: LedgerNodes) -> None:
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


async def test_a_listing_that_fails_does_not_look_complete(
    ledgers: LedgerNodes, store: FaultyStore
) -> None:
    for ledger_id in (1, 10_001):
        await ledgers.create(ledger(ledger_id))
    steps = ledgers.ids()
    assert await anext(steps) == 1
    store.read_fates.append(Fate.NOT_SENT)
    with pytest.raises(MetadataUnavailable):
        await anext(steps)


async def test_a_directory_that_goes_while_it_is_listed_is_empty(
    ledgers: LedgerNodes, rival: MetadataStore
) -> None:
    for ledger_id in (1, 10_001, 20_001):
        await ledgers.create(ledger(ledger_id))
    steps = ledgers.ids()
    assert await anext(steps) == 1
    await LedgerNodes(rival, ROOT, Layout.HIERARCHICAL).delete(LedgerId(10_001))
    assert [ledger_id async for ledger_id in steps] == [20_001]


async def test_a_listing_opens_directories_not_ledgers(
    ledgers: LedgerNodes, store: FaultyStore
) -> None:
    """Its cost goes with the directories: a million ledgers are some hundred reads."""
    for ledger_id in range(300):
        await ledgers.create(ledger(ledger_id))
    store.reads = 0
    assert len(await walk(ledgers)) == 300
    assert store.reads == 6  # sync, R; R, 00, 00/0000; and R again, for long ids.


async def make_node(store: MetadataStore, path: str) -> None:
    made = ROOT
    for name in path.split("/"):
        made = f"{made}/{name}"
        if await store.get(made) is None:
            await store.create(made)


# --- A swap under a lock ----------------------------------------------------------------------


@pytest.mark.parametrize("fate", [Fate.OK, Fate.ANSWER_LOST, Fate.REQUEST_LOST])
async def test_a_swap_is_made_once_while_what_it_rests_on_is_there(
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
async def test_a_swap_is_never_made_once_its_session_or_a_check_is_gone(
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
