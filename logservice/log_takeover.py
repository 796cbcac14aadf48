"""Makes a server the owner of a log.

    read the list ──┬► fence and recover the ledgers that may be unclosed: the last two at most
         ▲          │      │
         │          │  decide which ledgers are part of the log                  core/segments_kept_at_takeover.py
         │          │  restore the log's state from the end of the last one      core/replayed_state.py
         │          │      │
         │          └► concurrently: make a new ledger for this version of the list
         │                 │
         └── conflict ◄── compare-and-set the list: close and discard ledgers, raise the owner epoch,
                           │                         list the new ledger
                      append the new ledger's first entries: if they are confirmed, no other
                      server has fenced it                                       owner.py

The restore reads only the end of the last ledger, back to the newest snapshot. A sealed log is opened without
a new ledger, since its owner only has to answer retries.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Final, Self

import structlog

from rollbook.ledger.reader import LedgerReader
from rollbook.ledger.writer import LedgerWriter
from rollbook.logservice.core.control_blocks import NO_LEDGER, Follows, unpack_control
from rollbook.logservice.core.degraded_ensembles import degraded_to
from rollbook.logservice.core.ledger_list import LedgerList, ListedLogState, LogEvent, Segment
from rollbook.logservice.core.record_block import Block
from rollbook.logservice.core.replayed_state import LogMemory, snapshot_in
from rollbook.logservice.core.segments_kept_at_takeover import (
    Ended,
    judge,
    pause_s,
    stands_down,
    to_end,
)
from rollbook.logservice.ids import LogName
from rollbook.logservice.log_metadata import StoredLog
from rollbook.logservice.segment_ledgers import drop_ledger, make_ledger
from rollbook.logservice.server_context import OwnerContext
from rollbook.proto.errors import (
    BlockCorrupt,
    DataLost,
    MetadataConflict,
    NoSuchLedger,
    NotOwner,
    RollbookError,
)
from rollbook.proto.ids import FIRST_ENTRY, NO_ENTRY, EntryId, LedgerId

logger = structlog.get_logger()

# The limits of a replay's first read. If the entries hold no snapshot, each further read is four times as large.
_REPLAY_BYTES: Final = 1024 * 1024
_REPLAY_ENTRIES: Final = 64


class Laps:
    """The time that each step of an opening took. One log event reports all of them."""

    def __init__(self) -> None:
        self.ms: Final[dict[str, float]] = {}
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()

    def on_done(self, step: str) -> None:
        """Record the time of a step. Times of repeated steps are added up."""
        now = self._loop.time()
        self.ms[step] = round(self.ms.get(step, 0.0) + (now - self._since) * 1000, 1)
        self._since = now


@dataclass(frozen=True, slots=True)
class Opening:
    """The state with which an owner starts."""

    stored: StoredLog  # The list, which names this server as the owner.
    memory: LogMemory
    end: tuple[LedgerId, EntryId]  # The log's last ledger and entry, before the new ledger.
    writer: LedgerWriter | None  # Writes the new segment; None: the log is sealed.
    laps: "Laps"


@dataclass(frozen=True, slots=True)
class _FoundEnd:
    """The state found at the end of a log."""

    kept: Sequence[Ended]
    discarded: Sequence[Ended]
    memory: LogMemory
    end: tuple[LedgerId, EntryId]


async def open_log(
    name: LogName,
    context: OwnerContext,
    reason: str,
    seen: StoredLog | None = None,
    *,
    makes_ahead: bool = True,
) -> Opening:
    """Take the log over. `seen` is a recent copy of the list. If the list has changed since, the
    compare-and-set fails, and the next attempt reads the list. With `makes_ahead`, a new ledger is made before
    it is known that the log can be recovered.

    Raises `NotOwner` if another server was quicker, `NoSuchLog`, `LogDeleted`, `RecoveryIncomplete`,
    `NotEnoughBookies`, `MetadataUnavailable`.
    """
    laps = Laps()
    fenced_epoch = missing_in = None
    for attempt in count():
        # A retry reads the list again, which shows whether another server was quicker.
        stored = seen if seen and not attempt else await context.nodes.read(name)
        laps.on_done("read_ms")
        listed = stored.list
        listed.require_living(name)
        if fenced_epoch is not None and stands_down(fenced_epoch, listed.owner_epoch):
            raise NotOwner(
                "another server has opened the log first",
                log=str(name),
                owner=listed.owner.address if listed.owner else "",
                owner_epoch=listed.owner_epoch,
            )
        fenced_epoch = listed.owner_epoch
        try:
            if listed.state is ListedLogState.SEALED:
                found = await _find_end(context, listed, laps)
                return Opening(stored, found.memory, found.end, None, laps)
            async with _NewLedger(context, stored, makes_ahead=makes_ahead) as new:
                found = await _find_end(context, listed, laps)
                opening = await _take_over(context, stored, found, new, reason, laps)
            if opening is not None:
                return opening
        except NoSuchLedger as error:  # A quicker server discarded and deleted the ledger.
            if stored.version == missing_in:
                raise DataLost("a ledger of the log is gone", log=str(name), **error.ids) from error
            missing_in = stored.version
        await asyncio.sleep(pause_s(attempt, context.randomness))
    raise AssertionError  # Unreachable: `count` never ends.


class _NewLedger:
    """A ledger that is made for this version of the list. Making it takes as many round trips as fencing
    the old ledgers, so both run concurrently, unless an earlier opening failed. An unused ledger is
    deleted.
    """

    def __init__(self, context: OwnerContext, stored: StoredLog, *, makes_ahead: bool) -> None:
        self._context, self._stored = context, stored
        self._making = self._make() if makes_ahead else None
        self._is_taken = False

    def _make(self) -> asyncio.Task[LedgerWriter]:
        return asyncio.get_running_loop().create_task(make_ledger(self._context, self._stored))

    async def take(self) -> LedgerWriter:
        """Return the ledger, which then belongs to the caller. Raises `NotEnoughBookies`."""
        self._making = self._making or self._make()
        writer = await self._making
        self._is_taken = True
        return writer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        making = self._making
        if self._is_taken or making is None:
            return
        is_cancelled = kind is not None and not issubclass(kind, Exception)
        if is_cancelled:
            making.cancel()
        try:
            (made,) = await asyncio.gather(making, return_exceptions=True)
        # This task was cancelled. So was the creation of the ledger, unless it was complete.
        except asyncio.CancelledError:
            await _stop_if_made(making)
            raise
        if is_cancelled:
            await _stop_if_made(making)
        elif isinstance(made, LedgerWriter):
            await drop_ledger(self._context, made)
        elif not isinstance(made, RollbookError) and made is not error:
            logger.error("ledger_not_made", log=str(self._stored.name), exc_info=made)


async def _stop_if_made(making: "asyncio.Task[LedgerWriter]") -> None:
    """Stop the writer of an abandoned ledger. `OrphanRepair` finds the ledger by its metadata, and deletes it."""
    if not making.cancelled() and making.exception() is None:
        await making.result().stop()


async def _take_over(
    context: OwnerContext,
    stored: StoredLog,
    found: _FoundEnd,
    new: _NewLedger,
    reason: str,
    laps: Laps,
) -> Opening | None:
    """List the new ledger and the new owner. Returns None, and writes nothing, if the list has changed."""
    settled = _settled(stored.list, found).with_owner(context.server)
    server_id, now_us = context.server.server_id, context.clock.wall_us()
    tail = found.memory.tail
    settled = settled.with_event(
        LogEvent("log_opened", now_us, settled.owner_epoch, server_id, reason, tail)
    )
    if found.memory.is_sealed:  # The last owner died before it listed the seal.
        sealed = settled.with_sealed(tail)
        try:
            stored = await context.nodes.replace(stored, sealed)
        except MetadataConflict:
            return None
        return Opening(stored, found.memory, found.end, None, laps)
    writer = await new.take()
    laps.on_done("create_ms")
    # A new log's time begins now.
    found.memory.timestamp_us = found.memory.timestamp_us or now_us
    wanted = settled.with_successor(
        writer.ledger_id,
        reason,
        found.memory.timestamp_us,
        degraded_to=degraded_to(settled.config.quorum, writer.metadata.quorum),
        began_us=now_us,
    )
    try:
        stored = await context.nodes.replace(stored, wanted, made_for=stored.version)
    except MetadataConflict:
        await drop_ledger(context, writer)
        return None
    except BaseException:
        await writer.stop()  # The ledger may be listed. The next owner will find it empty.
        raise
    laps.on_done("list_ms")
    return Opening(stored, found.memory, found.end, writer, laps)


def _settled(listed: LedgerList, found: _FoundEnd) -> LedgerList:
    for index, each in enumerate(found.kept):
        memory, behind = found.memory, found.kept[index + 1 : index + 2]
        if behind and behind[0].follows:
            memory = LogMemory.unpack(behind[0].follows.state)
        listed = listed.with_closed(
            each.segment.segment_id,
            next_offset=memory.tail,
            last_timestamp_us=memory.timestamp_us,
            bytes=each.bytes,
        )
    for each in found.discarded[:1]:  # Discarding the first one also discards those after it.
        listed = listed.with_discarded(each.segment.segment_id)
    return listed


# --- The end of a log -------------------------------------------------------------------------


async def _find_end(context: OwnerContext, listed: LedgerList, laps: Laps) -> _FoundEnd:
    readers: dict[LedgerId, LedgerReader] = {}
    try:
        ended = await _end_all(context, to_end(listed), readers)
        laps.on_done("fence_ms")
        kept, discarded = judge(ended)
        if kept:
            last = kept[-1]
        else:
            before = listed.segments[: len(listed.segments) - len(ended)]
            if not before:
                return _FoundEnd(kept, discarded, LogMemory(listed.config), (NO_LEDGER, NO_ENTRY))
            (last,) = await _end_all(context, before[-1:], readers)
        reader = readers[last.segment.ledger_id]
        memory = await _replay(reader, listed, last.last_entry)
        laps.on_done("replay_ms")
        return _FoundEnd(kept, discarded, memory, (last.segment.ledger_id, last.last_entry))
    finally:
        for reader in readers.values():
            await reader.close()


async def _end_all(
    context: OwnerContext, segments: Sequence[Segment], readers: dict[LedgerId, LedgerReader]
) -> list[Ended]:
    """Fence and recover these ledgers concurrently. Raises the first error after all ledgers have been tried."""

    async def end(segment: Segment) -> Ended:
        reader = await context.ledgers.open_recover(segment.ledger_id)
        readers[segment.ledger_id] = reader
        last_entry, length = reader.metadata.last_entry, reader.metadata.length
        assert last_entry is not None
        assert length is not None
        is_asked = segment is not segments[0] and last_entry != NO_ENTRY
        return Ended(segment, last_entry, await _first_of(reader) if is_asked else None, length)

    # One segment is the usual case. It needs no extra task: a server may take over a thousand logs.
    if len(segments) == 1:
        return [await end(segments[0])]
    found = await asyncio.gather(*map(end, segments), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if isinstance(each, Ended)]


async def _first_of(reader: LedgerReader) -> Follows:
    (block,) = await _read(reader, FIRST_ENTRY, FIRST_ENTRY)
    said = unpack_control(block) if block.is_control else None
    if not isinstance(said, Follows):
        raise BlockCorrupt(
            "the first entry does not name the previous ledger",
            ledger_id=reader.ledger_id,
            entry_id=0,
        )
    return said


async def _replay(reader: LedgerReader, listed: LedgerList, last_entry: EntryId) -> LogMemory:
    """Restore the log's state from the newest snapshot and the blocks after it. The first entry of each
    ledger has a snapshot.
    """
    length = reader.metadata.length or 0
    entry_bytes = length // (last_entry + 1) + 1
    size = max(1, min(_REPLAY_ENTRIES, _REPLAY_BYTES // entry_bytes))
    blocks: list[Block] = []
    first = last_entry + 1
    while True:
        start = max(FIRST_ENTRY, first - size)
        blocks = [*await _read(reader, EntryId(start), EntryId(first - 1)), *blocks]
        first = start
        for index in range(len(blocks) - 1, -1, -1):
            snapshot = snapshot_in(blocks[index])
            if snapshot is not None:
                memory = LogMemory.restore(snapshot, listed.config)
                for place, block in enumerate(blocks[index:], first + index):
                    memory.replay(block, reader.ledger_id, EntryId(place))
                return memory
        if first == FIRST_ENTRY:
            raise BlockCorrupt(
                "the first entry has no snapshot", ledger_id=reader.ledger_id, entry_id=0
            )
        size *= 4


async def _read(reader: LedgerReader, first: EntryId, last: EntryId) -> list[Block]:
    return [Block(entry.payload) for entry in await reader.read_few(first, last)]
