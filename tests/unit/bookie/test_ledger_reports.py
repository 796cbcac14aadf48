"""Ledger reports for operators agree with reads."""

import asyncio
import random

import pytest

from rollbook.bookie.ledger_reports import sorted_ids
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import NoSuchLedger
from rollbook.proto.ids import EntryId
from rollbook.proto.wire import v2_adds
from tests.simulation.kernel import Node
from tests.unit.bookie.test_storage import FRAME_BYTES_MAX, KEY, digest_of, tell


@pytest.mark.parametrize("seed", range(30))
async def test_ids_are_sorted_without_duplicates(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice((0, 1, 5_000, 5_001, 40_000))
    known = [chance.randrange(chance.choice((10, 50_000))) for _ in range(count)]
    assert list(await sorted_ids(known)) == sorted(set(known))


async def test_sorting_ids_yields_to_other_tasks() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await sorted_ids(range(100_000, 0, -1))
    task.cancel()
    assert turns >= 40


async def add_confirming(storage: Storage, ledger_id: int, entry_id: int, payload: bytes) -> None:
    """Adds an entry whose LAC is the entry before it."""
    packer = v2_adds.V2AddPacker(KEY, digest_of(ledger_id))
    frame = packer.pack(EntryId(entry_id), EntryId(entry_id - 1), 0, payload)
    adds, _ = v2_adds.take_adds(frame, 0, FRAME_BYTES_MAX)
    assert adds
    done = storage.add(adds).done
    assert done
    await done


@pytest.mark.parametrize("seed", range(8))
def test_summaries_agree_with_reads(seed: int) -> None:
    """This holds across fences, deletions and checkpoints."""

    async def story(storage: Storage, node: Node) -> None:
        chance = node.randomness
        sizes: dict[int, int] = {}
        deleted: dict[int, None] = {}
        fenced: dict[int, None] = {}
        for _ in range(60):
            ledger_id = chance.randrange(1, 8)
            if ledger_id in fenced or ledger_id in deleted:
                continue
            turn = chance.random()
            if turn < 0.05:
                await storage.fence(ledger_id, KEY)
                fenced[ledger_id] = None
            elif turn < 0.1:
                await storage.delete(ledger_id)
                deleted[ledger_id] = None
            else:
                start, count = sizes.get(ledger_id, 0), chance.randrange(1, 5)
                size = chance.randrange(1, 4_000)
                for entry_id in range(start, start + count):
                    await add_confirming(storage, ledger_id, entry_id, bytes(size))
                sizes[ledger_id] = start + count
            await asyncio.sleep(chance.choice((0, 0.01)))
        views = storage.views()
        known = {*sizes, *fenced, *deleted}
        assert list(await sorted_ids(views.known_ids())) == sorted(known)
        assert storage.stats.entries() >= sum(sizes[each] for each in sizes if each not in deleted)
        for ledger_id in range(1, 9):
            assert (ledger_id in views) == (ledger_id in known)
        for ledger_id in known:
            shown, details = views.summary(ledger_id), views.details(ledger_id)
            assert shown.items() <= details.items()
            assert shown["is_deleted"] == (ledger_id in deleted)
            assert shown["is_fenced"] == (ledger_id in deleted or ledger_id in fenced)
            assert not shown["is_doubtful"]
            if ledger_id in deleted:
                assert shown["entries"] == 0
                with pytest.raises(NoSuchLedger):
                    await storage.entry_ids(ledger_id)
                continue
            entry_ids = await storage.entry_ids(ledger_id)
            assert shown["entries"] == len(entry_ids) == sizes.get(ledger_id, 0)
            if entry_ids:
                assert (shown["first_entry"], shown["last_entry"]) == (0, entry_ids[-1])
                read = [len(await storage.read(ledger_id, each)) for each in entry_ids]
                assert shown["entry_bytes"] == sum(read)
            assert shown["last_add_confirmed"] == storage.last_add_confirmed(ledger_id)

    tell(story, seed=seed)
