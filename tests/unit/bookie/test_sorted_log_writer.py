"""Entries of sorted logs are found for any division into records and writes."""

import random
from array import array
from collections.abc import Sequence
from itertools import pairwise

import pytest

from rollbook.bookie.cached_record_reader import Cache
from rollbook.bookie.core.byte_cache import ByteCache
from rollbook.bookie.core.journal_index import Columns
from rollbook.bookie.core.record_format import ID_BYTES
from rollbook.bookie.entry_log_reader import EntryLogs
from rollbook.bookie.sorted_log_writer import NewLog, SortedLog, SortedWriter
from tests.simulation.kernel import Node, World

PATH = "/store/0000000000000007.log"
STORE = bytes(ID_BYTES)
RECORD_BYTES = 64 * 1024

Ledgers = dict[int, list[bytes]]


class Pauses:
    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.entries = 0

    async def __call__(self, written: int, entries: int) -> None:
        self.bytes.append(written)
        self.entries += entries


async def write(node: Node, ledgers: Ledgers, pauses: Pauses) -> NewLog:
    await node.disk.make_directory("/store")
    log = await SortedLog.create(node.disk, PATH, 7, STORE, node.randomness, pauses)
    for ledger_id, entries in ledgers.items():
        log.writer.begin_ledger(ledger_id, len(entries) - 2)
        await add_all(log.writer, entries)
    return await log.finish(0, 7, Cache(ByteCache(0)))


async def add_all(writer: SortedWriter, entries: Sequence[bytes]) -> None:
    """Adds these entries with even ids."""
    ids, lengths = array("q", range(0, 2 * len(entries), 2)), array("I", map(len, entries))
    for run in writer.runs(Columns(ids, array("I", bytes(4 * len(ids))), lengths)):
        first = run.entry_ids[0] // 2
        await writer.add(run.entry_ids, entries[first : first + len(run.entry_ids)])


def run(ledgers: Ledgers) -> tuple[NewLog, Pauses]:
    """Writes the entries and reads them back from the disk."""
    world = World(1)
    node = world.node("b1")
    pauses = Pauses()
    found: list[NewLog] = []

    async def story(node: Node) -> None:
        found.append(await write(node, ledgers, pauses))
        logs = EntryLogs(node.disk, STORE, lambda _: PATH, Cache(ByteCache(0)))
        async with logs.use(7) as log:
            for ledger_id, entries in ledgers.items():
                for at, entry in enumerate(entries):
                    assert await log.read(ledger_id, 2 * at) == entry
                    assert await log.read(ledger_id, 2 * at + 1) is None
                columns, unknown = await log.all_of(ledger_id)
                assert list(columns.entry_ids) == list(range(0, 2 * len(entries), 2))
                assert list(columns.lengths) == list(map(len, entries))
                assert not unknown
        await logs.close()

    async def scenario() -> None:
        await node.start(story).result

    world.run(scenario())
    return found[0], pauses


@pytest.mark.parametrize("seed", range(6))
def test_entries_of_any_size_are_found(seed: int) -> None:
    """B1."""
    chance = random.Random(seed)
    most = chance.choice((3, 300, 20_000, 200_000))
    entries_max = max(1, 600_000 // most // 10)
    ledgers = {
        ledger_id: [
            chance.randbytes(chance.randint(0, most))
            for _ in range(chance.randint(1, min(400, entries_max)))
        ]
        for ledger_id in sorted(chance.sample(range(1000), 20))
    }
    _, pauses = run(ledgers)
    assert pauses.entries == sum(map(len, ledgers.values()))


def test_records_have_the_target_size_with_a_pause_after_each() -> None:
    new, pauses = run({each: [bytes(100)] * 50 for each in range(60)})
    records = [*new.records.records, new.records.end]
    sizes = [end - start for start, end in pairwise(records)]
    assert min(sizes[:-1]) >= RECORD_BYTES
    assert max(sizes) <= RECORD_BYTES + 5_000
    assert max(pauses.bytes) <= RECORD_BYTES + 5_000
    assert len(pauses.bytes) > len(sizes)  # It also pauses while the index is packed.
