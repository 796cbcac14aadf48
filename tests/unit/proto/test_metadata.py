"""Changes of a ledger's metadata: which role may change what, and invariants of every sequence of
changes.
"""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from rollbook.proto.errors import LedgerClosed, LedgerFenced, MetadataConflict, Superseded
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.metadata import (
    Fragment,
    LedgerMetadata,
    LedgerState,
    draw_creation_token,
    find_flaw,
)
from rollbook.proto.quorum import Ensemble, Quorum

B = [BookieId(f"b{number}:3181") for number in range(9)]
QUORUM = Quorum(3, 2, 2)
OPEN = LedgerMetadata(LedgerId(1), QUORUM, (Fragment(EntryId(0), (B[1], B[2], B[3])),))
MOVED = OPEN.with_writer_ensemble(EntryId(10), (B[4], B[2], B[3]))
RECOVERING = MOVED.with_recovery_started()
CLOSED = MOVED.with_close(EntryId(19), 2000)


def fragment(first_entry: int, *bookies: int) -> Fragment:
    return Fragment(EntryId(first_entry), tuple(B[number] for number in bookies))


# --- The writer -------------------------------------------------------------------------------


def test_writer_adds_fragment_at_open_end() -> None:
    assert MOVED.fragments == (fragment(0, 1, 2, 3), fragment(10, 4, 2, 3))


def test_fragment_without_confirmed_entries_is_replaced() -> None:
    again = MOVED.with_writer_ensemble(EntryId(10), (B[4], B[5], B[3]))
    assert again.fragments == (fragment(0, 1, 2, 3), fragment(10, 4, 5, 3))


def test_repeated_ensemble_change_changes_nothing() -> None:
    """A writer whose reply was lost repeats its change, even after another change on top of it."""
    assert MOVED.with_writer_ensemble(EntryId(10), (B[4], B[2], B[3])) == MOVED


@pytest.mark.parametrize("found", [RECOVERING, CLOSED])
def test_writer_changes_no_ensemble_after_recovery_began(found: LedgerMetadata) -> None:
    """LM2: recovery may already have counted negative answers of the old ensemble."""
    with pytest.raises(LedgerFenced):
        found.with_writer_ensemble(EntryId(20), (B[5], B[6], B[7]))


def test_writer_does_not_replace_a_later_fragment() -> None:
    with pytest.raises(MetadataConflict):
        MOVED.with_writer_ensemble(EntryId(9), (B[5], B[6], B[7]))


def test_ensemble_with_a_bookie_twice_is_an_assertion_error() -> None:
    with pytest.raises(AssertionError):
        OPEN.with_writer_ensemble(EntryId(5), (B[1], B[2], B[2]))


def test_writer_closes_ledger() -> None:
    assert (CLOSED.state, CLOSED.last_entry, CLOSED.length) == (LedgerState.CLOSED, 19, 2000)
    empty = OPEN.with_close(NO_ENTRY, 0)
    assert (empty.is_closed, empty.last_entry, empty.length) == (True, NO_ENTRY, 0)


def test_repeated_close_changes_nothing() -> None:
    assert CLOSED.with_close(EntryId(19), 2000) == CLOSED


@pytest.mark.parametrize("wanted", [(EntryId(18), 2000), (EntryId(19), 1999), (EntryId(20), 2000)])
def test_close_at_another_end_is_refused(wanted: tuple[EntryId, int]) -> None:
    with pytest.raises(LedgerClosed):
        CLOSED.with_close(*wanted)


def test_writer_does_not_close_ledger_in_recovery() -> None:
    """LM2."""
    with pytest.raises(LedgerFenced):
        RECOVERING.with_close(EntryId(19), 2000)


def test_ledger_does_not_end_before_its_last_fragment() -> None:
    # The last fragment stays empty.
    assert MOVED.with_close(EntryId(9), 1000).last_entry_of(1) == 9
    with pytest.raises(MetadataConflict):
        MOVED.with_close(EntryId(8), 1000)


# --- Recovery ---------------------------------------------------------------------------------


def test_recovery_starts_and_may_be_taken_over() -> None:
    assert RECOVERING.state is LedgerState.IN_RECOVERY
    assert RECOVERING.with_recovery_started() == RECOVERING
    with pytest.raises(LedgerClosed):
        CLOSED.with_recovery_started()


def test_recovery_adds_its_fragments_when_it_closes() -> None:
    """LM3."""
    new = (fragment(12, 4, 2, 6), fragment(15, 4, 7, 6))
    closed = RECOVERING.with_recovery_closed(EntryId(17), 1700, new)
    assert closed.fragments == (*RECOVERING.fragments, *new)
    assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 17)


