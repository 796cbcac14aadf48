"""When the segment that is written has become long enough.

It ends at a number of bytes or of entries, or at its age, whichever comes first; idle or not,
since only a closed ledger can expire. A segment without a record stays, unless it has too many
entries: barriers and writer epochs have no records. So that logs that were created together do not
roll together, each segment differs by a random amount of up to a tenth.
"""

from typing import Final

from rollbook.logservice.core.retention import roll_age_s
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.ports import Randomness

SEGMENTS_MAX: Final = 16_000  # Leaves room in the list's node for later owners.

_JITTER: Final = 0.1
BYTES: Final = "bytes"
ENTRIES: Final = "entries"
AGE: Final = "age"
DEMAND: Final = "demand"
TRUNCATION: Final = "truncation"


class SegmentLimits:
    """The limits of one segment."""

    def __init__(self, config: LogConfig, randomness: Randomness) -> None:
        self._factor = 1 + _JITTER * (2 * randomness.random() - 1)
        self.configure(config)

    def configure(self, config: LogConfig) -> None:
        factor = self._factor
        self.bytes = int(config.roll_bytes * factor)
        self.entries = int(config.roll_entries * factor)
        self.age_s = roll_age_s(config) * factor

    def reason_to_roll(
        self, segment_bytes: int, entries: int, age_s: float, *, has_records: bool
    ) -> str | None:
        if entries >= self.entries:
            return ENTRIES
        if not has_records:
            return None
        if segment_bytes >= self.bytes:
            return BYTES
        return AGE if age_s >= self.age_s else None
