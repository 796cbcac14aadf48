"""Which bookies are alive and which accept entries, as a client sees it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import combinations_with_replacement

import pytest

from rollbook.proto.cluster import bookie_watcher as module
from rollbook.proto.cluster.bookie_watcher import BookieWatcher, LiveBookies
from rollbook.proto.errors import MetadataUnavailable
from rollbook.proto.formats.service_info import (
    BookieServiceInfo,
    describe_bookie,
    pack_service_info,
)
from rollbook.proto.ids import BookieId
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import Address, CreateMode, MetadataStore, WatchEvent, WatchEventKind
from tests.unit.proto.cluster.faulty import Fate, FaultyStore

ROOT = "/ledgers"
AVAILABLE, READ_ONLY = f"{ROOT}/available", f"{ROOT}/available/readonly"
B1, B2, B3 = (BookieId(f"b{number}:3181") for number in (1, 2, 3))
DEADLINE_S = 10.0


def info(number: int, version: str = "") -> BookieServiceInfo:
    return describe_bookie(
        Address(f"b{number}", 3181), properties={"v": version} if version else {}
    )


async def enter(store: MetadataStore, folder: str, number: int, version: str = "") -> None:
    data = pack_service_info(info(number, version))
    await store.create(f"{folder}/b{number}:3181", data, CreateMode.EPHEMERAL)


async def until(watcher: BookieWatcher, holds: Callable[[LiveBookies], bool]) -> LiveBookies:
    found = watcher.current
    async with asyncio.timeout(DEADLINE_S):
        while not holds(found):
            found = await watcher.changed(found)
    return found


@pytest.fixture(autouse=True)
async def folders(rival: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr(module, "_GATHER_S", 0.001)
    for path in (ROOT, AVAILABLE, READ_ONLY):
        await rival.create(path)


@pytest.fixture
async def watcher(store: FaultyStore, rival: MetadataStore) -> AsyncIterator[BookieWatcher]:
    await enter(rival, AVAILABLE, 1)
    watcher = BookieWatcher(store, ROOT)
    await watcher.start()
    yield watcher
    await watcher.close()


async def test_watcher_starts_with_registered_bookies(watcher: BookieWatcher) -> None:
    assert watcher.current == LiveBookies({B1: info(1)}, {})
    assert watcher.current.find(B1) == info(1)
    assert watcher.current.find(B2) is None


async def test_watcher_follows_added_changed_and_removed_bookies(
    watcher: BookieWatcher, rival: MetadataStore
) -> None:
    await enter(rival, READ_ONLY, 2)
    found = await until(watcher, lambda live: B2 in live.read_only)
    assert found.find(B2) == info(2)
    await rival.set(f"{AVAILABLE}/{B1}", pack_service_info(info(1, "new")))
    await until(watcher, lambda live: live.writable[B1] == info(1, "new"))
    await rival.delete(f"{AVAILABLE}/{B1}")
    await until(watcher, lambda live: not live.writable)


async def test_bookie_in_both_folders_counts_as_read_only(
    watcher: BookieWatcher, rival: MetadataStore
) -> None:
    """RG1."""
    await enter(rival, READ_ONLY, 1)
    found = await until(watcher, lambda live: B1 in live.read_only)
    assert B1 not in found.writable
    await rival.delete(f"{READ_ONLY}/{B1}")
    await until(watcher, lambda live: B1 in live.writable)


@pytest.mark.parametrize("move", [(AVAILABLE, READ_ONLY), (READ_ONLY, AVAILABLE)])
@pytest.mark.parametrize(("enters", "leaves"), [*combinations_with_replacement(range(1, 9), 2)])
async def test_bookie_moving_between_folders_is_never_missing(
    store: FaultyStore, rival: MetadataStore, move: tuple[str, str], enters: int, leaves: int
) -> None:
    """RG1, over every published state: the move happens between any two reads of a refresh."""
    old, new = move
    await enter(rival, old, 1)
    watcher = BookieWatcher(store, ROOT)
    await watcher.start()

    def is_known(live: LiveBookies, newcomer: BookieId) -> bool:
        assert live.find(B1)
        return newcomer in live.writable

    def has_moved(live: LiveBookies) -> bool:
        assert live.find(B1)
        return (B1 in live.read_only) == (new == READ_ONLY)

    store.reads = 0
    store.before_read.setdefault(enters, []).append(lambda: enter(rival, new, 1))
    store.before_read.setdefault(leaves, []).append(lambda: rival.delete(f"{old}/{B1}"))
    # Its payload is read again, too.
    await rival.set(f"{old}/{B1}", pack_service_info(info(1, "new")))
    number = 2
    while store.before_read:  # Each new bookie makes the watcher refresh.
        await enter(rival, AVAILABLE, number)
        await until(watcher, partial(is_known, newcomer=BookieId(f"b{number}:3181")))
        number += 1
    await until(watcher, has_moved)
    await watcher.close()


async def test_expired_session_removes_its_bookies(
    watcher: BookieWatcher, service: MemoryService
) -> None:
    dying = await service.connect()
    await enter(dying, AVAILABLE, 2)
    await until(watcher, lambda live: B2 in live.writable)
    service.expire(dying.session)
    await until(watcher, lambda live: B2 not in live.writable)
    await dying.close()


async def test_bookie_without_payload_gets_address_from_its_id(
    watcher: BookieWatcher, rival: MetadataStore
) -> None:
    await rival.create(f"{AVAILABLE}/old.host:3181", b"", CreateMode.EPHEMERAL)
    old = BookieId("old.host:3181")
    found = await until(watcher, lambda live: old in live.writable)
    assert found.writable[old].address == Address("old.host", 3181)


async def test_bookie_with_unreadable_payload_is_listed_without_address(
    watcher: BookieWatcher, rival: MetadataStore
) -> None:
    await rival.create(f"{AVAILABLE}/{B2}", b"\xff", CreateMode.EPHEMERAL)
    await rival.create(f"{AVAILABLE}/no,name", b"", CreateMode.EPHEMERAL)
    found = await until(watcher, lambda live: B2 in live.writable)
    assert found.writable[B2].address is None
    assert list(found.writable) == [B1, B2]


async def test_cut_connection_loses_no_bookie_change(
    watcher: BookieWatcher, service: MemoryService, store: FaultyStore, rival: MetadataStore
) -> None:
    line = service.line(store.store)
    line.suspend()
    await enter(rival, AVAILABLE, 2)
    line.resume()
    await until(watcher, lambda live: B2 in live.writable)


async def test_expired_session_of_watcher_loses_no_bookie_change(
    watcher: BookieWatcher, service: MemoryService, store: FaultyStore, rival: MetadataStore
) -> None:
    service.expire(store.session)
    await enter(rival, AVAILABLE, 2)
    await until(watcher, lambda live: B2 in live.writable)


async def test_failed_reads_are_retried(
    watcher: BookieWatcher, store: FaultyStore, rival: MetadataStore
) -> None:
    store.read_fates.extend([Fate.NOT_SENT] * 3)
    await enter(rival, AVAILABLE, 2)
    await until(watcher, lambda live: B2 in live.writable)


async def test_watcher_refreshes_periodically_without_events(
    store: FaultyStore, rival: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch on the wrong folder simulates one that is lost silently."""
    watch = rival.watch
    monkeypatch.setattr(store, "watch", lambda path, recursive: watch("/nothing/here"))
    watcher = BookieWatcher(store, ROOT, look_again_s=0.01)
    await watcher.start()
    await enter(rival, AVAILABLE, 2)
    await until(watcher, lambda live: B2 in live.writable)
    await watcher.close()