def test_recovery_may_replace_the_whole_last_fragment() -> None:
    closed = RECOVERING.with_recovery_closed(EntryId(17), 1700, (fragment(10, 4, 2, 6),))
    assert closed.fragments == (fragment(0, 1, 2, 3), fragment(10, 4, 2, 6))


def test_recovery_keeps_earlier_fragments() -> None:
    with pytest.raises(MetadataConflict):
        RECOVERING.with_recovery_closed(EntryId(17), 1700, (fragment(9, 4, 2, 6),))


def test_recovery_closes_only_ledgers_in_recovery_at_valid_ends() -> None:
    with pytest.raises(MetadataConflict):
        OPEN.with_recovery_closed(NO_ENTRY, 0)
    with pytest.raises(LedgerClosed):
        CLOSED.with_recovery_closed(EntryId(19), 2000)
    with pytest.raises(MetadataConflict):
        RECOVERING.with_recovery_closed(EntryId(8), 900)


# --- Re-replication ---------------------------------------------------------------------------


def test_replacement_keeps_the_slot() -> None:
    repaired = MOVED.with_replacement(EntryId(0), B[2], B[8])
    assert repaired.fragments == (fragment(0, 1, 8, 3), fragment(10, 4, 2, 3))
    assert CLOSED.with_replacement(EntryId(10), B[4], B[8]).fragments[1] == fragment(10, 8, 2, 3)


@pytest.mark.parametrize(
    ("found", "first_entry", "old", "new"),
    [
        (MOVED, 10, 2, 8),  # LM4: the open tail belongs to the writer.
        (MOVED, 5, 2, 8),  # No fragment starts there.
        (MOVED, 0, 4, 8),  # The old bookie is not in that fragment; it was replaced meanwhile.
        # The new bookie is already in that fragment; a second copy there would protect nothing.
        (MOVED, 0, 2, 3),
    ],
)
def test_invalid_replacement_is_refused(
    found: LedgerMetadata, first_entry: int, old: int, new: int
) -> None:
    with pytest.raises(MetadataConflict):
        found.with_replacement(EntryId(first_entry), B[old], B[new])


def test_replacement_during_recovery_is_refused() -> None:
    """LM3: recovery relies on the ensembles that it found."""
    with pytest.raises(LedgerFenced):
        RECOVERING.with_replacement(EntryId(0), B[2], B[8])


# --- Queries ----------------------------------------------------------------------------------


def test_fragment_of_returns_fragment_of_an_entry() -> None:
    """AR42."""
    holders = [MOVED.fragment_of(EntryId(entry)) for entry in (0, 9, 10, 11, 2**62)]
    first, second = MOVED.fragments
    assert holders == [first, first, second, second, second]


def test_last_entry_of_returns_end_of_a_fragment() -> None:
    assert [MOVED.last_entry_of(index) for index in (0, 1)] == [9, None]
    assert [CLOSED.last_entry_of(index) for index in (0, 1)] == [9, 19]
    assert OPEN.with_close(NO_ENTRY, 0).last_entry_of(0) == NO_ENTRY


def test_names_tells_whether_a_ledger_uses_a_bookie() -> None:
    assert [MOVED.names(B[number]) for number in (1, 4, 5)] == [True, True, False]


@pytest.mark.parametrize(
    "broken",
    [
        {"ledger_id": LedgerId(-1)},
        {"fragments": ()},
        {"fragments": (fragment(1, 1, 2, 3),)},
        {"fragments": (fragment(0, 1, 2, 3), fragment(0, 4, 2, 3))},
        {"fragments": (fragment(0, 1, 2),)},
        {"fragments": (fragment(0, 1, 2, 3), fragment(2**63, 4, 2, 3))},
        {"state": LedgerState.CLOSED},
        {"state": LedgerState.CLOSED, "last_entry": EntryId(1)},
        {"last_entry": EntryId(1), "length": 1},
        {"length": 1},
        {"state": LedgerState.CLOSED, "last_entry": EntryId(-2), "length": 1},
        {"state": LedgerState.CLOSED, "last_entry": EntryId(1), "length": -1},
        {"custom": (("a", b""), ("a", b""))},
    ],
)
def test_inconsistent_metadata_raises_assertion_error(broken: dict[str, object]) -> None:
    """LM1."""
    with pytest.raises(AssertionError):
        replace(OPEN, **broken)  # type: ignore[arg-type]  # Fields differ in type.


