"""The ledger of one segment, as its log's owner writes it; and how such ledgers are made.

A ledger is made for one version of the list and says so. Only the compare-and-set from that very
version lists it; if that fails it never will be listed, and goes (LS3).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from rollbook.ledger.writer import LedgerWriter
from rollbook.logservice.core.degraded_segments import degraded_quorum
from rollbook.logservice.core.ledger_list import custom_metadata
from rollbook.logservice.core.roll_rules import SegmentLimits
from rollbook.logservice.ids import Offset, SegmentId
from rollbook.logservice.log_metadata import StoredLog
from rollbook.logservice.owner_context import OwnerContext
from rollbook.proto.errors import NotEnoughBookies, RollbookError
from rollbook.proto.ids import FIRST_ENTRY, EntryId, LedgerId
from rollbook.proto.quorum import Quorum

logger = structlog.get_logger()

_SNAPSHOT_ENTRIES: Final = 1024  # A replay is no longer than this,
_SNAPSHOT_BYTES: Final = 8 * 1024 * 1024  # or this, unless snapshots would be a larger part of
_SNAPSHOT_SHARE: Final = 16  # the log than one byte in this many.


async def make_ledger(
    context: OwnerContext, stored: StoredLog, *, needs_full_ensemble: bool = False
) -> LedgerWriter:
    """To be listed by the change of this very list, or dropped. It has fewer bookies than the log wants
    if there are no more and the log allows it (LS13). Raises as `Ledgers.create`.
    """
    config = stored.list.config
    try:
        return await _make_ledger(context, stored, config.quorum)
    except NotEnoughBookies:
        smaller = degraded_quorum(
            config.quorum, context.ledgers.count_usable(is_urgent=context.uses_reserve)
        )
        if needs_full_ensemble or smaller is None or not config.degraded_segments:
            raise
    writer = await _make_ledger(context, stored, smaller)
    logger.warning(
        "segment_degraded",
        log=str(stored.name),
        ledger_id=writer.ledger_id,
        bookies=smaller.ensemble,
        wanted=config.quorum.ensemble,
    )
    return writer


async def _make_ledger(context: OwnerContext, stored: StoredLog, quorum: Quorum) -> LedgerWriter:
    return await context.ledgers.create(
        ensemble=quorum.ensemble,
        write=quorum.write,
        ack=quorum.ack,
        custom=custom_metadata(stored.name, stored.list.uid, stored.version),
        is_urgent=context.uses_reserve,
    )


async def drop_ledger(context: OwnerContext, writer: LedgerWriter) -> None:
    """It was not listed, and nobody has written it. What is left behind is found by its metadata."""
    await writer.stop()
    with suppress(RollbookError):
        await context.ledgers.delete(writer.ledger_id, is_forced=True)


class SegmentWriter:
    def __init__(
        self,
        writer: LedgerWriter,
        segment_id: SegmentId,
        *,
        number: int,
        base_offset: Offset,
        limits: SegmentLimits,
        on_confirmed: Callable[[int, EntryId], None],
        on_failed: Callable[[RollbookError], None],
    ) -> None:
        self.writer: Final = writer
        self.segment_id: Final = segment_id
        self.ledger_id: Final[LedgerId] = writer.ledger_id
        self.number: Final = number  # In the order of this owner's ledgers, from 0.
        self.base_offset: Final = base_offset
        self.limits: Final = limits
        self.began_s: Final = asyncio.get_running_loop().time()
        self.bytes = self.entries = 0
        self.bytes_at_snapshot = 0
        self.entries_at_snapshot = 0
        self.has_records = False
        self._put = writer.put
        writer.watch(partial(on_confirmed, number), on_failed)

    def append(self, block: bytes) -> EntryId:
        """Raises as `LedgerWriter.put`."""
        entry_id = self._put(block)
        self.bytes += len(block)
        self.entries = entry_id + 1
        return entry_id

    @property
    def is_begun(self) -> bool:
        """Its first entry, with the log's memory, is confirmed (LS5)."""
        return self.writer.last_add_confirmed >= FIRST_ENTRY

    @property
    def is_look_due(self) -> bool:
        """It may be full, or a snapshot due: asked after each entry, so it costs next to nothing."""
        return (
            self.entries - self.entries_at_snapshot >= _SNAPSHOT_ENTRIES
            or self.bytes - self.bytes_at_snapshot >= _SNAPSHOT_BYTES
            or self.bytes >= self.limits.bytes
            or self.entries >= self.limits.entries
        )

    @property
    def is_full(self) -> bool:
        return self.bytes >= self.limits.bytes or self.entries >= self.limits.entries

    def reason_to_roll(self, now_s: float) -> str | None:
        return self.limits.reason_to_roll(
            self.bytes, self.entries, now_s - self.began_s, has_records=self.has_records
        )

    @property
    def oldest_s(self) -> float:
        """When it will have become too old."""
        return self.began_s + self.limits.age_s

    def is_snapshot_due(self, packed_bytes: int) -> bool:
        """So that a replay is short, and snapshots are no large part of the log."""
        return (
            self.entries - self.entries_at_snapshot >= _SNAPSHOT_ENTRIES
            or self.bytes - self.bytes_at_snapshot >= _SNAPSHOT_BYTES
        ) and self.bytes - self.bytes_at_snapshot >= _SNAPSHOT_SHARE * packed_bytes

    def on_snapshot(self) -> None:
        self.bytes_at_snapshot, self.entries_at_snapshot = self.bytes, self.entries
