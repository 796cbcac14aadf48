"""Catalog changes, and new generations, which begin with a full copy of the catalog."""

import copy
import itertools
import random
from unittest import mock

import pytest

from rollbook.bookie.core import catalog as core_catalog
from rollbook.bookie.core import catalog_records as changes
from rollbook.bookie.core.catalog import Catalog, Use
from rollbook.bookie.core.catalog_records import EntryLogInfo, ReplayStart
from rollbook.bookie.core.entry_log_footer import Extent
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.proto.errors import TornRecord
from rollbook.proto.ids import NO_ENTRY


def pack_log(log: EntryLogInfo, extents: list[Extent]) -> bytes:
    return b"".join(changes.pack_log(log, extents))


def a_change(chance: random.Random, known: Catalog, number: int) -> bytes:
    ledger_id = chance.choice((0, 1, 2, 2**63 - 1))
    kind = chance.randrange(10)
    if kind < 3:
        before = known.facts.get(ledger_id, LedgerFacts())
        deleted_ms = chance.choice((None, 0, 2**41))
        dropped_in = max(before.dropped_in, chance.choice((0, 0, number)))
        facts = LedgerFacts(
            chance.choice((None, b"", b"k" * 20)),
            chance.random() < 0.5,
            chance.choice((None, b"", b"packet")),
            chance.randint(-1, 9),
            deleted_ms,
            dropped_in if deleted_ms is None else 0,
        )
        return changes.pack_ledger(ledger_id, facts)
    if kind < 5:
        ledgers = sorted(chance.sample((0, 1, 2, 2**63 - 1), chance.randint(1, 4)))
        first = chance.randrange(100)
        extents = [Extent(each, first, first + 9, 10, 400, first - 1, 0, 1) for each in ledgers]
        # A log merged from others is not the youngest one.
        age = chance.choice((number, chance.randint(1, number)))
        return pack_log(EntryLogInfo(number, number % 2, 2**31, age), extents)
    if kind == 5 and known.logs:
        return changes.pack_unlog(chance.choice(list(known.logs)))
    if kind == 6:
        return changes.pack_doubt(
            ledger_id, *sorted((chance.randint(-1, 50), chance.randint(0, 50)))
        )
    if kind == 7:
        return changes.pack_forget(ledger_id) + changes.pack_trust(2, 3, 20)
    if kind == 8:
        some = changes.DOUBT_ALL, changes.TRUST_ALL, changes.pack_trust(ledger_id, -1, 2**63 - 1)
        return chance.choice(some) + changes.pack_scrubbed(number)
    mark = ReplayStart(
        known.replay_start.journal + chance.randint(0, 1), known.replay_start.first_sequence + 5
    )
    return b"".join(
        (
            changes.pack_replay_start(mark),
            changes.pack_opened(number),
            changes.pack_lost(number + 1),
            changes.pack_scrubbed(number),
        )
    )


def state(catalog: Catalog) -> object:
    return (
        catalog.facts,
        catalog.logs,
        catalog.replay_start,
        catalog.opened,
        catalog.lost,
        catalog.doubts.everything,
        sorted(catalog.doubts),
        sorted(catalog.doubts.settled_ids),
        catalog.scrubbed,
        {ledger_id: list(catalog.held(ledger_id)) for ledger_id in catalog.ledger_ids},
        {number: (catalog.use_of(number), set(catalog.held_in(number))) for number in catalog.logs},
    )


@pytest.mark.parametrize("seed", range(100))
def test_new_generation_restores_the_same_catalog(seed: int) -> None:
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


@pytest.mark.parametrize("seed", range(300))
def test_new_generation_includes_concurrent_changes(seed: int) -> None:
    """B5."""
    chance = random.Random(seed)
    catalog, again = Catalog(), Catalog()
    numbers = itertools.count(1)

    def change() -> bytes:
        while True:
            found = a_change(chance, catalog, next(numbers))
            before = {each for each in catalog.facts if catalog.is_deleted(each)}
            tried = copy.deepcopy(catalog)
            tried.apply(found)
            # A deleted ledger returns only after it was forgotten, and no two logs have the same age.
            is_real = all(tried.is_deleted(each) or each not in tried.facts for each in before)
            if is_real and len({log.age for log in tried.logs.values()}) == len(tried.logs):
                return found

    for _ in range(chance.randint(1, 30)):
        catalog.apply(change())
    with (
        mock.patch.object(core_catalog, "_PER_RECORD", 1),
        mock.patch.object(changes, "_EXTENTS_MAX", 1),
    ):
        for body in catalog.pack_all():
            again.apply(body)
            for _ in range(chance.choice((0, 0, 1, 3)) if body != changes.COMPLETE else 0):
                between = change()
                catalog.apply(between)
                again.apply(between)
    assert again.is_complete
    assert state(again) == state(catalog)


def test_extents_are_found_newest_first() -> None:
    catalog = Catalog()
    for number, (first, last) in enumerate([(0, 9), (5, 20), (30, 40)], 1):
        extent = Extent(7, first, last, last - first + 1, 99, last - 1, 0, 1)
        catalog.apply(pack_log(EntryLogInfo(number, 0, 100, number), [extent]))
    assert catalog.holding(7, 7) == [2, 1]
    assert catalog.holding(7, 25) == []
    assert catalog.holding(8, 0) == []
    assert catalog.last_add_confirmed(7) == 39
    assert catalog.last_add_confirmed(8) == NO_ENTRY
    catalog.apply(changes.pack_unlog(2))
    assert catalog.holding(7, 7) == [1]


