"""Scrubbing in the simulator: rot is found, reported and recorded, and sound entries are copied."""

import asyncio
import random

import pytest
from structlog.testing import capture_logs

from rollbook.bookie.config import SpaceConfig
from rollbook.bookie.scrub import Scrubber
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import EntryStateUnknown
from tests.simulation.kernel import Node
from tests.unit.bookie.test_compaction import compactor_of, delete
from tests.unit.bookie.test_storage import add, entry, fill, open_storage, settle, tell

FAST = SpaceConfig(scrub_bytes_per_s=10**12)


def scrubber_of(storage: Storage, node: Node, config: SpaceConfig = FAST) -> Scrubber:
    return Scrubber(storage, node.clock, config, {})


async def rot(storage: Storage, node: Node, number: int, position: int) -> None:
    """Damages a byte on the disk and clears the caches."""
    await storage._logs.close()
    storage.cache.bodies._values.clear()
    node.disk.rot(f"/store/ledgers/{number:016}.log", position)
    node.disk.drop_caches()


async def unknown_of(storage: Storage, ledgers: range, entries: int) -> list[tuple[int, int]]:
    unknown = []
    for ledger_id in ledgers:
        for entry_id in range(entries):
            try:
                assert len(await storage.read(ledger_id, entry_id)) > 36
            except EntryStateUnknown:
                unknown.append((ledger_id, entry_id))
    return unknown


def test_scrub_of_a_sound_store_finds_no_damage() -> None:
    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(20), entries=40, size=300)
        await fill(storage, range(100, 101), entries=80, size=1000)
        await settle(storage)
        await delete(storage, *range(5))
        scrubber = scrubber_of(storage, node)
        state = await scrubber.scrub()
        assert (state.rounds, state.damages, state.log) == (1, 0, 0)
        assert state.read_bytes > 250_000
        assert not scrubber._damaged
        assert not storage.catalog.doubts

    tell(story)


@pytest.mark.parametrize("seed", range(30))
def test_scrub_finds_all_damage_that_reads_would_meet(seed: int) -> None:
    """B1, B12: at most the entries of one record are in doubt."""

    async def story(storage: Storage, node: Node) -> None:
        chance = random.Random(seed)
        await fill(storage, range(20), entries=60, size=chance.choice((300, 2000)))
        await settle(storage)
        number = chance.choice(list(storage.catalog.logs))
        size = storage.catalog.logs[number].file_bytes
        place = chance.choice((chance.randrange(size), size - chance.randrange(1, 2000)))
        await rot(storage, node, number, place)
        scrubber = scrubber_of(storage, node)
        state = await scrubber.scrub()
        found = {
            (ledger_id, entry_id)
            for ledger_id, ranges in storage.catalog.doubts
            for entry_id in range(ranges.first_entry, ranges.last_entry + 1)
        }
        unknown = await unknown_of(storage, range(20), 60)
        assert set(unknown) <= found
        assert len(found) <= 260
        assert not found or scrubber._damaged == {number: None}
        assert bool(state.damages) >= bool(found)
        await scrubber.scrub()
        assert scrubber.state.damages == state.damages  # The damage is reported once.
        await storage.close()
        again = await open_storage(node)
        assert list(again.catalog.doubts) == list(storage.catalog.doubts)
        again.start()
        compactor = compactor_of(again, node)
        compactor.damaged.update(scrubber._damaged)
        await compactor.compact(major=False)
        if scrubber._damaged:
            assert number not in again.catalog.logs
        assert set(await unknown_of(again, range(20), 60)) == set(unknown)
        for ledger_id, entry_id in found:  # A repair adds them again from other copies.
            await add(again, (ledger_id, entry_id), payload=b"healed", is_recovery=True)
        await fill(again, range(200, 201), entries=80, size=1000)
        await settle(again)
        assert not again.catalog.doubts
        assert not await unknown_of(again, range(20), 60)
        await again.close()

    tell(story, seed=seed)


