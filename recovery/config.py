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
