"""Whose write was it when the reply was lost: every short row of mishaps, and rivals in between."""

from itertools import product

import pytest

from rollbook.proto.cluster.uncertain_writes import (
    ATTEMPTS,
    children_surely,
    create_surely,
    delete_surely,
    ensure_node,
    ensure_path,
    read_surely,
    set_surely,
    transact_surely,
)
from rollbook.proto.errors import (
    ConnectionLost,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    SessionExpired,
)
from rollbook.proto.ports import Create, CreateMode, MetadataStore, Node
from tests.unit.proto.cluster.faulty import Fate, FaultyStore

LOST = (Fate.REQUEST_LOST, Fate.ANSWER_LOST)
ROWS = [
    row for length in range(4) for row in product((*LOST, Fate.EXPIRED), repeat=length)
]  # EXPIRED and lost requests change nothing, lost answers do.


def is_ours(node: Node) -> bool:
    return node.value == b"token"


# --- Create -----------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
async def test_a_create_is_made_once(store: FaultyStore, row: tuple[Fate, ...]) -> None:
    """LR1: whatever is lost on the way, the node is there in the end, and is found to be ours."""
    store.fates.extend(row)
    await create_surely(store, "/a", b"token", is_ours)
    node = await store.get("/a")
    assert node is not None
    assert (node.value, node.stat.version) == (b"token", 0)


@pytest.mark.parametrize("row", [(), (Fate.REQUEST_LOST,), (Fate.REQUEST_LOST, Fate.EXPIRED)])
async def test_a_rivals_node_is_not_taken_for_ours(
    store: FaultyStore, rival: MetadataStore, row: tuple[Fate, ...]
) -> None:
    """LR1."""
    if not row:
        await rival.create("/a", b"rival")

    async def rival_comes() -> None:
        await rival.create("/a", b"rival")

    store.between = rival_comes
    store.fates.extend(row)
    with pytest.raises(NodeExists):
        await create_surely(store, "/a", b"token", is_ours)


async def test_a_node_that_was_changed_since_is_still_ours_by_its_token(
    store: FaultyStore, rival: MetadataStore
) -> None:
    async def rival_updates() -> None:
        await rival.set("/a", b"token")

    store.between = rival_updates
    store.fates.append(Fate.ANSWER_LOST)
    await create_surely(store, "/a", b"token", is_ours)


async def test_an_ephemeral_node_is_not_asked_for_in_another_session(store: FaultyStore) -> None:
    store.fates.append(Fate.EXPIRED)
    with pytest.raises(SessionExpired):
        await create_surely(store, "/a", b"token", is_ours, CreateMode.EPHEMERAL)
    assert await store.get("/a") is None


async def test_a_create_without_a_parent_says_so(store: FaultyStore) -> None:
    store.fates.append(Fate.REQUEST_LOST)
    with pytest.raises(NoSuchNode):
        await create_surely(store, "/a/b", b"token", is_ours)


# --- Set --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
async def test_a_set_is_made_once(store: FaultyStore, row: tuple[Fate, ...]) -> None:
    """LR1: the version grows by one, however often it was asked for."""
    await store.create("/a", b"old")
    store.fates.extend(row)
    assert await set_surely(store, "/a", b"new", 0) == 1
    node = await store.get("/a")
    assert node is not None
    assert (node.value, node.stat.version) == (b"new", 1)


@pytest.mark.parametrize("fate", LOST)
@pytest.mark.parametrize("theirs", [b"theirs", b"new"])
async def test_a_rivals_set_is_not_taken_for_ours(
    store: FaultyStore, rival: MetadataStore, fate: Fate, theirs: bytes
) -> None:
    """LR1: version and bytes have to fit. Equal bytes at the expected version could be anyone's;
    then they are at least what we wanted.
    """
    await store.create("/a", b"old")

    async def rival_sets() -> None:
        await rival.set("/a", theirs)

    store.between = rival_sets
    store.fates.append(fate)
    if fate is Fate.REQUEST_LOST and theirs == b"new":
        assert await set_surely(store, "/a", b"new", 0) == 1
        return
    with pytest.raises(MetadataConflict):
        await set_surely(store, "/a", b"new", 0)


async def test_a_conflict_without_a_lost_reply_is_a_conflict(store: FaultyStore) -> None:
    """Equal bytes prove nothing: the write was refused."""
    await store.create("/a", b"old")
    await store.set("/a", b"new")
    with pytest.raises(MetadataConflict):
        await set_surely(store, "/a", b"new", 0)


# --- Delete -----------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
async def test_a_delete_is_made_once(store: FaultyStore, row: tuple[Fate, ...]) -> None:
    """LR1."""
    await store.create("/a", b"token")
    store.fates.extend(row)
    await delete_surely(store, "/a", 0)
    assert await store.get("/a") is None


async def test_the_second_life_of_a_node_is_left_alone(
    store: FaultyStore, rival: MetadataStore
) -> None:
    """LR1: ours was deleted, the reply was lost, and another took the name."""
    await store.create("/a", b"token")

    async def rival_comes() -> None:
        await rival.create("/a", b"rival")

    store.between = rival_comes
    store.fates.append(Fate.ANSWER_LOST)
    await delete_surely(store, "/a", 0, is_ours)
    node = await store.get("/a")
    assert node is not None
    assert node.value == b"rival"


