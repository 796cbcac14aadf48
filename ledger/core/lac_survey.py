"""Collects the LACs that an ensemble reports, and decides when enough members were heard to trust
the result.

Every confirmed entry has `ack` copies in its write set, and a bookie that stores an entry knows
the LAC that came with it. Therefore the highest reported LAC is not too low once every
possible ack quorum has a member that was heard (RD1). A bookie is heard if it returns an entry
or a LAC, or says that it has none; a bookie that may have lost something, fails, or returns a
wrong digest proves nothing. A valid LAC counts from any bookie, because it cannot be too high.
"""

from rollbook.proto.ids import NO_ENTRY, EntryId
from rollbook.proto.quorum import Ensemble, Quorum


class LacSurvey:
    """One round of requests to all members of an ensemble."""

    def __init__(self, quorum: Quorum, floor: EntryId = NO_ENTRY) -> None:
        self.last_add_confirmed = floor
        self.highest_entry = NO_ENTRY  # The highest entry of a member; it may be unconfirmed.
        self._quorum = quorum
        self._unheard = (1 << quorum.ensemble) - 1
        self._silent: dict[int, str] = {}  # The reason why each slot was not heard.

    def on_lac(self, lac: EntryId, highest_entry: EntryId = NO_ENTRY) -> None:
        """Takes a verified LAC, which counts even from a bookie that is not heard."""
        self.last_add_confirmed = max(self.last_add_confirmed, lac)
        self.highest_entry = max(self.highest_entry, highest_entry)

    def on_heard(self, slot: int) -> None:
        self._unheard &= ~(1 << slot)
        self._silent.pop(slot, None)

    def on_silence(self, slot: int, reason: str) -> None:
        if self._unheard >> slot & 1:
            self._silent[slot] = reason

    @property
    def is_covered(self) -> bool:
        return self._quorum.is_covered(self._unheard)

    @property
    def unheard_slots(self) -> list[int]:
        return [slot for slot in range(self._quorum.ensemble) if self._unheard >> slot & 1]

    def describe(self, ensemble: Ensemble) -> str:
        """Describes which members were not heard, and why."""
        return ", ".join(
            f"{ensemble[slot]}: {self._silent.get(slot, 'no answer')}"
            for slot in self.unheard_slots
        )
