"""Settings of a ledger client. Defaults suit a cluster in one place.

They are given in code, or by `proto/runtime/config.py` from `[ledger]` and `ROLLBOOK_LEDGER_*`.
"""

from dataclasses import dataclass
from typing import Final

from rollbook.proto.errors import BadConfig
from rollbook.proto.ids import BookieId, parse_bookie_id
from rollbook.proto.wire import v2, v3
from rollbook.proto.wire.frames import FRAME_BYTES_MAX

_MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class ClientConfig:
    # --- Connections --------------------------------------------------------------------------
    protocol_version: int = int(v3.VERSION)  # 2: faster with Java bookies, knows fewer words.
    frame_bytes_max: int = FRAME_BYTES_MAX  # All of the cluster must have the same.
    uses_tls: bool = False  # Then only bookies with a published TLS port are used.
    racks: tuple[str, ...] = ()  # bookie=rack: copies of an entry go to different racks.
    connections_per_bookie: int = 1
    connect_timeout_s: float = 3.0
    reconnect_pause_s_min: float = 0.02  # Doubled after each failure in a row,
    reconnect_pause_s_max: float = 1.0  # up to this.
    silence_s_max: float = (
        1.0  # A bookie that is silent this long while a deadline passes gets a new connection.
    )
    calls_max: int = 1000  # Calls of one connection that wait for answers; further calls wait.
    call_bytes_max: int = 16 * _MIB  # And their bytes.

    # --- Writer -------------------------------------------------------------------------------
    # A bookie that leaves an add unanswered for so long is replaced; an append fails after twice
    # as long at the latest. Shorter: bookies that only paused are replaced, too.
    add_deadline_s: float = 5.0
    writer_window_bytes: int = 16 * _MIB  # Of each ledger: entries that lack copies, in memory.
    writer_window_entries: int = 10_000
    explicit_lac_idle_ms: int = 20  # Silence after which the LAC is sent to bookies; 0: never.

    # --- Reader -------------------------------------------------------------------------------
    read_deadline_s: float = 5.0
    read_hedge_ms_min: int = 5  # A second copy is asked for at the observed p95, never sooner.
    read_window_bytes: int = 4 * _MIB  # Read ahead for an iterator.
    read_batch_bytes: int = _MIB
    tail_silence_s_max: float = 10.0  # A follower without a response for this long raises.
    recovery_window_bytes: int = 16 * _MIB
    recovery_patience_s: float = 1.0  # For the last bookies, after an entry's absence is proven.

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
        if self.protocol_version not in (v2.VERSION, v3.VERSION):
            raise BadConfig(
                f"protocol_version is {self.protocol_version}, which is not 2 or 3",
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
                raise BadConfig(f"racks has {each!r}, which is no bookie=rack", settings=("racks",))