async def test_a_node_that_another_deletes_while_we_look_is_gone(
    store: FaultyStore, rival: MetadataStore
) -> None:
    await store.create("/a")
    store.writes = 0
    store.fates.append(Fate.REQUEST_LOST)
    store.before_write[2] = [lambda: rival.delete("/a")]
    await delete_surely(store, "/a")


async def test_what_cannot_be_deleted_is_told(store: FaultyStore) -> None:
    await store.create("/a")
    await store.create("/a/b")
    store.fates.append(Fate.REQUEST_LOST)
    with pytest.raises(NodeNotEmpty):
        await delete_surely(store, "/a")
    with pytest.raises(NoSuchNode):
        await delete_surely(store, "/c")
    with pytest.raises(MetadataConflict):
        await delete_surely(store, "/a/b", 1)


# --- Transactions -----------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
async def test_a_transaction_is_made_once(store: FaultyStore, row: tuple[Fate, ...]) -> None:
    """LR1."""

    async def was_made() -> bool:
        return (node := await store.get("/a/token")) is not None and is_ours(node)

    store.fates.extend(row)
    await transact_surely(store, (Create("/a"), Create("/a/token", b"token")), was_made)
    assert await store.children("/a") == ["token"]


async def test_a_rivals_transaction_is_not_taken_for_ours(
    store: FaultyStore, rival: MetadataStore
) -> None:
    async def was_made() -> bool:
        return (node := await store.get("/a/token")) is not None and is_ours(node)

    async def rival_comes() -> None:
        await rival.transaction((Create("/a"), Create("/a/token", b"rival")))

    store.between = rival_comes
    store.fates.append(Fate.REQUEST_LOST)
    with pytest.raises(NodeExists):
        await transact_surely(store, (Create("/a"), Create("/a/token", b"token")), was_made)


# --- Not knowing ------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [Fate.REQUEST_LOST, Fate.NOT_SENT, Fate.EXPIRED])
async def test_what_cannot_be_found_out_stays_unknown(store: FaultyStore, last: Fate) -> None:
    """LR1: once a reply was lost, no later failure may say that nothing was done."""
    await store.create("/a", b"old")
    for write in (
        create_surely(store, "/b", b"token", is_ours),
        set_surely(store, "/a", b"new", 0),
        delete_surely(store, "/a"),
        transact_surely(store, (Create("/c"),), _never),
    ):
        store.fates.extend((Fate.REQUEST_LOST, *[last] * (ATTEMPTS - 1)))
        with pytest.raises(ConnectionLost):
            await write
        assert not store.fates


async def test_a_store_that_cannot_be_asked_leaves_it_unknown(store: FaultyStore) -> None:
    """The write was refused the second time, and nobody can tell why."""
    await store.create("/a", b"old")
    store.fates.append(Fate.ANSWER_LOST)
    store.read_fates.append(Fate.NOT_SENT)
    with pytest.raises(ConnectionLost):
        await set_surely(store, "/a", b"new", 0)


@pytest.mark.parametrize("fates", [[Fate.NOT_SENT], [Fate.EXPIRED] * ATTEMPTS])
async def test_what_was_never_sent_was_not_done(store: FaultyStore, fates: list[Fate]) -> None:
    await store.create("/a", b"old")
    for write in (
        create_surely(store, "/b", b"token", is_ours),
        set_surely(store, "/a", b"new", 0),
        delete_surely(store, "/a"),
        transact_surely(store, (Create("/c"),), _never),
    ):
        store.fates.extend(fates)
        with pytest.raises(MetadataUnavailable):
            await write
        assert not store.fates
    assert await store.children("/") == ["a"]


# --- Reads, and nodes that anyone may make ----------------------------------------------------


async def test_a_read_outlasts_a_broken_line(store: FaultyStore) -> None:
    await store.create("/a", b"x")
    for read in (read_surely(store, "/a"), read_surely(store, "/a", fresh=False)):
        store.read_fates.extend((Fate.REQUEST_LOST, Fate.EXPIRED, Fate.ANSWER_LOST))
        node = await read
        assert node is not None
    store.read_fates.extend((Fate.REQUEST_LOST, Fate.EXPIRED, Fate.ANSWER_LOST))
    assert await children_surely(store, "/") == ["a"]


async def test_a_read_ends_at_some_time(store: FaultyStore) -> None:
    for read in (read_surely(store, "/a", fresh=False), children_surely(store, "/")):
        store.read_fates.extend([Fate.REQUEST_LOST] * ATTEMPTS)
        with pytest.raises(MetadataUnavailable):
            await read


async def test_a_path_is_made_from_the_top(store: FaultyStore, rival: MetadataStore) -> None:
    await store.create("/a")
    store.fates.extend((Fate.ANSWER_LOST, Fate.OK, Fate.REQUEST_LOST))
    await ensure_path(store, "/a/b/c", above="/a")
    await ensure_path(rival, "/a/b/c")
    await ensure_node(rival, "/a/b/c/d", b"x")
    assert await store.children("/a/b/c") == ["d"]


async def _never() -> bool:
    raise AssertionError("nothing was refused")