def test_damaged_ledger_is_logged_once() -> None:
    """The scrub that finds the damage logs it, but not the compaction that removes the log."""

    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(2), entries=40, size=1000)
        await settle(storage)
        number = min(storage.catalog.logs)
        contents = node.disk.contents(f"/store/ledgers/{number:016}.log") or b""
        await rot(storage, node, number, contents.index(entry(1, 5, bytes(1000))) + 100)
        scrubber, compactor = scrubber_of(storage, node), compactor_of(storage, node)
        with capture_logs() as events:
            await scrubber.scrub()
            compactor.damaged.update(scrubber._damaged)
            await compactor.compact(major=False)
        assert number not in storage.catalog.logs
        assert [each for each in events if each["event"] == "ledger_damaged"] == [
            {
                "event": "ledger_damaged",
                "log_level": "warning",
                "ledger_id": 1,
                "first_entry": 5,
                "last_entry": 5,
                "ranges": 1,
            }
        ]

    tell(story)


def test_scrub_resumes_where_it_stopped_after_a_restart() -> None:
    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(1), entries=400, size=1000)
        await settle(storage)
        logs = sorted(storage.catalog.logs)
        assert len(logs) > 4
        scrubber = scrubber_of(storage, node, SpaceConfig(scrub_bytes_per_s=64 * 1024))
        work = asyncio.ensure_future(scrubber.scrub())
        await asyncio.sleep(3.5)
        await scrubber.close()
        await work
        assert logs[0] <= storage.catalog.scrubbed < logs[-1]
        left = [number for number in logs if number > storage.catalog.scrubbed]
        await storage.close()
        storage = await open_storage(node)
        again = scrubber_of(storage, node)
        assert again.state.logs_left == len(left)
        await again.scrub()
        assert again.state.read_bytes < 70_000 * len(left)
        assert again.state.rounds == 1

    tell(story)


def test_scrub_stays_below_its_rate_limit_and_can_be_suspended() -> None:
    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(1), entries=200, size=1000)
        await settle(storage)
        scrubber = scrubber_of(storage, node, SpaceConfig(scrub_bytes_per_s=10_000))
        began = node.clock.monotonic_ns()
        work = asyncio.ensure_future(scrubber.scrub())
        await asyncio.sleep(2)
        scrubber.suspend()
        await asyncio.sleep(2)
        read = scrubber.state.read_bytes
        assert scrubber.state.is_suspended
        await asyncio.sleep(100)
        assert scrubber.state.read_bytes <= read + 2000
        scrubber.resume()
        await work
        elapsed_s = (node.clock.monotonic_ns() - began) / 1e9 - 102
        assert elapsed_s > 0.9 * scrubber.state.read_bytes / 10_000

    tell(story)


def test_one_ledger_is_verified_on_demand() -> None:
    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(2), entries=40, size=1000)
        await settle(storage)
        await add(storage, (0, 40), (0, 41))
        scrubber = scrubber_of(storage, node)
        verdict = await scrubber.verify(0)
        assert (verdict.ledger_id, verdict.entries, verdict.damaged) == (0, 42, ())
        number = min(storage.catalog.logs)
        contents = node.disk.contents(f"/store/ledgers/{number:016}.log") or b""
        await rot(storage, node, number, contents.index(entry(0, 5, bytes(1000))) + 100)
        assert (await scrubber.verify(0)).damaged == ((5, 5),)
        assert (await scrubber.verify(1)).damaged == ()
        assert not storage.catalog.doubts  # Verification records no losses.
        assert await storage.read(0, 41) == entry(0, 41)

    tell(story)


@pytest.mark.parametrize("copy", "ab")
def test_damaged_catalog_copy_is_replaced(copy: str) -> None:
    """B1: a start needs one sound copy, and the other one may rot too."""

    async def story(storage: Storage, node: Node) -> None:
        await fill(storage, range(1, 4), entries=20, size=50)
        scrubber = scrubber_of(storage, node)
        assert (await scrubber.scrub()).damages == 0
        paths = await catalogs(node)
        path = next(each for each in paths if each.endswith(f".{copy}"))
        contents = node.disk.contents(path)
        assert contents
        node.disk.rot(path, len(contents.rstrip(b"\0")) - 1)  # This byte belongs to a record.
        node.disk.drop_caches()
        assert (await scrubber.scrub()).damages == 1
        async with asyncio.timeout(10):
            while path in await catalogs(node):
                await asyncio.sleep(0.01)
        assert (await scrubber.scrub()).damages == 1
        await storage.doubt([(99, 0, 0)])  # The catalog still accepts changes.
        assert (await scrubber.scrub()).damages == 1

    tell(story)


async def catalogs(node: Node) -> list[str]:
    names = await node.disk.list_directory("/store/ledgers")
    return [f"/store/ledgers/{name}" for name in names if name.startswith("catalog-")]
