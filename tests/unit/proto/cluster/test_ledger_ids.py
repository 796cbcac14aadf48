"""Ledger ids: never the same twice, drawn from the counters that Java uses."""

import asyncio
from collections.abc import Sequence

import pytest

from rollbook.proto.cluster import ledger_ids as module
from rollbook.proto.cluster.ledger_ids import LedgerIds, is_ahead
from rollbook.proto.errors import InvalidRequest, MetadataUnavailable, NoSuchCluster
from rollbook.proto.ports import Create, CreateMode, MetadataStore, Op, OpResult
from tests.messages import raises_message
from tests.unit.proto.cluster.faulty import Fate, FaultyStore

ROOT = "/ledgers"
LAST = 2**31 - 2  # The last number that a counter gives out.
PATIENCE_S = 60.0


class Counters(FaultyStore):
    """Sequential nodes get the given numbers, as if others had been created before."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.numbers: dict[str, list[int]] = {}

    async def transaction(self, ops: Sequence[Op]) -> list[OpResult]:
        return await super().transaction([self._numbered(op) for op in ops])

    def _numbered(self, op: Op) -> Op:
        parent = op.path.rpartition("/")[0]
        if isinstance(op, Create) and op.mode.is_sequential and self.numbers.get(parent):
            number = self.numbers[parent].pop(0)
            return Create(f"{op.path}{number:010d}", op.value, CreateMode.EPHEMERAL)
        return op


@pytest.fixture
async def counters(store: FaultyStore) -> Counters:
    await store.create(ROOT)
    store.writes = store.reads = 0
    return Counters(store.store)


@pytest.fixture
async def ids(counters: Counters) -> LedgerIds:
    """Its first id was drawn, so all nodes that ids need exist."""
    ids = LedgerIds(counters, ROOT)
    assert await ids.draw() == 0
    counters.writes = 0
    return ids


async def test_first_ids_are_0_1_and_2(counters: Counters) -> None:
    ids = LedgerIds(counters, ROOT)
    assert [await ids.draw() for _ in range(3)] == [0, 1, 2]
    assert await counters.children(ROOT) == ["idgen"]
    assert await counters.children(f"{ROOT}/idgen") == []


async def test_ids_of_two_clients_are_never_repeated(
    counters: Counters, rival: MetadataStore
) -> None:
    """The parent node holds the counter: neither deletes nor other clients move it back."""
    mine, theirs = LedgerIds(counters, ROOT), LedgerIds(rival, ROOT)
    drawn = await asyncio.gather(*(ids.draw() for ids in (mine, theirs) * 50))
    assert sorted(drawn) == list(range(100))
    assert await LedgerIds(counters, ROOT).draw() == 100


async def test_concurrent_draws_share_few_writes(counters: Counters, ids: LedgerIds) -> None:
    assert sorted(await asyncio.gather(*(ids.draw() for _ in range(50)))) == list(range(1, 51))
    assert counters.writes <= 4
    assert await counters.children(f"{ROOT}/idgen") == []


async def test_crowd_gets_its_ids_in_one_turn_of_the_loop(
    counters: Counters, ids: LedgerIds
) -> None:
    """A turn of a busy loop takes milliseconds, so one turn for each caller would be seconds for a
    crowd.
    """
    crowd = [asyncio.ensure_future(ids.draw()) for _ in range(200)]
    while not crowd[1].done():
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sum(each.done() for each in crowd) >= 199  # One caller may still be removing the nodes.


@pytest.mark.parametrize("leaves", [0, 1, 2])
async def test_cancelled_draw_does_not_block_other_draws(
    counters: Counters, ids: LedgerIds, leaves: int
) -> None:
    drawing = [asyncio.ensure_future(ids.draw()) for _ in range(4)]
    await asyncio.sleep(0)
    drawing[leaves].cancel()
    await asyncio.gather(*drawing, return_exceptions=True)
    assert [each.cancelled() for each in drawing] == [number == leaves for number in range(4)]
    drawn = [await each for each in drawing if not each.cancelled()]
    assert len({*drawn, await ids.draw()}) == 4


async def test_failed_draw_fails_all_its_waiters_at_once(
    counters: Counters, ids: LedgerIds
) -> None:
    # The first caller draws and removes its node while the others gather.
    counters.fates.extend([Fate.OK, Fate.OK, *[Fate.REQUEST_LOST] * 6])
    drawing = [asyncio.ensure_future(ids.draw()) for _ in range(10)]
    drawn, *refused = await asyncio.gather(*drawing, return_exceptions=True)
    assert drawn == 1
    assert all(isinstance(each, MetadataUnavailable) for each in refused)
    assert counters.writes == 8
    assert await ids.draw() > 0


async def test_crowd_gets_ids_in_order_of_calls(counters: Counters, ids: LedgerIds) -> None:
    """It takes few transactions: five draw, and a few remove the nodes."""
    crowd = [asyncio.ensure_future(ids.draw()) for _ in range(1000)]
    while not any(each.done() for each in crowd[1:]):
        await asyncio.sleep(0)
    late = await ids.draw()
    assert [await each for each in crowd] == list(range(1, 1001))
    assert late == 1001
    assert counters.writes < 15
    assert await counters.children(f"{ROOT}/idgen") == []


async def test_ids_drawn_before_a_failure_are_handed_out(
    counters: Counters, ids: LedgerIds
) -> None:
    # The first caller draws and removes its node; then 256 ids are drawn for the others.
    counters.fates.extend([Fate.OK, Fate.OK, Fate.OK, *[Fate.REQUEST_LOST] * 6])
    drawing = [asyncio.ensure_future(ids.draw()) for _ in range(300)]
    drawn = await asyncio.gather(*drawing, return_exceptions=True)
    assert drawn[:257] == list(range(1, 258))
    assert all(isinstance(each, MetadataUnavailable) for each in drawn[257:])


async def test_deleted_node_does_not_stop_removal_of_other_nodes(
    counters: Counters, ids: LedgerIds, rival: MetadataStore
) -> None:
    """The node was deleted with its session; the others belong to the next session."""

    async def lose_one() -> None:
        await rival.delete(f"{ROOT}/idgen/ID-0000000002")

    counters.before_write = {counters.writes + 4: [lose_one]}
    assert sorted(await asyncio.gather(*(ids.draw() for _ in range(5)))) == [1, 2, 3, 4, 5]
    assert not counters.before_write
    assert await counters.children(f"{ROOT}/idgen") == []


async def test_nodes_left_by_failed_removal_are_removed_by_next_draw(
    counters: Counters,
    ids: LedgerIds,
) -> None:
    """Otherwise they stay until the session ends, perhaps for weeks."""
    # One id is drawn and its node removed, then the others are drawn, and removing the first 256
    # nodes fails.
    counters.fates.extend([*[Fate.OK] * 5, Fate.REQUEST_LOST])
    await asyncio.gather(*(ids.draw() for _ in range(600)))
    assert not counters.fates
    assert len(await counters.children(f"{ROOT}/idgen")) == 600 - 1
    await ids.draw()
    assert await counters.children(f"{ROOT}/idgen") == []


async def test_number_of_nodes_remembered_for_removal_is_limited(
    counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forgotten nodes are deleted with their session, remembered ones at the next removal."""
    monkeypatch.setattr(module, "_USED_MAX", 10)

    async def keep(paths: list[str]) -> list[str]:
        return paths

    ids = LedgerIds(counters, ROOT)
    with monkeypatch.context() as refusing:
        refusing.setattr(ids, "_remove_nodes", keep)
        for _ in range(5):
            await asyncio.gather(*(ids.draw() for _ in range(7)))
    assert len(await counters.children(f"{ROOT}/idgen")) == 35
    await ids.draw()
    assert len(await counters.children(f"{ROOT}/idgen")) == 35 - 10


