"""Settings of the log service. Defaults suit a server with some gigabytes of memory.

They are given in code, or by `proto/runtime/config.py` from `[log_server]` and
`ROLLBOOK_LOG_SERVER_*`.
"""

from dataclasses import dataclass
from typing import Final

from rollbook.proto.errors import BadConfig

_MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class LogServerConfig:
    # --- Ownership ----------------------------------------------------------------------------
    lease_s: float = 3.0  # A server that is silent for so long is suggested no more.
    opens_max: int = 64  # Logs that are opened at a time: more recover sooner, and fight for CPU.
    open_deadline_s: float = 30.0
    hand_overs_max: int = 8  # Logs that are handed over at a time.
    rebalance_after_s: float = 10.0  # Servers that come and go quickly move no logs.

    # --- Readers ------------------------------------------------------------------------------
    heartbeat_s: float = 5.0  # A reader that has nothing else to say tells where it stands.
    read_bytes_max: int = _MIB  # Of one event, unless a single block is larger.

    def __post_init__(self) -> None:
        for name in ("lease_s", "opens_max", "open_deadline_s", "hand_overs_max", "heartbeat_s"):
            if getattr(self, name) <= 0:
                raise BadConfig(f"{name} has to be above 0")
        if self.read_bytes_max <= 0:
            raise BadConfig("read_bytes_max has to be above 0")
