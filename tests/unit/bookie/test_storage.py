"""The storage in the simulator: adds, reads, fences, checkpoints and failures."""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rollbook.bookie import storage as storage_module
from rollbook.bookie.checkpoint import Checkpointer
from rollbook.bookie.config import StorageConfig
from rollbook.bookie.entry_log_reader import EntryLog, EntryLogs
from rollbook.bookie.journal import OnDone
from rollbook.bookie.storage import Admission, Storage
from rollbook.proto.errors import (
    BadConfig,
    BookieFailed,
    BookieReadOnly,
    DataLost,
    DirectoryInUse,
    EntryStateUnknown,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    Overloaded,
    Unauthorized,
    WrongCluster,
)
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.ports import OpenMode
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.system_disk import SystemDisk
from rollbook.proto.wire import v2_adds, v3_adds
from rollbook.proto.wire.add_columns import Adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest, ledger_key
from tests.simulation.kernel import Node, World
from tests.simulation.kernel.filesystem import Operation
from tests.support.entries import pack_entry

KEY, OTHER_KEY = ledger_key(b"secret"), ledger_key(b"other")
CONFIG = StorageConfig(
    "/store/journal", ("/store/ledgers",), journal_file_bytes=64 * 1024, idle_after_ms=20
)
FRAME_BYTES_MAX = 5 * 1024 * 1024


def digest_of(ledger_id: int, kind: DigestType = DigestType.CRC32C) -> LedgerDigest:
    return LedgerDigest(kind, b"secret", LedgerId(ledger_id))


def entry(ledger_id: int, entry_id: int, payload: bytes = b"payload", lac: int = -1) -> bytes:
    return pack_entry(digest_of(ledger_id), EntryId(entry_id), EntryId(lac), 0, payload)


def adds(
    *ids: tuple[int, int], payload: bytes = b"payload", key: bytes = KEY, **flags: bool
) -> Adds:
    frames = b"".join(
        v2_adds.V2AddPacker(key, digest_of(ledger_id), **flags).pack(
            EntryId(entry_id), NO_ENTRY, 0, payload
        )
        for ledger_id, entry_id in ids
    )
    found, end = v2_adds.take_adds(frames, 0, FRAME_BYTES_MAX)
    assert found
    assert end == len(frames)
    return found


async def add(storage: Storage, *ids: tuple[int, int], **how: Any) -> None:
    admission = storage.add(adds(*ids, **how))
    assert not any(admission.refusals), admission.refusals
    assert admission.done
    await admission.done


async def fill_file(storage: Storage, ledger_id: int, size: int = 6000) -> int:
    """Adds entries from 0 on until a new journal file begins; returns the last id."""
    number = storage.end_of_journal[0]
    for entry_id in count():
        await add(storage, (ledger_id, entry_id), payload=b"x" * size)
        if storage.end_of_journal[0] != number:
            return entry_id
    raise AssertionError


Story = Callable[[Storage, Node], Awaitable[None]]


async def open_storage(node: Node, config: StorageConfig = CONFIG, **how: Any) -> Storage:
    return await Storage.open(node.disk, config, node.clock, node.randomness, **how)


def tell(story: Story, seed: int = 1, config: StorageConfig = CONFIG) -> World:
    """Runs the story with a new storage, which is closed at the end."""
    world = World(seed)
    node = world.node("b1")

    async def main(node: Node) -> None:
        await Storage.make(node.disk, config, node.randomness)
        storage = await open_storage(node, config)
        storage.start()
        await story(storage, node)
        await storage.close()

    async def scenario() -> None:
        await node.start(main).result

    world.run(scenario())
    return world


# --- Adding and reading -----------------------------------------------------------------------


def test_an_entry_is_read_as_it_was_added() -> None:
    async def story(storage: Storage, _: Node) -> None:
        await add(storage, (7, 0), (7, 1), (8, 5))
        assert await storage.read(7, 1) == entry(7, 1)
        assert storage.peek(8, 5) == entry(8, 5)
        assert await storage.read_last(7) == entry(7, 1)
        assert await storage.entry_ids(7) == [0, 1]

    tell(story)


