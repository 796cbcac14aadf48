"""The journal index, compared with a dict."""

import random

import pytest

from rollbook.bookie.core.journal_index import EntryLocation, JournalIndex
from rollbook.proto.ids import NO_ENTRY


@pytest.mark.parametrize("seed", range(200))
def test_journal_index_agrees_with_a_dict(seed: int) -> None:
    chance = random.Random(seed)
    table, model = JournalIndex(), dict[tuple[int, int], EntryLocation]()
    position = 0
    for _ in range(chance.randint(1, 40)):
        ledger_id = chance.choice((1, 2, 2**63 - 1))
        mood = chance.random()
        first = chance.randrange(60)
        if mood < 0.5:
            ids = list(range(first, first + chance.randint(1, 10)))
        else:
            ids = [chance.randrange(60) for _ in range(chance.randint(1, 6))]
        positions = [position + 200 * n for n in range(len(ids))]
        lengths = [chance.randint(32, 200) for _ in ids]
        position += 200 * len(ids)
        table.add_group(ledger_id, max(ids) - 1, ids, positions, lengths)
        for entry_id, *place in zip(ids, positions, lengths, strict=True):
            model[ledger_id, entry_id] = EntryLocation(*place)
        if chance.random() < 0.03:
            table.drop(ledger_id)
            model = {key: place for key, place in model.items() if key[0] != ledger_id}
    for ledger_id in (1, 2, 3, 2**63 - 1):
        for entry_id in range(-1, 75):
            assert table.find(ledger_id, entry_id) == model.get((ledger_id, entry_id))
        ours = {e: place for (each, e), place in sorted(model.items()) if each == ledger_id}
        assert table.last_entry(ledger_id) == max(ours, default=NO_ENTRY)
        if ours:
            columns = table.ledgers[ledger_id].sorted_columns()
            assert list(zip(*columns, strict=True)) == [(e, *place) for e, place in ours.items()]
    assert [ledger_id for ledger_id, _ in table.by_ledger()] == sorted({key[0] for key in model})


def test_ids_are_64_bit() -> None:
    table = JournalIndex()
    table.add_group(2**63 - 1, 2**63 - 2, [2**62, 2**63 - 1], [0, 100], [100, 32])
    assert table.find(2**63 - 1, 2**63 - 1) == EntryLocation(100, 32)
    assert table.last_entry(2**63 - 1) == 2**63 - 1


def test_lac_is_the_highest_one_added() -> None:
    table = JournalIndex()
    table.add_group(1, 7, [8], [0], [50])
    table.add_group(1, 3, [9], [50], [50])
    assert table.ledgers[1].last_add_confirmed == 7


def test_memory_grows_with_entries_and_disorder() -> None:
    table = JournalIndex()
    table.add_group(1, 0, list(range(1000)), list(range(1000)), [32] * 1000)
    in_order = table.memory_bytes
    assert 16_000 <= in_order < 20_000
    table.add_group(1, 0, [5], [0], [32])
    assert table.memory_bytes > in_order + 100
