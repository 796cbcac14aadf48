"""Outcomes of writes with lost replies: every short sequence of faults, with rivals in between."""

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
]  # Expired sessions and lost requests change nothing; requests with lost replies are applied.


def is_ours(node: Node) -> bool:
    return node.value == b"token"


# --- Create -----------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
async def test_a_create_is_made_once(store: FaultyStore, row: tuple[Fate, ...]) -> None:
    """LR1: whatever is lost, the node exists in the end and is recognised as ours."""
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


async def test_node_changed_after_lost_reply_is_recognised_by_token(
    store: FaultyStore, rival: MetadataStore
) -> None:
    async def rival_updates() -> None:
        await rival.set("/a", b"token")

    store.between = rival_updates
    store.fates.append(Fate.ANSWER_LOST)
    await create_surely(store, "/a", b"token", is_ours)


async def test_ephemeral_create_is_not_retried_in_another_session(store: FaultyStore) -> None:
    store.fates.append(Fate.EXPIRED)
    with pytest.raises(SessionExpired):
        await create_surely(store, "/a", b"token", is_ours, CreateMode.EPHEMERAL)
    assert await store.get("/a") is None


async def test_create_without_parent_raises_no_such_node(store: FaultyStore) -> None:
    store.fates.append(Fate.REQUEST_LOST)
    with pytest.raises(NoSuchNode):
        await create_surely(store, "/a/b", b"token", is_ours)


# --- Set --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
async def test_a_set_is_made_once(store: FaultyStore, row: tuple[Fate, ...]) -> None:
    """LR1: the version grows by one, however often the request was sent."""
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
    """LR1: version and bytes have to match. Equal bytes at the expected version could be from
    another client, but they are at least what we wanted.
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


async def test_conflict_without_lost_reply_is_raised(store: FaultyStore) -> None:
    """Equal bytes prove nothing if the write was refused."""
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


async def test_node_created_again_by_rival_is_not_deleted(
    store: FaultyStore, rival: MetadataStore
) -> None:
    """LR1: our delete was applied, its reply was lost, and a rival created the name again."""
    await store.create("/a", b"token")

    async def rival_comes() -> None:
        await rival.create("/a", b"rival")

    store.between = rival_comes
    store.fates.append(Fate.ANSWER_LOST)
    await delete_surely(store, "/a", 0, is_ours)
    node = await store.get("/a")
    assert node is not None
    assert node.value == b"rival"


async def test_delete_succeeds_if_rival_deletes_node_first(
    store: FaultyStore, rival: MetadataStore
) -> None:
    await store.create("/a")
    store.writes = 0
    store.fates.append(Fate.REQUEST_LOST)
    store.before_write[2] = [lambda: rival.delete("/a")]
    await delete_surely(store, "/a")


async def test_refused_delete_raises_reason(store: FaultyStore) -> None:
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


# --- Unknown outcomes -------------------------------------------------------------------------


@pytest.mark.parametrize("last", [Fate.REQUEST_LOST, Fate.NOT_SENT, Fate.EXPIRED])
async def test_unknown_outcome_is_reported_as_connection_lost(
    store: FaultyStore, last: Fate
) -> None:
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


async def test_failed_look_after_lost_reply_is_connection_lost(store: FaultyStore) -> None:
    """The retry of the write was refused, and nobody can find out why."""
    await store.create("/a", b"old")
    store.fates.append(Fate.ANSWER_LOST)
    store.read_fates.append(Fate.NOT_SENT)
    with pytest.raises(ConnectionLost):
        await set_surely(store, "/a", b"new", 0)


@pytest.mark.parametrize("fates", [[Fate.NOT_SENT], [Fate.EXPIRED] * ATTEMPTS])
async def test_unsent_write_raises_metadata_unavailable(
    store: FaultyStore, fates: list[Fate]
) -> None:
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


# --- Reads, and nodes that any client may create ----------------------------------------------


async def test_read_is_retried_after_lost_replies_and_expiry(store: FaultyStore) -> None:
    await store.create("/a", b"x")
    for read in (read_surely(store, "/a"), read_surely(store, "/a", fresh=False)):
        store.read_fates.extend((Fate.REQUEST_LOST, Fate.EXPIRED, Fate.ANSWER_LOST))
        node = await read
        assert node is not None
    store.read_fates.extend((Fate.REQUEST_LOST, Fate.EXPIRED, Fate.ANSWER_LOST))
    assert await children_surely(store, "/") == ["a"]


async def test_read_gives_up_after_repeated_losses(store: FaultyStore) -> None:
    for read in (read_surely(store, "/a", fresh=False), children_surely(store, "/")):
        store.read_fates.extend([Fate.REQUEST_LOST] * ATTEMPTS)
        with pytest.raises(MetadataUnavailable):
            await read


async def test_missing_nodes_of_a_path_are_created_from_the_top(
    store: FaultyStore, rival: MetadataStore
) -> None:
    await store.create("/a")
    store.fates.extend((Fate.ANSWER_LOST, Fate.OK, Fate.REQUEST_LOST))
    await ensure_path(store, "/a/b/c", above="/a")
    await ensure_path(rival, "/a/b/c")
    await ensure_node(rival, "/a/b/c/d", b"x")
    assert await store.children("/a/b/c") == ["d"]


async def _never() -> bool:
    raise AssertionError("nothing was refused")
