"""Compaction in the simulator: scenarios, damage, and comparison with a model."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from rollbook.bookie.catalog_files import CatalogFiles
from rollbook.bookie.compaction import CompactionStopped, Compactor
from rollbook.bookie.config import SpaceConfig, StorageConfig
from rollbook.bookie.core import compaction as rules
from rollbook.bookie.core.disk_usage import DiskUsage
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import EntryStateUnknown, NoSuchLedger
from rollbook.proto.ids import EntryId
from rollbook.proto.wire import v3_adds
from tests.simulation.kernel import Node
from tests.unit.bookie.test_storage import (
    CONFIG,
    FRAME_BYTES_MAX,
    KEY,
    add,
    digest_of,
    entry,
    fill,
    fill_file,
    open_storage,
    settle,
    tell,
)

FAST = SpaceConfig(compaction_bytes_per_s=10**12, gc_interval_s=10.0, gc_quarantine_s=20.0)
TWO_DIRS = StorageConfig(
    "/store/journal",
    ("/store/ledgers", "/store/more"),
    journal_file_bytes=64 * 1024,
    idle_after_ms=20,
)


def compactor_of(
    storage: Storage,
    node: Node,
    config: SpaceConfig = FAST,
    storage_config: StorageConfig = CONFIG,
) -> Compactor:
    usage = DiskUsage(
        storage_config.journal_dir,
        storage_config.ledger_dirs,
        full=0.95,
        warning=0.9,
        low_water=0.9,
    )
    parts = (node.disk, node.clock, node.randomness)
    return Compactor(*parts, storage, storage_config, config, usage)


async def delete(storage: Storage, *ledger_ids: int) -> None:
    """Deletes ledgers as garbage collection does."""
    await storage.delete(*ledger_ids)
    await storage.save_facts(ledger_ids)


def log_bytes(node: Node, folder: str = "/store/ledgers") -> int:
    names = [n for n in node.disk.system.list_directory(folder) if n.endswith(".log")]
    return sum(len(node.disk.contents(f"{folder}/{name}") or b"") for name in names)


async def entry_ids(storage: Storage, ledger_id: int) -> list[int]:
    return await storage.entry_ids(ledger_id)


# --- Stories ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ledgers", "size", "entries"), [(range(40), 300, 40), (range(20), 5000, 8)]
)
def test_compaction_frees_space_and_keeps_live_entries(
    ledgers: range, size: int, entries: int
) -> None:
    """B1, B12: for sorted logs and adopted journals, in several directories."""

    async def story(storage: Storage, node: Node) -> None:
        for entry_id in range(entries):
            for start in range(0, len(ledgers), 10):
                await add(
                    storage,
                    *((each, entry_id) for each in ledgers[start : start + 10]),
                    payload=bytes(size),
                )
        await storage.close()  # Closing makes a log of the last journal file too.
        storage = await open_storage(node, TWO_DIRS)
        storage.start()
        await settle(storage)
        kept = [each for each in ledgers if each % 10 == 0]
        await delete(storage, *(each for each in ledgers if each not in kept))
        before = log_bytes(node) + log_bytes(node, "/store/more")
        compactor = compactor_of(storage, node, storage_config=TWO_DIRS)
        state = await compactor.compact(major=False)
        assert state.logs_rewritten > 2
        after = log_bytes(node) + log_bytes(node, "/store/more")
        live = len(kept) * entries * (size + 40)
        assert after < before / 5
        assert after < 1.3 * live + 8192
        for again in (False, True):
            if again:
                await storage.close()
                storage = await open_storage(node, TWO_DIRS)
                storage.start()
            for ledger_id in kept:
                assert await storage.entry_ids(ledger_id) == list(range(entries))
                assert storage.last_add_confirmed(ledger_id) == -1
                for entry_id in range(entries):
                    expected = entry(ledger_id, entry_id, bytes(size))
                    assert await storage.read(ledger_id, entry_id) == expected
            with pytest.raises(NoSuchLedger):
                await storage.read(1, 0)
        await storage.close()

    tell(story, config=TWO_DIRS)


def test_a_full_log_is_not_rewritten_again() -> None:
    """B12."""

    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(20), entries=30, size=300)
        await settle(storage)
        compactor = compactor_of(storage, node)
        await compactor.compact(major=True)  # This frees the overhead of adopted journals.
        logs = list(storage.catalog.logs)
        rewritten = compactor.state.logs_rewritten
        await compactor.compact(major=True)
        assert list(storage.catalog.logs) == logs
        assert compactor.state.logs_rewritten == rewritten

    tell(story)


def test_newest_repeat_is_read_after_compaction() -> None:
    """B12."""

    async def story(storage: Storage, node: Node) -> None:
        for payload in (b"first", b"again", b"third"):
            await add(storage, *((7, n) for n in range(10)), payload=payload * 50)
            await fill(storage, range(100, 104), entries=20, size=1000)
            await settle(storage)
        await delete(storage, *range(100, 104))
        compactor = compactor_of(storage, node)
        await compactor.compact(major=True)
        await fill(storage, range(200, 201), entries=80, size=1000)  # The rest becomes a log too.
        await settle(storage)
        await compactor.compact(major=True)
        for entry_id in range(10):
            assert await storage.read(7, entry_id) == entry(7, entry_id, b"third" * 50)

    tell(story)


def test_reads_succeed_while_logs_are_replaced() -> None:
    """B1: no read returns UNKNOWN or ABSENT during compaction."""

    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(30), entries=40, size=300)
        await settle(storage)
        await delete(storage, *(each for each in range(30) if each % 5))
        chance = random.Random(1)
        is_over = False

        async def read() -> int:
            count = 0
            while not is_over:
                ledger_id, entry_id = 5 * chance.randrange(6), chance.randrange(40)
                found = await storage.read(ledger_id, entry_id)
                assert found == entry(ledger_id, entry_id, bytes(300))
                assert await storage.entry_ids(ledger_id) == list(range(40))
                storage.cache.bodies.drop(next(iter(storage.cache.bodies._values), 0))
                await asyncio.sleep(0.0001)
                count += 1
            return count

        readers = [asyncio.ensure_future(read()) for _ in range(3)]
        node.disk.turn_odds = 0.5
        for start in (100, 200, 300):
            await compactor_of(storage, node).compact(major=True)
            await fill(storage, range(start, start + 20), entries=10, size=300)
            await delete(storage, *range(start, start + 20))
        is_over = True
        assert min(await asyncio.gather(*readers)) > 10

    tell(story, seed=5)


def test_ledger_deleted_during_compaction_stays_deleted() -> None:
    """B4: the new log contains its entries, but no ledger refers to them."""

    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(10), entries=60, size=300)
        await settle(storage)
        await delete(storage, *range(2, 10))
        node.disk.sync_s = (0.01, 0.01)
        work = asyncio.ensure_future(compactor_of(storage, node).compact(major=True))
        await asyncio.sleep(0.005)
        await delete(storage, 1)
        await work
        assert not list(storage.catalog.held(1))
        with pytest.raises(NoSuchLedger):
            await storage.read(1, 0)
        assert await storage.read(0, 59) == entry(0, 59, bytes(300))

    tell(story)


def test_suspended_compaction_stops_and_leaves_no_files() -> None:
    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(10), entries=200, size=300)
        await settle(storage)
        await delete(storage, *range(5))
        names = await node.disk.list_directory("/store/ledgers")
        slow = SpaceConfig(compaction_bytes_per_s=10_000)
        compactor = compactor_of(storage, node, slow)
        work = asyncio.ensure_future(compactor.compact(major=True))
        await asyncio.sleep(3)
        assert compactor.state.running == "major"
        compactor.suspend(minor=False)
        async with asyncio.timeout(60):
            await work
        assert compactor.state.running == ""
        assert compactor.state.major_suspended
        assert await node.disk.list_directory("/store/ledgers") == names
        assert await storage.read(7, 199) == entry(7, 199, bytes(300))
        with pytest.raises(CompactionStopped, match="suspended"):
            await compactor.run(major=True)
        compactor.resume()
        compactor._pace.bytes_per_s = compactor._bytes_per_s = 10**12
        await compactor.compact(major=True)
        assert compactor.state.logs_rewritten

    tell(story)


def test_compaction_stays_below_its_rate_limit() -> None:
    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(10), entries=100, size=1000)
        await settle(storage)
        await delete(storage, *range(5))
        compactor = compactor_of(storage, node, SpaceConfig(compaction_bytes_per_s=100_000))
        began = node.clock.monotonic_ns()
        await compactor.compact(major=True)
        elapsed_s = (node.clock.monotonic_ns() - began) / 1e9
        assert compactor.state.written_bytes > 400_000
        assert elapsed_s > 0.9 * compactor.state.written_bytes / 100_000

    tell(story)


def test_picking_logs_yields_for_each_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cost of considering one log grows with the number of all logs."""
    turns = 0

    async def give_way(_: Compactor) -> None:
        nonlocal turns
        turns += 1

    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(10), entries=40, size=1000)
        await settle(storage)
        await delete(storage, *range(9))
        compactor = compactor_of(storage, node)
        monkeypatch.setattr(Compactor, "_give_way", give_way)
        batch = await compactor._pick(compactor.schedule.major, {})
        assert batch
        assert len(batch.numbers) > 4
        assert turns >= len(batch.numbers) - 1

    tell(story)


