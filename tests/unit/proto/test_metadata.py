"""The life of a ledger: who may change what, and what no sequence of changes can break."""

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


def test_the_writer_moves_the_open_end() -> None:
    assert MOVED.fragments == (fragment(0, 1, 2, 3), fragment(10, 4, 2, 3))


def test_a_fragment_in_which_nothing_was_confirmed_gives_way() -> None:
    again = MOVED.with_writer_ensemble(EntryId(10), (B[4], B[5], B[3]))
    assert again.fragments == (fragment(0, 1, 2, 3), fragment(10, 4, 5, 3))


def test_a_move_that_was_made_already_changes_nothing() -> None:
    """What a writer finds whose reply was lost, and then another's change on top of its own."""
    assert MOVED.with_writer_ensemble(EntryId(10), (B[4], B[2], B[3])) == MOVED


@pytest.mark.parametrize("found", [RECOVERING, CLOSED])
def test_the_writer_moves_nothing_once_recovery_began(found: LedgerMetadata) -> None:
    """LM2: recovery may have counted negatives of the old ensemble already."""
    with pytest.raises(LedgerFenced):
        found.with_writer_ensemble(EntryId(20), (B[5], B[6], B[7]))


def test_the_writer_does_not_write_over_a_later_fragment() -> None:
    with pytest.raises(MetadataConflict):
        MOVED.with_writer_ensemble(EntryId(9), (B[5], B[6], B[7]))


def test_two_copies_on_one_bookie_are_a_bug() -> None:
    with pytest.raises(AssertionError):
        OPEN.with_writer_ensemble(EntryId(5), (B[1], B[2], B[2]))


def test_the_writer_closes() -> None:
    assert (CLOSED.state, CLOSED.last_entry, CLOSED.length) == (LedgerState.CLOSED, 19, 2000)
    empty = OPEN.with_close(NO_ENTRY, 0)
    assert (empty.is_closed, empty.last_entry, empty.length) == (True, NO_ENTRY, 0)


def test_finding_it_closed_as_wanted_is_success() -> None:
    assert CLOSED.with_close(EntryId(19), 2000) == CLOSED


@pytest.mark.parametrize("wanted", [(EntryId(18), 2000), (EntryId(19), 1999), (EntryId(20), 2000)])
def test_finding_it_closed_elsewhere_is_not(wanted: tuple[EntryId, int]) -> None:
    with pytest.raises(LedgerClosed):
        CLOSED.with_close(*wanted)


def test_the_writer_does_not_close_what_is_being_recovered() -> None:
    """LM2."""
    with pytest.raises(LedgerFenced):
        RECOVERING.with_close(EntryId(19), 2000)


def test_a_ledger_does_not_end_before_its_last_fragment() -> None:
    assert MOVED.with_close(EntryId(9), 1000).last_entry_of(1) == 9  # That fragment stays empty.
    with pytest.raises(MetadataConflict):
        MOVED.with_close(EntryId(8), 1000)


# --- Recovery ---------------------------------------------------------------------------------


def test_recovery_starts_and_may_be_taken_over() -> None:
    assert RECOVERING.state is LedgerState.IN_RECOVERY
    assert RECOVERING.with_recovery_started() == RECOVERING
    with pytest.raises(LedgerClosed):
        CLOSED.with_recovery_started()


def test_recovery_shows_its_fragments_with_the_end() -> None:
    """LM3."""
    new = (fragment(12, 4, 2, 6), fragment(15, 4, 7, 6))
    closed = RECOVERING.with_recovery_closed(EntryId(17), 1700, new)
    assert closed.fragments == (*RECOVERING.fragments, *new)
    assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 17)


def test_recovery_may_replace_the_whole_last_fragment() -> None:
    closed = RECOVERING.with_recovery_closed(EntryId(17), 1700, (fragment(10, 4, 2, 6),))
    assert closed.fragments == (fragment(0, 1, 2, 3), fragment(10, 4, 2, 6))


def test_recovery_leaves_earlier_fragments_alone() -> None:
    with pytest.raises(MetadataConflict):
        RECOVERING.with_recovery_closed(EntryId(17), 1700, (fragment(9, 4, 2, 6),))