def test_recovery_add_becomes_the_last_entry() -> None:
    """B1: a client takes all entries after the last one for absent."""

    async def story(storage: Storage, _: Node) -> None:
        await add(storage, (7, 0))
        await storage.fence(7, KEY)
        assert await storage.read_last(7) == entry(7, 0)
        await add(storage, (7, 1), is_recovery=True)
        await storage.fence(7, KEY)
        assert await storage.read_last(7) == entry(7, 1)

    tell(story)


def test_absent_entry_and_absent_ledger_raise_different_errors() -> None:
    """B1: a fence makes a ledger known."""

    async def story(storage: Storage, _: Node) -> None:
        with pytest.raises(NoSuchLedger):
            await storage.read(7, 0)
        with pytest.raises(NoSuchLedger):
            await storage.read_last(7)
        with pytest.raises(NoSuchLedger):
            await storage.entry_ids(7)
        await storage.fence(7, KEY)
        with pytest.raises(NoSuchEntry):
            await storage.read(7, 0)
        with pytest.raises(NoSuchEntry):
            await storage.read_last(7)
        assert await storage.entry_ids(7) == []

    tell(story)


def test_entry_is_readable_only_once_durable() -> None:
    async def story(storage: Storage, node: Node) -> None:
        await add(storage, (7, 0))
        node.disk.hang()
        done = storage.add(adds((7, 1))).done
        assert done
        await asyncio.sleep(1)
        assert not done.done()
        with pytest.raises(NoSuchEntry):
            await storage.read(7, 1)
        node.disk.unhang()
        await done
        assert await storage.read(7, 1) == entry(7, 1)

    tell(story)


def test_concurrent_adds_share_syncs() -> None:
    async def story(storage: Storage, node: Node) -> None:
        record: list[Operation] = []
        node.disk.record = record
        await asyncio.gather(*(add(storage, (7, n)) for n in range(50)))
        assert len([operation for operation in record if operation[0] == "sync"]) <= 2

    tell(story)


def test_write_is_pending_only_until_it_begins() -> None:
    """The disk may be slow, and other tasks can work during its write."""

    async def story(storage: Storage, node: Node) -> None:
        await add(storage, (7, 0))
        assert not storage.is_about_to_write
        node.disk.hang()
        done = storage.add(adds((7, 1))).done
        assert storage.is_about_to_write
        await asyncio.sleep(0.1)
        assert not storage.is_about_to_write
        late = storage.add(adds((7, 2))).done  # This add waits for the disk anyway.
        assert not storage.is_about_to_write
        node.disk.unhang()
        assert done
        assert late
        await asyncio.gather(done, late)
        assert not storage.is_about_to_write

    tell(story)


def test_newest_add_of_an_entry_is_read() -> None:
    """Copies of an entry may differ in their LAC; recovery writes them with its own."""

    async def story(storage: Storage, _: Node) -> None:
        await add(storage, *((7, n) for n in range(10)))
        await add(storage, (7, 3), payload=b"again")
        assert await storage.read(7, 3) == entry(7, 3, b"again")
        assert await storage.entry_ids(7) == list(range(10))

    tell(story)


def test_refused_adds_do_not_reach_the_journal() -> None:
    async def story(storage: Storage, _: Node) -> None:
        await storage.fence(8, KEY)
        admission = storage.add(adds((7, 0), (8, 0), (7, 1), (9, 0)))
        assert admission.refusals == (None, LedgerFenced, None)
        assert admission.done
        await admission.done
        assert [await storage.read(*ids) for ids in ((7, 0), (7, 1), (9, 0))] == [
            entry(7, 0),
            entry(7, 1),
            entry(9, 0),
        ]
        with pytest.raises(NoSuchEntry):
            await storage.read(8, 0)
        assert storage.add(adds((8, 1))) == Admission((LedgerFenced,), None)

    tell(story)


def test_another_key_is_refused() -> None:
    async def story(storage: Storage, _: Node) -> None:
        await add(storage, (7, 0))
        assert storage.add(adds((7, 1), key=OTHER_KEY)).refusals == (Unauthorized,)
        with pytest.raises(Unauthorized):
            await storage.fence(7, OTHER_KEY)
        assert not storage.is_fenced(7)

    tell(story)


