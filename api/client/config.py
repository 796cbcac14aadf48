"""Settings of a client of named logs. Defaults suit a cluster in one place."""

from dataclasses import dataclass
from typing import Final

from rollbook.proto.errors import BadConfig, InvalidRequest

_KIB: Final = 1024
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogClientConfig:
    timeout_s: float = 10.0  # Of a call and of an append, with all their retries.
    connect_s: float = 10.0  # A client that no server has answered yet gives up after so long.
    attempt_s: float = 3.0  # A server that does not answer an append for so long is left.
    retry_pause_s_min: float = 0.02  # Doubled from attempt to attempt,
    retry_pause_s_max: float = 0.25  # up to this. Longer: failovers are noticed later.

    # --- Writer: larger batches cost less for each record, and are waited for longer. --------
    # With its framing, a message of 256 KiB: connections to bookies read that much at a time at both ends, and
    # allocators return larger blocks to the system after each use.
    batch_bytes_max: int = 255 * _KIB
    batch_records_max: int = 10_000
    window_bytes: int = 8 * _MIB  # Not yet acked, in memory.
    window_batches: int = 64
    compresses: bool = False  # With zstd where that pays.

    # --- Reader -------------------------------------------------------------------------------
    heartbeat_s: float = 5.0
    silences_max: int = 3  # Heartbeats that may be missing, or report no progress.

    def timeout_of(self, timeout_s: float | None) -> float:
        """Of one call without an explicit one. Raises `InvalidRequest`."""
        if timeout_s is None:
            return self.timeout_s
        if not timeout_s > 0:
            raise InvalidRequest(f"timeout_s has to be above 0, not {timeout_s}")
        return timeout_s

    def __post_init__(self) -> None:
        for name in (
            *(
                "timeout_s",
                "connect_s",
                "attempt_s",
                "batch_bytes_max",
                "batch_records_max",
                "window_bytes",
            ),
            *("window_batches", "heartbeat_s", "silences_max"),
        ):
            if not getattr(self, name) > 0:
                raise BadConfig(f"{name} has to be above 0")
        if not 0 < self.retry_pause_s_min <= self.retry_pause_s_max:
            raise BadConfig("retry_pause_s_min has to be above 0 and up to retry_pause_s_max")
        if self.batch_bytes_max < _KIB:
            raise BadConfig("batch_bytes_max has to be at least 1 KiB")