async def test_nodes_of_deleted_counter_do_not_stop_removal_of_others(
    counters: Counters, rival: MetadataStore
) -> None:
    long = f"{ROOT}/idgen-long"
    for path in (long, f"{long}/HOB-0000000001"):
        await counters.create(path)
    ids = LedgerIds(counters, ROOT)
    counters.fates.extend((Fate.OK, Fate.REQUEST_LOST))
    await ids.draw()
    (left,) = await rival.children(f"{long}/HOB-0000000001")
    await rival.delete(f"{long}/HOB-0000000001/{left}")
    await rival.delete(f"{long}/HOB-0000000001")
    await rival.create(f"{long}/HOB-0000000005")
    assert await ids.draw() == 5 << 32
    assert await counters.children(f"{long}/HOB-0000000005") == []


async def test_cancelled_removal_of_nodes_is_finished_by_the_next_caller(
    counters: Counters,
    ids: LedgerIds,
) -> None:
    crowd = [asyncio.ensure_future(ids.draw()) for _ in range(600)]
    while not crowd[-1].done():
        await asyncio.sleep(0)
    removing = [each for each in crowd if not each.done()]
    assert removing
    for each in removing:
        each.cancel()
    await asyncio.gather(*removing, return_exceptions=True)
    counters.writes = 0
    await ids.draw()
    assert await counters.children(f"{ROOT}/idgen") == []
    assert counters.writes <= 8  # The next draw does not pay for each of them.


