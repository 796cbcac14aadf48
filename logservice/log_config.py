"""The settings of a log, which are chosen when the log is created, and may be changed later.

Clients import this module, so it imports nothing heavy.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Final, Self

from rollbook.proto.errors import BadConfig, InvalidRequest
from rollbook.proto.quorum import Quorum

KIB: Final = 1024
MIB: Final = 1024 * KIB
DEFAULT_QUORUM: Final = Quorum(ensemble=3, write=3, ack=2)
# A batch is one entry, which has at most 5 MiB with all its frames.
BATCH_BYTES_CEILING: Final = 5 * MIB - 64 * KIB
BATCH_RECORDS_CEILING: Final = 100_000
_SECONDS_MAX: Final = 100 * 365 * 86_400
DELETE_GRACE_MS_MAX: Final = _SECONDS_MAX * 1000
_BYTES_MAX: Final = 2**62
_LABELS_MAX: Final = 64
_LABEL_CHARACTERS_MAX: Final = 255
_DESCRIPTION_CHARACTERS_MAX: Final = 1024


class WriterMode(Enum):
    OPEN = "open"  # Everybody may append.
    EXCLUSIVE = "exclusive"  # Only the holder of the newest writer epoch may append.


@dataclass(frozen=True, slots=True)
class ConfigValues:
    """Values of configuration fields; a request names the fields that count. Each value is checked alone."""

    # The text below a field is its description in the reference.
    quorum: Quorum = DEFAULT_QUORUM
    """How many bookies keep each record, and how many confirm it; a change applies from the next segment on."""
    roll_bytes: int = 256 * MIB
    """Bytes at which a segment ends. Larger: fewer ledgers. Smaller: truncation and retention free space in
    smaller steps."""
    roll_entries: int = 100_000
    """Entries at which a segment ends; an entry holds one batch of records. Larger: fewer ledgers. Smaller:
    truncation and retention free space in smaller steps."""
    roll_age_s: int = 3600
    """Seconds after which a segment ends, even in an idle log, since only a closed ledger can expire. Longer:
    fewer ledgers. Shorter: records expire closer to their age."""
    retention_age_s: int | None = None
    """Seconds after which a segment is deleted, counted from its youngest record, unless a protected cursor needs
    it. Longer: records can be read for longer. Shorter: less space. None: no segment is deleted because of its age."""
    retention_bytes: int | None = None
    """Bytes beyond which the oldest segments are deleted, unless a protected cursor needs them. Larger: more
    records can be read. Smaller: less space. None: no segment is deleted because of the log's size."""
    writer_mode: WriterMode = WriterMode.OPEN
    """OPEN: everybody may append. EXCLUSIVE: only the holder of the newest writer epoch may append."""
    dedupe_batches: int = 64
    """How many of each producer's latest batches the log recognises when they are sent again. Larger: producers may
    have more batches in flight, and the owner needs more memory. Smaller: the reverse."""
    dedupe_age_s: int = 86_400
    """Seconds without a batch after which the log forgets a producer, and no longer recognises its retries. Longer:
    later retries are recognised, and the owner needs more memory. Shorter: the reverse."""
    record_bytes_max: int = MIB
    """Bytes of the largest value, key or header of a record. Larger: readers need more memory for one record.
    Smaller: large records are refused."""
    batch_bytes_max: int = 4 * MIB
    """Bytes of the largest batch, unpacked, with keys, headers and offsets. Larger: lower cost per record, more
    memory. Smaller: large batches are refused."""
    batch_records_max: int = 10_000
    """Records of the largest batch. Larger: lower cost per record, later acks. Smaller: large batches are
    refused."""
    tail_cache_bytes: int = 128 * MIB
    """The most bytes of the log's newest blocks that its owner keeps in memory. Larger: readers that are further
    behind are served from memory, at twice the speed. Smaller: less memory. A server's `tail_memory_bytes`
    bounds the total of all its logs."""
    delete_grace_s: int = 86_400
    """Seconds that a deleted log keeps its ledgers. Longer: a mistake can be undone for longer. Shorter: space
    comes back sooner."""
    degraded_segments: bool = True
    """True: while fewer bookies than the ensemble take new ledgers, a new segment may have fewer bookies, down
    to the ack quorum. False: during that time a new log, or a log that gets a new owner, takes no appends."""
    labels: tuple[tuple[str, str], ...] = ()
    """Pairs of name and value, for grouping logs. No two pairs have the same name."""
    description: str = ""
    """A text for people; it has no effect."""

    def __post_init__(self) -> None:
        if not isinstance(self.writer_mode, WriterMode):
            wanted = " or ".join(f"{each}" for each in WriterMode)
            raise BadConfig(f"writer_mode {self.writer_mode!r} is not a WriterMode: pass {wanted}")
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise BadConfig(f"{name} {value} is outside {low} … {high}")
        if len(self.labels) > _LABELS_MAX or len(dict(self.labels)) != len(self.labels):
            raise BadConfig(f"a log has at most {_LABELS_MAX} labels, with distinct names")
        for text in (text for label in self.labels for text in label):
            if not text.isprintable() or len(text) > _LABEL_CHARACTERS_MAX:
                raise BadConfig(
                    f"label {text[:80]!r} is not up to {_LABEL_CHARACTERS_MAX} printable characters"
                )
        if len(self.description) > _DESCRIPTION_CHARACTERS_MAX:
            raise BadConfig(f"a description has at most {_DESCRIPTION_CHARACTERS_MAX} characters")


@dataclass(frozen=True, slots=True)
class LogConfig(ConfigValues):
    """The complete configuration of a log. If a new log's configuration does not name a quorum, the server's
    default applies."""

    def __post_init__(self) -> None:
        # Names the class, since `super()` would mean the class that `slots=True` has replaced.
        ConfigValues.__post_init__(self)
        if self.record_bytes_max > self.batch_bytes_max:
            raise BadConfig(
                "record_bytes_max is above batch_bytes_max: a record must fit in a batch"
            )

    def with_values(self, values: ConfigValues, names: Iterable[str]) -> Self:
        """The configuration with the named fields of `values`; the result is checked as a whole."""
        known = {field.name for field in fields(self)}
        changes = {}
        for name in names:
            if name not in known:
                raise InvalidRequest(f"a log's configuration has no {name[:80]!r}")
            changes[name] = getattr(values, name)
        return replace(self, **changes)


CONFIG_FIELDS: Final = tuple(field.name for field in fields(LogConfig))

_BOUNDS: Final = (
    ("roll_bytes", 64 * KIB, _BYTES_MAX),
    ("roll_entries", 16, 2**31),
    ("roll_age_s", 1, _SECONDS_MAX),
    ("retention_age_s", 1, _SECONDS_MAX),
    ("retention_bytes", 0, _BYTES_MAX),
    ("dedupe_batches", 1, 1024),
    ("dedupe_age_s", 1, _SECONDS_MAX),
    ("record_bytes_max", 1, BATCH_BYTES_CEILING),
    ("batch_bytes_max", 1, BATCH_BYTES_CEILING),
    ("batch_records_max", 1, BATCH_RECORDS_CEILING),
    ("tail_cache_bytes", 0, _BYTES_MAX),
    ("delete_grace_s", 0, _SECONDS_MAX),
)
