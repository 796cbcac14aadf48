"""Rules that predict the damage to ledgers if some bookies are removed (RM1).

A bookie can be removed without harm iff no ledger names it. For a ledger that names one, count how many
copies of each entry would be left on registered bookies. If an entry has fewer copies than the ack quorum,
one more failure may lose it. If it has no copy, it is lost.
"""

from collections.abc import Collection
from dataclasses import dataclass

from rollbook.proto.ids import BookieId, EntryId
from rollbook.proto.metadata import LedgerMetadata


@dataclass(slots=True)
class Damage:
    named: int = 0  # Ledgers that name one of the bookies.
    # Ledgers with entries that would have fewer copies than the ack quorum.
    below_ack: int = 0
    # Ledgers with entries that would have no copy left; `below_ack` counts them, too.
    without_copy: int = 0

    def on_ledger(
        self,
        metadata: LedgerMetadata,
        leaving: Collection[BookieId],
        registered: Collection[BookieId],
    ) -> None:
        """Count a ledger that names one of the bookies."""
        self.named += 1
        fewest = fewest_copies(metadata, leaving, registered)
        self.below_ack += fewest < metadata.quorum.ack
        self.without_copy += fewest == 0


def fewest_copies(
    metadata: LedgerMetadata, leaving: Collection[BookieId], registered: Collection[BookieId]
) -> int:
    """Return the smallest number of copies of any entry, counting bookies that are registered and not
    removed. Empty fragments are counted, too, since they may be open.
    """
    quorum = metadata.quorum
    return min(
        sum(
            bookie in registered and bookie not in leaving
            for bookie in quorum.write_set(EntryId(residue), fragment.ensemble)
        )
        for fragment in metadata.fragments
        for residue in range(quorum.ensemble)
    )
