"""Settings of repair."""

from dataclasses import dataclass
from typing import Final

from rollbook.proto.errors import BadConfig

_MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class HealConfig:
    # Read from others and written; more leaves them less for users.
    bytes_per_s_max: int = 64 * _MIB
    ledgers_at_once: int = 4  # Each with a window of its own in memory.
    # After so much it is noted what is done: a later run goes on there.
    window_bytes: int = 32 * _MIB

    def __post_init__(self) -> None:
        for name in ("bytes_per_s_max", "ledgers_at_once", "window_bytes"):
            if getattr(self, name) < 1:
                raise BadConfig(f"{name} has to be at least 1")


@dataclass(frozen=True)
class AuditConfig:
    # Used where nobody has set it in the cluster. Smaller: copies are made sooner, and more bookies
    # that only restart are copied for nothing.
    lost_bookie_delay_s: int = 300
    # All metadata is read again, and what names a lost bookie is marked. 0: never.
    bookie_check_s: int = 24 * 3600
    marks_at_once: int = 32  # More: a lost bookie's ledgers are marked sooner, at the store's cost.

    def __post_init__(self) -> None:
        for name, least in (
            ("lost_bookie_delay_s", 0),
            ("bookie_check_s", 0),
            ("marks_at_once", 1),
        ):
            if getattr(self, name) < least:
                raise BadConfig(f"{name} has to be at least {least}", settings=[name])
