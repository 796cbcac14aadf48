"""Makes the responses of a bookie to all requests except adds.

    at_once   answers from memory, while the chunk that has the request is being processed
    in_time   answers requests that may have to wait for the disk

Both functions always return a reply: an error of the storage becomes a reply that names it. A fence
is durable before any reply to it (B4). If entries are in doubt, the reply only says so (B1).
"""

import asyncio
from collections.abc import Awaitable
from typing import Final

import structlog

from rollbook.bookie.core.connection_memory import Making
from rollbook.bookie.loop_budget import LoopBudget
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import (
    BookieFailed,
    EntryStateUnknown,
    InvalidRequest,
    NoSuchEntry,
    NoSuchLedger,
    RollbookError,
    Unauthorized,
)
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.ports import Buffer
from rollbook.proto.wire.add_columns import ENTRY_BYTES_SLACK
from rollbook.proto.wire.digest import LAC_PACKET_SIZES, LEDGER_KEY_BYTES, lac_packet_at
from rollbook.proto.wire.entry_batches import SIZE_BYTES, join_bodies
from rollbook.proto.wire.entry_list import ENTRY_GROUP_BYTES, EntryList
from rollbook.proto.wire.messages import (
    AUTH_DISABLED_PLUGIN,
    IDENTITY_PLUGIN,
    Auth,
    AuthReply,
    BatchRead,
    BatchReadReply,
    BookieInfoReply,
    EntryRead,
    Failure,
    ForceLedger,
    ForceLedgerReply,
    GetBookieInfo,
    ListEntries,
    ListEntriesReply,
    PackedBatch,
    ReadLac,
    ReadLacReply,
    ReadReply,
    Reply,
    Request,
    StartTls,
    StartTlsReply,
    Unknown,
    WriteLac,
    WriteLacReply,
    refusal_of,
)
from rollbook.proto.wire.v2_layout import BATCH_READ_REPLY_HEAD_BYTES

logger = structlog.get_logger()

_NO_AUTH: Final = AuthReply(AUTH_DISABLED_PLUGIN, b"")
# The maximum number of entries and bytes in the response to a long poll, which is made in a turn of
# other work.
_FOLLOWING_MAX: Final = 256
_FOLLOWING_BYTES_MAX: Final = 64 * 1024
_BATCH_IDS_MAX: Final = 16 * 1024  # The maximum number of ids that one request examines.
_BATCH_STEPS_IN_A_ROW: Final = 64  # Gaps that are skipped in a row before other work runs.
_BATCH_STEP_BYTES_MIN: Final = 64 * 1024  # The minimum size of a step, even if memory is short.
_BATCH_STEP_ENTRIES: Final = 512  # The maximum per step; after a step, other work runs.


