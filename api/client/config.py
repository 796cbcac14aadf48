"""Settings of a client of named logs. The defaults suit a cluster at one site."""

from dataclasses import dataclass
from typing import Final

from rollbook.proto.errors import BadConfig, InvalidRequest

_KIB: Final = 1024
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogClientConfig:
    # Seconds for a call or an append, including all its retries. Longer: calls survive outages.
    # Shorter: outages are reported sooner.
    timeout_s: float = 10.0
    # Seconds after which a client that no server has answered yet gives up. Longer: servers may
    # start later than the client. Shorter: a wrong address is reported sooner.
    connect_s: float = 10.0
    # Seconds after which the client leaves a server that does not answer an append. Longer: a busy
    # server keeps its clients. Shorter: a dead server delays appends less.
    attempt_s: float = 3.0
    # Seconds before the first retry; each further pause is twice as long. Longer: less load on
    # servers that fail. Shorter: a short failure delays a call less.
    retry_pause_s_min: float = 0.02
    # Seconds up to which the pause between retries grows. Longer: less load on servers that fail.
    # Shorter: a failover is noticed sooner.
    retry_pause_s_max: float = 0.25

    # --- Writer: in larger batches each record costs less, but waits longer. -----------------
    # Bytes of a batch of records. Larger: less cost for each record, later acks. Smaller: more
    # cost, earlier acks. With its framing, the default fills a message of 256 KiB: connections to
    # bookies read that much at a time at both ends, and allocators return larger blocks to the
    # system after each use.
    batch_bytes_max: int = 255 * _KIB
    # Records of a batch. Larger: less cost for each record, later acks. Smaller: more cost, earlier
    # acks.
    batch_records_max: int = 10_000
    # Bytes in memory that are not acked yet. Larger: more throughput on slow networks. Smaller:
    # less memory; a program has to wait sooner.
    window_bytes: int = 8 * _MIB
    # Batches that are not acked yet. Larger: more throughput for small batches. Smaller: fewer
    # batches have an unknown outcome when a server dies.
    window_batches: int = 64
    # Whether to compress batches with zstd if that makes them smaller: fewer bytes; more CPU time
    # here and at each reader.
    compresses: bool = False

    # --- Reader -------------------------------------------------------------------------------
    # Seconds without an event after which the server reports a reader's position. Longer:
    # less traffic. Shorter: a dead server is noticed sooner.
    heartbeat_s: float = 5.0
    # Heartbeats that may be missing, or report no progress, before a reader asks another server.
    # Larger: readers survive pauses. Smaller: a dead server is noticed sooner.
    silences_max: int = 3

    def timeout_of(self, timeout_s: float | None) -> float:
        """Returns the time-out of a call. Raises `InvalidRequest`."""
        if timeout_s is None:
            return self.timeout_s
        if not timeout_s > 0:
            raise InvalidRequest(f"timeout_s has to be above 0, not {timeout_s}")
        return timeout_s

    def __post_init__(self) -> None:
        for name in (
            "timeout_s",
            "connect_s",
            "attempt_s",
            "batch_bytes_max",
            "batch_records_max",
            "window_bytes",
            "window_batches",
            "heartbeat_s",
            "silences_max",
        ):
            if not getattr(self, name) > 0:
                raise BadConfig(f"{name} has to be above 0")
        if not 0 < self.retry_pause_s_min <= self.retry_pause_s_max:
            raise BadConfig("retry_pause_s_min has to be above 0 and up to retry_pause_s_max")
        if self.batch_bytes_max < _KIB:
            raise BadConfig("batch_bytes_max has to be at least 1 KiB")