class Script:
    """A watch that reports what the test says."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[WatchEvent] = asyncio.Queue()

    def __aiter__(self) -> "Script":
        return self

    async def __anext__(self) -> WatchEvent:
        return await self.events.get()

    async def close(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_close_of_slow_watch_fails_waiters_at_once(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def watch(path: str, *, recursive: bool) -> Script:
        return Script()

    monkeypatch.setattr(store, "watch", watch)
    watcher = BookieWatcher(store, ROOT)
    await watcher.start()
    waiter = asyncio.get_running_loop().create_task(watcher.changed(watcher.current))
    await asyncio.sleep(0)
    await watcher.close()
    with pytest.raises(MetadataUnavailable):
        await waiter


async def test_resync_event_reads_all_bookies_again(
    store: FaultyStore, rival: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resync event may directly follow another event."""
    script = Script()

    async def watch(path: str, *, recursive: bool) -> Script:
        return script

    monkeypatch.setattr(store, "watch", watch)
    await enter(rival, AVAILABLE, 1)
    watcher = BookieWatcher(store, ROOT)
    await watcher.start()
    await rival.set(f"{AVAILABLE}/{B1}", pack_service_info(info(1, "new")))
    script.events.put_nowait(WatchEvent(WatchEventKind.CREATED, f"{AVAILABLE}/{B2}"))
    script.events.put_nowait(WatchEvent(WatchEventKind.RESYNC, AVAILABLE))
    await until(watcher, lambda live: live.writable[B1] == info(1, "new"))
    await watcher.close()


async def test_watcher_starts_before_folders_exist(service: MemoryService) -> None:
    async with await service.connect() as store:
        watcher = BookieWatcher(store, "/later")
        await watcher.start()
        assert watcher.current == LiveBookies()
        await store.create("/later")
        await store.create("/later/available")
        await enter(store, "/later/available", 1)
        await until(watcher, lambda live: B1 in live.writable)
        await watcher.close()


async def test_failed_start_raises_metadata_unavailable(store: FaultyStore) -> None:
    watcher = BookieWatcher(store, ROOT)
    store.read_fates.extend((Fate.OK, Fate.NOT_SENT))
    with pytest.raises(MetadataUnavailable):
        await watcher.start()
    with pytest.raises(MetadataUnavailable):
        await watcher.changed(watcher.current)


@pytest.mark.parametrize("end", ["close", "store"])
async def test_waiter_on_closed_watcher_gets_metadata_unavailable(
    watcher: BookieWatcher, store: FaultyStore, end: str
) -> None:
    waiter = asyncio.get_running_loop().create_task(watcher.changed(watcher.current))
    await asyncio.sleep(0)
    await (watcher.close() if end == "close" else store.close())
    with pytest.raises(MetadataUnavailable):
        async with asyncio.timeout(DEADLINE_S):
            await waiter


async def test_each_of_many_new_bookies_is_read_once(
    watcher: BookieWatcher, store: FaultyStore, rival: MetadataStore
) -> None:
    """A bookie's payload is read when the bookie appears, not whenever another one does."""
    store.reads = 0
    for number in range(2, 60):
        await enter(rival, AVAILABLE, number)
    await until(watcher, lambda live: len(live.writable) == 59)
    listings = 3 * 58
    assert store.reads < 58 + listings
