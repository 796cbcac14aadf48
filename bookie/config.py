"""The settings of a bookie: who and where it is, its storage, how it serves."""

from dataclasses import dataclass, replace

from rollbook.bookie.core.entry_log_format import FILE_BYTES_MAX
from rollbook.proto.errors import BadConfig
from rollbook.proto.wire.frames import FRAME_BYTES_MAX

MIB = 1024 * 1024
JOURNAL = "journal"
LEDGERS = "ledgers"
_QUEUED_BYTES_MAX = 64 * MIB
_USAGE_MAX = 0.999  # Beyond this, there is no room for the work that makes room.


@dataclass(frozen=True, slots=True)
class BookieConfig:
    metadata: str  # The URL of the cluster: zk://host,host/ledgers or sqlite:///path.
    bookie_id: str = ""  # For ever. By default the advertised host:port, so that must stay, too.
    listen: str = "127.0.0.1:3181"  # Port 0 picks a free one.
    advertise: str = ""  # host or host:port where clients find it; by default where it listens.
    tls_listen: str = ""  # Its TLS port; empty: none.
    tls_certificate: str = ""  # A file, with its chain.
    tls_key: str = ""  # A file; empty: it is in the certificate's.
    tls_authorities: str = ""  # A file; clients must show a certificate that these have signed.
    http: str = ""  # The address of its HTTP for operators; empty: none.
    http_token_file: str = ""  # Callers that show this token are let in.
    access_file: str = ""  # Rights there: `rollbook access`.
    http_tls: bool = False  # It speaks TLS there, with the certificate above.
    insecure: bool = False  # Lets it listen off loopback without TLS or token.
    with_recovery: bool = False  # A recovery server runs in its process.
    read_only: bool = False  # It accepts no new entries, whatever the state of its disks.
    log_level: str = "info"  # debug, info, warning or error.
    # Shorter: others notice its death sooner, and mistake pauses for it.
    session_timeout_s: float = 10.0
    drain_s: float = 2.0  # The time that clients have to get their last responses when it stops.
    startup_s: float = (
        60.0  # How long it waits for a missing metadata store or cluster at its start.
    )

    def __post_init__(self) -> None:
        if not 0.5 <= self.session_timeout_s <= 600:
            raise BadConfig("session_timeout_s must be 0.5 to 600", settings=("session_timeout_s",))
        if not 0 <= self.startup_s <= 86_400:
            raise BadConfig("startup_s must be 0 to 86400", settings=("startup_s",))
        if not 0 <= self.drain_s <= 60:
            raise BadConfig("drain_s must be 0 to 60", settings=("drain_s",))
        if (self.tls_listen or self.http_tls or self.tls_key) and not self.tls_certificate:
            raise BadConfig(
                "TLS needs tls_certificate",
                settings=("tls_listen", "http_tls", "tls_key", "tls_certificate"),
            )


