"""Checkpoints of journal files in which data rots."""

import asyncio
import itertools
import random

import pytest

from rollbook.bookie.storage import Storage
from rollbook.proto.errors import EntryStateUnknown
from tests.simulation.kernel import Node
from tests.unit.bookie.test_storage import add, entry, open_storage, settle, tell


@pytest.mark.parametrize("seed", range(10))
def test_rot_in_a_filled_journal_file_loses_at_most_one_entry(seed: int) -> None:
    """B1: the other entries of the record have valid CRCs and are written to the entry log."""

    async def story(storage: Storage, node: Node) -> None:
        may_checkpoint = asyncio.Event()
        checkpoint = storage.checkpoint

        async def late_checkpoint() -> bool:
            await may_checkpoint.wait()
            return await checkpoint()

        storage.checkpoint = late_checkpoint  # type: ignore[method-assign]  # The checkpoint must come after the rot.
        entry_ids = itertools.count()
        while not storage._filled:
            entry_id = next(entry_ids)
            await add(storage, *((each, entry_id) for each in range(30)), payload=bytes(200))
        filled = storage._filled[0]
        acked = {
            (ledger_id, entry_id)
            for ledger_id, rows in filled.index.ledgers.items()
            for entry_id in rows.columns.entry_ids
        }
        first_record, end = filled.records.records[0], filled.end
        node.disk.rot(filled.path, random.Random(seed).randrange(first_record, end))
        storage.cache.bodies._values.clear()
        node.disk.drop_caches()
        may_checkpoint.set()
        await settle(storage)
        assert storage.catalog.logs
        for again in (False, True):
            if again:
                await storage.close()
                storage = await open_storage(node)
            unknown = []
            for ledger_id, entry_id in sorted(acked):
                try:
                    found = await storage.read(ledger_id, entry_id)
                    assert found == entry(ledger_id, entry_id, bytes(200))
                except EntryStateUnknown:
                    unknown.append((ledger_id, entry_id))
            assert len(unknown) <= 1

    tell(story, seed=seed)
