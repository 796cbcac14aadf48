"""A bookie's registration, through restarts, lost sessions and second bookies with its id."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from rollbook.proto.cluster import registration as module
from rollbook.proto.cluster.registration import BookieRegistration, RegisteredMode
from rollbook.proto.errors import MetadataUnavailable, NodeExists, NoSuchCluster
from rollbook.proto.formats.service_info import describe_bookie, pack_service_info
from rollbook.proto.ids import BookieId
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import (
    NO_SESSION,
    Address,
    CreateMode,
    MetadataStore,
    SessionId,
    WatchEventKind,
)
from tests.messages import raises_message
from tests.support.clocks import LoopTime
from tests.unit.proto.cluster.faulty import Fate, FaultyStore

ROOT = "/ledgers"
BOOKIE = BookieId("b1:3181")
INFO = describe_bookie(Address("b1", 3181))
WRITABLE = f"{ROOT}/available/{BOOKIE}"
READ_ONLY = f"{ROOT}/available/readonly/{BOOKIE}"
WHERE = MetadataUrl.parse("zk://zk1/ledgers")
DEADLINE_S = 10.0


@pytest.fixture(autouse=True)
async def cluster(rival: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TICK_S", 0.0)
    monkeypatch.setattr(module, "_RETRY_PAUSE_S", 0.0)
    for path in (ROOT, f"{ROOT}/available"):
        await rival.create(path)


@pytest.fixture
def registration(store: FaultyStore) -> BookieRegistration:
    return registration_of(store)


def registration_of(store: MetadataStore, patience_s: float = DEADLINE_S) -> BookieRegistration:
    return BookieRegistration(store, ROOT, BOOKIE, INFO, patience_s, WHERE)


@asynccontextmanager
async def kept(registration: BookieRegistration) -> AsyncIterator[asyncio.Task[None]]:
    keeper = asyncio.get_running_loop().create_task(registration.keep())
    try:
        yield keeper
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)


async def standing(store: MetadataStore) -> list[str]:
    return [path for path in (WRITABLE, READ_ONLY) if await store.get(path) is not None]


async def until(store: MetadataStore, holds: Callable[[], Awaitable[bool]]) -> None:
    watch = await store.watch(f"{ROOT}/available", recursive=True)
    async with asyncio.timeout(DEADLINE_S):
        while not await holds():
            await anext(watch)
    await watch.close()


async def until_made_by_another(store: MetadataStore, path: str, session: SessionId) -> None:
    async def is_back() -> bool:
        node = await store.get(path)
        return node is not None and node.stat.owner not in (session, NO_SESSION)

    await until(store, is_back)


async def lose_session(
    registration: BookieRegistration, service: MemoryService, store: FaultyStore
) -> None:
    """Returns once the bookie, which `keep` maintains, is registered again."""
    await store.sync()
    lost = registration.sessions_lost
    service.expire(store.session)
    async with asyncio.timeout(DEADLINE_S):
        while registration.sessions_lost == lost or not registration.is_registered:
            await asyncio.sleep(0)


async def test_registered_node_has_endpoints_and_own_session(
    registration: BookieRegistration, store: FaultyStore, rival: MetadataStore
) -> None:
    """AR15."""
    await registration.register(RegisteredMode.WRITABLE)
    node = await rival.get(WRITABLE)
    assert node is not None
    assert node.value == pack_service_info(INFO)
    assert node.stat.owner == store.session


async def test_change_of_mode_creates_new_node_before_deleting_old(
    registration: BookieRegistration, rival: MetadataStore
) -> None:
    """RG1: at every moment one node exists."""
    await registration.register(RegisteredMode.WRITABLE)
    watch = await rival.watch(f"{ROOT}/available", recursive=True)
    for target in (RegisteredMode.READ_ONLY, RegisteredMode.WRITABLE):
        await registration.register(target)
    await rival.create(f"{ROOT}/available/end")
    seen = []
    async with asyncio.timeout(DEADLINE_S):
        while (event := await anext(watch)).path != f"{ROOT}/available/end":
            if event.path in (WRITABLE, READ_ONLY):
                seen.append((event.kind, event.path))
    await watch.close()
    assert seen == [
        (WatchEventKind.CREATED, READ_ONLY),
        (WatchEventKind.DELETED, WRITABLE),
        (WatchEventKind.CREATED, WRITABLE),
        (WatchEventKind.DELETED, READ_ONLY),
    ]


async def test_registering_again_changes_nothing(
    registration: BookieRegistration, rival: MetadataStore
) -> None:
    await registration.register(RegisteredMode.WRITABLE)
    before = await rival.get(WRITABLE)
    await registration.register(RegisteredMode.WRITABLE)
    assert await rival.get(WRITABLE) == before


async def test_node_of_own_session_gets_current_endpoints(
    registration: BookieRegistration, store: FaultyStore
) -> None:
    await store.create(WRITABLE, b"old", CreateMode.EPHEMERAL)
    await registration.register(RegisteredMode.WRITABLE)
    node = await store.get(WRITABLE)
    assert node is not None
    assert node.value == pack_service_info(INFO)


@pytest.mark.parametrize("row", [(lost,) for lost in Fate if lost not in (Fate.OK, Fate.NOT_SENT)])
async def test_lost_replies_leave_one_node(
    registration: BookieRegistration, store: FaultyStore, row: tuple[Fate, ...]
) -> None:
    """LR1: an ephemeral node is ours iff our session owns it."""
    store.fates.extend(row)
    await registration.register(RegisteredMode.WRITABLE)
    store.fates.extend(row)
    await registration.register(RegisteredMode.READ_ONLY)
    assert await standing(store) == [READ_ONLY]


async def test_withdraw_removes_all_nodes(
    registration: BookieRegistration, store: FaultyStore
) -> None:
    await registration.register(RegisteredMode.READ_ONLY)
    await registration.withdraw()
    await registration.withdraw()
    assert await standing(store) == []


@pytest.mark.parametrize("before", [WRITABLE, READ_ONLY])
async def test_a_restarted_bookie_waits_for_its_earlier_session(
    registration: BookieRegistration, service: MemoryService, rival: MetadataStore, before: str
) -> None:
    """RG2: in either folder."""
    earlier = await service.connect()
    await rival.create(f"{ROOT}/available/readonly")
    await earlier.create(before, b"", CreateMode.EPHEMERAL)
    registering = asyncio.get_running_loop().create_task(
        registration.register(RegisteredMode.WRITABLE)
    )
    for _ in range(50):
        await asyncio.sleep(0)
    assert not registering.done()
    assert await standing(rival) == [before]
    service.expire(earlier.session)
    async with asyncio.timeout(DEADLINE_S):
        await registering
    assert await standing(rival) == [WRITABLE]
    await earlier.close()


@pytest.mark.parametrize("who", ["the bookie", "the store"])
async def test_wait_for_earlier_session_does_not_count_standstills(
    service: MemoryService, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """RG2: the session does not expire while the store stands still (MS3), so patience is counted
    in looks. With a clock, a restarted bookie gave up when the machine stood still for two seconds.
    """
    earlier = await service.connect()
    await earlier.create(WRITABLE, b"", CreateMode.EPHEMERAL)
    # This session does not expire from silence.
    store = FaultyStore(await service.connect(session_timeout_s=100 * DEADLINE_S))
    time, first_look = LoopTime(monkeypatch), 6

    async def stand_still() -> None:
        await time.pass_by(2 * DEADLINE_S)

    if who == "the store":  # The store is asked and answers late.
        store.before_read[first_look] = [stand_still]
    registering = asyncio.get_running_loop().create_task(
        registration_of(store).register(RegisteredMode.WRITABLE)
    )
    while store.reads < first_look and not registering.done():
        await asyncio.sleep(0)
    if who == "the bookie":
        await stand_still()
    for _ in range(200):
        await asyncio.sleep(0)
    assert not registering.done()
    service.expire(earlier.session)
    await registering
    assert await standing(store) == [WRITABLE]
    await earlier.close()
    await store.close()


@pytest.mark.parametrize("before", [WRITABLE, READ_ONLY])
async def test_second_bookie_with_same_id_is_refused(
    service: MemoryService, store: FaultyStore, rival: MetadataStore, before: str
) -> None:
    """RG2."""
    await rival.create(f"{ROOT}/available/readonly")
    await rival.create(before, b"", CreateMode.EPHEMERAL)
    with pytest.raises(NodeExists):
        await registration_of(store, patience_s=0.05).register(RegisteredMode.WRITABLE)
    assert await standing(rival) == [before]


async def test_foreign_node_that_appears_while_registering_is_kept(
    registration: BookieRegistration, store: FaultyStore, rival: MetadataStore
) -> None:
    """RG2: it appears in the other folder; our node stays, and the next look finds both."""
    store.before_write[1] = [lambda: enter_read_only(rival)]
    await registration.register(RegisteredMode.WRITABLE)
    assert await standing(rival) == [WRITABLE, READ_ONLY]


async def test_withdraw_after_expiry_keeps_node_of_another_process(
    registration: BookieRegistration, store: FaultyStore, rival: MetadataStore
) -> None:
    """RG2: our node was deleted with our session, and the node of its name belongs to another
    process.
    """
    await registration.register(RegisteredMode.WRITABLE)
    store.writes = 0

    async def rival_takes_over() -> None:
        await rival.delete(WRITABLE)
        await rival.create(WRITABLE, b"", CreateMode.EPHEMERAL)

    store.before_write[1] = [rival_takes_over]
    store.fates.append(Fate.EXPIRED)
    await registration.withdraw()
    assert await standing(rival) == [WRITABLE]


async def enter_read_only(rival: MetadataStore) -> None:
    await rival.create(f"{ROOT}/available/readonly")
    await rival.create(READ_ONLY, b"", CreateMode.EPHEMERAL)


async def test_a_bookie_registers_again_after_its_session_expired(
    registration: BookieRegistration,
    service: MemoryService,
    store: FaultyStore,
    rival: MetadataStore,
) -> None:
    await registration.register(RegisteredMode.READ_ONLY)
    first = store.session
    async with kept(registration):
        service.expire(first)
        await until_made_by_another(rival, READ_ONLY, first)
        assert await standing(rival) == [READ_ONLY]


async def test_events_report_changes_of_registration(
    registration: BookieRegistration, service: MemoryService, store: FaultyStore
) -> None:
    """Registering again after a lost session is reported; an unchanged mode is reported once."""
    with capture_logs() as events:
        for standing_ in (
            RegisteredMode.WRITABLE,
            RegisteredMode.WRITABLE,
            RegisteredMode.READ_ONLY,
        ):
            await registration.register(standing_)
        async with kept(registration):
            await lose_session(registration, service, store)
    told = [each.get("standing") or each.get("session_state") for each in events]
    assert [each for each in told if each] == ["WRITABLE", "READ_ONLY", "expired", "READ_ONLY"]


async def test_a_bookie_that_withdrew_is_not_registered_again(
    registration: BookieRegistration,
    service: MemoryService,
    store: FaultyStore,
    rival: MetadataStore,
) -> None:
    await registration.register(RegisteredMode.WRITABLE)
    await registration.withdraw()
    store.writes = 0
    async with kept(registration):
        first = store.session
        service.expire(first)
        for _ in range(200):  # Far more turns of the loop than a registration takes.
            await asyncio.sleep(0)
        async with asyncio.timeout(DEADLINE_S):
            await store.sync()
        for _ in range(200):
            await asyncio.sleep(0)
        assert store.session not in (first, 0)
    assert store.writes == 0


async def test_keeper_survives_failures_of_the_store(
    registration: BookieRegistration,
    service: MemoryService,
    store: FaultyStore,
    rival: MetadataStore,
) -> None:
    await registration.register(RegisteredMode.WRITABLE)
    first = store.session
    async with kept(registration):
        store.read_fates.extend([Fate.NOT_SENT] * 5)
        store.fates.extend((Fate.NOT_SENT, *[Fate.REQUEST_LOST] * 6, Fate.EXPIRED, Fate.OK))
        async with asyncio.timeout(DEADLINE_S):
            while store.fates:  # It checks its node at once.
                await asyncio.sleep(0)
        service.expire(first)
        await until_made_by_another(rival, WRITABLE, first)


async def test_keeper_whose_id_was_taken_raises_node_exists(
    service: MemoryService, store: FaultyStore, rival: MetadataStore
) -> None:
    """RG2: another process registered while our session was lost, and it stays registered."""
    registration = registration_of(store, patience_s=0.05)
    await registration.register(RegisteredMode.WRITABLE)
    await store.delete(WRITABLE)
    await rival.create(WRITABLE, b"", CreateMode.EPHEMERAL)
    async with kept(registration) as keeper:
        with pytest.raises(NodeExists):
            async with asyncio.timeout(DEADLINE_S):
                await keeper


async def test_persistent_node_blocks_registration(
    store: FaultyStore, rival: MetadataStore
) -> None:
    """RG2: a persistent node with our id never expires."""
    await rival.create(WRITABLE)
    with raises_message(NodeExists) as refused:
        await registration_of(store, patience_s=0.05).register(RegisteredMode.WRITABLE)
    assert refused.value.next_step == f"zkCli.sh -server zk1:2181 delete {WRITABLE}"


@pytest.mark.parametrize(
    ("theirs", "address"),
    [(pack_service_info(describe_bookie(Address("b9", 1))), "b9:1"), (b"", BOOKIE), (b"\xff", "")],
)
async def test_refusal_names_session_and_address_of_other_bookie(
    store: FaultyStore, rival: MetadataStore, theirs: bytes, address: str
) -> None:
    """RG2: nobody can know whether the other bookie is alive."""
    await rival.create(WRITABLE, theirs, CreateMode.EPHEMERAL)
    with pytest.raises(
        NodeExists, match=r"for at least 0\.05 s; this one does not serve"
    ) as refused:
        await registration_of(store, patience_s=0.05).register(RegisteredMode.WRITABLE)
    assert refused.value.ids == {
        "path": WRITABLE,
        "session": f"{rival.session:#x}",
        **({"address": address} if address else {}),
    }
    assert "if it is dead, start again when its session is over" in refused.value.next_step


async def test_register_without_cluster_raises_no_such_cluster(store: FaultyStore) -> None:
    lost = BookieRegistration(store, "/nowhere", BOOKIE, INFO, DEADLINE_S)
    with pytest.raises(NoSuchCluster):
        await lost.register(RegisteredMode.WRITABLE)


async def test_register_gives_up_after_repeated_expiries(
    registration: BookieRegistration, store: FaultyStore
) -> None:
    store.fates.extend([Fate.EXPIRED] * 6)
    with pytest.raises(MetadataUnavailable):
        await registration.register(RegisteredMode.WRITABLE)


# --- The holder of the lock -------------------------------------------------------------------

HELD = describe_bookie(Address("b1", 3181), holder="this lock")


def held_registration(store: MetadataStore) -> BookieRegistration:
    return BookieRegistration(store, ROOT, BOOKIE, HELD, 0.05)


@pytest.mark.parametrize("path", [WRITABLE, READ_ONLY])
async def test_node_of_dead_holder_of_our_lock_is_replaced_at_once(
    store: FaultyStore, rival: MetadataStore, path: str
) -> None:
    """RG2: the dead process held the same lock that we hold now."""
    await rival.create(f"{ROOT}/available/readonly")
    await rival.create(path, pack_service_info(HELD), CreateMode.EPHEMERAL)
    await held_registration(store).register(RegisteredMode.WRITABLE)
    assert await standing(rival) == [WRITABLE]
    node = await rival.get(WRITABLE)
    assert node is not None
    assert node.stat.owner == store.session


@pytest.mark.parametrize(
    "theirs",
    [
        pack_service_info(describe_bookie(Address("b1", 3181), holder="another lock")),
        pack_service_info(INFO),  # Names no holder.
        b"",
        b"\xff",
    ],
)
async def test_node_of_other_or_unknown_lock_holder_is_kept(
    store: FaultyStore, rival: MetadataStore, theirs: bytes
) -> None:
    """RG2."""
    await rival.create(WRITABLE, theirs, CreateMode.EPHEMERAL)
    with pytest.raises(NodeExists):
        await held_registration(store).register(RegisteredMode.WRITABLE)
    node = await rival.get(WRITABLE)
    assert node is not None
    assert node.stat.owner == rival.session


async def test_node_without_lock_holder_is_kept_by_bookie_without_lock(
    store: FaultyStore, rival: MetadataStore
) -> None:
    await rival.create(WRITABLE, pack_service_info(INFO), CreateMode.EPHEMERAL)
    with pytest.raises(NodeExists):
        await registration_of(store, patience_s=0.05).register(RegisteredMode.WRITABLE)


async def test_deleted_node_is_created_again(
    registration: BookieRegistration, rival: MetadataStore
) -> None:
    await registration.register(RegisteredMode.WRITABLE)
    async with kept(registration):
        before = await rival.get(WRITABLE)
        await rival.delete(WRITABLE)

        async def is_back() -> bool:
            node = await rival.get(WRITABLE)
            return node is not None and node != before

        await until(rival, is_back)


async def test_is_registered_follows_register_and_withdraw(
    registration: BookieRegistration, service: MemoryService, store: FaultyStore
) -> None:
    assert not registration.is_registered
    await registration.register(RegisteredMode.WRITABLE)
    assert registration.is_registered
    async with kept(registration):
        await lose_session(registration, service, store)
    assert registration.sessions_lost == 1
    await registration.withdraw()
    assert not registration.is_registered
