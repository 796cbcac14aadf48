"""All quorum arithmetic: which bookies hold an entry, and how many answers prove that it is
acknowledged or missing.

An entry is striped over its ensemble: copy `w` of entry `e` is on the member at index `(e + w)
mod E`, for `w` in `0 … Qw-1`. Copies are counted as bits of an int, where bit `i` is the ensemble's
member `i`: this is cheap, and is done for every entry.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress, cycle
from typing import Final, TypeVar

from rollbook.proto.errors import InvalidRequest
from rollbook.proto.ids import BookieId, EntryId

T = TypeVar("T")

Ensemble = tuple[BookieId, ...]
Slots = int  # A set of ensemble indexes, one bit for each.

# Far above any real ensemble; it bounds the memory that hostile metadata can cost.
ENSEMBLE_SIZE_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Quorum:
    """The sizes of a ledger's quorums; valid ones satisfy `ensemble >= write >= ack >= 1`."""

    ensemble: int
    write: int
    ack: int

    def __post_init__(self) -> None:
        if not ENSEMBLE_SIZE_MAX >= self.ensemble >= self.write >= self.ack >= 1:
            raise InvalidRequest(
                f"quorum ensemble={self.ensemble} write={self.write} ack={self.ack} breaks "
                f"{ENSEMBLE_SIZE_MAX} >= ensemble >= write >= ack >= 1"
            )

    @property
    def absence(self) -> int:
        """The number of explicit negative answers from an entry's write set that proves that it was
        never acked (Q2).
        """
        return self.write - self.ack + 1

    def write_slots(self, entry_id: EntryId) -> tuple[int, ...]:
        """Returns the ensemble indexes that hold the entry, in the order in which they are asked (Q1)."""
        return _slots_in_order(self.ensemble, self.write)[entry_id % self.ensemble]

    def write_mask(self, entry_id: EntryId) -> Slots:
        return _slot_masks(self.ensemble, self.write)[entry_id % self.ensemble]

    def write_set(self, entry_id: EntryId, ensemble: Ensemble) -> tuple[BookieId, ...]:
        assert len(ensemble) == self.ensemble
        return tuple(ensemble[slot] for slot in self.write_slots(entry_id))

    def holds(self, slot: int, entry_id: EntryId) -> bool:
        return (slot - entry_id) % self.ensemble < self.write

    def is_acked(self, entry_id: EntryId, copies: Slots) -> bool:
        """Returns whether these copies are enough for an ack; copies outside the write set do not count."""
        return (copies & self.write_mask(entry_id)).bit_count() >= self.ack

    def is_absent(self, entry_id: EntryId, negatives: Slots) -> bool:
        return (negatives & self.write_mask(entry_id)).bit_count() >= self.absence

    def is_covered(self, unheard: Slots) -> bool:
        """Returns whether every possible ack quorum has a member that answered (Q3).

        `unheard` are the members whose answer is missing or proves nothing. If a write set had
        `ack` unheard members, they alone could have confirmed an entry.
        """
        return all(
            (unheard & mask).bit_count() < self.ack
            for mask in _slot_masks(self.ensemble, self.write)
        )

    def first_held(self, slot: int, start: EntryId) -> EntryId:
        """Returns the first entry at or after `start` that this member holds."""
        ahead = (slot - start) % self.ensemble
        if ahead < self.write:
            return start
        return EntryId(start + ahead - self.write + 1)

    def held(self, slot: int, start: EntryId, values: Iterable[T]) -> Iterator[T]:
        """Returns the values of the entries that the slot holds; `values` has those of all entries
        from `start` on.
        """
        return compress(values, cycle(_held_from(self, slot, EntryId(start % self.ensemble))))


@lru_cache(maxsize=4096)
def _held_from(quorum: Quorum, slot: int, start: EntryId) -> tuple[bool, ...]:
    return tuple(quorum.holds(slot, EntryId(start + each)) for each in range(quorum.ensemble))


@lru_cache(maxsize=1024)
def _slots_in_order(ensemble: int, write: int) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple((start + copy) % ensemble for copy in range(write)) for start in range(ensemble)
    )


@lru_cache(maxsize=1024)
def _slot_masks(ensemble: int, write: int) -> tuple[Slots, ...]:
    return tuple(sum(1 << slot for slot in slots) for slots in _slots_in_order(ensemble, write))