def test_creation_tokens_are_in_the_range_of_java() -> None:
    drawn = [draw_creation_token(random.Random(seed)) for seed in range(50)]
    assert len(set(drawn)) == 50
    assert all(0 <= token < 2**63 - 1 for token in drawn)


# --- Random changes ---------------------------------------------------------------------------


class Store:
    """One node: versions grow by one, and a write succeeds only from the current version."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.history = [metadata]
        self.authors = ["writer"]

    def read(self) -> tuple[int, LedgerMetadata]:
        return len(self.history) - 1, self.history[-1]

    def swap(self, author: str, version: int, metadata: LedgerMetadata) -> None:
        if version != len(self.history) - 1:
            raise MetadataConflict
        self.history.append(metadata)
        self.authors.append(author)


def some_ensemble(chance: random.Random, old: Ensemble) -> Ensemble:
    new = list(old)
    slot = chance.randrange(len(old))
    new[slot] = chance.choice([bookie for bookie in B if bookie not in old])
    return tuple(new)


def step(chance: random.Random, who: str, ledger: LedgerMetadata) -> LedgerMetadata:
    """Returns a random change that one role makes to the ledger it read; the change may be wrong."""
    tail = ledger.fragments[-1]
    entry = EntryId(tail.first_entry + chance.randrange(-1, 6))
    other = Fragment(max(entry, EntryId(0)), some_ensemble(chance, tail.ensemble))
    match who:
        case "writer" if chance.random() < 0.8:
            return ledger.with_writer_ensemble(other.first_entry, other.ensemble)
        case "writer":
            return ledger.with_close(entry, 100)
        case "recovery" if ledger.state is not LedgerState.IN_RECOVERY:
            return ledger.with_recovery_started()
        case "recovery":
            new = (other,) if chance.random() < 0.5 else ()
            return ledger.with_recovery_closed(EntryId(entry + 3), 100, new)
        case _:
            victim = chance.choice(ledger.fragments)
            old, new_bookie = chance.choice(victim.ensemble), chance.choice(B)
            return ledger.with_replacement(victim.first_entry, old, new_bookie)


@pytest.mark.parametrize("seed", range(300))
def test_no_sequence_of_changes_breaks_invariants(seed: int) -> None:
    """LM1 to LM4, with stale reads and lost races: fragments stay ordered with distinct members,
    only the last fragment moves, recovery publishes nothing before it closes, and the writer
    changes nothing after recovery began.
    """
    chance = random.Random(seed)
    store = Store(OPEN)
    parties = ["writer"] * 4 + ["worker"] * 2 + ["recovery"] * chance.randrange(3)
    views = {who: store.read() for who in ("writer", "recovery", "worker")}
    for _ in range(60):
        who = chance.choice(parties)
        if chance.random() < 0.7:
            views[who] = store.read()
        version, ledger = views[who]
        try:
            store.swap(who, version, step(chance, who, ledger))
        except Superseded:
            continue

    for author, (before, after) in zip(store.authors[1:], pairwise(store.history), strict=True):
        assert not find_flaw(
            after.ledger_id,
            after.quorum,
            after.fragments,
            after.state,
            after.last_entry,
            after.length,
        )
        assert all(len(set(each.ensemble)) == len(each.ensemble) for each in after.fragments)
        if before.state is not LedgerState.OPEN:
            assert author != "writer" or after == before  # LM3, or its own close again.
        if after.state is LedgerState.IN_RECOVERY:
            assert after.fragments == before.fragments
        if before.is_closed:
            assert (after.last_entry, after.length) == (before.last_entry, before.length)
        if author != "worker":
            kept = len(before.fragments) - 1
            assert after.fragments[:kept] == before.fragments[:kept]
            starts = [each.first_entry for each in after.fragments]
            assert starts[kept] >= before.fragments[kept].first_entry
        else:
            assert [f.first_entry for f in after.fragments] == [
                f.first_entry for f in before.fragments
            ]
            assert before.is_closed or after.fragments[-1] == before.fragments[-1]


def test_random_changes_reach_all_states_and_sizes() -> None:
    """Guards the test above: random sequences are not all short."""
    reached = set()
    for seed in range(100):
        chance = random.Random(seed)
        ledger = OPEN
        for _ in range(20):
            try:
                ledger = step(chance, chance.choice(("writer", "recovery", "worker")), ledger)
            except Superseded:
                continue
            reached.add((ledger.state, min(len(ledger.fragments), 3)))
    assert reached == {(state, count) for state in LedgerState for count in (1, 2, 3)}