def test_v2_and_v3_adds_share_a_journal_across_a_restart() -> None:
    async def story(storage: Storage, node: Node) -> None:
        await add(storage, (7, 0))
        packer = v3_adds.V3AddPacker(KEY, digest_of(7), iter(range(9)))
        frame = packer.pack(EntryId(1), EntryId(0), 0, b"three")
        found, _ = v3_adds.take_adds(frame, 0, FRAME_BYTES_MAX)
        assert found
        done = storage.add(found).done
        assert done
        await done
        await storage.close()
        again = await open_storage(node)
        assert await again.read(7, 0) == entry(7, 0)
        assert await again.read(7, 1) == entry(7, 1, b"three", lac=0)
        assert again.last_add_confirmed(7) == 0

    tell(story)


@pytest.mark.parametrize("where", ["memory", "logs"])
def test_run_equals_single_reads(where: str) -> None:
    async def story(storage: Storage, node: Node) -> None:
        ids = [*range(40), *range(50, 60), *range(61, 90), 2**40]
        for at in range(0, len(ids), 7):
            await add(
                storage,
                *((each, n) for n in ids[at : at + 7] for each in (7, 8)),
                payload=bytes(300),
            )
        await add(storage, (7, 45))  # Added late, so it is not next to its neighbours.
        if where == "logs":
            await fill(storage, range(1), entries=130, size=1000)
            await settle(storage)
            assert not storage._journal.active.index.find(7, 89)
        everything = {n: await storage.read(7, n) for n in (*ids, 45)}
        for first in everything:
            for count_max, bytes_max in ((1, 0), (5, 10**6), (1000, 10**6), (1000, 2000)):
                run = await storage.read_run(7, first, count_max, bytes_max)
                assert 1 <= len(run) <= count_max
                assert run == [everything[n] for n in range(first, first + len(run))]
                assert len(run) == 1 or sum(map(len, run)) <= bytes_max
        assert len(await storage.read_run(7, 0, 1000, 10**6)) == 40
        assert len(await storage.read_run(7, 0, 1000, 2000)) == 5
        with pytest.raises(NoSuchEntry):
            await storage.read_run(7, 60, 10, 10**6)

    tell(story)


@pytest.mark.parametrize("seed", range(8))
def test_run_returns_the_newest_of_repeats(seed: int) -> None:
    """B12: repeats may be in memory, in several journal files and in logs."""
    chance = random.Random(seed)

    async def story(storage: Storage, node: Node) -> None:
        newest: dict[int, bytes] = {}
        for _ in range(6):
            for _ in range(5):
                first = chance.randrange(40)
                ids = list(range(first, first + chance.randint(1, 12)))
                if chance.random() < 0.3:
                    chance.shuffle(ids)
                payload = chance.randbytes(20)
                await add(storage, *((7, n) for n in ids), payload=payload)
                newest |= {n: entry(7, n, payload) for n in ids}
            await fill(storage, range(1), entries=chance.choice((0, 20, 70)), size=1000)
            if chance.random() < 0.5:
                await settle(storage)
        for first in newest:
            run = await storage.read_run(7, first, 1000, 10**6)
            assert run == [newest[n] for n in range(first, first + len(run))]

    tell(story)


def test_a_deferred_sync_is_answered_early_and_made_durable_by_force() -> None:
    async def story(storage: Storage, node: Node) -> None:
        packer = v3_adds.V3AddPacker(KEY, digest_of(7), iter(range(9)), is_sync_deferred=True)
        found, _ = v3_adds.take_adds(packer.pack(EntryId(0), NO_ENTRY, 0, b""), 0, FRAME_BYTES_MAX)
        assert found
        node.disk.hang()
        done = storage.add(found).done
        assert done
        await done
        assert await storage.read(7, 0) == entry(7, 0, b"")
        force = asyncio.ensure_future(storage.force())
        await asyncio.sleep(1)
        assert not force.done()
        node.disk.unhang()
        await force
        await storage.force()

    tell(story)


# --- Fences, LACs, deletions ------------------------------------------------------------------


