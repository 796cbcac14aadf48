"""Changes of the catalog, and generations that begin with all of them."""

import random

import pytest

from rollbook.bookie.core import catalog as changes
from rollbook.bookie.core.catalog import Catalog, Log, Mark
from rollbook.bookie.core.entry_log_format import Extent
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.proto.errors import TornRecord
from rollbook.proto.ids import NO_ENTRY


def a_change(chance: random.Random, known: Catalog, number: int) -> bytes:
    ledger_id = chance.choice((0, 1, 2, 2**63 - 1))
    kind = chance.randrange(9)
    if kind < 3:
        facts = LedgerFacts(
            chance.choice((None, b"", b"k" * 20)),
            chance.random() < 0.5,
            chance.choice((None, b"", b"packet")),
            chance.randint(-1, 9),
            chance.choice((None, 0, 2**41)),
        )
        return changes.pack_ledger(ledger_id, facts)
    if kind < 5:
        ledgers = sorted(chance.sample((0, 1, 2, 2**63 - 1), chance.randint(1, 4)))
        first = chance.randrange(100)
        extents = [Extent(each, first, first + 9, 10, 400, first - 1, 0, 1) for each in ledgers]
        return changes.pack_log(Log(number, number % 2, 2**31), extents)
    if kind == 5 and known.logs:
        return changes.pack_unlog(chance.choice(list(known.logs)))
    if kind == 6:
        return changes.pack_doubt(
            ledger_id, *sorted((chance.randint(-1, 50), chance.randint(0, 50)))
        )
    if kind == 7:
        return changes.pack_forget(ledger_id) + changes.pack_trust(ledger_id)
    mark = Mark(known.mark.journal + chance.randint(0, 1), known.mark.first_sequence + 5)
    return changes.pack_mark(mark) + changes.pack_opened(number) + changes.pack_lost(number + 1)


def state(catalog: Catalog) -> object:
    return (
        *(catalog.facts, catalog.logs, catalog.mark, catalog.opened, catalog.lost),
        *(catalog.doubts.everything, sorted(catalog.doubts)),
        {ledger_id: list(catalog.held(ledger_id)) for ledger_id in catalog.ledger_ids},
    )


@pytest.mark.parametrize("seed", range(100))
def test_a_new_generation_says_the_same(seed: int) -> None:
    """B5."""
    chance = random.Random(seed)
    catalog = Catalog()
    for number in range(1, chance.randint(2, 40)):
        catalog.apply(a_change(chance, catalog, number))
    if chance.random() < 0.2:
        catalog.apply(changes.DOUBT_ALL)
    again = Catalog()
    for body in catalog.pack_all():
        assert not again.is_complete
        again.apply(body)
    assert again.is_complete
    assert state(again) == state(catalog)


def test_extents_are_found_newest_first() -> None:
    catalog = Catalog()
    for number, (first, last) in enumerate([(0, 9), (5, 20), (30, 40)], 1):
        extent = Extent(7, first, last, last - first + 1, 99, last - 1, 0, 1)
        catalog.apply(changes.pack_log(Log(number, 0, 100), [extent]))
    assert catalog.holding(7, 7) == [2, 1]
    assert catalog.holding(7, 25) == []
    assert catalog.holding(8, 0) == []
    assert catalog.last_add_confirmed(7) == 39
    assert catalog.last_add_confirmed(8) == NO_ENTRY
    catalog.apply(changes.pack_unlog(2))
    assert catalog.holding(7, 7) == [1]


def test_a_mark_never_goes_back() -> None:
    """B5."""
    catalog = Catalog()
    catalog.apply(changes.pack_mark(Mark(5, 100)))
    with pytest.raises(AssertionError):
        catalog.apply(changes.pack_mark(Mark(4, 50)))


@pytest.mark.parametrize("seed", range(300))
def test_bytes_that_nobody_packed_are_refused(seed: int) -> None:
    chance = random.Random(seed)
    body = bytearray(a_change(chance, Catalog(), 3))
    del body[chance.randrange(1, len(body)) :]
    body[0] = chance.choice((body[0], 0, 99))
    try:
        Catalog().apply(bytes(body))
    except (TornRecord, AssertionError):
        pass
