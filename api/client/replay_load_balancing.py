"""Replays a log from all servers: closed segments are read from any of them, the rest from the
owner.

Consecutive segments are read as one run, up to `RUN_BYTES`. The log and the run's first segment
determine the server, so that many readers use all servers, and readers of the same records use the
same server.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rollbook.api.client.outage_diagnosis import Outages
from rollbook.api.client.owner_cache import OwnerCache
from rollbook.logservice.ids import LogName, Offset, SegmentId
from rollbook.logservice.messages import SegmentState, SegmentView
from rollbook.proto.errors import RollbookError

RUN_BYTES: Final = 64 * 1024 * 1024  # Larger: fewer streams, which spread less evenly.


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """A range of records of closed segments, or, without a segment, of records that the owner has."""

    start: Offset
    end: Offset
    segment: SegmentId | None


def runs_of(
    segments: Sequence[SegmentView], start: Offset, end: Offset, run_bytes: int = RUN_BYTES
) -> Iterator[ReplayRange]:
    """Returns runs that cover the range exactly, in order. `segments`: oldest first."""
    position = run_start = start
    first: SegmentId | None = None
    size = 0
    for segment in segments:
        base, behind = segment.base_offset, segment.next_offset
        if base is None or behind is None or base > position or position >= end:
            break
        if segment.state is not SegmentState.CLOSED:
            break
        if behind <= position:
            continue
        if first is None:
            first = segment.segment_id
        position = min(behind, end)
        size += segment.bytes
        if size >= run_bytes:
            yield ReplayRange(run_start, position, first)
            run_start, first, size = position, None, 0
    if position > run_start:
        yield ReplayRange(run_start, position, first)
    if position < end:
        yield ReplayRange(position, end, None)


class AnyServer:
    """Selects the server for one run, instead of `OwnerCache`: the next one after each failure."""

    def __init__(self, owners: OwnerCache, log: LogName, segment: SegmentId) -> None:
        self._owners = owners
        self._turn = zlib.crc32(f"{log}/{segment}".encode())
        self._failed = 0

    @property
    def outages(self) -> Outages:
        return self._owners.outages

    def address_of(self, log: LogName | None) -> str:
        servers = self._owners.servers
        return servers[(self._turn + self._failed) % len(servers)]

    def on_error(self, log: LogName | None, address: str, error: RollbookError) -> bool:
        """Returns whether another server can be asked at once."""
        if self._owners.routes.on_error(address, error):
            return True
        self._failed += 1
        return self._failed < len(self._owners.servers)
