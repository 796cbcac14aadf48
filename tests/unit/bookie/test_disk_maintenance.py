"""Disk maintenance as a whole: disks that fill up and empty, and background work."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from rollbook.bookie.config import SpaceConfig
from rollbook.bookie.core.disk_usage import Level
from rollbook.bookie.disk_maintenance import Space, WriteMode
from rollbook.bookie.storage import Storage
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.errors import BadConfig, BookieFailed, BookieReadOnly, NoSuchLedger
from rollbook.proto.ids import LedgerId
from tests.simulation.kernel import Node, World
from tests.unit.bookie.test_compaction import log_bytes
from tests.unit.bookie.test_ledger_gc import metadata
from tests.unit.bookie.test_storage import (
    CONFIG,
    KEY,
    add,
    adds,
    entry,
    fill,
    open_storage,
    settle,
)

KIB = 1024
SPACE = SpaceConfig(
    gc_interval_s=100.0,
    gc_quarantine_s=300.0,
    gc_brake_share=1.0,
    compaction_bytes_per_s=10**12,
    scrub_bytes_per_s=10**12,
    disk_check_interval_s=10.0,
    reserve_bytes=64 * KIB,
)

Story = Callable[[Space, Storage, Node, LedgerNodes], Awaitable[None]]


def tell(story: Story, *, seed: int = 1, config: SpaceConfig = SPACE) -> None:
    world = World(seed)
    node = world.node("b1")

    async def main(node: Node) -> None:
        store = await node.metadata()
        cluster = await initialise(store, "/ledgers", node.randomness)
        await Storage.make(node.disk, CONFIG, node.randomness)
        storage = await open_storage(node)
        storage.start()
        parts = (node.disk, node.clock, node.randomness)
        space = Space(*parts, storage, CONFIG, config, store, cluster)
        await space.open()
        space.start()
        await story(space, storage, node, LedgerNodes(store, cluster.root, cluster.layout))
        await space.close()
        await storage.close()
        await store.close()

    async def scenario() -> None:
        await node.start(main).result

    world.run(scenario())


async def fill_up(storage: Storage, ledger_id: int) -> int:
    """Adds entries until the bookie refuses one; returns how many it accepted."""
    count = 0
    while True:
        admission = storage.add(adds((ledger_id, count), payload=bytes(1000)))
        if admission.done is None:
            assert admission.refusals == (BookieReadOnly,)
            return count
        await admission.done
        await asyncio.sleep(0.05)
        count += 1


async def other_than(known: WriteMode, space: Space) -> WriteMode:
    """Waits until the bookie has switched between read-only and writable."""
    async with asyncio.timeout(600):
        while space.standing.is_read_only == known.is_read_only:
            await asyncio.sleep(0.1)
    return space.standing


# --- Disks ------------------------------------------------------------------------------------


def test_full_disk_makes_bookie_read_only_until_there_is_room() -> None:
    """B1: nothing is lost, no restart is needed, and fences and recovery still work."""

    async def story(space: Space, storage: Storage, node: Node, _: LedgerNodes) -> None:
        node.disk.capacity_bytes = 2000 * KIB
        await asyncio.sleep(11)
        standing = space.standing
        assert not standing.is_read_only
        count = await fill_up(storage, 7)
        assert count > 500
        standing = await other_than(standing, space)
        assert standing.is_read_only
        assert "/store" in standing.reason
        assert [each.level for each in standing.directories] == [Level.FULL, Level.FULL]
        # It became read-only before the disk was completely full.
        assert node.disk.free_bytes() > 0
        await storage.fence(8, KEY)
        await add(storage, (7, count), is_recovery=True, is_high_priority=True)
        for entry_id in range(0, count, 7):
            assert await storage.read(7, entry_id) == entry(7, entry_id, bytes(1000))
        node.disk.capacity_bytes = 4000 * KIB
        standing = await other_than(standing, space)
        assert not standing.is_read_only
        await add(storage, (9, 0))

    tell(story)


def test_deleted_ledgers_make_room_on_a_full_disk() -> None:
    """B11: the remaining logs are compacted at once, independently of the schedule."""

    async def story(space: Space, storage: Storage, node: Node, ledgers: LedgerNodes) -> None:
        node.disk.capacity_bytes = 3000 * KIB
        for ledger_id in range(1, 11):
            await ledgers.create(metadata(ledger_id))
        entry_id = 0
        standing = space.standing
        while not storage.is_read_only:
            for ledger_id in range(1, 11):
                done = storage.add(adds((ledger_id, entry_id), payload=bytes(1000))).done
                if done:
                    await done
            entry_id += 1
            await asyncio.sleep(0.05)
        for ledger_id in range(2, 11):
            await ledgers.delete(LedgerId(ledger_id))
        standing = await other_than(standing, space)
        assert standing.is_read_only
        async with asyncio.timeout(3600):
            while space.garbage.state.deleted < 9 or space.standing.is_read_only:
                await asyncio.sleep(10)
        await settle(storage)
        await ledgers.create(metadata(11))
        await add(storage, (11, 0))
        used = node.disk.system.used_bytes
        await space.compactor.compact(major=True)
        assert log_bytes(node) < 300 * KIB < used
        for each in range(0, entry_id - 1, 5):
            assert await storage.read(1, each) == entry(1, each, bytes(1000))
        with pytest.raises(NoSuchLedger):
            await storage.read(2, 0)
        assert space.compactor.state.logs_rewritten

    tell(story)


def test_reserve_is_released_on_a_full_disk_and_restored() -> None:
    config = replace(SPACE, reserve_bytes=512 * KIB)

    async def story(space: Space, storage: Storage, node: Node, _: LedgerNodes) -> None:
        path = "/store/ledgers/reserve"
        assert len(node.disk.contents(path) or b"") == config.reserve_bytes
        used = node.disk.system.used_bytes
        node.disk.capacity_bytes = int(used / 0.96)
        await asyncio.sleep(12)
        assert space.standing.is_read_only
        assert node.disk.contents(path) is None
        for _second in range(200):
            await asyncio.sleep(0.3)
            assert space.standing.is_read_only  # The space of the reserve is not used for entries.
        node.disk.capacity_bytes = 10 * used
        await asyncio.sleep(12)
        assert not space.standing.is_read_only
        assert len(node.disk.contents(path) or b"") == config.reserve_bytes

    tell(story, config=config)


def test_operator_can_set_and_unset_read_only() -> None:
    async def story(space: Space, storage: Storage, node: Node, _: LedgerNodes) -> None:
        standing = space.standing
        space.set_read_only(True)
        assert storage.add(adds((7, 0))).refusals == (BookieReadOnly,)
        standing = await other_than(standing, space)
        assert standing.reason == "an operator made it read-only"
        node.disk.capacity_bytes = node.disk.system.used_bytes * 10
        await asyncio.sleep(30)
        assert storage.is_read_only
        space.set_read_only(False)
        await add(storage, (7, 0))
        assert not (await other_than(standing, space)).is_read_only

    tell(story)


def test_uncounted_start_is_given_as_read_only_reason() -> None:
    """B8: besides a lack of bytes, the cause may be a lack of inodes, or a quota."""

    async def story(space: Space, storage: Storage, _node: Node, _: LedgerNodes) -> None:
        storage.may_promise = False
        assert space.standing.is_read_only
        assert "no room to count this start" in space.standing.reason
        storage.may_promise = True
        assert not space.standing.is_read_only

    tell(story)


# --- Background work --------------------------------------------------------------------------


def test_space_of_deleted_ledgers_is_freed_during_adds() -> None:
    """B11, B12: ledgers deleted in the metadata leave the disk; compaction and scrub have run."""
    config = replace(SPACE, minor_compaction_interval_s=60.0, scrub_interval_s=60.0)

    async def story(space: Space, storage: Storage, node: Node, ledgers: LedgerNodes) -> None:
        for ledger_id in range(40):
            await ledgers.create(metadata(ledger_id))
        await ledgers.create(metadata(1000))
        await fill(storage, range(40), entries=40, size=1000)
        await settle(storage)
        before = log_bytes(node)
        for ledger_id in range(4, 40):
            await ledgers.delete(LedgerId(ledger_id))
        for entry_id in range(900):
            await add(storage, (1000, entry_id), payload=b"more")
            await asyncio.sleep(1)
        assert space.garbage.state.deleted == 36
        assert log_bytes(node) < before / 5
        assert space.compactor.state.minor_ended_ms
        assert space.scrubber.state.rounds > 3
        for ledger_id in range(4):
            assert await storage.entry_ids(ledger_id) == list(range(40))

    tell(story, config=config)


def test_damaged_log_is_replaced_automatically() -> None:
    """B12."""
    config = replace(SPACE, scrub_interval_s=60.0)

    async def story(space: Space, storage: Storage, node: Node, ledgers: LedgerNodes) -> None:
        await ledgers.create(metadata(0))
        await fill(storage, range(1), entries=200, size=1000)
        await settle(storage)
        number = min(storage.catalog.logs)
        path = f"/store/ledgers/{number:016}.log"
        node.disk.rot(path, (node.disk.contents(path) or b"").index(entry(0, 9, bytes(1000))) + 99)
        await asyncio.sleep(300)
        assert list(storage.catalog.doubts.of(0)) == [(9, 9)]
        assert number not in storage.catalog.logs
        assert await storage.read(0, 10) == entry(0, 10, bytes(1000))

    tell(story, config=config)


def test_background_tasks_survive_metadata_and_read_failures() -> None:
    async def story(space: Space, storage: Storage, node: Node, _: LedgerNodes) -> None:
        await fill(storage, range(3), entries=80, size=1000)
        await settle(storage)
        node.world.metadata.down()
        node.disk.read_error_odds = 0.5
        await asyncio.sleep(1000)
        node.world.metadata.up()
        node.disk.read_error_odds = 0.0
        await asyncio.sleep(200)
        assert not any(task.done() for task in space._tasks)
        assert space.garbage.state.ledgers == 3

    tell(story)


def test_failed_catalog_write_ends_the_bookie() -> None:
    """B6."""

    async def story(space: Space, storage: Storage, node: Node, ledgers: LedgerNodes) -> None:
        await fill(storage, range(3), entries=80, size=1000)
        await settle(storage)
        await space.garbage.collect(force=True)
        await asyncio.sleep(99)
        await storage.delete(0)
        node.disk.sync_error_odds = 1.0
        with pytest.raises(BookieFailed):
            await storage.save_facts([0])
        node.disk.sync_error_odds = 0.0
        async with asyncio.timeout(3600):
            assert isinstance(await space.failed(), BookieFailed)

    tell(story)


def test_close_during_compaction_leaves_a_consistent_store() -> None:
    """B5: unfinished work leaves no files, and the store opens again."""
    for pause_s in (0.001, 0.01, 0.05, 0.2, 1.0):

        async def story(
            space: Space, storage: Storage, node: Node, _: LedgerNodes, pause_s: float = pause_s
        ) -> None:
            await fill(storage, range(20), entries=60, size=300)
            await settle(storage)
            await storage.delete(*range(15))
            await storage.save_facts(range(15))
            space.compactor._bytes_per_s = 10**6
            work = asyncio.ensure_future(space.compactor.compact(major=True))
            await asyncio.sleep(pause_s)
            await space.close()
            await work
            await storage.close()
            again = await open_storage(node)
            for entry_id in range(60):
                assert await again.read(19, entry_id) == entry(19, entry_id, bytes(300))
            numbers = [f"{number:016}.log" for number in again.catalog.logs]
            names = await node.disk.list_directory("/store/ledgers")
            assert [name for name in names if name.endswith(".log")] == sorted(numbers)
            again.start()
            await again.close()

        tell(story)


# --- Configuration ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gc_interval_s", 0),
        ("gc_quarantine_s", -1),
        ("major_compaction_threshold", 1.0),
        ("disk_usage_threshold", 1.0),
        ("disk_usage_low_water", 0.0),
        ("scrub_bytes_per_s", 0),
        ("reserve_bytes", -1),
    ],
)
def test_invalid_settings_are_refused(name: str, value: float) -> None:
    with pytest.raises(BadConfig, match=name):
        SpaceConfig(**{name: value})  # type: ignore[arg-type]  # All values are numbers.