def test_fence_is_answered_only_once_durable() -> None:
    """B4: adds are refused from the request on."""

    async def story(storage: Storage, node: Node) -> None:
        await add(storage, (7, 0))
        node.disk.hang()
        queued = storage.add(adds((7, 1))).done
        fences = [asyncio.ensure_future(storage.fence(7, KEY)) for _ in range(2)]
        await asyncio.sleep(1)
        assert not any(fence.done() for fence in fences)
        assert not storage.is_fenced(7)
        assert storage.add(adds((7, 2))).refusals == (LedgerFenced,)
        fences.pop().cancel()  # One caller gives up; the other one still waits.
        node.disk.unhang()
        await fences[0]
        assert queued
        # It was queued before the fence, so it is durable before the fence's response.
        assert queued.done()
        assert storage.is_fenced(7)
        await add(storage, (7, 2), is_recovery=True)

    tell(story)


def test_fence_of_an_unseen_ledger_survives_a_power_cut() -> None:
    """B4."""
    world = World(3)
    node = world.node("b1")

    async def main(node: Node) -> None:
        await Storage.make(node.disk, CONFIG, node.randomness)
        storage = await open_storage(node)
        storage.start()
        await storage.fence(7, KEY)
        node.power_cut()

    async def again(node: Node) -> None:
        storage = await open_storage(node)
        assert storage.is_fenced(7)
        assert storage.add(adds((7, 0))).refusals == (LedgerFenced,)
        with pytest.raises(Unauthorized):
            await storage.fence(7, OTHER_KEY)

    async def scenario() -> None:
        node.start(main)
        await asyncio.sleep(1)
        await node.start(again).result

    world.run(scenario())


def test_explicit_lac_never_falls() -> None:
    async def story(storage: Storage, node: Node) -> None:
        await storage.write_lac(7, KEY, 5, b"five")
        await storage.write_lac(7, KEY, 3, b"three")
        assert storage.lac_packet(7) == b"five"
        assert storage.last_add_confirmed(7) == 5
        assert storage.lac_packet(8) is None
        await storage.close()
        again = await open_storage(node)
        assert (again.lac_packet(7), again.last_add_confirmed(7)) == (b"five", 5)

    tell(story)


def test_deleted_ledger_stays_deleted() -> None:
    """B4: neither a late add nor a restart nor an entry log restores it."""

    async def story(storage: Storage, node: Node) -> None:
        for round_ in range(3):
            await add(storage, *((7, 50 * round_ + n) for n in range(50)), payload=bytes(900))
        await storage.delete(7)
        for _ in range(2):
            with pytest.raises(NoSuchLedger):
                await storage.read(7, 0)
            with pytest.raises(NoSuchLedger):
                await storage.fence(7, KEY)
            for is_recovery in (False, True):
                admission = storage.add(adds((7, 200), is_recovery=is_recovery))
                assert admission.refusals == (LedgerFenced,)
            await storage.close()
            storage = await open_storage(node)

    tell(story)


def test_lac_watcher_is_notified_after_its_ledger_was_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage_module, "_LEDGERS_MAX", 4)

    async def story(storage: Storage, node: Node) -> None:
        await add(storage, *((n, 0) for n in range(1, 9)))
        await storage.save_facts(range(1, 9))
        ledger_id = next(iter(storage._ledgers))
        told: list[int] = []
        storage.lac_watchers[ledger_id] = told.append
        frame = v2_adds.V2AddPacker(KEY, digest_of(ledger_id)).pack(EntryId(1), EntryId(0), 0, b"")
        found, _ = v2_adds.take_adds(frame, 0, FRAME_BYTES_MAX)
        assert found
        done = storage.add(found).done
        assert done
        for other in range(20, 30):
            storage.add(adds((other, 0)))
        assert ledger_id not in storage._ledgers
        assert told == [ledger_id]  # Notified when the add was received.
        await done
        assert told == [ledger_id] * 2  # Notified again when it was durable.
        assert storage.last_add_confirmed(ledger_id) == 0

    tell(story)


# --- Checkpoints ------------------------------------------------------------------------------


async def fill(storage: Storage, ledgers: range, *, entries: int, size: int) -> None:
    for entry_id in range(entries):
        await add(storage, *((each, entry_id) for each in ledgers), payload=bytes(size))


