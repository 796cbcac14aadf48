"""Deletions, possible losses, removed logs, and eviction of idle ledgers."""

import asyncio
from dataclasses import replace

import pytest

from rollbook.bookie import storage as storage_module
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import (
    BookieReadOnly,
    EntryStateUnknown,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
)
from rollbook.proto.ids import LEDGER_ID_MAX, NO_ENTRY
from tests.simulation.kernel import Node, World
from tests.unit.bookie.test_storage import (
    CONFIG,
    KEY,
    add,
    adds,
    entry,
    fill,
    open_storage,
    settle,
    tell,
)

# --- Possible losses --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["made", "told"])
def test_ledgers_that_may_have_been_lost_are_unknown_and_fenced(how: str) -> None:
    """B1, B4: a fence that was acknowledged before the loss must be found."""
    world = World(1)
    node = world.node("b1")

    async def main(node: Node) -> None:
        doubted = [7, 2**62]
        first = doubted if how == "made" else []
        await Storage.make(node.disk, CONFIG, node.randomness, doubted=first)
        storage = await open_storage(node)
        storage.start()
        if how == "told":
            await storage.distrust(doubted)
        for again in (False, True):
            if again:
                node.disk.drop_caches()
                await storage.close()
                storage = await open_storage(node)
                storage.start()
            for ledger_id in doubted:
                assert storage.is_fenced(ledger_id)
                assert storage.add(adds((ledger_id, 0))).refusals == (LedgerFenced,)
                for entry_id in (5, 2**40):
                    with pytest.raises(EntryStateUnknown):
                        await storage.read(ledger_id, entry_id)
                with pytest.raises(EntryStateUnknown):
                    await storage.read_last(ledger_id)
                with pytest.raises(EntryStateUnknown):
                    storage.lac_packet(ledger_id)
                await add(storage, (ledger_id, 3), is_recovery=True)
                assert await storage.read(ledger_id, 3) == entry(ledger_id, 3)
            with pytest.raises(NoSuchLedger):
                await storage.read(8, 0)
        await storage.close()

    async def scenario() -> None:
        await node.start(main).result

    world.run(scenario())


def test_no_last_entry_is_reported_if_entries_after_it_are_in_doubt() -> None:
    """B1: it would deny those entries, although readers could use it."""

    async def story(storage: Storage, _: Node) -> None:
        await add(storage, (7, 0))
        await storage.distrust([7])
        await storage.fence(7, KEY)
        assert await storage.read(7, 0) == entry(7, 0)
        with pytest.raises(EntryStateUnknown):
            await storage.read_last(7)

    tell(story)


def test_readded_entry_is_no_longer_a_possible_loss() -> None:
    """B1: other entries of the range that were not added again stay in doubt."""

    async def story(storage: Storage, node: Node) -> None:
        await storage.distrust([7])
        await add(storage, *((7, n) for n in (0, 1, 2, 5)), is_recovery=True)
        await fill(storage, range(8, 9), entries=80, size=1000)
        await settle(storage)
        assert list(storage.catalog.doubts.of(7)) == [(-1, -1), (3, 4), (6, LEDGER_ID_MAX)]
        await storage.close()
        again = await open_storage(node)
        assert list(again.catalog.doubts.of(7)) == [(-1, -1), (3, 4), (6, LEDGER_ID_MAX)]
        with pytest.raises(EntryStateUnknown):
            await again.read(7, 3)

    tell(story)


# --- Deletions --------------------------------------------------------------------------------


def test_ledger_can_be_deleted_during_its_checkpoint() -> None:
    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(40), entries=3, size=300)
        for entry_id in range(3, 60):
            await add(storage, *((each, entry_id) for each in range(40)), payload=bytes(300))
            if entry_id % 7 == 0:
                await storage.delete(*range(entry_id % 40, entry_id % 40 + 1))
                await fill(storage, range(50, 51), entries=1, size=100)
            if any(storage._ledgers[each].is_deleted for each in range(40)):
                break
        await settle(storage)

    tell(story)


