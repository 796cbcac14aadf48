"""The number of good copies of a ledger's worst entry, compared with the definition."""

import random

import pytest

from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.quorum import Quorum
from rollbook.recovery.core.ledger_index_rows import good_copies, members_of, row_of

B = [BookieId(f"b{number}:3181") for number in range(8)]


@pytest.mark.parametrize("seed", range(100))
def test_good_copies_counts_those_of_the_worst_entry(seed: int) -> None:
    """AR30: all segments count."""
    chance = random.Random(seed)
    write = chance.randint(1, 3)
    quorum = Quorum(chance.randint(write, 5), write, 1)
    fragments = tuple(
        Fragment(EntryId(10 * index), tuple(chance.sample(B, quorum.ensemble)))
        for index in range(chance.randint(1, 4))
    )
    metadata = LedgerMetadata(LedgerId(1), quorum, fragments)
    missing = set(chance.sample(B, chance.randint(0, 4)))
    expected = min(
        sum(member not in missing for member in quorum.write_set(EntryId(e), fragment.ensemble))
        for fragment in fragments
        for e in range(quorum.ensemble)
    )
    row = row_of(metadata)
    assert good_copies(row, missing) == expected
    assert members_of(row) == {m for fragment in fragments for m in fragment.ensemble}


def test_repeated_ensemble_is_stored_once() -> None:
    fragments = [Fragment(EntryId(e), (B[e % 2], B[2])) for e in range(4)]
    row = row_of(LedgerMetadata(LedgerId(1), Quorum(2, 2, 1), tuple(fragments)))
    assert row == (2, 2, B[0], B[2], B[1], B[2])