async def test_draw_across_end_of_counter_continues_with_long_ids(counters: Counters) -> None:
    await counters.create(f"{ROOT}/idgen")
    counters.numbers[f"{ROOT}/idgen"] = [LAST - 1, LAST, LAST + 1, LAST + 2]
    ids = LedgerIds(counters, ROOT)
    drawn = await asyncio.gather(*(ids.draw() for _ in range(3)))
    assert drawn == [LAST - 1, LAST, 1 << 32]


async def test_number_with_lost_reply_is_skipped(counters: Counters, ids: LedgerIds) -> None:
    counters.fates.extend((Fate.ANSWER_LOST, Fate.EXPIRED, Fate.OK))
    assert await ids.draw() == 2
    # The node is not removed now; a later draw or the end of its session deletes it.
    counters.fates.extend((Fate.OK, Fate.REQUEST_LOST))
    assert [await ids.draw(), await ids.draw()] == [3, 4]


async def test_draw_gives_up_after_repeated_losses(counters: Counters, ids: LedgerIds) -> None:
    counters.fates.extend([Fate.REQUEST_LOST] * 6)
    with pytest.raises(MetadataUnavailable):
        await ids.draw()


async def test_draw_without_cluster_raises_no_such_cluster(rival: MetadataStore) -> None:
    with pytest.raises(NoSuchCluster):
        await LedgerIds(rival, "/nowhere").draw()


@pytest.mark.parametrize("first_bad", [LAST + 1, -(2**31), -5])
async def test_ids_after_31_bits_are_long(counters: Counters, first_bad: int) -> None:
    await counters.create(f"{ROOT}/idgen")
    counters.numbers[f"{ROOT}/idgen"] = [LAST, first_bad]
    ids = LedgerIds(counters, ROOT)
    assert await ids.draw() == LAST
    assert [await ids.draw(), await ids.draw()] == [1 << 32, 1 << 32 | 1]
    assert await counters.children(f"{ROOT}/idgen-long") == ["HOB-0000000001"]
    assert await counters.children(f"{ROOT}/idgen") == []


async def test_existing_folder_of_long_ids_is_used_at_once(counters: Counters) -> None:
    """The folder may exist without a counter: its creator stopped in between."""
    await counters.create(f"{ROOT}/idgen-long")
    assert await LedgerIds(counters, ROOT).draw() == 1 << 32