def test_recovery_closes_once_and_only_what_it_started() -> None:
    with pytest.raises(MetadataConflict):
        OPEN.with_recovery_closed(NO_ENTRY, 0)
    with pytest.raises(LedgerClosed):
        CLOSED.with_recovery_closed(EntryId(19), 2000)
    with pytest.raises(MetadataConflict):
        RECOVERING.with_recovery_closed(EntryId(8), 900)


# --- Re-replication ---------------------------------------------------------------------------


def test_a_replacement_takes_the_same_place() -> None:
    repaired = MOVED.with_replacement(EntryId(0), B[2], B[8])
    assert repaired.fragments == (fragment(0, 1, 8, 3), fragment(10, 4, 2, 3))
    assert CLOSED.with_replacement(EntryId(10), B[4], B[8]).fragments[1] == fragment(10, 8, 2, 3)


@pytest.mark.parametrize(
    ("found", "first_entry", "old", "new"),
    [
        (MOVED, 10, 2, 8),  # LM4: the open tail belongs to the writer.
        (MOVED, 5, 2, 8),  # No fragment starts there.
        (MOVED, 0, 4, 8),  # Not in that fragment: replaced meanwhile.
        (MOVED, 0, 2, 3),  # It has a place there: its second copy would protect nothing.
    ],
)
def test_a_replacement_that_does_not_fit_is_refused(
    found: LedgerMetadata, first_entry: int, old: int, new: int
) -> None:
    with pytest.raises(MetadataConflict):
        found.with_replacement(EntryId(first_entry), B[old], B[new])


def test_nothing_is_replaced_during_recovery() -> None:
    """LM3: it goes by the ensembles that it found."""
    with pytest.raises(LedgerFenced):
        RECOVERING.with_replacement(EntryId(0), B[2], B[8])


# --- Questions --------------------------------------------------------------------------------


def test_which_fragment_holds_an_entry() -> None:
    """AR42."""
    holders = [MOVED.fragment_of(EntryId(entry)) for entry in (0, 9, 10, 11, 2**62)]
    first, second = MOVED.fragments
    assert holders == [first, first, second, second, second]


def test_where_fragments_end() -> None:
    assert [MOVED.last_entry_of(index) for index in (0, 1)] == [9, None]
    assert [CLOSED.last_entry_of(index) for index in (0, 1)] == [9, 19]
    assert OPEN.with_close(NO_ENTRY, 0).last_entry_of(0) == NO_ENTRY


def test_which_ledgers_name_a_bookie() -> None:
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
def test_a_ledger_that_makes_no_sense_cannot_be_built(broken: dict[str, object]) -> None:
    """LM1."""
    with pytest.raises(AssertionError):
        replace(OPEN, **broken)  # type: ignore[arg-type]  # Several fields, several types.


def test_creation_tokens_are_what_java_draws() -> None:
    drawn = [draw_creation_token(random.Random(seed)) for seed in range(50)]
    assert len(set(drawn)) == 50
    assert all(0 <= token < 2**63 - 1 for token in drawn)


# --- Chance -----------------------------------------------------------------------------------


class Store:
    """One node: versions grow by one, and only a write from the version that was read succeeds."""

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
    """What one party wants to make of the ledger as it read it, however unwise that is."""
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
def test_no_sequence_of_changes_breaks_a_ledger(seed: int) -> None:
    """LM1 to LM4 over stale reads and lost races: fragments stay in order with distinct members,
    only tails move, recovery shows nothing before the end, and after it began the writer changes
    nothing.
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
            assert author != "writer" or after == before  # LM3; or its own close, found again.
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


def test_chance_reaches_every_state() -> None:
    """The sequences above are not all short."""
    ends = set()
    for seed in range(100):
        chance = random.Random(seed)
        ledger = OPEN
        for _ in range(20):
            try:
                ledger = step(chance, chance.choice(("writer", "recovery", "worker")), ledger)
            except Superseded:
                continue
        ends.add((ledger.state, min(len(ledger.fragments), 3)))
    assert {state for state, _ in ends} >= {LedgerState.CLOSED}
    assert {count for _, count in ends} == {1, 2, 3}