class Answers:
    def __init__(
        self, storage: Storage, loop_budget: LoopBudget, frame_bytes_max: int, identity: bytes
    ) -> None:
        self._storage = storage
        self._identity = identity
        self._loop_budget = loop_budget
        # The size of a batch as Java counts it, in both versions; in version 3 the fields may add a
        # few bytes.
        self._batch_bytes_max = frame_bytes_max - BATCH_READ_REPLY_HEAD_BYTES
        self._ranges_max = (frame_bytes_max - ENTRY_BYTES_SLACK) // ENTRY_GROUP_BYTES

    def at_once(self, request: Request, news_ms: int | None = None) -> Reply | None:
        """Answers without waiting; returns None if it would have to wait. For `news_ms` see
        `in_time`."""
        if type(request) is EntryRead:
            if request.fence or request.previous_lac is not None or request.entry_id < 0:
                if not _is_sound(request):
                    return refusal_of(request, InvalidRequest)
                return self._brought_along(request, news_ms)
            body = self._storage.peek(request.ledger_id, request.entry_id)
            return None if body is None else self.found(request, body)
        match request:
            case Auth(plugin):
                is_asked_who = plugin == IDENTITY_PLUGIN
                return AuthReply(plugin, self._identity) if is_asked_who else _NO_AUTH
            case StartTls():
                return StartTlsReply(InvalidRequest)
            case Unknown():
                return refusal_of(request, InvalidRequest)
        return None

    async def in_time(self, request: Request, making: Making, news_ms: int | None = None) -> Reply:
        """Answers from memory or from disk. If `news_ms` is given, the read is a long poll whose
        wait ended with news at that time."""
        try:
            if isinstance(request, EntryRead) and request.piggyback and not request.fence:
                return await self._piggyback(request, news_ms)
            return await self._answer(request, making)
        except RollbookError as error:
            return refusal_of(request, reported_error(error))
        except OSError as error:
            logger.error("request_failed", request=type(request).__name__, reason=str(error))
            return refusal_of(request, BookieFailed)

    def _brought_along(self, read: EntryRead, news_ms: int | None) -> ReadReply | None:
        """Returns the answer to a long poll from memory, or None if there is no news or the entry
        is not in memory."""
        if not read.piggyback or read.fence or read.previous_lac is None:
            return None
        entry_id, lac = self._news(read)
        body = self._storage.peek(read.ledger_id, entry_id) if lac >= entry_id else None
        return None if body is None else self._news_with(read, entry_id, body, lac, news_ms)

    def _news(self, read: EntryRead) -> tuple[EntryId, EntryId]:
        """Returns the entry that a long poll asks for, and the LAC that says whether it may be
        returned."""
        assert read.previous_lac is not None
        return EntryId(read.previous_lac + 1), EntryId(self._storage.received_lac(read.ledger_id))

    def _news_with(
        self, read: EntryRead, entry_id: EntryId, body: bytes, lac: EntryId, news_ms: int | None
    ) -> ReadReply:
        """Returns a reply with the long poll's entry and the confirmed entries after it that are in
        memory."""
        ledger_id = read.ledger_id
        following: list[bytes] = []
        room = min(read.following_bytes_max, _FOLLOWING_BYTES_MAX) - len(body)
        for next_entry in range(entry_id + 1, min(lac, entry_id + _FOLLOWING_MAX) + 1):
            more = self._storage.peek(ledger_id, next_entry) if room > 0 else None
            if more is None:
                break
            room -= len(more)
            if room >= 0:
                following.append(more)
        return ReadReply(None, ledger_id, entry_id, body, lac, news_ms, tuple(following))

    def found(self, read: EntryRead, body: bytes) -> ReadReply:
        # A response to a fence names no LAC: recovery asks for it separately.
        lac = None if read.fence else EntryId(self._storage.last_add_confirmed(read.ledger_id))
        return ReadReply(None, read.ledger_id, read.entry_id, body, lac)

    def _answer(self, request: Request, making: Making) -> Awaitable[Reply]:
        match request:
            case EntryRead():
                return self._read(request)
            case BatchRead():
                return self._batch_read(request, making)
            case WriteLac():
                return self._write_lac(request)
            case ReadLac():
                return self._read_lac(request)
            case ForceLedger():
                return self._force(request)
            case ListEntries():
                return self._list(request)
            case GetBookieInfo():
                return self._info(request)
        raise AssertionError(f"{type(request).__name__} is answered at once")

    async def _read(self, read: EntryRead) -> Reply:
        if read.fence:
            await self._fence(read.ledger_id, read.ledger_key)
        if read.entry_id == NO_ENTRY:
            body = await self._storage.read_last(read.ledger_id)
        else:
            body = await self._storage.read(read.ledger_id, read.entry_id)
        return self.found(read, body)

    async def _piggyback(self, read: EntryRead, news_ms: int | None) -> Reply:
        """Returns the answer to a long poll from disk: the same as `_brought_along` from memory, or
        only the LAC."""
        if not self._storage.knows(read.ledger_id):
            wanted, _ = self._news(read)
            # The read raises the right error, because the entry is absent or in doubt.
            await self._storage.read(read.ledger_id, wanted)
        entry_id, lac = self._news(read)
        if lac >= entry_id:
            try:
                body = await self._storage.read(read.ledger_id, entry_id)
                return self._news_with(read, entry_id, body, lac, news_ms)
            except (NoSuchEntry, EntryStateUnknown):
                pass  # Other bookies have the entry, but the LAC is news nevertheless.
        return ReadReply(None, read.ledger_id, NO_ENTRY, None, lac, news_ms)

    async def _fence(self, ledger_id: LedgerId, ledger_key: bytes | None) -> None:
        if ledger_key is None or len(ledger_key) != LEDGER_KEY_BYTES:
            raise Unauthorized("a fence needs the ledger's key", ledger_id=ledger_id)
        if ledger_id < 0:
            raise InvalidRequest("a ledger id must not be negative", ledger_id=ledger_id)
        await self._storage.fence(ledger_id, ledger_key)

    async def _batch_read(self, batch: BatchRead, making: Making) -> Reply:
        """Reads a batch. Counts bytes as Java does, so that no client gets more than it has room
        for.

        If memory is short, the batch is short, and the client requests the rest again.
        """
        if batch.fence:
            await self._fence(batch.ledger_id, batch.ledger_key)
        room = min(batch.bytes_max, self._batch_bytes_max) - BATCH_READ_REPLY_HEAD_BYTES
        count = min(batch.count_max if batch.count_max > 0 else _BATCH_IDS_MAX, _BATCH_IDS_MAX)
        # Each step makes one piece, so that the whole answer is never copied.
        pieces: list[bytes] = []
        next_entry, end, steps = batch.first_entry, batch.first_entry + count, 0
        while next_entry < end and (not pieces or (room > 0 and making.may_grow)):
            steps += 1
            if steps % _BATCH_STEPS_IN_A_ROW == 0:
                await asyncio.sleep(0)
            turn_bytes = await self._loop_budget.come()
            step_bytes = min(room, turn_bytes, max(making.room, _BATCH_STEP_BYTES_MIN))
            # Ends the batch early to leave memory to others.
            if pieces and not making.may_grow:
                break
            try:
                run = await self._storage.read_run(
                    batch.ledger_id,
                    next_entry,
                    min(end - next_entry, _BATCH_STEP_ENTRIES),
                    step_bytes,
                )
            except RollbookError as error:
                if batch.is_sparse and isinstance(error, NoSuchEntry):
                    next_entry = EntryId(next_entry + 1)
                    if next_entry < end:
                        continue
                if pieces:
                    break  # A read of that entry alone raises the error.
                raise
            if pieces and _packed_bytes(run[0]) > room:  # Only the first entry may exceed the room.
                break
            piece, found = join_bodies(run), len(run)
            size = len(piece)  # The piece has the same size as all its entries one by one.
            while size > room and len(run) > 1:
                size -= _packed_bytes(run.pop())
            pieces.append(piece[:size])
            making.grow(size)
            self._loop_budget.spend(size)
            if len(run) < found:
                break
            room -= size
            next_entry = EntryId(next_entry + found)
        ids = batch.ledger_id, batch.first_entry, batch.request_id
        return PackedBatch(*ids, tuple(pieces)) if pieces else BatchReadReply(None, *ids)

    async def _write_lac(self, lac: WriteLac) -> Reply:
        if len(lac.ledger_key) != LEDGER_KEY_BYTES:
            raise Unauthorized("an explicit LAC needs the ledger's key", ledger_id=lac.ledger_id)
        if (
            lac.ledger_id < 0
            or lac.last_add_confirmed < NO_ENTRY
            or len(lac.packet) not in LAC_PACKET_SIZES
            or lac_packet_at(lac.packet) != (lac.ledger_id, lac.last_add_confirmed)
        ):
            raise InvalidRequest("the LAC packet is invalid", ledger_id=lac.ledger_id)
        await self._storage.write_lac(
            lac.ledger_id, lac.ledger_key, lac.last_add_confirmed, lac.packet
        )
        return WriteLacReply(None, lac.ledger_id)

    async def _read_lac(self, read: ReadLac) -> Reply:
        """Returns the explicit LAC and the last entry; an error in finding one takes precedence
        over the absence of the other."""
        packet: bytes | None = None
        last_entry: bytes | None = None
        failure: Failure = None
        try:
            packet = self._storage.lac_packet(read.ledger_id)
        except RollbookError as error:
            failure = reported_error(error)
        try:
            last_entry = await self._storage.read_last(read.ledger_id)
        except (NoSuchEntry, NoSuchLedger):
            pass
        except RollbookError as error:
            failure = reported_error(error)
        if failure is None and packet is None and last_entry is None:
            failure = NoSuchEntry
        return ReadLacReply(failure, read.ledger_id, packet, last_entry)

    async def _force(self, force: ForceLedger) -> Reply:
        await self._storage.force()
        return ForceLedgerReply(None, force.ledger_id)

    async def _list(self, request: ListEntries) -> Reply:
        ranges = await self._storage.entry_ranges(request.ledger_id, self._ranges_max)
        return ListEntriesReply(None, request.ledger_id, EntryList.of_ranges(ranges))

    async def _info(self, request: GetBookieInfo) -> Reply:
        space = await self._storage.space()
        return BookieInfoReply(
            None,
            space.total_bytes if request.total_bytes else None,
            space.free_bytes if request.free_bytes else None,
        )


def _packed_bytes(body: Buffer) -> int:
    return SIZE_BYTES + len(body)


def _is_sound(read: EntryRead) -> bool:
    """Returns whether a piggyback read is valid: it must ask for the entry after its LAC, not for
    any other."""
    return not read.piggyback or (read.previous_lac is not None and read.entry_id == NO_ENTRY)


def reported_error(error: RollbookError) -> type[RollbookError]:
    """Returns the error that a bookie reports: an error without a code on the wire counts as a
    failure of the bookie."""
    kind = type(error)
    return kind if kind.code.v2 is not None and kind.code.v3 is not None else BookieFailed
