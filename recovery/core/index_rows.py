"""What the index keeps of a ledger: a tuple small enough for a million of them in memory.

    (ensemble size, write quorum, members of the first ensemble…, members of the next one…)

Equal tuples are shared by their keeper, and an ensemble that a ledger has twice is kept once.
"""

from collections.abc import Collection, Iterator
from typing import cast

from rollbook.proto.ids import BookieId
from rollbook.proto.metadata import LedgerMetadata

Shape = tuple[int | BookieId, ...]
_HEAD = 2


def shape_of(metadata: LedgerMetadata) -> Shape:
    ensembles = dict.fromkeys(fragment.ensemble for fragment in metadata.fragments)
    members = (member for ensemble in ensembles for member in ensemble)
    return (metadata.quorum.ensemble, metadata.quorum.write, *members)


def members_of(shape: Shape) -> frozenset[BookieId]:
    return frozenset(cast("tuple[BookieId, ...]", shape[_HEAD:]))


def good_copies(shape: Shape, missing: Collection[BookieId]) -> int:
    """The good copies of the entry with the fewest, if the missing bookies have no entry and all
    others have all of theirs.
    """
    ensemble, write = cast("tuple[int, int]", shape[:_HEAD])
    return min(
        sum(members[(first + copy) % ensemble] not in missing for copy in range(write))
        for members in _ensembles(shape)
        for first in range(ensemble)
    )


def _ensembles(shape: Shape) -> Iterator[Shape]:
    size = cast("int", shape[0])
    for start in range(_HEAD, len(shape), size):
        yield shape[start : start + size]