async def settle(storage: Storage) -> None:
    while storage._filled:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("ledgers", "entries", "size", "adopted"),
    [(range(1), 300, 1000, True), (range(40), 20, 300, False)],
)
def test_entries_are_read_from_adopted_and_sorted_logs(
    ledgers: range, entries: int, size: int, adopted: bool
) -> None:
    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, ledgers, entries=entries, size=size)
        await settle(storage)
        assert len(storage.catalog.logs) > 2
        expected = {(e, n): entry(e, n, bytes(size)) for e in ledgers for n in range(entries)}
        for again in (storage, None):
            if again is None:
                await storage.close()
                again = await open_storage(node)
                header = node.disk.contents("/store/ledgers/0000000000000001.log")
                assert header
                # This byte of the header is the file's purpose.
                assert (header[10] == 1) == adopted
            for (ledger_id, entry_id), body in expected.items():
                assert await again.read(ledger_id, entry_id) == body
            for ledger_id in ledgers:
                assert await again.entry_ids(ledger_id) == list(range(entries))
                assert await again.read_last(ledger_id) == expected[ledger_id, entries - 1]

    tell(story)


def test_journal_files_before_the_replay_start_are_deleted() -> None:
    """B5."""

    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(1), entries=500, size=1000)
        await settle(storage)
        await asyncio.sleep(1)
        names = await node.disk.list_directory("/store/journal")
        assert len(names) == 3  # These are the lock, the current file, and the prepared one.

    tell(story)


def test_full_disk_makes_storage_read_only_until_room() -> None:
    """B5: the journal continues in a new file once there is room."""

    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(1), entries=60, size=1000)
        await settle(storage)
        mark = storage.catalog.replay_start
        node.disk.capacity_bytes = node.disk.system.used_bytes
        entry_id = 60
        while not storage.is_read_only:
            await add(storage, (0, entry_id), payload=bytes(1000))
            entry_id += 1
        await asyncio.sleep(5)
        assert storage.add(adds((0, entry_id))).refusals == (BookieReadOnly,)
        with pytest.raises(BookieReadOnly):
            await storage.write_lac(0, KEY, 1, b"")
        await storage.fence(0, KEY)  # Space is reserved for fences and for recovery.
        await add(storage, (0, entry_id), is_recovery=True, is_high_priority=True)
        for number in range(entry_id + 1):
            await storage.read(0, number)
        node.disk.capacity_bytes = None
        await asyncio.sleep(30)
        assert not storage.is_read_only
        await add(storage, *((1, n) for n in range(40)), payload=bytes(1000))
        await settle(storage)
        assert storage.catalog.replay_start > mark

    tell(story)


