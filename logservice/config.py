"""Settings of a log server. Defaults suit one with some gigabytes of memory.

They come from `[log_server]` and `[log_service]` of a file, `ROLLBOOK_LOG_SERVER_*` and
`ROLLBOOK_LOG_SERVICE_*`, and flags; see `proto/runtime/config.py`.
"""

from dataclasses import dataclass
from typing import Final

from rollbook.logservice.core.producer_memory import BYTES_MAX
from rollbook.proto.errors import BadConfig
from rollbook.proto.quorum import Quorum

_MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class LogServerConfig:
    """Its name and addresses."""

    metadata: str  # The URL of the cluster: zk://host,host/ledgers or sqlite:///path.
    listen: str = "127.0.0.1:7400"  # Of gRPC. Port 0 picks a free one.
    advertise: str = ""  # host or host:port where clients find it; by default where it listens.
    rest: str = ""  # Of HTTP; empty: nowhere. Token and certificate are those of gRPC.
    # Of pages in browsers that may use `rest`, as in http://localhost:3000. `*`: pages of every origin may read.
    rest_origin: tuple[str, ...] = ()
    server_name: str = ""  # The same in each of its lives; by default the advertised host:port.
    token_file: str = ""  # Callers that show this token are let in; empty: everybody.
    access_file: str = ""  # Rights by token or certificate; empty: see `token_file`.
    tls_certificate: str = ""  # A file, with its chain; empty: in the clear.
    tls_key: str = ""  # A file; empty: it is in the certificate's.
    tls_authorities: str = ""  # A file; clients must show a certificate that these have signed.
    # A file; the CAs of other log servers' certificates. Empty: tls_authorities, or those that the
    # machine trusts.
    peer_authorities: str = ""
    # The name in the certificates of other log servers. Empty: the one that each advertises.
    tls_name: str = ""
    # A file; the CAs of bookies' certificates. Empty: bookies are spoken to in the clear.
    bookie_authorities: str = ""
    bookie_certificate: str = ""  # A file; shown to bookies that want one.
    bookie_key: str = ""  # A file; empty: it is in the certificate's.
    insecure: bool = False  # Lets it listen off loopback without TLS and token.
    log_level: str = "info"  # debug, info, warning or error.
    session_timeout_s: float = 10.0  # With the metadata store.
    drain_s: float = 10.0  # The time that a stopping server has to hand over its logs.
    startup_s: float = (
        60.0  # How long it waits for a missing metadata store or cluster at its start.
    )

    def __post_init__(self) -> None:
        if not 0.5 <= self.session_timeout_s <= 600:
            raise BadConfig("session_timeout_s must be 0.5 to 600", settings=("session_timeout_s",))
        if not 0 <= self.startup_s <= 86_400:
            raise BadConfig("startup_s must be 0 to 86400", settings=("startup_s",))
        if not 0 <= self.drain_s <= 600:
            raise BadConfig("drain_s must be 0 to 600", settings=("drain_s",))
        if (self.tls_key or self.tls_authorities) and not self.tls_certificate:
            raise BadConfig(
                "TLS needs tls_certificate",
                settings=("tls_key", "tls_authorities", "tls_certificate"),
            )
        for name in ("tls_name", "peer_authorities"):
            if getattr(self, name) and not self.tls_certificate:
                raise BadConfig(
                    f"{name} would not be used: this server speaks no TLS",
                    settings=(name, "tls_certificate"),
                )
        if self.bookie_certificate and not self.bookie_authorities:
            raise BadConfig(
                "TLS needs bookie_authorities: who signs the bookies' certificates",
                settings=("bookie_certificate", "bookie_authorities"),
            )
        if self.bookie_key and not self.bookie_certificate:
            raise BadConfig(
                "a key is of no use without bookie_certificate",
                settings=("bookie_key", "bookie_certificate"),
            )


@dataclass(frozen=True)
class LogServiceConfig:
    """How it serves."""

    # --- Ownership ----------------------------------------------------------------------------
    lease_s: float = 3.0  # A server that has been silent for this long is no longer suggested.
    opens_max: int = (
        256  # Logs opened at a time. More: they share round trips and syncs, and memory.
    )
    open_deadline_s: float = 30.0
    hand_overs_max: int = 16  # Logs that are handed over at a time.
    rebalance_after_s: float = 10.0  # Longer: servers that come and go quickly move no logs.
    idle_s_max: float = 600.0  # A log that has not been used for this long is released.

    # --- What expires -------------------------------------------------------------------------
    # The interval between two sweeps over all logs: retention, deleted logs.
    sweep_interval_s: float = 60.0
    orphans_interval_s: float = 21_600.0  # Between two walks over all ledgers.

    # --- Logs that are made without a configuration -------------------------------------------
    ensemble: int = 3  # Each entry is sent to `write` of this many bookies,
    write: int = 3
    ack: int = 2  # and acknowledged when this many have it on disk.

    # --- Memory -------------------------------------------------------------------------------
    tail_memory_bytes: int = 256 * _MIB  # The newest blocks of all logs together, for readers.
    # What logs remember of their producers, all of them together. Smaller: on a server with many
    # busy logs the largest ones recognise retries for a shorter time than configured.
    producer_memory_bytes: int = BYTES_MAX
    stream_bytes_max: int = 16 * _MIB  # In flight on one append stream; beyond this it is not read.
    readers_max: int = 1000  # Each of them may hold a few megabytes for a moment.

    # --- Readers ------------------------------------------------------------------------------
    heartbeat_s: float = 5.0  # A reader without other events reports its position this often.

    def __post_init__(self) -> None:
        if not self.ensemble >= self.write >= self.ack >= 1:
            raise BadConfig(
                "ensemble >= write >= ack >= 1 does not hold", settings=("ensemble", "write", "ack")
            )
        for name in (
            *("lease_s", "opens_max", "open_deadline_s", "hand_overs_max", "rebalance_after_s"),
            *("tail_memory_bytes", "stream_bytes_max", "readers_max", "heartbeat_s", "idle_s_max"),
            *("sweep_interval_s", "orphans_interval_s", "producer_memory_bytes"),
        ):
            if getattr(self, name) <= 0:
                raise BadConfig(f"{name} has to be above 0", settings=(name,))

    @property
    def quorum(self) -> Quorum:
        return Quorum(self.ensemble, self.write, self.ack)
