"""What removing bookies does to ledgers (RM1; BL1)."""

import pytest

from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.quorum import Quorum
from rollbook.recovery.core.removal_damage import Damage, fewest_copies

A, B, C, D = (BookieId(name) for name in "abcd")


def ledger(*ensembles: tuple[BookieId, ...], write: int = 3, ack: int = 2) -> LedgerMetadata:
    fragments = tuple(Fragment(EntryId(10 * n), each) for n, each in enumerate(ensembles))
    return LedgerMetadata(LedgerId(1), Quorum(len(ensembles[0]), write, ack), fragments)


@pytest.mark.parametrize(
    ("leaving", "registered", "copies"),
    [
        ({A}, {A, B, C}, 2),
        ({A, B}, {A, B, C}, 1),
        ({A}, {A, B}, 1),
        ({A, B, C}, {A, B, C}, 0),
        ({D}, {A, B, C, D}, 3),
    ],
)
def test_fewest_copies_counts_registered_bookies_that_stay(
    leaving: set[BookieId], registered: set[BookieId], copies: int
) -> None:
    assert fewest_copies(ledger((A, B, C)), leaving, registered) == copies


def test_fewest_copies_is_that_of_the_worst_entry() -> None:
    striped = ledger((A, B, C, D), write=2)
    assert fewest_copies(striped, {A, C}, {A, B, C, D}) == 1
    assert fewest_copies(striped, {A, B}, {A, B, C, D}) == 0
    assert fewest_copies(ledger((A, B, C), (B, C, D)), {D}, {A, B, C, D}) == 2


def test_damage_is_counted_in_ledgers() -> None:
    damage = Damage()
    for metadata in (ledger((A, B, C)), ledger((A, B, C), ack=1), ledger((A,), write=1, ack=1)):
        damage.on_ledger(metadata, {A}, {A, B})
    assert (damage.named, damage.below_ack, damage.without_copy) == (3, 2, 1)