def test_failing_checkpoints_make_storage_read_only_until_one_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B5: the replay start does not move while checkpoints fail."""

    async def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room for the log")

    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(1), entries=60, size=1000)
        await settle(storage)
        mark = storage.catalog.replay_start
        entry_id = 60
        with monkeypatch.context() as patch:
            patch.setattr(Checkpointer, "_make_log", no_room)
            while not storage.is_read_only:
                await add(storage, (0, entry_id), payload=bytes(1000))
                entry_id += 1
            await asyncio.sleep(30)
            assert storage.stats.checkpoint_failures > 3
            assert storage.stats.journal_files_waiting() == CONFIG.waiting_files_max
            assert storage.add(adds((0, entry_id))).refusals == (BookieReadOnly,)
            await storage.fence(0, KEY)
            await add(storage, (0, entry_id), is_recovery=True, is_high_priority=True)
            assert storage.catalog.replay_start == mark
        await asyncio.sleep(30)
        assert not storage.is_read_only
        await settle(storage)
        assert storage.catalog.replay_start > mark
        for number in range(entry_id + 1):
            size = 1000 if number < entry_id else len(b"payload")
            assert len(await storage.read(0, number)) == len(entry(0, number, bytes(size)))

    tell(story)


def test_storage_opens_on_a_full_disk() -> None:
    """Each start uses the space left in the last journal file, and fences still work (B4)."""

    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(1), entries=20, size=1000)
        await storage.close()
        node.disk.capacity_bytes = node.disk.system.used_bytes
        for life in range(4):
            again = await open_storage(node)
            again.start()
            assert await again.read(0, 19) == entry(0, 19, bytes(1000))
            await asyncio.sleep(0.1)
            assert again.is_read_only
            await again.fence(life, KEY)
            assert all(again.is_fenced(each) for each in range(life + 1))
            await again.close()

    tell(story)


async def tear(node: Node, path: str) -> None:
    """Appends part of a record, as a power cut may leave it."""
    file = await node.disk.open(path, OpenMode.WRITE)
    contents = await file.read_at(0, await file.size())
    end = -(-len(contents.rstrip(b"\0")) // 512) * 512
    assert end < len(contents)  # The file has preallocated space.
    await file.write_and_sync(end, [b"torn" * 300])
    await file.close()


@pytest.mark.parametrize("copies", ["a", "b", "ab"])
def test_bookie_starts_with_a_torn_catalog_on_a_full_disk(copies: str) -> None:
    """B3, B4: there is no room for a new generation, so the current one is continued."""

    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(1), entries=20, size=1000)
        await storage.close()
        for copy in copies:
            await tear(node, f"/store/ledgers/catalog-0000000001.{copy}")
        node.disk.capacity_bytes = node.disk.system.used_bytes
        for life in range(2):
            again = await open_storage(node)
            again.start()
            assert await again.read(0, 19) == entry(0, 19, bytes(1000))
            await asyncio.sleep(0.1)
            assert again.is_read_only
            await again.fence(life, KEY)
            await again.save_facts([life])
            await again.close()
        names = await node.disk.list_directory("/store/ledgers")
        assert [name for name in names if "catalog" in name] == [
            "catalog-0000000001.a",
            "catalog-0000000001.b",
        ]
        node.disk.capacity_bytes = None
        again = await open_storage(node)
        assert again.is_fenced(0)
        assert again.is_fenced(1)
        assert await again.read(0, 19) == entry(0, 19, bytes(1000))
        await again.close()

    tell(story)


# --- Listeners of adds ------------------------------------------------------------------------


def test_listener_is_called_once_per_write() -> None:
    async def story(storage: Storage, _: Node) -> None:
        heard: list[tuple[str, int, BookieFailed | None]] = []

        def listener(name: str) -> OnDone:
            return lambda count, error: heard.append((name, count, error))

        first, second = listener("first"), listener("second")
        for on_done, ids in ((first, (7, 0)), (second, (8, 0)), (first, (7, 1))):
            assert storage.add(adds(ids), on_done).done is None
        assert heard == []  # Listeners are never called within `add`.
        await add(storage, (9, 0))
        assert heard == [("first", 2, None), ("second", 1, None)]
        assert [await storage.read(*each) for each in ((7, 0), (8, 0), (7, 1))] == [
            entry(7, 0),
            entry(8, 0),
            entry(7, 1),
        ]

    tell(story)


def test_listeners_are_notified_of_a_stopped_journal() -> None:
    async def story(storage: Storage, node: Node) -> None:
        heard: list[bool] = []

        def on_done(_: int, error: BookieFailed | None) -> None:
            heard.append(error is not None)

        node.disk.sync_error_odds = 1.0
        storage.add(adds((7, 0)), on_done)
        storage.go_on()
        await storage.failed()
        assert heard == [True]
        assert storage.add(adds((7, 1), is_high_priority=True), on_done).refusals == (None,)
        assert heard == [True]
        await asyncio.sleep(0)
        assert heard == [True, True]

    tell(story)


def test_adds_during_close_are_answered_in_order() -> None:
    """B1: listeners count responses, so a refusal must not overtake an earlier one."""

    async def story(storage: Storage, node: Node) -> None:
        heard: list[bool] = []

        def on_done(count: int, error: BookieFailed | None) -> None:
            heard.extend([error is None] * count)

        storage.add(adds((7, 0)), on_done)
        closing = asyncio.create_task(storage.close())
        await asyncio.sleep(0)  # The close has begun.
        storage.add(adds((7, 1)), on_done)
        await closing
        await asyncio.sleep(0)
        again = await open_storage(node)
        assert await again.entry_ids(7) == [each for each in (0, 1) if heard[each]]
        await again.close()

    tell(story)


def test_log_removed_during_a_read_is_not_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(storage: Storage, _: Node) -> None:
        for each in range(100):
            await add(storage, (7, each), payload=bytes(1000))
        await asyncio.sleep(1.0)  # Until the files are checkpointed.
        use = EntryLogs.use

        def gone(logs: EntryLogs, number: int) -> AbstractAsyncContextManager[EntryLog]:
            monkeypatch.setattr(EntryLogs, "use", use)
            storage.catalog.removals += 1
            raise FileNotFoundError

        monkeypatch.setattr(EntryLogs, "use", gone)
        assert storage.peek(7, 0) is None
        assert await storage.read(7, 0) == entry(7, 0, bytes(1000))
        assert EntryLogs.use is use
        assert storage.stats.damages_met == 0

    tell(story)


def test_a_closed_storage_leaves_no_file_open() -> None:
    """This includes the prepared journal file."""

    async def story(storage: Storage, node: Node) -> None:
        for each in range(100):
            await add(storage, (7, each), payload=bytes(1000))
        await asyncio.sleep(1.0)  # Until the files are checkpointed.
        await storage.read(7, 0)
        await storage.close()
        assert not node.disk._open

    tell(story)


def test_failing_listener_keeps_no_response_from_others() -> None:
    async def story(storage: Storage, _: Node) -> None:
        def broken(_: int, __: BookieFailed | None) -> None:
            raise ZeroDivisionError

        storage.add(adds((7, 0)), broken)
        await add(storage, (7, 1))
        assert isinstance(await storage.failed(), ZeroDivisionError)
        assert [storage.peek(7, each) for each in (0, 1)] == [entry(7, 0), entry(7, 1)]

    tell(story)


# --- Failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("odds", ["sync_error_odds", "write_error_odds"])
def test_a_failed_write_or_sync_stops_the_bookie(odds: str) -> None:
    """B6: waiting requests fail, nothing more is acknowledged, and `failed` returns."""

    async def story(storage: Storage, node: Node) -> None:
        await add(storage, (7, 0))
        setattr(node.disk, odds, 1.0)
        waiting = [storage.add(adds((7, n))).done for n in range(1, 4)]
        fence = asyncio.ensure_future(storage.fence(7, KEY))
        async with asyncio.timeout(10):
            error = await storage.failed()
        assert isinstance(error, OSError)
        assert error.errno == errno.EIO
        for done in waiting:
            assert done
            assert isinstance(done.exception(), BookieFailed)
        with pytest.raises(BookieFailed):
            await fence
        setattr(node.disk, odds, 0.0)
        with pytest.raises(BookieFailed):
            await add(storage, (8, 0), is_high_priority=True)
        for ledger_id, entry_id in ((7, 1), (9, 0)):
            # These entries may be in the journal after the next start.
            with pytest.raises(BookieFailed):
                await storage.read(ledger_id, entry_id)
        with pytest.raises(BookieFailed):
            await storage.read_last(7)
        assert await storage.read(7, 0) == entry(7, 0)

    tell(story)


def test_failed_catalog_write_stops_the_bookie() -> None:
    """B6: only the caller got the error, and may be a remote client."""

    async def story(storage: Storage, node: Node) -> None:
        await add(storage, (7, 0))
        node.disk.sync_error_odds = 1.0
        with pytest.raises(BookieFailed, match=r"the catalog could not be written: .*error"):
            await storage.doubt([(7, 0, 0)])
        async with asyncio.timeout(10):
            assert isinstance(await storage.failed(), BookieFailed)

    tell(story)


def test_overload_refuses_adds_except_urgent_ones() -> None:
    async def story(storage: Storage, node: Node) -> None:
        node.disk.hang()
        waiting = []
        entry_id = 0
        while not any(
            (admission := storage.add(adds((7, entry_id), payload=bytes(1000)))).refusals
        ):
            waiting.append(admission.done)
            entry_id += 1
        assert admission.refusals == (Overloaded,)
        assert 6 <= entry_id <= 10
        for is_recovery in (True, False):
            flags = {"is_recovery": is_recovery, "is_high_priority": not is_recovery}
            urgent = storage.add(adds((7, entry_id), payload=bytes(1000), key=KEY, **flags))
            assert urgent.refusals == (None,)
            waiting.append(urgent.done)
            entry_id += 1
        assert storage.add(adds((7, entry_id), payload=bytes(1000))).refusals == (Overloaded,)
        node.disk.unhang()
        await asyncio.gather(*(done for done in waiting if done))
        await add(storage, (7, entry_id))

    tell(story, config=StorageConfig("/s/journal", ("/s/ledgers",), queued_bytes_max=10_000))


def test_store_cannot_be_opened_twice() -> None:
    async def story(_: Storage, node: Node) -> None:
        with pytest.raises(DirectoryInUse):
            await open_storage(node)

    tell(story)


def test_store_is_created_once_and_opened_only_if_created() -> None:
    async def story(storage: Storage, node: Node) -> None:
        with pytest.raises(BadConfig):
            await Storage.make(node.disk, CONFIG, node.randomness)
        await storage.close()
        elsewhere = StorageConfig("/elsewhere/journal", ("/elsewhere/ledgers",))
        with pytest.raises(BadConfig):
            await open_storage(node, elsewhere)
        await node.disk.make_directory("/elsewhere/journal")
        await node.disk.make_directory("/elsewhere/ledgers")
        with pytest.raises(BadConfig):
            await open_storage(node, elsewhere)

    tell(story)


@pytest.mark.parametrize("suffix", [".journal", ".log"])
def test_a_missing_file_is_named_and_its_loss_can_be_accepted(suffix: str) -> None:
    """B1: its entries are then UNKNOWN permanently."""

    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(2), entries=60, size=1000)
        await settle(storage)
        await storage.close()
        folder = "/store/journal" if suffix == ".journal" else "/store/ledgers"
        gone = next(n for n in await node.disk.list_directory(folder) if n.endswith(suffix))
        await node.disk.unlink(f"{folder}/{gone}")
        with pytest.raises(DataLost, match=gone):
            await open_storage(node)
        for accepts_loss in (True, False):
            again = await open_storage(node, accepts_loss=accepts_loss)
            with pytest.raises(EntryStateUnknown):
                await again.read(0, 0 if suffix == ".log" else 59)
            again.start()
            await again.close()

    tell(story)


def test_journal_file_of_another_store_is_refused() -> None:
    async def story(storage: Storage, node: Node) -> None:
        await add(storage, (7, 0))
        await storage.close()
        other = StorageConfig("/other/journal", ("/other/ledgers",), journal_file_bytes=64 * 1024)
        await Storage.make(node.disk, other, node.randomness)
        (await open_storage(node, other)).start()
        name = "0000000000000001.journal"
        await node.disk.rename(f"/other/journal/{name}", f"/store/journal/{name}")
        with pytest.raises(WrongCluster):
            await open_storage(node)

    tell(story)


# --- The machine ------------------------------------------------------------------------------


async def test_storage_works_on_a_real_disk(tmp_path: Path) -> None:
    """This covers both kinds of entry logs, a restart and a killed process."""
    config = StorageConfig(
        f"{tmp_path}/journal", (f"{tmp_path}/l1", f"{tmp_path}/l2"), journal_file_bytes=128 * 1024
    )
    disk, clock, randomness = SystemDisk(), SystemClock(), random.Random(1)
    await Storage.make(disk, config, randomness)
    for life in range(3):
        storage = await Storage.open(disk, config, clock, randomness)
        storage.start()
        first = 150 * life
        for entry_id in range(first, first + 150):
            await add(storage, (7, entry_id), payload=bytes(1000))
        for entry_id in range(first, first + 30):
            await add(storage, *((each, entry_id) for each in range(100, 140)), payload=bytes(200))
        await storage.fence(1000 + life, KEY)
        for each in (7, 100, 139):
            for entry_id in range(0, first, 10):
                if each == 7 or entry_id % 150 < 30:
                    size = 1000 if each == 7 else 200
                    assert await storage.read(each, entry_id) == entry(each, entry_id, bytes(size))
        assert all(storage.is_fenced(1000 + earlier) for earlier in range(life + 1))
        if life == 1:  # Leaves the store as a killed process does, so the journal is replayed.
            for task in storage._tasks:
                task.cancel()
            await asyncio.gather(*storage._tasks, return_exceptions=True)
            for lock in storage._locks:
                await lock.release()
        else:
            await storage.close()
    disk.close()