def test_adds_are_refused_once_a_deletion_is_requested() -> None:
    async def story(storage: Storage, node: Node) -> None:
        await add(storage, (7, 0))
        node.disk.hang()
        deletion = asyncio.ensure_future(storage.delete(7))
        await asyncio.sleep(0.1)
        for is_recovery in (False, True):
            assert storage.add(adds((7, 1), is_recovery=is_recovery)).refusals == (LedgerFenced,)
        assert not deletion.done()
        assert await storage.read(7, 0) == entry(7, 0)
        node.disk.unhang()
        await deletion
        with pytest.raises(NoSuchLedger):
            await storage.read(7, 0)

    tell(story)


def test_deleted_ledger_stays_fenced_until_forgotten() -> None:
    """B5: its fence is known until then, across restarts and checkpoints."""

    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(2), entries=100, size=1000)
        await settle(storage)
        assert list(await storage.ledger_ids()) == [0, 1]
        await storage.delete(0)
        await storage.save_facts([0])
        assert not list(storage.catalog.held(0))
        assert list(await storage.ledger_ids()) == [1]
        await fill(storage, range(1, 2), entries=100, size=1000)
        await settle(storage)
        await storage.close()
        storage = await open_storage(node)
        storage.start()
        assert storage.is_fenced(0)
        await storage.forget(0, 1)
        assert not storage.is_fenced(0)
        assert 0 not in storage.catalog.facts
        assert await storage.read(1, 5) == entry(1, 5, bytes(1000))
        await storage.close()
        again = await open_storage(node)
        with pytest.raises(NoSuchLedger):
            await again.read(0, 0)

    tell(story)


def test_restart_does_not_delete_a_recreated_ledger() -> None:
    """B1: adds are refused as long as the journal contains the deletion."""

    async def story(storage: Storage, node: Node) -> None:
        await add(storage, (7, 0))
        await storage.delete(7)
        await storage.save_facts([7])
        for is_again in (False, True):
            if is_again:
                await storage.close()
                storage = await open_storage(node)
                storage.start()
            await storage.forget(7)
            assert storage.add(adds((7, 5))).refusals == (LedgerFenced,)
        await fill(storage, range(8, 9), entries=80, size=1000)
        await settle(storage)
        await storage.forget(7)
        await add(storage, (7, 5), payload=b"anew")
        await storage.close()
        again = await open_storage(node)
        assert await again.read(7, 5) == entry(7, 5, b"anew")

    tell(story)


def test_checkpoint_does_not_overwrite_newer_facts() -> None:
    """B4: the checkpoint had begun before the ledger was deleted."""

    async def story(storage: Storage, node: Node) -> None:
        await storage.write_lac(0, KEY, 3, b"packet")
        node.disk.sync_s = (0.05, 0.05)  # This makes the checkpoint slow.
        entry_id = 0
        while not storage._filled:
            await add(storage, (0, entry_id), payload=bytes(1000))
            entry_id += 1
        await storage.delete(0)
        await storage.save_facts([0])
        assert storage._filled
        await settle(storage)
        assert storage.catalog.is_deleted(0)
        assert not list(storage.catalog.held(0))

    tell(story)


# --- Logs -------------------------------------------------------------------------------------


def test_unused_log_is_removed_and_other_entries_stay_readable() -> None:
    """B1, B5."""

    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(1), entries=100, size=1000)
        await fill(storage, range(1, 2), entries=100, size=1000)
        await settle(storage)
        await storage.delete(0)
        await storage.save_facts([0])
        empty = [n for n in storage.catalog.logs if not storage.catalog.use_of(n).ledgers]
        assert empty
        names = await node.disk.list_directory("/store/ledgers")
        await storage.replace_logs(empty)
        gone = {f"{number:016}.log" for number in empty}
        assert set(await node.disk.list_directory("/store/ledgers")) == set(names) - gone
        for entry_id in range(40):
            assert await storage.read(1, entry_id) == entry(1, entry_id, bytes(1000))
        await storage.close()
        again = await open_storage(node)
        assert await again.read(1, 20) == entry(1, 20, bytes(1000))

    tell(story)


