"""The settings of a bookie: its identity and addresses, its storage, and its server."""

from dataclasses import dataclass, replace

from rollbook.bookie.core.entry_log_footer import FILE_BYTES_MAX
from rollbook.proto.errors import BadConfig
from rollbook.proto.wire.frames import FRAME_BYTES_MAX

MIB = 1024 * 1024
JOURNAL = "journal"
LEDGERS = "ledgers"
_QUEUED_BYTES_MAX = 64 * MIB
_USAGE_MAX = 0.999  # A disk that is fuller has no room for the compaction that frees space.


@dataclass(frozen=True, slots=True)
class BookieConfig:
    metadata: str  # The metadata URL of the cluster: zk://host,host/ledgers or sqlite:///path.
    # The bookie's permanent id; by default the advertised host:port, which must then never change.
    bookie_id: str = ""
    listen: str = "127.0.0.1:3181"  # Port 0 picks a free one.
    # The host or host:port that clients connect to; by default the listening address.
    advertise: str = ""
    tls_listen: str = ""  # The address of its TLS port; empty: no TLS.
    tls_certificate: str = ""  # A file with the certificate and its chain.
    tls_key: str = ""  # A file with the key; empty: the key is in the certificate's file.
    # A file with certificate authorities; clients must show a certificate that one of them signed.
    tls_authorities: str = ""
    http: str = ""  # The HTTP address for operators; empty: no HTTP.
    http_token_file: str = ""  # A file with a token; HTTP callers that show it are let in.
    access_file: str = ""  # A file with the rights of HTTP callers: see `rollbook access`.
    http_tls: bool = False  # HTTP uses TLS, with the certificate above.
    # Allows the bookie to listen on other addresses than loopback without TLS or token.
    insecure: bool = False
    with_recovery: bool = False  # Runs a recovery server in the same process.
    read_only: bool = False  # Accepts no new entries, whatever the state of its disks.
    log_level: str = "info"  # The log level: debug, info, warning or error.
    # Seconds without contact after which the metadata store ends the bookie's session. Longer: the
    # bookie survives longer outages, but its death is noticed later. Shorter: a death is noticed
    # sooner, and a pause is mistaken for one more often.
    session_timeout_s: float = 10.0
    # Seconds that clients have to read their last responses when the bookie stops. Longer: fewer
    # outcomes stay unknown, but a restart takes longer. Shorter: the reverse.
    drain_s: float = 2.0
    # Seconds that a start waits for a metadata store or cluster that is not available. Longer:
    # machines may start in any order. Shorter: a wrong address is reported sooner.
    startup_s: float = 60.0

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
    # The journal's directory, on the fastest disk, which nothing else should use. If it is also a
    # ledger directory, the journal and the ledgers each get a folder in it, and these fields then
    # name the folders.
    journal_dir: str
    # Directories of entry logs. One copy of the catalog is in the first directory, the other one in
    # the last.
    ledger_dirs: tuple[str, ...]
    # Bytes of a journal file and of an entry log made from it. Larger: fewer but longer
    # checkpoints, and a longer replay at a start. Smaller: more checkpoints, and more and smaller
    # entry logs.
    journal_file_bytes: int = 128 * MIB
    # Bytes of memory for the index of the active journal file; when the index is full, the file
    # ends. Larger: more memory. Smaller: many small entries end a file early, so checkpoints are
    # more frequent.
    index_bytes_max: int = 96 * MIB
    # Bytes of memory for records that were recently written or read. Larger: fewer reads from the
    # disk, more memory. Smaller: the reverse.
    cache_bytes: int = 192 * MIB
    # Bytes of adds that may wait for the journal, at most half a journal file; further adds are
    # answered with "busy". Larger: longer bursts are accepted, but they take more memory and acks
    # come later. Smaller: bursts are refused sooner.
    queued_bytes_max: int = _QUEUED_BYTES_MAX
    # Filled journal files that may wait to become entry logs; beyond this, new adds are refused.
    # Larger: longer bursts are accepted, but they take more disk space and a longer replay.
    # Smaller: adds are refused sooner while checkpoints are late.
    waiting_files_max: int = 4
    # Milliseconds without adds after which the journal records what is durable. Larger: damage to
    # the newest entries is mistaken for a torn tail for a longer time. Smaller: more small writes
    # to the journal.
    idle_after_ms: int = 100
    # Consecutive chunks from one client after which its adds are written at once, without waiting
    # for others to share a sync. Larger: a lone writer gets this fast path later. Smaller: it gets
    # the fast path sooner, and others wait for its syncs more often.
    alone_after_chunks: int = 4
    # Bytes of zeros that are written ahead in the journal after a small write; later syncs are then
    # up to twice as quick. Larger: the zeros delay fewer writes, but each one for longer. Smaller:
    # they delay more writes, each one for less time. 0: none, for file systems that never write in
    # place (btrfs, ZFS).
    zeros_ahead_bytes: int = 256 * 1024
    # Bytes of the newest data that stay in the system's page cache for readers. Larger: readers
    # that are further back need not wait for the disk, but on a virtual machine a write to fresh
    # memory takes up to four times as long. Smaller: the reverse. 0: the system decides.
    page_cache_bytes: int = 512 * MIB

    def __post_init__(self) -> None:
        if not self.journal_dir:
            # An empty path would mean the working directory of the process.
            raise BadConfig("journal_dir is empty", settings=("journal_dir",))
        if not self.ledger_dirs or "" in self.ledger_dirs:
            raise BadConfig(
                "ledger_dirs must name at least one directory, and no name may be empty",
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
            "index_bytes_max",
            "cache_bytes",
            "queued_bytes_max",
            "waiting_files_max",
            "idle_after_ms",
            "alone_after_chunks",
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
        """Gives the journal and the ledgers one folder each if both use the same directory."""
        ledgers = f"{shared}/{LEDGERS}"
        ledger_dirs = tuple(ledgers if each == shared else each for each in self.ledger_dirs)
        journal = f"{shared}/{JOURNAL}"
        if {journal, ledgers} & {*self.ledger_dirs}:
            raise BadConfig(
                f"{shared} is named for journal and ledgers, but so is a folder in it",
                settings=("journal_dir", "ledger_dirs"),
                next_step="name each directory once",
            )
        object.__setattr__(
            self, "journal_dir", journal
        )  # The object is frozen: only its construction changes it.
        object.__setattr__(self, "ledger_dirs", ledger_dirs)

    def with_fitting_queue(self) -> "StorageConfig":
        """Returns the settings with a queue that fits into a journal file. Accepted adds must fit
        even when no other file can be made, and with urgent adds the queue may reach twice its
        limit. Raises `BadConfig`.
        """
        fitting = self.journal_file_bytes // 2
        if self.queued_bytes_max <= fitting:
            return self
        # The default was not changed, so the largest queue that fits is used.
        if self.queued_bytes_max == _QUEUED_BYTES_MAX:
            return replace(self, queued_bytes_max=fitting)
        raise BadConfig(
            f"queued_bytes_max is {self.queued_bytes_max} bytes, and journal_file_bytes "
            f"{self.journal_file_bytes}: a full disk could prevent the write of accepted adds",
            settings=("queued_bytes_max", "journal_file_bytes"),
            next_step=f"set queued_bytes_max to {fitting} or less, or journal_file_bytes to "
            f"{2 * self.queued_bytes_max} or more",
        )


@dataclass(frozen=True, slots=True)
class SpaceConfig:
    """The settings for deleted ledgers, sparse logs, rot and full disks."""

    # Seconds between two scans of the metadata for deleted ledgers; a deletion takes two scans.
    # Longer: less load on the metadata store. Shorter: space is freed sooner.
    gc_interval_s: float = 600.0
    # Seconds that a ledger is kept after both scans missed it. Longer: more time to notice a
    # mistake. Shorter: space is freed sooner.
    gc_quarantine_s: float = 3600.0
    # Share of all ledgers that may be deleted at once unless an operator confirms more. Larger:
    # mass deletions need no confirmation, but a damaged store may cost more ledgers. Smaller: the
    # reverse.
    gc_brake_share: float = 0.5
    # Seconds between two scans for copies of closed ledgers that metadata does not place here;
    # copies that two scans find are dropped. Longer: less load on the metadata store. Shorter:
    # space is freed sooner. 0: never.
    surplus_interval_s: float = 86_400.0
    # Seconds that a deleted ledger is remembered, so that a late add cannot bring it back. Longer:
    # adds that are even later are refused, but more facts stay in memory. Shorter: the id may be
    # used again sooner.
    deleted_kept_s: float = 7 * 86_400.0
    # Share of live data below which an entry log is rewritten by the frequent compaction. Larger:
    # less wasted space, more rewriting. Smaller: the reverse. 0: never.
    minor_compaction_threshold: float = 0.2
    # Seconds between two frequent compactions. Longer: less rewriting. Shorter: space is freed
    # sooner. 0: never.
    minor_compaction_interval_s: float = 3600.0
    # Share of live data below which an entry log is rewritten by the rare compaction. Larger: less
    # wasted space (0.8 wastes at most a quarter), more rewriting. Smaller: the reverse.
    major_compaction_threshold: float = 0.8
    # Seconds between two rare compactions. Longer: less rewriting. Shorter: space is freed sooner.
    # 0: never.
    major_compaction_interval_s: float = 86_400.0
    # Bytes per second that compaction reads and writes. Larger: space is freed sooner, but adds and
    # reads wait longer. Smaller: the reverse.
    compaction_bytes_per_s: int = 16 * MIB
    # Bytes per second that the scrub reads. Larger: rot is found sooner, but readers get less of
    # the disk. Smaller: the reverse.
    scrub_bytes_per_s: int = 4 * MIB
    # The minimum number of seconds from the start of one scrub to the start of the next. Longer:
    # less reading. Shorter: rot is found sooner.
    scrub_interval_s: float = 86_400.0
    # Used share of a disk above which the bookie accepts no entries. Larger: more of the disk is
    # used, but the compaction that frees space has less room. Smaller: the reverse.
    disk_usage_threshold: float = 0.95
    # Used share of a disk above which an event warns. Larger: later warnings. Smaller: earlier and
    # more frequent warnings.
    disk_usage_warn_threshold: float = 0.90
    # Used share of a disk below which a full disk accepts entries again. Larger: it accepts them
    # sooner, and is full again sooner. Smaller: it changes state less often.
    disk_usage_low_water: float = 0.93
    # The longest time between two checks of the disks, in seconds; a disk that is nearly full is
    # checked sooner. Longer: fewer system calls. Shorter: the bookie notices sooner when another
    # program fills a disk.
    disk_check_interval_s: float = 10.0
    # Bytes in each ledger directory that are released when its disk is full, so that fences and
    # recovery go on. Larger: they go on for longer, but less of the disk is for entries. Smaller:
    # the reverse. 0: none.
    reserve_bytes: int = 32 * MIB

    def __post_init__(self) -> None:
        for name in (
            "gc_interval_s",
            "gc_brake_share",
            "deleted_kept_s",
            "compaction_bytes_per_s",
            "scrub_bytes_per_s",
            "scrub_interval_s",
            "disk_check_interval_s",
        ):
            if getattr(self, name) <= 0:
                raise BadConfig(f"{name} must be above zero", settings=(name,))
        for name in ("gc_quarantine_s", "reserve_bytes", "surplus_interval_s"):
            if getattr(self, name) < 0:
                raise BadConfig(f"{name} must not be below zero", settings=(name,))
        for name in ("minor_compaction_threshold", "major_compaction_threshold"):
            if getattr(self, name) >= 1:
                raise BadConfig(
                    f"{name} must be below 1: no log is more than full", settings=(name,)
                )
        for name in ("disk_usage_threshold", "disk_usage_warn_threshold", "disk_usage_low_water"):
            if not 0 < getattr(self, name) <= _USAGE_MAX:
                raise BadConfig(
                    f"{name} must be above 0 and at most {_USAGE_MAX}", settings=(name,)
                )


@dataclass(frozen=True, slots=True)
class ServerConfig:
    # Bytes of the largest request; the whole cluster and its clients must have the same value.
    # Larger: larger entries, and more memory for each connection. Smaller: large entries are
    # refused.
    frame_bytes_max: int = FRAME_BYTES_MAX
    # The largest number of connections; each takes a file descriptor, and further ones are closed.
    # Larger: more clients, more memory. Smaller: the reverse.
    connections_max: int = 10_000
    # Bytes of requests and answers that all connections may hold beyond their floors. Larger: more
    # throughput for many clients at a time, more memory. Smaller: sockets are read later.
    held_bytes_max: int = 16 * MIB
    # Bytes of requests and answers of one connection, at least `frame_bytes_max`; above this its
    # socket is not read. Larger: one fast client may take more of the pool. Smaller: its throughput
    # is lower.
    connection_bytes_max: int = 8 * MIB
    # Bytes that each connection may always hold, however much others hold. Larger: more memory for
    # many connections. Smaller: connections wait for each other sooner when the pool is empty.
    connection_bytes_floor: int = 8 * 1024
    # Ordinary reads from disk at a time; as many urgent reads may run at once with them. Larger:
    # more throughput of disks with deep queues, but adds wait longer for the disk. Smaller: the
    # reverse.
    reads_max: int = 64
    # Reads from disk at a time for one connection. Larger: one client reads faster. Smaller:
    # clients share the disk more evenly.
    connection_reads_max: int = 16
    # Readers that may wait for new entries; further readers are answered with "busy". Larger: more
    # followers, more memory. Smaller: the reverse.
    long_polls_max: int = 10_000
    # The longest time that a reader waits for new entries, in seconds, even if it asks for more.
    # Longer: fewer requests from idle followers. Shorter: readers that are gone are noticed sooner.
    long_poll_s_max: float = 60.0
    # Seconds in which the rest of a partial request must arrive. Longer: slow networks work.
    # Shorter: stalled clients hold memory for less time.
    frame_timeout_s: float = 10.0
    # Seconds in which a client must read some of its pending responses. Longer: clients that pause
    # keep their connection. Shorter: clients that read nothing hold memory for less time.
    unread_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise BadConfig(f"{name} must be above zero", settings=(name,))
        if self.connection_bytes_max < self.frame_bytes_max:
            raise BadConfig(
                "connection_bytes_max must be at least frame_bytes_max",
                settings=("connection_bytes_max", "frame_bytes_max"),
            )