async def test_used_up_counter_of_long_ids_is_followed_by_the_next(counters: Counters) -> None:
    await counters.create(f"{ROOT}/idgen-long")
    long = f"{ROOT}/idgen-long"
    for high in (7, 8, 9):
        await counters.create(f"{long}/HOB-{high:010d}")
    await counters.create(f"{long}/stranger")
    counters.numbers[f"{long}/HOB-0000000009"] = [LAST, LAST + 1]
    ids = LedgerIds(counters, ROOT)
    assert await ids.draw() == 9 << 32 | LAST
    assert await ids.draw() == 10 << 32
    kept = ["HOB-0000000008", "HOB-0000000009", "HOB-0000000010", "stranger"]
    assert await counters.children(long) == kept


@pytest.mark.parametrize("name", ["HOB-7", "HOB-00000000007", "HOB-9999999999", "HOB-2147483648"])
async def test_invalid_counter_name_does_not_block_draws(counters: Counters, name: str) -> None:
    await counters.create(f"{ROOT}/idgen-long")
    await counters.create(f"{ROOT}/idgen-long/{name}")
    async with asyncio.timeout(PATIENCE_S):
        assert await LedgerIds(counters, ROOT).draw() == 1 << 32


async def test_counter_in_use_is_not_removed(counters: Counters, rival: MetadataStore) -> None:
    long = f"{ROOT}/idgen-long"
    await counters.create(long)
    for high in (1, 2, 3):
        await counters.create(f"{long}/HOB-{high:010d}")
    await rival.create(f"{long}/HOB-0000000001/ID-", mode=CreateMode.EPHEMERAL_SEQUENTIAL)
    counters.numbers[f"{long}/HOB-0000000003"] = [LAST + 1]
    assert await LedgerIds(counters, ROOT).draw() == 4 << 32
    assert len(await counters.children(long)) == 4


async def test_counter_removed_by_rival_is_not_created_again(
    counters: Counters, rival: MetadataStore
) -> None:
    long = f"{ROOT}/idgen-long"
    for path in (long, f"{long}/HOB-0000000001"):
        await counters.create(path)
    ids = LedgerIds(counters, ROOT)
    assert await ids.draw() == 1 << 32

    async def rivals_move_on() -> None:
        await rival.create(f"{long}/HOB-0000000005")
        await rival.delete(f"{long}/HOB-0000000001")

    counters.between = rivals_move_on
    counters.fates.append(Fate.REQUEST_LOST)
    assert await ids.draw() == 5 << 32
    assert await counters.children(long) == ["HOB-0000000005"]


async def test_ids_stay_above_all_given_out_before_the_store_was_restored(
    counters: Counters, ids: LedgerIds, rival: MetadataStore
) -> None:
    """LI1: a client that has already drawn short ids notices, too."""
    highest = 7 << 32 | 15
    assert await LedgerIds(rival, ROOT).skip(highest) == 8 << 32
    assert await ids.draw() == 8 << 32
    assert await LedgerIds(rival, ROOT).skip() == 9 << 32  # The store is restored once more.
    assert await ids.draw() == 9 << 32
    with raises_message(InvalidRequest):
        await ids.skip(2**63 - 1)


@pytest.mark.parametrize(
    ("ledger_id", "position", "expected"),
    [
        (99, 100, False),
        (100, 100, True),  # The counter would give it out next.
        (5 << 32, 100, True),  # Possible after a store was restored twice from one backup.
        (100 + (1 << 20) - 1, 100, True),
        (4_000_000_000, 100, False),  # Some client has chosen this id itself.
        ((5 << 32) + (1 << 20), 100, False),
        (1 << 62, 100, False),
        (1 << 62, 1 << 62, True),
    ],
)
def test_is_ahead_tells_which_ids_the_counter_will_give_out(
    ledger_id: int, position: int, expected: bool
) -> None:
    """LI1."""
    assert is_ahead(ledger_id, position) is expected
