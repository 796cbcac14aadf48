"""Settings of repair."""

from dataclasses import dataclass
from typing import Final

from rollbook.proto.errors import BadConfig

_MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class HealConfig:
    # Bytes per second that are read from other bookies and written. Larger: bookies are whole sooner, users
    # wait longer. Smaller: bookies are whole later, users wait less.
    bytes_per_s_max: int = 64 * _MIB
    # Ledgers that are healed at a time, each with its own window in memory. Larger: healing is quicker.
    # Smaller: less memory.
    ledgers_at_once: int = 4
    # Bytes after which progress is recorded. A later run continues at the last record. Larger: fewer
    # requests, more memory. Smaller: less work is repeated after an interruption.
    window_bytes: int = 32 * _MIB
    # Seconds between two queries in which the steward asks a bookie for its possible losses. Longer: bookies
    # are asked less often. Shorter: healing begins sooner.
    look_again_s: float = 30.0
    # Seconds that the steward gives writers to leave a bookie that may have lost anything, before
    # their ledgers are closed. Longer: slow writers are not interrupted. Shorter: the bookie
    # serves again sooner.
    grace_s: float = 30.0
    # Seconds before the steward repeats an incomplete healing. The pause is doubled with each
    # attempt, up to ten minutes. Longer: fewer attempts that fail. Shorter: the healing is complete
    # sooner.
    retry_pause_s: float = 5.0

    def __post_init__(self) -> None:
        _require_at_least(self, 1, "bytes_per_s_max", "ledgers_at_once", "window_bytes")
        _require_at_least(self, 0, "look_again_s", "grace_s", "retry_pause_s")


@dataclass(frozen=True)
class WorkerConfig:
    """Re-replication of ledgers that are marked or drained."""

    # Bytes per second that a worker copies, for all ledgers together, unless a rate is set in the cluster.
    # Larger: copies are whole sooner, users wait longer. Smaller: copies are whole later, users wait less. 0:
    # unlimited.
    bytes_per_s_max: int = 64 * _MIB
    # Bytes of entries in memory while they are copied. Larger: more ledgers are repaired at a time. Smaller:
    # less memory.
    bytes_in_memory_max: int = 64 * _MIB
    # Ledgers that are repaired at a time, within `bytes_in_memory_max`. Larger: many small ledgers
    # are whole sooner. Smaller: less load on the metadata store.
    ledgers_at_once: int = 32
    # Entries of one ledger that one request names. Larger: fewer round trips. Smaller: less memory.
    entries_at_once: int = 10_000
    # Seconds after which a ledger whose open end names a lost bookie is closed, unless its writer
    # leaves the bookie first. Longer: a slow writer is not fenced. Shorter: the ledger is whole
    # sooner.
    grace_s: float = 30.0
    # Seconds between two checks of all tasks without an event. Longer: less load on the metadata
    # store. Shorter: a lost event delays a repair less.
    look_again_s: float = 60.0
    # Seconds before a failed repair is repeated. The pause is doubled with each failure, up to ten
    # minutes. Longer: fewer attempts that fail. Shorter: the ledger is repaired sooner once that is
    # possible.
    retry_pause_s: float = 5.0
    # Seconds before a ledger that another worker has locked is checked again. Longer: less load on
    # the metadata store. Shorter: the ledger is taken sooner if that worker dies.
    locked_pause_s: float = 5.0
    # Seconds between a new mark and the look at all marks, since marks are made in large numbers.
    # Longer: more of them are handled together. Shorter: a single mark is handled sooner.
    settle_s: float = 0.1

    def __post_init__(self) -> None:
        _require_at_least(self, 1, "bytes_in_memory_max", "ledgers_at_once", "entries_at_once")
        _require_at_least(self, 0, "bytes_per_s_max", "grace_s", "retry_pause_s")


@dataclass(frozen=True)
class AuditConfig:
    # Seconds after which an absent bookie is lost, unless a delay is set in the cluster. Longer: bookies that
    # only restart cause no copying. Shorter: copies are made sooner.
    lost_bookie_delay_s: int = 300
    # Seconds between two walks over all metadata for ledgers that name a lost bookie. Longer: less
    # load on the metadata store. Shorter: a mark that was missed is made sooner. 0: never.
    bookie_check_s: int = 24 * 3600
    # Seconds after which a marked ledger that is still short of copies is reported. Longer: fewer
    # reports. Shorter: a repair without progress is noticed sooner. 0: never.
    overdue_s: int = 0
    # Seconds between two checks that copies are in different racks, where racks are known. Longer:
    # less load on the metadata store. Shorter: bad placement is found sooner. 0: never.
    placement_check_s: int = 24 * 3600
    # Seconds between two checks that each bookie lists the entries of closed ledgers that it should
    # have. Longer: less load on bookies. Shorter: missing copies are found sooner. 0: never.
    copies_check_s: int = 24 * 3600
    # Seconds between two checks that read the first and last entry of each copy, and a share of
    # the other entries. Longer: less is read. Shorter: damage is found sooner. 0: never.
    ledgers_check_s: int = 7 * 24 * 3600
    # Percent of entries that the check of ledgers reads besides the first and last of each copy.
    # Larger: damage is found sooner. Smaller: less is read.
    ledgers_check_percent: float = 1.0
    # Ledgers per second that each check looks at. Larger: the check is complete sooner. Smaller:
    # less load on the metadata store and the bookies.
    check_ledgers_per_s_max: int = 200
    # Bytes per second that the check of ledgers reads. Larger: the check is complete sooner.
    # Smaller: users wait less.
    check_bytes_per_s_max: int = 16 * _MIB
    # Marks that are written concurrently. Larger: the ledgers of a lost bookie are marked sooner.
    # Smaller: less load on the metadata store.
    marks_at_once: int = 128

    def __post_init__(self) -> None:
        _require_at_least(
            self,
            0,
            "lost_bookie_delay_s",
            "bookie_check_s",
            "placement_check_s",
            "overdue_s",
            "copies_check_s",
            "ledgers_check_s",
        )
        _require_at_least(
            self, 1, "marks_at_once", "check_ledgers_per_s_max", "check_bytes_per_s_max"
        )
        if not 0 <= self.ledgers_check_percent <= 100:
            raise BadConfig(
                "ledgers_check_percent has to be 0 to 100", settings=["ledgers_check_percent"]
            )


@dataclass(frozen=True)
class StewardConfig:
    # Ledgers of drains that are published as tasks at a time; more are published as these are
    # done. Larger: many workers are kept busy. Smaller: fewer nodes in the metadata store.
    tasks_max: int = 10_000
    # Seconds between two looks at state that no event reports. Longer: less load on the metadata
    # store. Shorter: a drain ends sooner.
    look_again_s: float = 5.0

    def __post_init__(self) -> None:
        _require_at_least(self, 1, "tasks_max")


def _require_at_least(config: object, least: int, *names: str) -> None:
    for name in names:
        if getattr(config, name) < least:
            raise BadConfig(f"{name} has to be at least {least}", settings=[name])