def test_new_logs_are_placed_where_there_is_room() -> None:
    config = replace(CONFIG, ledger_dirs=("/store/ledgers", "/full", "/roomy"))
    world = World(1)
    node = world.node("b1")

    async def main(node: Node) -> None:
        full, _ = node.disk.mount("/full"), node.disk.mount("/roomy")
        node.disk.capacity_bytes = 50 * 1024 * 1024
        await Storage.make(node.disk, config, node.randomness)
        storage = await open_storage(node, config)
        storage.start()
        full.capacity_bytes = full.system.used_bytes + 1024 * 1024
        await fill(storage, range(3), entries=250, size=1000)
        await settle(storage)
        logs = list(storage.catalog.logs.values())
        assert {log.directory for log in logs} == {2}  # Directory 2 has the most free space by far.
        for entry_id in range(250):
            assert await storage.read(1, entry_id) == entry(1, entry_id, bytes(1000))
        await storage.close()

    async def scenario() -> None:
        await node.start(main).result

    world.run(scenario())


# --- Ledgers in memory ------------------------------------------------------------------------


def test_idle_ledgers_are_evicted_and_keep_their_facts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B4: fences, keys and LACs are the same when the ledger is loaded again."""
    monkeypatch.setattr(storage_module, "_LEDGERS_MAX", 20)

    async def story(storage: Storage, node: Node) -> None:
        for ledger_id in range(200):
            await add(storage, (ledger_id, 0), (ledger_id, 1), payload=bytes(500))
            if ledger_id % 3 == 0:
                await storage.fence(ledger_id, KEY)
            if ledger_id % 5 == 0:
                await storage.write_lac(ledger_id, KEY, 7, b"packet")
        await settle(storage)
        await fill(storage, range(500, 501), entries=150, size=1000)
        await settle(storage)
        for ledger_id in (*range(200), *reversed(range(200))):
            assert storage.is_fenced(ledger_id) == (ledger_id % 3 == 0)
            expected = 7 if ledger_id % 5 == 0 else NO_ENTRY
            assert storage.last_add_confirmed(ledger_id) == expected
            with pytest.raises(NoSuchEntry):
                await storage.read(ledger_id, 9)
        assert len(storage._ledgers) <= 20

    tell(story)


# --- Everything in doubt ----------------------------------------------------------------------


def test_writers_are_refused_once_everything_is_in_doubt() -> None:
    """B4: any ledger may have been fenced. Recovery is still served, with UNKNOWN where needed."""

    async def story(storage: Storage, node: Node) -> None:
        await add(storage, (7, 0))
        await storage.fence(8, KEY)
        await storage.close()
        name = next(
            each
            for each in await node.disk.list_directory("/store/journal")
            if each.endswith(".journal")
        )
        await node.disk.unlink(f"/store/journal/{name}")
        again = await open_storage(node, accepts_loss=True)
        again.start()
        assert again.is_read_only
        for ledger_id in (7, 8, 9):
            for is_urgent, recovers in ((False, False), (True, False), (False, True)):
                more = adds((ledger_id, 1), is_high_priority=is_urgent, is_recovery=recovers)
                assert again.add(more).refusals == (BookieReadOnly,)
            with pytest.raises(EntryStateUnknown):
                await again.read(ledger_id, 0)
            await again.fence(ledger_id, KEY)
            await add(again, (ledger_id, 0), is_recovery=True, is_high_priority=True)
            assert await again.read(ledger_id, 0) == entry(ledger_id, 0)
        await again.close()

    tell(story)
