"""The contract of every metadata store: each sentence of the port, checked against each store."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rollbook.proto.errors import (
    ConnectionLost,
    EntryTooLarge,
    InvalidRequest,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    RollbookError,
    SessionExpired,
)
from rollbook.proto.metastore.core.request_checks import REQUEST_BYTES_MAX
from rollbook.proto.ports import (
    NO_SESSION,
    Check,
    Create,
    CreateMode,
    Delete,
    MetadataStore,
    NodeStat,
    Op,
    SessionState,
    Set,
    WatchEvent,
    WatchEventKind,
)
from tests.contract.stores import (
    DEADLINE_S,
    SHORT_SESSION_S,
    Site,
    hurried,
    next_event,
    until_gone,
    until_state,
)

EPHEMERAL = CreateMode.EPHEMERAL
SEQUENTIAL = CreateMode.PERSISTENT_SEQUENTIAL


async def value_of(store: MetadataStore, path: str) -> bytes:
    node = await store.get(path)
    assert node is not None
    return node.value


async def stat_of(store: MetadataStore, path: str) -> NodeStat:
    node = await store.get(path)
    assert node is not None
    return node.stat


@pytest.fixture
async def store(site: Site) -> MetadataStore:
    return await site.open()


# --- Nodes ------------------------------------------------------------------------------------


async def test_node_versions_and_transactions_from_create_to_delete(store: MetadataStore) -> None:
    assert await store.get("/a") is None
    assert await store.create("/a", b"one") == "/a"
    first = await stat_of(store, "/a")
    assert (first.version, first.owner, first.children) == (0, NO_SESSION, 0)
    assert first.created_txn == first.modified_txn
    assert first.created_ms == first.modified_ms > 1_500_000_000_000
    second = await store.set("/a", b"two", version=0)
    assert second == await stat_of(store, "/a")
    assert (second.version, second.created_txn) == (1, first.created_txn)
    assert second.modified_txn > first.modified_txn
    await store.delete("/a", version=1)
    assert await store.get("/a") is None
    await store.create("/a")
    assert await value_of(store, "/a") == b""
    third = await stat_of(store, "/a")
    assert third.version == 0
    assert third.created_txn > second.modified_txn


async def test_children_are_sorted_and_counted(store: MetadataStore) -> None:
    await store.create("/a")
    before = await stat_of(store, "/a")
    for name in ("c", "a", "b"):
        await store.create(f"/a/{name}")
    await store.delete("/a/b")
    assert await store.children("/a") == ["a", "c"]
    after = await stat_of(store, "/a")
    assert after.children == 2
    assert (after.version, after.modified_txn) == (before.version, before.modified_txn)


@pytest.mark.parametrize(
    ("op", "refusal"),
    [
        (Create("/"), NodeExists),
        (Create("/full"), NodeExists),
        (Create("/no/child"), NoSuchNode),
        (Create("/mine/child"), InvalidRequest),
        (Create("/mine/child", b"", SEQUENTIAL), InvalidRequest),
        (Set("/no", b""), NoSuchNode),
        (Set("/full", b"", version=7), MetadataConflict),
        (Delete("/no"), NoSuchNode),
        (Delete("/no/child"), NoSuchNode),
        (Delete("/full", version=7), MetadataConflict),
        (Delete("/full"), NodeNotEmpty),
        (Delete("/"), InvalidRequest),
        (Check("/no"), NoSuchNode),
        (Check("/full", version=7), MetadataConflict),
        (Create("/a/"), InvalidRequest),
        (Set("/full", b"", version=-1), InvalidRequest),
        (Set("/full", bytes(REQUEST_BYTES_MAX)), EntryTooLarge),
    ],
)
async def test_a_refusal_names_the_operation_and_changes_nothing(
    store: MetadataStore, op: Op, refusal: type[RollbookError]
) -> None:
    await store.transaction(
        [Create("/full"), Create("/full/child"), Create("/mine", b"", EPHEMERAL)]
    )
    with pytest.raises(refusal) as caught:
        await store.transaction([Check("/full", 0), Create("/new"), Set("/full", b"new"), op])
    assert caught.value.ids["op"] == 3
    assert await store.children("/") == ["full", "mine"]
    assert await value_of(store, "/full") == b""
    with pytest.raises(refusal) as caught:
        await alone(store, op)
    assert ("op" in caught.value.ids) == isinstance(op, Check)
    assert await value_of(store, "/full") == b""


async def alone(store: MetadataStore, op: Op) -> None:
    match op:
        case Create(path, value, mode):
            await store.create(path, value, mode)
        case Set(path, value, version):
            await store.set(path, value, version)
        case Delete(path, version):
            await store.delete(path, version)
        case Check():
            await store.transaction([op])


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.get("no/slash"),
        lambda store: store.children("/a/"),
        lambda store: store.watch("/a//b"),
    ],
)
async def test_reads_check_their_path(
    store: MetadataStore, read: Callable[[MetadataStore], Awaitable[object]]
) -> None:
    with pytest.raises(InvalidRequest):
        await read(store)


async def test_children_of_a_missing_node_raises(store: MetadataStore) -> None:
    with pytest.raises(NoSuchNode):
        await store.children("/no")


async def test_largest_value_is_stored(store: MetadataStore) -> None:
    value = bytes(range(256)) * (REQUEST_BYTES_MAX // 256 - 1)
    await store.create("/large", value)
    assert await value_of(store, "/large") == value


async def test_a_transaction_sees_its_own_operations(store: MetadataStore) -> None:
    results = await store.transaction(
        [
            Create("/a"),
            Create("/a/x-", b"", SEQUENTIAL),
            Set("/a", b"1", version=0),
            Delete("/a/x-0000000000"),
            Set("/a", b"2", version=1),
            Check("/a", version=2),
            Create("/a/x-", b"", SEQUENTIAL),
        ]
    )
    first, second = results[2], results[4]
    assert isinstance(first, NodeStat)
    assert isinstance(second, NodeStat)
    assert results == ["/a", "/a/x-0000000000", first, None, second, None, "/a/x-0000000001"]
    assert (first.version, first.children) == (1, 1)
    assert (second.version, second.children) == (2, 0)
    made = await stat_of(store, "/a/x-0000000001")
    assert made.created_txn == first.created_txn == second.modified_txn


async def test_empty_transaction_returns_no_results(store: MetadataStore) -> None:
    assert await store.transaction([]) == []


async def test_only_one_of_many_wins_a_version(site: Site) -> None:
    clients = [await site.open() for _ in range(3)]
    await clients[0].create("/counter", b"0")

    async def increment(client: MetadataStore) -> None:
        while True:
            node = await client.get("/counter")
            assert node is not None
            try:
                await client.set("/counter", b"%d" % (int(node.value) + 1), node.stat.version)
            except MetadataConflict:
                continue
            return

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(increment(client) for client in clients * 10))
    assert await value_of(clients[0], "/counter") == b"30"
    assert (await stat_of(clients[1], "/counter")).version == 30


# --- Sequential nodes ---------------------------------------------------------------------------


async def test_sequential_names_count_all_children_ever_created(store: MetadataStore) -> None:
    await store.create("/ids")
    assert await store.create("/ids/ID-", b"", SEQUENTIAL) == "/ids/ID-0000000000"
    await store.delete("/ids/ID-0000000000")
    await store.create("/ids/other")
    await store.set("/ids", b"touched")
    with pytest.raises(NodeExists):
        await store.create("/ids/other")
    made = await store.create("/ids/x-", b"", CreateMode.EPHEMERAL_SEQUENTIAL)
    assert made == "/ids/x-0000000002"
    await store.delete(made)
    await store.delete("/ids/other")
    await store.delete("/ids")
    await store.create("/ids")
    assert await store.create("/ids/ID-", b"", SEQUENTIAL) == "/ids/ID-0000000000"


async def test_sequential_names_never_repeat_between_clients(site: Site) -> None:
    """MS4."""
    clients = [await site.open() for _ in range(3)]
    names: list[str] = []

    async def make(client: MetadataStore) -> None:
        for _ in range(10):
            name = await client.create("/n", b"", SEQUENTIAL)
            names.append(name)
            await client.delete(name)

    await asyncio.gather(*map(make, clients))
    assert len(set(names)) == len(names) == 30


# --- Sessions and ephemeral nodes ---------------------------------------------------------------


async def test_an_ephemeral_node_names_its_session(site: Site) -> None:
    mine, other = await site.open(), await site.open()
    assert NO_SESSION != mine.session != other.session != NO_SESSION
    await mine.create("/e", b"", EPHEMERAL)
    assert (await stat_of(mine, "/e")).owner == mine.session
    await other.set("/e", b"by another")
    await other.sync()
    assert (await stat_of(other, "/e")).owner == mine.session


async def test_close_ends_the_session_at_once(site: Site) -> None:
    mine, other = await site.open(), await site.open()
    await mine.create("/parent")
    await mine.create("/parent/e1", b"", EPHEMERAL)
    await mine.create("/e2", b"", EPHEMERAL)
    watch, states = await mine.watch("/"), mine.session_events()
    await mine.close()
    await other.sync()
    assert await other.children("/") == ["parent"]
    assert await other.children("/parent") == []
    assert mine.session == NO_SESSION
    with pytest.raises(MetadataUnavailable):
        await mine.get("/parent")
    await ends(watch)
    await ends(states)
    await mine.close()


async def ends(stream: object) -> None:
    async with asyncio.timeout(DEADLINE_S):
        async for _ in stream:  # type: ignore[attr-defined]  # Either kind of stream.
            pass


async def test_a_silent_session_expires_and_a_new_one_follows(site: Site) -> None:
    """MS3."""
    mine, other = await site.open(session_timeout_s=SHORT_SESSION_S), await site.open()
    states = mine.session_events()
    first = await until_state(states, SessionState.CONNECTED)
    assert first.session == mine.session
    await mine.create("/e", b"", EPHEMERAL)
    await site.suspend(mine)
    assert (await until_state(states, SessionState.SUSPENDED)).session == first.session
    await until_gone(other, "/e")
    await site.resume(mine)
    assert (await until_state(states, SessionState.EXPIRED)).session == first.session
    second = await until_state(states, SessionState.CONNECTED)
    assert second.session == mine.session not in (first.session, NO_SESSION)
    await mine.create("/e", b"", EPHEMERAL)
    assert (await stat_of(mine, "/e")).owner == second.session


async def test_session_resumed_in_time_keeps_its_nodes(site: Site) -> None:
    mine, other = await site.open(), await site.open()
    states, session = mine.session_events(), mine.session
    await mine.create("/e", b"", EPHEMERAL)
    await site.suspend(mine)
    await until_state(states, SessionState.SUSPENDED)
    await site.resume(mine)
    assert (await until_state(states, SessionState.CONNECTED)).session == session
    await other.sync()
    assert (await stat_of(other, "/e")).owner == session


async def test_idle_session_is_kept_alive_by_heartbeats(site: Site) -> None:
    """The session lasts for two time-outs, measured by the expiry of another session."""
    idle = await site.open(session_timeout_s=SHORT_SESSION_S)
    doomed, other = await site.open(session_timeout_s=SHORT_SESSION_S), await site.open()
    session = idle.session
    await idle.create("/idle", b"", EPHEMERAL)
    for round_number in range(2):
        path = f"/doomed-{round_number}"
        states = doomed.session_events()
        await until_state(states, SessionState.CONNECTED)
        await doomed.create(path, b"", EPHEMERAL)
        await site.suspend(doomed)
        await until_gone(other, path)
        await site.resume(doomed)
        await until_state(states, SessionState.EXPIRED)
    assert (await stat_of(other, "/idle")).owner == session == idle.session


async def test_session_events_start_with_the_current_state(site: Site) -> None:
    store = await site.open()
    for states in (store.session_events(), store.session_events()):
        event = await anext(states)
        assert (event.state, event.session) == (SessionState.CONNECTED, store.session)


# --- Watches ------------------------------------------------------------------------------------


def told(kind: WatchEventKind, path: str) -> WatchEvent:
    return WatchEvent(kind, path)


async def test_watch_reports_its_node_and_changes_of_its_children(site: Site) -> None:
    writer, reader = await site.open(), await site.open()
    watch = await reader.watch("/a")
    for change, event in (
        (writer.create("/a"), told(WatchEventKind.CREATED, "/a")),
        (writer.set("/a", b"1"), told(WatchEventKind.CHANGED, "/a")),
        (writer.create("/a/b"), told(WatchEventKind.CHILDREN, "/a")),
        (writer.delete("/a/b"), told(WatchEventKind.CHILDREN, "/a")),
        (writer.delete("/a"), told(WatchEventKind.DELETED, "/a")),
        (writer.create("/a"), told(WatchEventKind.CREATED, "/a")),
    ):
        await change
        assert await next_event(watch) == event


async def test_recursive_watch_reports_descendants_but_no_children_events(site: Site) -> None:
    writer, reader = await site.open(), await site.open()
    watch = await reader.watch("/a", recursive=True)
    await writer.transaction(
        [Create("/a"), Create("/a/b"), Create("/a/b/c"), Create("/ab"), Set("/a/b/c", b"")]
    )
    await writer.delete("/a/b/c")
    assert [await next_event(watch) for _ in range(5)] == [
        told(WatchEventKind.CREATED, "/a"),
        told(WatchEventKind.CREATED, "/a/b"),
        told(WatchEventKind.CREATED, "/a/b/c"),
        told(WatchEventKind.CHANGED, "/a/b/c"),
        told(WatchEventKind.DELETED, "/a/b/c"),
    ]


async def test_watch_reports_only_nodes_in_its_scope(site: Site) -> None:
    store = await site.open()
    await store.transaction([Create("/a"), Create("/a/b"), Create("/aa")])
    plain, recursive = await store.watch("/a"), await store.watch("/a/b", recursive=True)
    await store.transaction([Set("/a/b", b""), Create("/a/b/c"), Set("/aa", b""), Create("/c")])
    await store.set("/a", b"last")
    assert await next_event(plain) == told(WatchEventKind.CHANGED, "/a")
    assert await next_event(recursive) == told(WatchEventKind.CHANGED, "/a/b")
    assert await next_event(recursive) == told(WatchEventKind.CREATED, "/a/b/c")


async def test_a_read_after_the_event_sees_the_change(site: Site) -> None:
    writer, reader = await site.open(), await site.open()
    await writer.create("/a", b"0")
    watch = await reader.watch("/a")
    for number in range(1, 30):
        await writer.set("/a", b"%d" % number)
        assert await next_event(watch) == told(WatchEventKind.CHANGED, "/a")
        assert int(await value_of(reader, "/a")) >= number


async def test_events_arrive_in_commit_order(site: Site) -> None:
    writer, reader = await site.open(), await site.open()
    watch = await reader.watch("/", recursive=True)
    await asyncio.gather(*(writer.create(f"/{number:02}") for number in range(50)))
    nodes = {path: await stat_of(reader, path) for path in (f"/{n:02}" for n in range(50))}
    events = [await next_event(watch) for _ in range(50)]
    transactions = [nodes[event.path].created_txn for event in events]
    assert transactions == sorted(transactions)
    assert {event.path for event in events} == set(nodes)


async def test_closed_watch_yields_no_events(site: Site) -> None:
    store = await site.open()
    closed, kept = await store.watch("/a"), await store.watch("/a")
    await closed.close()
    await store.create("/a")
    assert await next_event(kept) == told(WatchEventKind.CREATED, "/a")
    await ends(closed)
    await closed.close()


async def test_closing_a_watch_wakes_its_reader(site: Site) -> None:
    store = await site.open()
    watch = await store.watch("/a")
    reading = asyncio.create_task(ends(watch))
    await store.sync()
    await watch.close()
    await reading


async def test_a_cancelled_read_of_a_watch_loses_no_event(site: Site) -> None:
    store = await site.open()
    watch = await store.watch("/a")
    reading = asyncio.ensure_future(anext(watch))
    await store.sync()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await store.create("/a")
    assert await next_event(watch) == told(WatchEventKind.CREATED, "/a")


async def test_slow_reader_gets_a_resync(site: Site) -> None:
    store = await site.open()
    watch = await store.watch("/", recursive=True)
    for start in range(0, 3000, 500):
        await store.transaction([Create(f"/{start + n}") for n in range(500)])
    await store.create("/last")
    last = await store.watch("/last")
    await store.set("/last", b"")
    await next_event(last)  # All earlier events have arrived by now.
    assert await next_event(watch) == told(WatchEventKind.RESYNC, "/")
    await store.create("/later")
    assert await next_event(watch) == told(WatchEventKind.CREATED, "/later")


@pytest.mark.parametrize("recursive", [False, True])
async def test_watch_survives_a_lost_connection_with_a_resync(site: Site, recursive: bool) -> None:
    """MS5: changes during the outage are reported as a RESYNC."""
    writer, reader = await site.open(), await site.open()
    states = reader.session_events()
    watch = await reader.watch("/a", recursive=recursive)
    await site.suspend(reader)
    await until_state(states, SessionState.SUSPENDED)
    await writer.create("/a")
    await site.resume(reader)
    assert await next_event(watch) == told(WatchEventKind.RESYNC, "/a")
    assert await reader.get("/a") is not None
    await writer.set("/a", b"")
    assert await next_event(watch) == told(WatchEventKind.CHANGED, "/a")


async def test_a_watch_outlives_its_session(site: Site) -> None:
    writer, reader = await site.open(), await site.open(session_timeout_s=SHORT_SESSION_S)
    states = reader.session_events()
    watch = await reader.watch("/a")
    await reader.create("/e", b"", EPHEMERAL)
    await site.suspend(reader)
    await until_gone(writer, "/e")
    await writer.create("/a")
    await site.resume(reader)
    await until_state(states, SessionState.EXPIRED)
    assert await next_event(watch) == told(WatchEventKind.RESYNC, "/a")
    await writer.set("/a", b"")
    assert await next_event(watch) == told(WatchEventKind.CHANGED, "/a")


# --- Outcomes -----------------------------------------------------------------------------------


async def test_write_on_a_cut_connection_has_an_unknown_outcome(site: Site) -> None:
    mine = await site.open(operation_timeout_s=600)
    other = await site.open()
    session = mine.session
    async with asyncio.timeout(
        DEADLINE_S
    ):  # The error comes when the connection breaks, not after a time-out.
        await site.lose_next_request(mine)
        with pytest.raises(ConnectionLost):
            await mine.create("/lost")
        await site.lose_next_answer(mine)
        with pytest.raises(ConnectionLost):
            await mine.create("/applied")
    assert await mine.children("/") == ["applied"]
    await other.sync()
    assert await other.children("/") == ["applied"]
    assert mine.session == session


async def test_transaction_on_a_cut_connection_is_applied_atomically(site: Site) -> None:
    mine = await site.open()
    await site.lose_next_answer(mine)
    with pytest.raises(ConnectionLost):
        await mine.transaction([Create("/a"), Create("/a/b"), Create("/a/c")])
    assert await mine.children("/a") == ["b", "c"]
    await site.lose_next_request(mine)
    with pytest.raises(ConnectionLost):
        await mine.transaction([Delete("/a/b"), Delete("/a/c"), Delete("/a")])
    assert await mine.children("/a") == ["b", "c"]


async def test_a_request_waits_for_the_connection(site: Site) -> None:
    mine = await site.open()
    states = mine.session_events()
    await site.suspend(mine)
    await until_state(states, SessionState.SUSPENDED)
    waiting = asyncio.create_task(mine.create("/waited"))
    await site.resume(mine)
    assert await waiting == "/waited"


async def test_a_request_that_was_never_sent_did_nothing(site: Site) -> None:
    mine, other = await site.open(), await site.open()
    states = mine.session_events()
    await site.suspend(mine)
    await until_state(states, SessionState.SUSPENDED)
    with hurried(mine, 0.3), pytest.raises(MetadataUnavailable):
        await mine.create("/never")
    await site.resume(mine)
    await until_state(states, SessionState.CONNECTED)
    await other.sync()
    assert await other.children("/") == []


async def test_request_waiting_for_an_expired_session_is_not_sent(site: Site) -> None:
    mine, other = await site.open(session_timeout_s=SHORT_SESSION_S), await site.open()
    states = mine.session_events()
    await mine.create("/e", b"", EPHEMERAL)
    await site.suspend(mine)
    await until_state(states, SessionState.SUSPENDED)
    waiting = asyncio.ensure_future(mine.create("/late"))
    await until_gone(other, "/e")
    await site.resume(mine)
    with pytest.raises(SessionExpired):
        await waiting
    await until_state(states, SessionState.EXPIRED)
    await mine.sync()
    assert await mine.children("/") == []


async def test_a_cancelled_call_leaves_the_client_usable(site: Site) -> None:
    store = await site.open()
    for number in range(20):
        call = asyncio.ensure_future(store.create(f"/{number:02}"))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await store.create("/last")
    assert (await store.children("/"))[-1] == "last"


async def test_a_call_cancelled_while_it_waits_is_never_sent(site: Site) -> None:
    mine, other = await site.open(), await site.open()
    states = mine.session_events()
    await site.suspend(mine)
    await until_state(states, SessionState.SUSPENDED)
    call = asyncio.ensure_future(mine.create("/cancelled"))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await site.resume(mine)
    await mine.create("/later")
    await other.sync()
    assert await other.children("/") == ["later"]


# --- Order --------------------------------------------------------------------------------------


async def test_a_client_sees_its_own_writes_in_order(store: MetadataStore) -> None:
    """Calls are served in the order in which they were made, without waiting for each other."""
    await store.create("/a")
    calls: list[asyncio.Future[object]] = []
    for number in range(50):
        calls.append(asyncio.ensure_future(store.set("/a", b"%d" % number, version=number)))
        calls.append(asyncio.ensure_future(store.get("/a")))
    results = await asyncio.gather(*calls)
    values = [getattr(node, "value", b"") for node in results[1::2]]
    assert values == [b"%d" % number for number in range(50)]


async def test_read_after_sync_sees_writes_acked_to_other_clients(site: Site) -> None:
    writer, reader = await site.open(), await site.open()
    await writer.create("/a", b"0")
    for number in range(1, 30):
        await writer.set("/a", b"%d" % number)
        await reader.sync()
        assert await value_of(reader, "/a") == b"%d" % number


async def test_leaving_the_store_context_ends_its_session(site: Site) -> None:
    other = await site.open()
    async with await site.open() as store:
        await store.create("/e", b"", EPHEMERAL)
    await other.sync()
    assert await other.children("/") == []
