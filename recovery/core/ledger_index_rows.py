"""The row of a ledger in the index: a tuple that is small enough to keep a million of them in memory.

    (ensemble size, write quorum, members of the first ensemble…, members of the next ensemble…)

The index shares equal rows, and a row names each distinct ensemble of a ledger once.
"""

from collections.abc import Collection, Iterator
from typing import cast

from rollbook.proto.ids import BookieId
from rollbook.proto.metadata import LedgerMetadata

IndexRow = tuple[int | BookieId, ...]
_HEAD = 2


def row_of(metadata: LedgerMetadata) -> IndexRow:
    ensembles = dict.fromkeys(fragment.ensemble for fragment in metadata.fragments)
    members = (member for ensemble in ensembles for member in ensemble)
    return (metadata.quorum.ensemble, metadata.quorum.write, *members)


def members_of(row: IndexRow) -> frozenset[BookieId]:
    return frozenset(cast("tuple[BookieId, ...]", row[_HEAD:]))


def good_copies(row: IndexRow, missing: Collection[BookieId]) -> int:
    """Return the number of good copies of the entry with the fewest, assuming that missing bookies hold no
    entry and all others hold all their entries.
    """
    ensemble, write = cast("tuple[int, int]", row[:_HEAD])
    return min(
        sum(members[(first + copy) % ensemble] not in missing for copy in range(write))
        for members in _ensembles(row)
        for first in range(ensemble)
    )


def _ensembles(row: IndexRow) -> Iterator[IndexRow]:
    size = cast("int", row[0])
    for start in range(_HEAD, len(row), size):
        yield row[start : start + size]
