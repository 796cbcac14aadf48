"""Finds segments that a log lists although the ledger is missing because another program deleted it.

An owner does not read old segments, and readers may be served from memory, so nothing else notices the loss. Each sweep
therefore checks a few segments of each log, and the next sweep continues where it ended. A request that lists
segments checks those segments. A segment counts as lost if the metadata store does not have its ledger while
the log's list still has the segment (LO1). A truncation does not look like a loss, since it removes the segment
from the list before it deletes the ledger.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.ids import LogName
from rollbook.logservice.log_metadata import LogMetadataStore
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.errors import NoSuchLog
from rollbook.proto.ids import LedgerId

logger = structlog.get_logger()

_PER_SWEEP: Final = 8
_AT_ONCE: Final = 64


class LostSegments:
    def __init__(self, ledgers: LedgerNodes, nodes: LogMetadataStore) -> None:
        self._ledgers, self._nodes = ledgers, nodes
        self._known: dict[LogName, frozenset[LedgerId]] = {}
        # For each log, the index of the segment at which its next sweep begins.
        self._looked: dict[LogName, int] = {}

    def __len__(self) -> int:
        """The number of known lost segments of all logs."""
        return sum(map(len, self._known.values()))

    async def on_sweep(self, name: LogName, listed: LedgerList) -> None:
        """Check some segments of a log. Raises `MetadataUnavailable`, `ConnectionLost`."""
        ids = [segment.ledger_id for segment in listed.segments]
        known = self._known.get(name, frozenset())
        start = self._looked.get(name, 0) % max(1, len(ids))
        self._looked[name] = start + _PER_SWEEP
        await self.look(name, [*ids[start : start + _PER_SWEEP], *known])

    def forget(self, name: LogName) -> None:
        """Forget a log that is gone, or that another server looks after."""
        self._known.pop(name, None)
        self._looked.pop(name, None)

    async def look(self, name: LogName, ids: Sequence[LedgerId]) -> frozenset[LedgerId]:
        """Return which of these ledgers are lost. Raises `MetadataUnavailable`, `ConnectionLost`."""
        gone: set[LedgerId] = set()
        for start in range(0, len(ids), _AT_ONCE):
            part = ids[start : start + _AT_ONCE]
            found = await asyncio.gather(*(self._ledgers.exists(each) for each in part))
            gone.update(each for each, is_there in zip(part, found, strict=True) if not is_there)
        lost = await self._still_listed(name, gone) if gone else frozenset()
        before = self._known.get(name, frozenset())
        now = (before - frozenset(ids)) | lost
        for ledger_id in sorted(now - before):
            logger.error("segment_lost", log=str(name), ledger_id=ledger_id)
        if now:
            self._known[name] = now
        else:
            self._known.pop(name, None)
        return lost

    async def _still_listed(self, name: LogName, gone: set[LedgerId]) -> frozenset[LedgerId]:
        """Read the list after the ledgers were found missing, and return the ledgers that it still has (LO1)."""
        try:
            listed = (await self._nodes.read(name)).list
        except NoSuchLog:
            return frozenset()
        return frozenset(s.ledger_id for s in listed.segments if s.ledger_id in gone)
