"""Settings of a ledger client. The defaults suit a cluster at one site.

A program sets them in code; `proto/runtime/config.py` reads them from `[ledger]` and
`ROLLBOOK_LEDGER_*`.
"""

from dataclasses import dataclass
from typing import Final

from rollbook.proto.errors import BadConfig
from rollbook.proto.ids import BookieId, parse_bookie_id
from rollbook.proto.wire import v2_layout, v3
from rollbook.proto.wire.frames import FRAME_BYTES_MAX

_MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class ClientConfig:
    # --- Connections --------------------------------------------------------------------------
    # The protocol version: 3, or 2, which is faster with Java bookies; requests that 2 cannot
    # express use 3.
    protocol_version: int = int(v3.VERSION)
    # Bytes of the largest request, as in the bookies' settings. Larger: larger entries, if all
    # bookies of the cluster allow them. Smaller: large entries are refused.
    frame_bytes_max: int = FRAME_BYTES_MAX
    # Whether to use TLS: then bookies without a published TLS port are not used.
    uses_tls: bool = False
    # Pairs bookie=rack: copies of an entry go to different racks.
    racks: tuple[str, ...] = ()
    # Connections to each bookie. Larger: ledgers wait less for each other; more sockets at both
    # ends. Smaller: requests share syscalls and syncs.
    connections_per_bookie: int = 1
    # The time-out of an attempt to connect, in seconds. Longer: slow networks work. Shorter: a
    # bookie that is gone is given up sooner.
    connect_timeout_s: float = 3.0
    # Seconds before the first attempt to connect again; doubled after each failure in a row.
    # Longer: fewer attempts. Shorter: a bookie that restarted is used sooner.
    reconnect_pause_s_min: float = 0.02
    # Seconds up to which the pause between attempts to connect grows. Longer: fewer attempts at
    # bookies that are down. Shorter: a bookie that comes back is used sooner.
    reconnect_pause_s_max: float = 1.0
    # Seconds of silence after which a missed deadline ends the connection. Longer: slow bookies
    # keep their connections. Shorter: a dead connection is replaced sooner.
    silence_s_max: float = 1.0
    # Calls of one connection that wait for answers; further calls are queued. Larger: more
    # throughput on slow networks, more memory. Smaller: less throughput, less memory.
    calls_max: int = 1000
    # Bytes of the calls of one connection that wait for answers. Larger: more throughput on slow
    # networks, more memory. Smaller: less throughput, less memory.
    call_bytes_max: int = 16 * _MIB

    # --- Writer -------------------------------------------------------------------------------
    # Seconds after which a bookie that leaves an add unanswered is replaced; an append fails after
    # twice as long at the latest. Longer: appends wait longer for a dead bookie. Shorter: bookies
    # that only paused are replaced, too.
    add_deadline_s: float = 5.0
    # Bytes in memory for the entries of one ledger that still lack copies. Larger: more throughput
    # on slow networks, and slow bookies may lag further. Smaller: less memory; a slow bookie holds
    # the writer back sooner.
    writer_window_bytes: int = 16 * _MIB
    # Entries of one ledger in memory that still lack copies. Larger: more throughput of small
    # entries on slow networks. Smaller: a slow bookie holds the writer back sooner.
    writer_window_entries: int = 10_000
    # Milliseconds without a confirmation after which a writer sends the LAC to its bookies. Larger:
    # fewer writes; readers see the last entry before a pause later. Smaller: more writes; readers
    # see it sooner. 0: never; then a reader may lag by one entry.
    explicit_lac_idle_ms: int = 20

    # --- Reader -------------------------------------------------------------------------------
    # Seconds for one request to one bookie. Longer: slow disks work. Shorter: a bookie that hangs
    # delays a read less.
    read_deadline_s: float = 5.0
    # A second copy is requested after the observed p95 of response times, but not before this many
    # milliseconds. Larger: fewer reads are done twice. Smaller: a slow bookie delays a read less.
    read_hedge_ms_min: int = 5
    # Bytes read ahead for an iterator. Larger: more throughput, more memory. Smaller: less
    # throughput, less memory.
    read_window_bytes: int = 4 * _MIB
    # Bytes of one batch of entries from one bookie. Larger: fewer requests, more memory at a time.
    # Smaller: more requests, less memory.
    read_batch_bytes: int = _MIB
    # Seconds without a response from any bookie after which a follower raises. Longer: outages are
    # survived. Shorter: they are reported sooner.
    tail_silence_s_max: float = 10.0
    # Bytes of entries in memory during one recovery. Larger: a faster recovery. Smaller: less
    # memory.
    recovery_window_bytes: int = 16 * _MIB
    # Seconds that recovery waits for the last bookies once an entry's absence is proven or its ack
    # quorum is written. Longer: more members are heard and more copies are written. Shorter: a log
    # opens sooner while a bookie hangs.
    recovery_patience_s: float = 1.0

    @property
    def rack_of(self) -> dict[BookieId, str]:
        pairs = [each.partition("=") for each in self.racks]
        return {parse_bookie_id(bookie.strip()): rack.strip() for bookie, _, rack in pairs}

    def __post_init__(self) -> None:
        for name in ("add_deadline_s", "writer_window_bytes", "writer_window_entries"):
            if getattr(self, name) <= 0:
                raise BadConfig(f"{name} has to be above 0", settings=(name,))
        if self.explicit_lac_idle_ms < 0:
            raise BadConfig("explicit_lac_idle_ms is negative", settings=("explicit_lac_idle_ms",))
        if self.protocol_version not in (v2_layout.VERSION, v3.VERSION):
            raise BadConfig(
                f"protocol_version has to be 2 or 3, not {self.protocol_version}",
                settings=("protocol_version",),
            )
        for name in ("connections_per_bookie", "calls_max", "call_bytes_max", "frame_bytes_max"):
            if getattr(self, name) < 1:
                raise BadConfig(f"{name} has to be at least 1", settings=(name,))
        if not 0 < self.reconnect_pause_s_min <= self.reconnect_pause_s_max:
            raise BadConfig(
                "reconnect_pause_s_min has to be above 0 and up to reconnect_pause_s_max",
                settings=("reconnect_pause_s_min", "reconnect_pause_s_max"),
            )
        for each in self.racks:
            bookie, _, rack = each.partition("=")
            if not bookie.strip() or not rack.strip():
                raise BadConfig(
                    f"racks has {each!r}, which is not of the form bookie=rack", settings=("racks",)
                )