@pytest.mark.parametrize("seed", range(100))
def test_log_use_is_the_sum_of_what_ledgers_hold_in_it(seed: int) -> None:
    """B5: deleted ledgers hold nothing, whether the log or the deletion came first."""
    chance = random.Random(seed)
    catalog = Catalog()
    for number in range(1, chance.randint(2, 40)):
        catalog.apply(a_change(chance, catalog, number))
        uses = dict.fromkeys(catalog.logs, Use(0, 0, 0))
        for ledger_id in dict.fromkeys(catalog.ledger_ids):
            held = list(catalog.held(ledger_id))
            assert not (held and catalog.is_deleted(ledger_id))
            assert not (catalog.is_deleted(ledger_id) and catalog.doubts.of(ledger_id))
            ages = [catalog.logs[each.log].age for each in held]
            assert ages == sorted(ages, reverse=True)
            for each in held:
                ledgers, entries, entry_bytes = uses[each.log]
                uses[each.log] = Use(
                    ledgers + 1, entries + each.entries, entry_bytes + each.entry_bytes
                )
                assert (ledger_id, each) in catalog.held_in(each.log)
        assert {number: catalog.use_of(number) for number in catalog.logs} == uses


def test_older_logs_reported_after_a_drop_hold_nothing_of_that_ledger() -> None:
    """B5, B16: a compaction and a checkpoint may begin before the drop and end after it."""
    catalog = Catalog()
    extent = Extent(7, 0, 9, 10, 400, 8, 0, 1)
    catalog.apply(pack_log(EntryLogInfo(1, 0, 1000, 1), [extent]))
    catalog.drop(7, 3)  # The journal says so; the catalog has no record of it yet.
    catalog.apply(pack_log(EntryLogInfo(2, 0, 1000, 2), [extent]))
    catalog.apply(pack_log(EntryLogInfo(1001, 0, 1000, 2), [extent]))
    assert not list(catalog.held(7))
    assert {catalog.use_of(each) for each in catalog.logs} == {Use(0, 0, 0)}
    catalog.apply(pack_log(EntryLogInfo(3, 0, 1000, 3), [extent]))
    catalog.apply(changes.pack_ledger(7, LedgerFacts(b"key", True).with_drop(3)))
    assert catalog.holding(7, 5) == [3]
    assert catalog.facts[7].is_fenced
    catalog.apply(changes.pack_ledger(7, LedgerFacts(b"key", True).with_drop(9)))
    assert catalog.holding(7, 5) == []


def test_log_is_listed_only_after_its_ledgers_are_applied() -> None:
    """B5: removing a seemingly empty log at this moment would remove acknowledged entries."""
    catalog = Catalog()
    catalog.apply(pack_log(EntryLogInfo(1, 0, 1000, 1), []))
    extents = [Extent(7, 0, 9, 10, 400, 8, 0, 1)]
    looks = 0
    for _ in catalog.applying(pack_log(EntryLogInfo(2, 0, 1000, 2), extents)):
        looks += 1
        assert [log.number for log in catalog.whole_logs] == [1]
    assert looks
    assert [log.number for log in catalog.whole_logs] == [1, 2]
    assert catalog.use_of(2).ledgers == 1


def test_merged_log_does_not_hide_a_younger_log() -> None:
    catalog = Catalog()
    extent = Extent(7, 0, 9, 10, 99, 8, 0, 1)
    for number in (1, 2, 3):
        catalog.apply(pack_log(EntryLogInfo(number, 0, 100, number), [extent]))
    merged = pack_log(EntryLogInfo(1000, 0, 100, age=2), [extent])
    catalog.apply(merged + changes.pack_unlog(1) + changes.pack_unlog(2))
    assert catalog.holding(7, 5) == [3, 1000]


def test_new_generation_splits_many_ledgers_into_records() -> None:
    """The event loop runs other tasks between two records."""
    catalog = Catalog()
    extents = [Extent(each, 0, 9, 10, 99, 8, 0, 1) for each in range(10_000)]
    catalog.apply(pack_log(EntryLogInfo(1, 0, 100, 1), extents))
    for each in range(10_000):
        catalog.apply(changes.pack_ledger(each, LedgerFacts(b"key", lac_of_packet=each % 2 - 1)))
    bodies = list(catalog.pack_all())
    assert max(map(len, bodies)) < 300_000
    again = Catalog()
    for body in bodies:
        again.apply(body)
    assert state(again) == state(catalog)
    assert again.facts[3] is again.facts[5]  # Equal facts are shared.


def test_replay_start_never_moves_back() -> None:
    """B5."""
    catalog = Catalog()
    catalog.apply(changes.pack_replay_start(ReplayStart(5, 100)))
    with pytest.raises(AssertionError):
        catalog.apply(changes.pack_replay_start(ReplayStart(4, 50)))


@pytest.mark.parametrize("seed", range(300))
def test_invalid_change_bytes_raise_no_unexpected_error(seed: int) -> None:
    chance = random.Random(seed)
    body = bytearray(a_change(chance, Catalog(), 3))
    del body[chance.randrange(1, len(body)) :]
    body[0] = chance.choice((body[0], 0, 99))
    try:
        Catalog().apply(bytes(body))
    except (TornRecord, AssertionError):
        pass
