"""Decides when the segment being written ends, and when it gets a snapshot of its log's state.

A segment ends at a number of bytes or of entries, or at an age, whichever comes first. Idle segments end,
too, since only a closed ledger can expire. A segment without a record stays, unless it has too many entries:
barriers and writer epochs are entries without records. The limits of each segment are changed by a random
amount of up to a tenth, so that logs that were created together do not roll together.

A take-over replays everything after the latest snapshot, so the next snapshot is due after a number of
entries or of bytes. A large snapshot waits until a multiple of its size was written, so that snapshots stay
a small part of the log.
"""

from typing import Final

from rollbook.logservice.core.retention import roll_age_s
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.ports import Randomness

SEGMENTS_MAX: Final = 16_000  # Leaves room in the list's node for later owners.

_JITTER: Final = 0.1
_SNAPSHOT_ENTRIES: Final = 1024
_SNAPSHOT_BYTES: Final = 8 * 1024 * 1024
_SNAPSHOT_SHARE: Final = 16  # A snapshot waits until this multiple of its own size was written.
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


class SegmentLength:
    """Counts what was written to one segment. `AppendPath` sets `bytes`, `entries` and `has_records`."""

    __slots__ = (
        "bytes",
        "bytes_at_snapshot",
        "entries",
        "entries_at_snapshot",
        "has_records",
        "limits",
    )

    def __init__(self, limits: SegmentLimits) -> None:
        self.limits: Final = limits
        self.bytes = self.entries = 0
        self.has_records = False
        self.bytes_at_snapshot = self.entries_at_snapshot = 0

    @property
    def is_look_due(self) -> bool:
        """Return whether the segment may be full, or a snapshot may be due. The check is cheap enough for
        every entry.
        """
        return (
            self.entries - self.entries_at_snapshot >= _SNAPSHOT_ENTRIES
            or self.bytes - self.bytes_at_snapshot >= _SNAPSHOT_BYTES
            or self.bytes >= self.limits.bytes
            or self.entries >= self.limits.entries
        )

    @property
    def is_full(self) -> bool:
        return self.bytes >= self.limits.bytes or self.entries >= self.limits.entries

    def reason_to_roll(self, age_s: float) -> str | None:
        return self.limits.reason_to_roll(
            self.bytes, self.entries, age_s, has_records=self.has_records
        )

    def is_snapshot_due(self, packed_bytes: int) -> bool:
        """Return whether a snapshot of this size is due."""
        entries = self.entries - self.entries_at_snapshot
        size = self.bytes - self.bytes_at_snapshot
        is_replay_long = entries >= _SNAPSHOT_ENTRIES or size >= _SNAPSHOT_BYTES
        return is_replay_long and size >= _SNAPSHOT_SHARE * packed_bytes

    def on_snapshot(self) -> None:
        self.bytes_at_snapshot, self.entries_at_snapshot = self.bytes, self.entries
