"""Settings of a log server. The defaults suit a server with some gigabytes of memory.

The settings are read from `[log_server]` and `[log_service]` of a file, `ROLLBOOK_LOG_SERVER_*` and
`ROLLBOOK_LOG_SERVICE_*`, and flags; see `proto/runtime/config.py`.
"""

from dataclasses import dataclass
from typing import Final

from rollbook.logservice.core.producer_memory_budget import BYTES_MAX
from rollbook.proto.errors import BadConfig
from rollbook.proto.quorum import Quorum

_MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class LogServerConfig:
    """The name and the addresses of a log server."""

    metadata: str  # The URL of the cluster: zk://host,host/ledgers or sqlite:///path.
    listen: str = "127.0.0.1:7400"  # The gRPC address. Port 0: any free port.
    advertise: str = ""  # host or host:port that clients connect to; empty: the listen address.
    rest: str = ""  # The HTTP address; empty: no HTTP. It uses the token and certificate of gRPC.
    # Origins whose browser pages may use `rest`, such as http://localhost:3000. `*`: pages of every
    # origin may send GET and HEAD requests, and change nothing; allowed only on servers that require no token.
    rest_origin: tuple[str, ...] = ()
    server_name: str = ""  # Has to stay the same across restarts; empty: the advertised host:port.
    token_file: str = ""  # A file with a token that callers must present. Empty: no token.
    access_file: str = ""  # A file with rights by token or certificate; empty: see `token_file`.
    tls_certificate: str = ""  # A file with the certificate and its chain; empty: no TLS.
    tls_key: str = ""  # A file with the key; empty: the certificate's file has it.
    tls_authorities: str = ""  # A file with the CAs of the certificates that clients must present.
    # A file with the CAs of other log servers' certificates. Empty: tls_authorities, or the CAs that
    # the machine trusts.
    peer_authorities: str = ""
    # The name in the certificates of other log servers. Empty: the host that each one advertises.
    tls_name: str = ""
    # A file with the CAs of the bookies' certificates. Empty: connections to bookies have no TLS.
    bookie_authorities: str = ""
    bookie_certificate: str = ""  # A file with the certificate for bookies that require one.
    bookie_key: str = ""  # A file with the key; empty: the certificate's file has it.
    insecure: bool = False  # True: the server may listen beyond loopback without TLS and a token.
    log_level: str = "info"  # debug, info, warning or error.
    # Seconds without contact after which the metadata store ends the server's session. Longer: the
    # server survives longer outages, and its death is noticed later. Shorter: its death is noticed
    # sooner, and a mere pause is sooner taken for death.
    session_timeout_s: float = 10.0
    # Seconds that a stopping server has to hand over its logs. Longer: more logs move without a
    # failed append. Shorter: a restart is quicker.
    drain_s: float = 10.0
    # Seconds to wait at the start for a metadata store or cluster that is unavailable. Longer:
    # machines may start in any order. Shorter: a wrong address is reported sooner.
    startup_s: float = 60.0

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
                    f"{name} would not be used: this server does not use TLS",
                    settings=(name, "tls_certificate"),
                )
        if self.bookie_certificate and not self.bookie_authorities:
            raise BadConfig(
                "TLS needs bookie_authorities, which sign the bookies' certificates",
                settings=("bookie_certificate", "bookie_authorities"),
            )
        if self.bookie_key and not self.bookie_certificate:
            raise BadConfig(
                "bookie_key would not be used without bookie_certificate",
                settings=("bookie_key", "bookie_certificate"),
            )


@dataclass(frozen=True)
class LogServiceConfig:
    """The behaviour of a log server: ownership, expiry, defaults of logs, memory."""

    # --- Ownership ----------------------------------------------------------------------------
    # Seconds of silence after which a server is no longer suggested as an owner. Longer: short pauses
    # of a server do not move its logs. Shorter: the logs of a dead server are served again sooner.
    lease_s: float = 3.0
    # The most logs that are opened concurrently. Larger: openings share more round trips and syncs, and
    # take more memory. Smaller: a take-over of many logs takes longer.
    opens_max: int = 256
    # Seconds for opening one log. Longer: a log opens even while bookies are slow. Shorter: callers
    # learn sooner that it cannot be opened.
    open_deadline_s: float = 30.0
    # The most logs that are handed over concurrently. Larger: a drain is quicker. Smaller: the other
    # servers open fewer logs at the same time, and appends wait less.
    hand_overs_max: int = 16
    # Seconds without a change of servers after which logs move to their suggested servers. Longer:
    # servers that come and go do not make logs move. Shorter: a new server gets its share sooner.
    rebalance_after_s: float = 10.0
    # Seconds without a request after which a log is released. Longer: its next append is quicker.
    # Shorter: idle logs take memory and write to bookies for less time.
    idle_s_max: float = 600.0

    # --- What expires -------------------------------------------------------------------------
    # Seconds between two sweeps over all logs for retention and deleted logs. Longer: less load on
    # the metadata store. Shorter: space comes back sooner.
    sweep_interval_s: float = 60.0
    # Seconds between two searches for ledgers that no log lists. Longer: less load on the metadata
    # store. Shorter: space comes back sooner.
    orphans_interval_s: float = 21_600.0

    # --- Logs that are created without a configuration ----------------------------------------
    # Bookies that share a segment's entries. Larger: load is spread over more bookies. Smaller:
    # fewer bookies are needed.
    ensemble: int = 3
    # Copies of each entry. Larger: entries survive the loss of more bookies, and more bytes are
    # written. Smaller: the reverse.
    write: int = 3
    # Copies that are on disk when an append is acknowledged. Larger: acknowledged entries survive
    # more losses at the same time. Smaller: acks wait for fewer slow bookies.
    ack: int = 2

    # --- Memory -------------------------------------------------------------------------------
    # The most bytes of newest blocks, of all logs together, that are kept in memory for readers.
    # Larger: readers that are further behind do not need bookies. Smaller: less memory.
    tail_memory_bytes: int = 256 * _MIB
    # The most bytes that all logs together remember of their producers. Larger: retries are recognised
    # for longer. Smaller: on a server with many busy logs, the largest logs recognise retries for a
    # shorter time than configured.
    producer_memory_bytes: int = BYTES_MAX
    # The most bytes in flight on one append stream; at this limit the stream is not read.
    # Larger: more throughput on slow networks. Smaller: less memory for each client.
    stream_bytes_max: int = 16 * _MIB
    # The most open readers; each may hold a few megabytes for a moment. Larger: more readers. Smaller:
    # less memory when all of them lag.
    readers_max: int = 1000

    # --- Readers ------------------------------------------------------------------------------
    # Seconds after which a reader without other events reports its position. Longer: less traffic
    # of idle readers. Shorter: clients notice a dead server sooner.
    heartbeat_s: float = 5.0

    def __post_init__(self) -> None:
        if not self.ensemble >= self.write >= self.ack >= 1:
            raise BadConfig(
                "ensemble >= write >= ack >= 1 must hold", settings=("ensemble", "write", "ack")
            )
        for name in (
            "lease_s",
            "opens_max",
            "open_deadline_s",
            "hand_overs_max",
            "rebalance_after_s",
            "tail_memory_bytes",
            "stream_bytes_max",
            "readers_max",
            "heartbeat_s",
            "idle_s_max",
            "sweep_interval_s",
            "orphans_interval_s",
            "producer_memory_bytes",
        ):
            if getattr(self, name) <= 0:
                raise BadConfig(f"{name} has to be above 0", settings=(name,))

    @property
    def quorum(self) -> Quorum:
        return Quorum(self.ensemble, self.write, self.ack)