@dataclass(frozen=True, slots=True)
class StorageConfig:
    # If one directory is both, it has a folder for each kind, which these name once it is made.
    journal_dir: str
    ledger_dirs: tuple[str, ...]  # The first and the last of them keep the catalog's two copies.
    journal_file_bytes: int = 128 * MIB  # Larger: fewer, longer checkpoints, and a longer replay.
    # Of the file being written, in memory; when it is full, the file ends.
    index_bytes_max: int = 96 * MIB
    cache_bytes: int = 192 * MIB  # Records that were written or read lately.
    # Adds waiting for the journal; above, "busy" is the answer. At most half a journal file.
    queued_bytes_max: int = _QUEUED_BYTES_MAX
    waiting_files_max: int = 4  # Filled journal files not yet indexed; above, no new adds.
    idle_after_ms: int = 100  # Silence after which the journal records what is durable.
    # Chunks in a row from one client after which its adds are written at once, without waiting for others.
    # Lower: a lone writer gets the fast path sooner; others wait behind its syncs more often.
    alone_after_chunks: int = 4
    # Of the journal, after small writes, whose syncs are up to twice as quick then. Larger: fewer
    # writes take longer, each for longer. 0, none: for file systems that never write in place.
    zeros_ahead_bytes: int = 256 * 1024
    # The newest data is kept in the page cache for readers. Larger: readers that are this far
    # behind do not wait for the disk; but writing to fresh memory takes up to four times as long on
    # a virtual machine. 0: the system decides.
    page_cache_bytes: int = 512 * MIB

    def __post_init__(self) -> None:
        if not self.journal_dir:
            # It would be where the process was started.
            raise BadConfig("journal_dir is empty", settings=("journal_dir",))
        if not self.ledger_dirs or "" in self.ledger_dirs:
            raise BadConfig(
                "ledger_dirs must name at least one directory, and none that is empty",
                settings=("ledger_dirs",),
            )
        if len(set(self.ledger_dirs)) < len(self.ledger_dirs):
            raise BadConfig("ledger_dirs names a directory twice", settings=("ledger_dirs",))
        if self.journal_dir in self.ledger_dirs:
            self._part(self.journal_dir)
        if not 16 * 1024 <= self.journal_file_bytes <= FILE_BYTES_MAX // 2:
            raise BadConfig(
                f"journal_file_bytes must be 16 KiB to {FILE_BYTES_MAX // 2} bytes",
                settings=("journal_file_bytes",),
            )
        for name in (
            *("index_bytes_max", "cache_bytes", "queued_bytes_max", "waiting_files_max"),
            *("idle_after_ms", "alone_after_chunks"),
        ):
            if getattr(self, name) <= 0:
                raise BadConfig(f"{name} must be above zero", settings=(name,))
        if self.page_cache_bytes < 0:
            raise BadConfig("page_cache_bytes must not be negative", settings=("page_cache_bytes",))
        if not 0 <= self.zeros_ahead_bytes <= 16 * MIB:
            raise BadConfig(
                "zeros_ahead_bytes must be 0 to 16 MiB", settings=("zeros_ahead_bytes",)
            )

    def _part(self, shared: str) -> None:
        """One directory for both the journal and the ledgers: each has a folder in it."""
        ledgers = f"{shared}/{LEDGERS}"
        ledger_dirs = tuple(ledgers if each == shared else each for each in self.ledger_dirs)
        journal = f"{shared}/{JOURNAL}"
        if {journal, ledgers} & {*self.ledger_dirs}:
            raise BadConfig(
                f"{shared} is named for journal and ledgers, and so is a folder in it",
                settings=("journal_dir", "ledger_dirs"),
                next_step="name each directory once",
            )
        object.__setattr__(
            self, "journal_dir", journal
        )  # The only one that changes it, when it is made.
        object.__setattr__(self, "ledger_dirs", ledger_dirs)

    def with_fitting_queue(self) -> "StorageConfig":
        """What was accepted must fit even when no other file can be made: the queue holds twice its
        bound for urgent adds, and a journal file must hold the queue. Raises `BadConfig`.
        """
        fitting = self.journal_file_bytes // 2
        if self.queued_bytes_max <= fitting:
            return self
        if self.queued_bytes_max == _QUEUED_BYTES_MAX:  # It was not set.
            return replace(self, queued_bytes_max=fitting)
        raise BadConfig(
            f"queued_bytes_max is {self.queued_bytes_max} bytes, and journal_file_bytes "
            f"{self.journal_file_bytes}: a full disk could keep what was accepted from being written",
            settings=("queued_bytes_max", "journal_file_bytes"),
            next_step=f"set queued_bytes_max to {fitting} or less, or journal_file_bytes to "
            f"{2 * self.queued_bytes_max} or more",
        )


