"""Settings of repair."""

from dataclasses import dataclass
from typing import Final

from rollbook.proto.errors import BadConfig

_MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class HealConfig:
    # Read from others and written; more leaves them less for users.
    bytes_per_s_max: int = 64 * _MIB
    ledgers_at_once: int = 4  # Each with its own window in memory.
    # Progress is recorded after this many bytes, and a later run continues there.
    window_bytes: int = 32 * _MIB
    # Of the steward: the interval between queries of a bookie's doubts. Smaller: healing begins
    # sooner, bookies are queried more often.
    look_again_s: float = 30.0
    # Of the steward: the time that writers have to leave a bookie that doubts everything, before
    # their ledgers are closed.
    grace_s: float = 30.0
    # Of the steward: after an incomplete healing; it doubles with each, up to ten minutes.
    retry_pause_s: float = 5.0

    def __post_init__(self) -> None:
        _require_at_least(self, 1, "bytes_per_s_max", "ledgers_at_once", "window_bytes")
        _require_at_least(self, 0, "look_again_s", "grace_s", "retry_pause_s")


@dataclass(frozen=True)
class WorkerConfig:
    """Re-replication of ledgers that are marked or drained."""

    # Read from others and written, of all ledgers together, unless a rate is set in the cluster.
    # Larger: copies are whole sooner, users wait longer. 0: unlimited.
    bytes_per_s_max: int = 64 * _MIB
    # Entries on their way. Larger: more ledgers at a time; smaller: less memory.
    bytes_in_memory_max: int = 64 * _MIB
    ledgers_at_once: int = 32
    # Of one ledger, in one request. Smaller: less memory, and more round trips.
    entries_at_once: int = 10_000
    # A ledger whose open end names a lost bookie is closed after this time, unless its writer
    # leaves the bookie first.
    grace_s: float = 30.0
    # How often all tasks are checked without an event.
    look_again_s: float = 60.0
    retry_pause_s: float = 5.0  # After a first failure; it doubles with each, up to ten minutes.
    locked_pause_s: float = 5.0  # Before a ledger locked by another worker is checked again.
    settle_s: float = 0.1  # Tasks come in large numbers: they are handled together.

    def __post_init__(self) -> None:
        _require_at_least(self, 1, "bytes_in_memory_max", "ledgers_at_once", "entries_at_once")
        _require_at_least(self, 0, "bytes_per_s_max", "grace_s", "retry_pause_s")


@dataclass(frozen=True)
class AuditConfig:
    # Used unless one is set in the cluster. Smaller: copies are made sooner, and more bookies that
    # only restart are copied for nothing.
    lost_bookie_delay_s: int = 300
    # All metadata is read again, and ledgers that name a lost bookie are marked. 0: never.
    bookie_check_s: int = 24 * 3600
    # Ledgers that were marked this long ago and are still short of copies are reported. 0: never.
    overdue_s: int = 0
    # Racks of all closed fragments are checked, if racks are known. 0: never.
    placement_check_s: int = 24 * 3600
    # Each bookie lists the entries of each closed ledger that it should have; missing ones are
    # marked. 0: never.
    copies_check_s: int = 24 * 3600
    # The first and last entry of each copy are read, and a share of the others; bad ones are
    # marked. 0: never.
    ledgers_check_s: int = 7 * 24 * 3600
    # That share. Larger: damage is found sooner, and more is read.
    ledgers_check_percent: float = 1.0
    # Ledgers that each check looks at. Larger: it is completed sooner, at the cost of store and bookies.
    check_ledgers_per_s_max: int = 200
    # Read by the check of ledgers. Larger: it is completed sooner, and users wait longer.
    check_bytes_per_s_max: int = 16 * _MIB
    marks_at_once: int = (
        128  # On their way. More: a lost bookie's ledgers are marked sooner, at the store's cost.
    )

    def __post_init__(self) -> None:
        _require_at_least(
            *(self, 0, "lost_bookie_delay_s", "bookie_check_s", "placement_check_s", "overdue_s"),
            *("copies_check_s", "ledgers_check_s"),
        )
        _require_at_least(
            *(self, 1, "marks_at_once", "check_ledgers_per_s_max", "check_bytes_per_s_max")
        )
        if not 0 <= self.ledgers_check_percent <= 100:
            raise BadConfig(
                "ledgers_check_percent has to be 0 to 100", settings=["ledgers_check_percent"]
            )


@dataclass(frozen=True)
class StewardConfig:
    # Of ledgers that wait to be copied; more are published as these are done.
    tasks_max: int = 10_000
    # Between two looks at state without events. Smaller: a drain ends sooner, at the store's cost.
    look_again_s: float = 5.0

    def __post_init__(self) -> None:
        _require_at_least(self, 1, "tasks_max")


def _require_at_least(config: object, least: int, *names: str) -> None:
    for name in names:
        if getattr(config, name) < least:
            raise BadConfig(f"{name} has to be at least {least}", settings=[name])