@pytest.mark.parametrize(
    ("checkpoint_ends_ms", "is_short", "rests_ms"),
    [
        (0, False, (20, 25)),  # No file waits: rests four times as long as the step took.
        (60, False, (60, 135)),  # Rests until the checkpoint has ended, which takes longer.
        (1000, False, (140, 145)),  # Rests until its patience ends, six times as long again.
        (1000, True, (10, 11)),  # Has no such patience if adds wait for space.
    ],
)
def test_compaction_waits_for_checkpoints_of_filled_files(
    checkpoint_ends_ms: int,
    is_short: bool,
    rests_ms: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def checkpoint(storage: Storage) -> bool:
        await may_end.wait()
        return await as_ever(storage)

    async def story(storage: Storage, node: Node) -> None:
        await fill_file(storage, 7)
        compactor = compactor_of(storage, node)
        if not checkpoint_ends_ms:
            may_end.set()
            await settle(storage)
        asyncio.get_running_loop().call_later((5 + checkpoint_ends_ms) / 1000, may_end.set)
        await asyncio.sleep(0.005)  # A step of the compaction.
        paused_ns = node.clock.monotonic_ns()
        await compactor._give_way()
        assert rests_ms[0] <= (node.clock.monotonic_ns() - paused_ns) / 1e6 <= rests_ms[1]
        await may_end.wait()

    may_end, as_ever = asyncio.Event(), Storage.checkpoint
    monkeypatch.setattr(Storage, "checkpoint", checkpoint)
    monkeypatch.setattr(DiskUsage, "is_short", is_short)
    tell(story)


@pytest.mark.parametrize("emptiest", [100, 102])
def test_repeat_is_not_hidden_by_a_merged_log(emptiest: int) -> None:
    """B12: the log that makes the merged one young has nothing of the ledger."""

    async def story(storage: Storage, node: Node) -> None:
        for ledger_id, own in ((100, (7, b"old")), (101, (7, b"new")), (102, (8, b"other"))):
            await add(storage, (own[0], 0), payload=own[1])
            if ledger_id != emptiest:  # The emptiest log is compacted first.
                await add(storage, (9, ledger_id), payload=bytes(5000))
            await fill_file(storage, ledger_id)
            await settle(storage)
        assert await storage.read(7, 0) == entry(7, 0, b"new")
        await delete(storage, 100, 102)
        await compactor_of(storage, node).compact(major=True)
        assert 2 in storage.catalog.logs
        assert len(storage.catalog.logs) == 3
        assert await storage.read(7, 0) == entry(7, 0, b"new")
        await storage.close()
        again = await open_storage(node)
        assert await again.read(7, 0) == entry(7, 0, b"new")

    tell(story)


def test_new_log_read_during_its_commit_is_open_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second open file would keep its space in use after its deletion."""

    async def story(storage: Storage, node: Node) -> None:
        async def commit(files: CatalogFiles, parts: Sequence[bytes]) -> None:
            await as_ever(files, parts)
            assert await storage.read(7, 0) == entry(
                7, 0
            )  # A read while the catalog is rewritten, for example.

        await add(storage, (7, 0))
        await fill(storage, range(100, 101), entries=80, size=1000)
        await settle(storage)
        await delete(storage, 100)
        node.disk.drop_caches()
        as_ever = CatalogFiles.commit
        monkeypatch.setattr(CatalogFiles, "commit", commit)
        before = len(node.disk._open)
        await compactor_of(storage, node).compact(major=True)
        monkeypatch.undo()
        assert await storage.read(7, 0) == entry(7, 0)
        assert len(node.disk._open) == before

    tell(story)


def test_lac_does_not_fall_after_compaction() -> None:
    """B12: this holds even if the entry with that LAC is in the older of two logs."""

    async def story(storage: Storage, node: Node) -> None:
        for lac, ledger_id in ((5, 100), (2, 101)):
            packer = v3_adds.V3AddPacker(KEY, digest_of(7), iter(range(9)))
            frame = packer.pack(EntryId(20 - lac), EntryId(lac), 0, b"seven")
            found, _ = v3_adds.take_adds(frame, 0, FRAME_BYTES_MAX)
            assert found
            done = storage.add(found).done
            assert done
            await done
            await fill(storage, range(ledger_id, ledger_id + 1), entries=80, size=1000)
            await settle(storage)
        await delete(storage, 100, 101)
        await compactor_of(storage, node).compact(major=True)
        assert storage.catalog.last_add_confirmed(7) == 5
        await storage.close()
        again = await open_storage(node)
        assert again.last_add_confirmed(7) == 5

    tell(story)


# --- Damage -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_rot_in_a_copied_log_makes_at_most_one_record_unknown(seed: int) -> None:
    """B1, B12: for damage in any byte, at most the entries of one record are in doubt."""

    async def story(storage: Storage, node: Node) -> None:
        chance = random.Random(seed)
        await fill(storage, range(20), entries=40, size=chance.choice((300, 3000)))
        await settle(storage)
        size = len(await storage.read(0, 0)) - len(entry(0, 0, b""))
        await delete(storage, *range(10))
        number = chance.choice(list(storage.catalog.logs))
        path = f"/store/ledgers/{number:016}.log"
        position = chance.randrange(len(node.disk.contents(path) or b""))
        await storage._logs.close()
        storage.cache.bodies._values.clear()
        node.disk.rot(path, position)
        node.disk.drop_caches()
        acked = {(ledger_id, entry_id) for ledger_id in range(10, 20) for entry_id in range(40)}
        compactor = compactor_of(storage, node)
        compactor.damaged[number] = None
        await compactor.compact(major=True)
        assert number not in storage.catalog.logs
        for again in (False, True):
            if again:
                await storage.close()
                storage = await open_storage(node)
            unknown = []
            for ledger_id, entry_id in sorted(acked):
                try:
                    found = await storage.read(ledger_id, entry_id)
                    assert found == entry(ledger_id, entry_id, bytes(size))
                except EntryStateUnknown:
                    unknown.append((ledger_id, entry_id))
            assert len(unknown) <= 260

    tell(story, seed=seed)


def test_read_errors_are_not_recorded_as_losses() -> None:
    """B1: the log stays in place and is compacted once it can be read."""

    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(10), entries=60, size=300)
        await settle(storage)
        await delete(storage, *range(5))
        logs = list(storage.catalog.logs)
        compactor = compactor_of(storage, node)
        for node.disk.read_error_odds in (1.0, *(20 * [0.1])):
            compactor.damaged.update(dict.fromkeys(storage.catalog.logs))
            await compactor.compact(major=True)
            assert not storage.catalog.doubts
            if node.disk.read_error_odds == 1.0:
                assert list(storage.catalog.logs) == logs
        node.disk.read_error_odds = 0.0
        assert compactor.state.failures > 5
        for ledger_id in range(5, 10):
            assert await storage.read(ledger_id, 30) == entry(ledger_id, 30, bytes(300))
        await compactor.compact(major=True)
        assert compactor.state.logs_rewritten

    tell(story)


def test_compaction_on_a_full_disk_changes_nothing() -> None:
    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(10), entries=150, size=1000)
        await settle(storage)
        await delete(storage, *range(5))
        names = await node.disk.list_directory("/store/ledgers")
        node.disk.capacity_bytes = node.disk.system.used_bytes + 5000
        compactor = compactor_of(storage, node)
        await compactor.compact(major=True)  # No new log fits.
        assert await node.disk.list_directory("/store/ledgers") == names
        assert await storage.read(7, 149) == entry(7, 149, bytes(1000))

    tell(story)


# --- A model ----------------------------------------------------------------------------------

Act = Callable[[], Awaitable[Any]]


@pytest.mark.parametrize("seed", range(25))
def test_reads_equal_a_model_across_random_operations(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1, B5, B12: adds, repeats, deletions, compactions and restarts."""
    monkeypatch.setattr(rules, "TARGET_BYTES", random.Random(seed).choice((20_000, 10**9)))

    async def story(storage: Storage, node: Node) -> None:
        chance = random.Random(seed)
        model: dict[tuple[int, int], bytes] = {}
        deleted: dict[int, None] = {}
        following = dict.fromkeys(range(12), 0)
        compactor = compactor_of(storage, node)

        async def add_some() -> None:
            for _ in range(chance.randint(1, 30)):
                ledger_id = chance.choice([each for each in following if each not in deleted])
                first = following[ledger_id]
                if chance.random() < 0.15:
                    first = chance.randint(0, first)
                ids = [(ledger_id, first + n) for n in range(chance.randint(1, 4))]
                following[ledger_id] = max(following[ledger_id], ids[-1][1] + 1)
                payload = chance.randbytes(chance.choice((0, 50, 700, 4000)))
                await add(storage, *ids, payload=payload)
                model.update({each: entry(*each, payload) for each in ids})

        async def delete_one() -> None:
            if len(deleted) < 9:
                ledger_id = chance.choice([each for each in following if each not in deleted])
                await delete(storage, ledger_id)
                deleted[ledger_id] = None
                for each in [each for each in model if each[0] == ledger_id]:
                    del model[each]

        async def compact() -> None:
            await settle(storage)
            await compactor.compact(major=chance.random() < 0.7)

        async def restart() -> None:
            nonlocal storage, compactor
            await storage.close()
            storage = await open_storage(node)
            storage.start()
            compactor = compactor_of(storage, node)

        for _ in range(chance.randint(5, 25)):
            await chance.choices((add_some, delete_one, compact, restart), (6, 2, 3, 1))[0]()
        for (ledger_id, entry_id), body in model.items():
            assert await storage.read(ledger_id, entry_id) == body
        for ledger_id, end in following.items():
            expected = sorted(n for each, n in model if each == ledger_id)
            if ledger_id in deleted or not end:
                with pytest.raises(NoSuchLedger):
                    await storage.entry_ids(ledger_id)
            else:
                assert await storage.entry_ids(ledger_id) == expected
        await storage.close()

    tell(story, seed=seed)