@dataclass(frozen=True, slots=True)
class SpaceConfig:
    """What happens to deleted ledgers, sparse logs, rot and full disks."""

    gc_interval_s: float = 600.0  # Between two scans of the metadata; a deletion takes two of them.
    gc_quarantine_s: float = (
        3600.0  # Longer: more time to notice a mistake, space comes back later.
    )
    # Of all ledgers; if more are gone at once, an operator must confirm.
    gc_brake_share: float = 0.5
    # Between two scans for copies of closed ledgers that metadata does not name; two scans drop
    # them. 0: never.
    surplus_interval_s: float = 86_400.0
    # For this long a late add cannot bring a deleted ledger back.
    deleted_kept_s: float = 7 * 86_400.0
    minor_compaction_threshold: float = 0.2  # Logs less full than this are rewritten; 0: never.
    minor_compaction_interval_s: float = 3600.0  # 0: never.
    major_compaction_threshold: float = 0.8  # Higher: less waste, more rewriting.
    major_compaction_interval_s: float = 86_400.0
    compaction_bytes_per_s: int = 16 * MIB  # Higher: space comes back sooner, adds wait longer.
    scrub_bytes_per_s: int = 4 * MIB  # Higher: rot is found sooner, readers have less of the disk.
    # At least this long from one round's start to the next one's.
    scrub_interval_s: float = 86_400.0
    disk_usage_threshold: float = 0.95  # Of a disk; above, it accepts no entries.
    disk_usage_warn_threshold: float = 0.90
    disk_usage_low_water: float = 0.93  # Down to this, a full one accepts entries again.
    disk_check_interval_s: float = 10.0  # At most; a disk that is nearly full is checked sooner.
    # In each ledger directory, given up when its disk is full; 0: none.
    reserve_bytes: int = 32 * MIB

    def __post_init__(self) -> None:
        for name in (
            *("gc_interval_s", "gc_brake_share", "deleted_kept_s", "compaction_bytes_per_s"),
            *("scrub_bytes_per_s", "scrub_interval_s", "disk_check_interval_s"),
        ):
            if getattr(self, name) <= 0:
                raise BadConfig(f"{name} must be above zero", settings=(name,))
        for name in ("gc_quarantine_s", "reserve_bytes", "surplus_interval_s"):
            if getattr(self, name) < 0:
                raise BadConfig(f"{name} must not be below zero", settings=(name,))
        for name in ("minor_compaction_threshold", "major_compaction_threshold"):
            if getattr(self, name) >= 1:
                raise BadConfig(
                    f"{name} must be below 1: no log is fuller than full", settings=(name,)
                )
        for name in ("disk_usage_threshold", "disk_usage_warn_threshold", "disk_usage_low_water"):
            if not 0 < getattr(self, name) <= _USAGE_MAX:
                raise BadConfig(
                    f"{name} must be above 0 and at most {_USAGE_MAX}", settings=(name,)
                )


@dataclass(frozen=True, slots=True)
class ServerConfig:
    frame_bytes_max: int = FRAME_BYTES_MAX  # The largest request; equal in the whole cluster.
    connections_max: int = 10_000  # Each is a file descriptor; further connections are closed.
    held_bytes_max: int = 16 * MIB  # Requests and answers of all connections, beyond the floor.
    connection_bytes_max: int = 8 * MIB  # Of one connection. Above, its socket is not read.
    # The share of each connection, however much the others hold.
    connection_bytes_floor: int = 8 * 1024
    reads_max: int = 64  # From disk, at once; as many again for urgent reads.
    connection_reads_max: int = 16  # Of one connection.
    long_polls_max: int = 10_000  # Parked; above, "busy" is the answer.
    long_poll_s_max: float = 60.0  # However long they want to wait.
    frame_timeout_s: float = 10.0  # For the rest of a request that has begun.
    unread_timeout_s: float = 30.0  # For a client to read some of its pending responses.

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise BadConfig(f"{name} must be above zero", settings=(name,))
        if self.connection_bytes_max < self.frame_bytes_max:
            raise BadConfig(
                "connection_bytes_max must be at least frame_bytes_max",
                settings=("connection_bytes_max", "frame_bytes_max"),
            )
