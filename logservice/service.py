"""The log service without any transport. It has one method for each request (`messages.py`).

The log's owner serves appends, seals, truncations, rolls, transfers, writer epochs, producers' epochs and
confirmed tails. Another server raises `NotOwner`, which names the server to ask. While a log has an owner, only
the owner changes the log's configuration or deletes the log. Any server serves all other requests.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Final

from rollbook.logservice import messages
from rollbook.logservice.append_stream import ServerAppendStream
from rollbook.logservice.core.config_etag import check_etag, etag_of
from rollbook.logservice.core.ledger_list import (
    NOT_COUNTED,
    LedgerList,
    ListedLogState,
    LogEvent,
    Sizes,
)
from rollbook.logservice.core.log_end_source import (
    closed_end,
)
from rollbook.logservice.core.log_incarnations import check_life, text_of
from rollbook.logservice.core.record_block import BlockInfo, check_block
from rollbook.logservice.core.segments_and_history import history_of, segments_page, with_lost
from rollbook.logservice.core.unopened_logs import FailedOpening
from rollbook.logservice.ids import (
    NO_WRITER_YET,
    LogName,
    Offset,
)
from rollbook.logservice.log_config import (
    BATCH_BYTES_CEILING,
    BATCH_RECORDS_CEILING,
    CONFIG_FIELDS,
    DELETE_GRACE_MS_MAX,
    LogConfig,
)
from rollbook.logservice.log_deletion import delete_log, free_log, stop_writer
from rollbook.logservice.log_metadata import StoredLog
from rollbook.logservice.log_ownership import LogServer
from rollbook.logservice.messages import (
    LogTail,
    ReadEvent,
)
from rollbook.logservice.offset_lookup import (
    find_sizes,
    find_tail,
)
from rollbook.logservice.owner import Owner
from rollbook.logservice.peer_tails import AskPeer, OwnerTails
from rollbook.logservice.read_requests import LogReads, in_time
from rollbook.logservice.stats import NAMESPACE, AppendLaps, LogStats
from rollbook.logservice.tail_lookup import TailLookup
from rollbook.logservice.truncation import delete_discarded, truncate_closed
from rollbook.proto.errors import (
    InvalidRequest,
    LogDeleted,
    Missing,
    NoSuchLog,
    NoSuchServer,
    NotOwner,
    OutcomeUnknown,
    RollbookError,
    Unauthorized,
    Unavailable,
)
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import Clock
from rollbook.proto.stats import read

CURSOR_BLOB_BYTES_MAX: Final = 4096
MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
_DETAIL_S: Final = 1.0  # A response omits details that bookies do not report within this time.
# The time limit for finding lost segments. After that, the list of segments does not show which are lost.
_LOST_LOOK_S: Final = 0.5
_NAMES_MAX: Final = 10_000
_CURSORS_IN_PAGE: Final = 1000  # A page of cursors of up to 4 KiB each fits into a gRPC message.
_READS_MAX: Final = 64  # The most reads that run concurrently.
_DRAINING: Final = messages.ServerState.DRAINING
_SERVING: Final = messages.ServerState.SERVING


class LogService:
    def __init__(self, server: LogServer, clock: Clock, ask_peer: AskPeer | None = None) -> None:
        """Serve the logs of `server`. `ask_peer` is None if other servers cannot be asked. A reader of a log
        that another server owns may then lack the last block, and reports that.
        """
        self.server = server
        self._ask_peer = ask_peer
        owner_tails = OwnerTails(server, ask_peer)
        self._ends = TailLookup(server, owner_tails)
        self._clock = clock
        self._nodes, self._ledgers = server.nodes, server.ledgers
        self._loop = asyncio.get_running_loop()
        self._default = LogConfig(quorum=server.config.quorum)
        self.stats: Final = LogStats()
        self._reads = LogReads(server, self._ends, owner_tails, self.stats, clock)
        self._wire_stats()

    def _wire_stats(self) -> None:
        stats, server = self.stats, self.server
        stats.cursor_lags = server.cursor_lags.lags
        stats.cursors_without_lag = server.cursor_lags.without_lag
        stats.logs_owned = lambda: len(server.owned_logs)
        stats.logs_degraded = lambda: server.logs_degraded
        stats.logs_unopened = lambda: server.logs_unopened
        stats.segments_lost = lambda: len(server.lost_segments)
        stats.logs_opened = lambda: server.opened
        stats.logs_taken_over = lambda: server.taken_over
        stats.logs_handed_over = lambda: server.handed_over
        stats.clock_apart_seconds = lambda: (server.clock.apart_us or 0) / 1e6
        stats.clock_refused = lambda: int(server.clock.is_odd)
        stats.producer_memory_bytes = lambda: server.producer_memory.bytes
        stats.tail_memory_bytes = lambda: server.tail_memory.bytes

    # --- Appending --------------------------------------------------------------------------

    async def append(self, request: messages.Append, due: float) -> messages.AppendAck:
        laps = AppendLaps(self._loop.time())
        try:
            owner = await self.server.owner_of(request.log, due, uid=request.uid)
            laps.began_s = self._loop.time()
            info = check_block(request.block, owner.limits)
            answer = owner.append(request.block, info, request.condition).answer
            laps.taken_s = self._loop.time()
            ack = await in_time(due, answer)
        except RollbookError as error:
            self.stats.on_answered(error, len(request.block), laps, self._loop.time())
            raise
        self.stats.on_answered(ack, len(request.block), laps, self._loop.time())
        return ack

    def open_append_stream(self) -> ServerAppendStream:
        return ServerAppendStream(self.server, self.server.config.stream_bytes_max, self.stats)

    async def seal(self, request: messages.Seal, due: float) -> messages.SealAnswer:
        owner = await self.server.owner_of(request.log, due, uid=request.uid)
        info: BlockInfo | None = None
        if request.block is not None:
            info = check_block(request.block, owner.limits)
        return messages.SealAnswer(
            await in_time(due, owner.seal(request.block, info, request.condition))
        )

    async def acquire_writer(
        self, request: messages.AcquireWriter, due: float
    ) -> messages.WriterGrant:
        owner = await self.server.owner_of(request.log, due, uid=request.uid)
        return await in_time(
            due,
            owner.acquire_writer(request.holder, request.mode, request.ttl_ms, request.attempt),
        )

    async def renew_writer(self, request: messages.RenewWriter, due: float) -> messages.WriterGrant:
        owner = await self.server.owner_of(request.log, due, uid=request.uid)
        return await in_time(due, owner.renew_writer(request.writer_epoch))

    async def release_writer(self, request: messages.ReleaseWriter, due: float) -> messages.Done:
        owner = await self.server.owner_of(request.log, due, uid=request.uid)
        await in_time(due, owner.release_writer(request.writer_epoch))
        return messages.Done()

    async def begin_producer(
        self, request: messages.BeginProducer, due: float
    ) -> messages.ProducerProgress:
        owner = await self.server.owner_of(request.log, due, uid=request.uid)
        return await in_time(due, owner.begin_producer(request.producer))

    # --- Reading ----------------------------------------------------------------------------

    async def read(self, request: messages.Read, due: float) -> messages.ReadAnswer:
        return await self._reads.read(request, due)

    def read_stream(self, request: messages.ReadStream) -> AsyncIterator[ReadEvent]:
        return self._reads.read_stream(request)

    async def get_tail(self, request: messages.GetTail, due: float) -> LogTail:
        return await self._reads.get_tail(request, due)

    def watch_tail(self, request: messages.WatchTail) -> AsyncIterator[LogTail]:
        return self._reads.watch_tail(request)

    def watch_tails(self, request: messages.WatchTails) -> AsyncIterator[messages.Tails]:
        return self._reads.watch_tails(request)

    async def find_offset(self, request: messages.FindOffset, due: float) -> messages.FoundOffset:
        return await self._reads.find_offset(request, due)

    # --- Truncation -------------------------------------------------------------------------

    async def truncate(self, request: messages.Truncate, due: float) -> messages.TruncateAnswer:
        """Truncate at the log's owner. While bookies are full, the log may have no owner, and opening it may
        fail: then truncate its closed segments without an owner.
        """
        try:
            owner = await self.server.owner_of(request.log, due, uid=request.uid)
        except NotOwner:
            raise
        except Unavailable:
            if self._loop.time() >= due:
                # No time is left for the steps below: their time-out would leave the outcome unknown.
                raise
            answer = await in_time(due, self._truncate_closed(request, due))
            if answer is None or await in_time(due, self._keeps_what_is_truncated(request)):
                answer = await in_time(due, self._truncate_by_reserve(request, due)) or answer
            if answer is None:
                raise
            return answer
        before = await self._reads.resolve(
            request.log, request.before, self._ends.tail_at(owner), due
        )
        if before == owner.tail and not request.dry_run and self._bookies_are_full(owner):
            # The segment can end only if bookies use their reserve for the next ledger.
            owner.lose("the bookies are full")
            answer = await in_time(due, self._truncate_by_reserve(request, due))
            if answer is not None:
                return answer
        return await in_time(
            due,
            owner.truncate(before, dry_run=request.dry_run, force_roll=request.force_roll),
        )

    def _bookies_are_full(self, owner: Owner) -> bool:
        """Return whether fewer bookies than the ack quorum take new ledgers, but enough bookies would
        take one if they used their reserve.
        """
        wanted = owner.config.quorum.ack
        return self._ledgers.count_usable() < wanted <= self._ledgers.count_usable(is_urgent=True)

    async def _keeps_what_is_truncated(self, request: messages.Truncate) -> bool:
        """Return whether the first listed segment is entirely below the head, and stays because no segment
        after it has begun (LL4). False for a dry run.
        """
        listed = (await self._nodes.read_living(request.log)).list
        first = listed.segments[0].next_offset if listed.segments else None
        return not request.dry_run and first is not None and first <= listed.head

    async def _truncate_by_reserve(
        self, request: messages.Truncate, due: float
    ) -> messages.TruncateAnswer | None:
        """Open the log, truncate it, and close it, while bookies are full. This ends the open segment, which
        can be removed only after its successor's first entry (LL4). Bookies use their reserve for that entry and
        for the recovery of the old ledger. Returns None for a dry run, if the log has an owner, or if the
        log cannot be opened even from the reserve.
        """
        stored = await self._nodes.read_living(request.log)
        if request.dry_run or not self.server.is_nobodys(request.log, stored.list):
            return None
        try:
            owner = await self.server.open_by_reserve(request.log)
        except (Unavailable, OutcomeUnknown):
            return None
        try:
            before = await self._reads.resolve(
                request.log, request.before, self._ends.tail_at(owner), due
            )
            answer = await owner.truncate(before)
        finally:
            await owner.close("the log was opened only to free space on full bookies")
        with suppress(RollbookError):  # The next owner deletes the rest.
            await delete_discarded(
                self._ledgers, self._nodes, await self._nodes.read_living(request.log)
            )
        return answer

    async def _truncate_closed(
        self, request: messages.Truncate, due: float
    ) -> messages.TruncateAnswer | None:
        """Truncate closed segments without an owner. Returns None if `before` is beyond them, or if the log
        has an owner, which would continue to report the old head.
        """
        listed = (await self._nodes.read_living(request.log)).list
        check_life(request.log, text_of(listed.uid), request.uid)
        ends = [each.next_offset for each in listed.segments if each.next_offset is not None]
        before = await self._reads.resolve(
            request.log, request.before, await self._ends.tail_of(request.log), due
        )
        if not ends or before > ends[-1]:
            return None
        event = LogEvent(
            "log_truncated", self._clock.wall_us(), server_id=self.server.server_id, offset=before
        )

        def is_nobodys(present: LedgerList) -> bool:
            check_life(request.log, text_of(present.uid), text_of(listed.uid))
            return self.server.is_nobodys(request.log, present)

        return await truncate_closed(
            self._ledgers,
            self._nodes,
            request.log,
            before,
            ends[-1],
            event,
            is_nobodys=is_nobodys,
            dry_run=request.dry_run,
        )

    # --- Administration ---------------------------------------------------------------------

    async def ensure_log(self, request: messages.EnsureLog, due: float) -> messages.LogState:
        stored, was_created = await in_time(
            due,
            self._nodes.ensure(
                request.log,
                request.config,
                self._default,
                request.fields or CONFIG_FIELDS,
                before_displaced=lambda stored: stop_writer(self._ledgers, stored),
            ),
        )
        return await in_time(due, self._state_of(stored, due, was_created=was_created))

    async def get_log(self, request: messages.GetLog, due: float) -> messages.LogState:
        stored = await self._stored_of(request.log, due)
        check_life(request.log, text_of(stored.list.uid), request.uid)
        return await in_time(due, self._state_of(stored, due))

    async def update_log(self, request: messages.UpdateLog, due: float) -> messages.LogState:
        """Change the configuration at the log's owner, which then uses it immediately. If no server owns the
        log, any server changes it (SV7).
        """

        def with_config(listed: LedgerList) -> LedgerList:
            self._require_no_other_owner(listed)
            check_life(request.log, text_of(listed.uid), request.uid)
            check_etag(request.log, listed, request.etag)
            return listed.with_config(listed.config.with_values(request.config, request.fields))

        stored = await in_time(due, self._nodes.change(request.log, with_config))
        try:
            # Wait for an opening in progress, which may have read the list before the change. Later
            # openings read the changed list.
            owner = await in_time(due, self.server.find_opened(request.log))
            if owner is not None:
                await in_time(due, owner.refresh())
            return await in_time(due, self._state_of(stored, due))
        except Unavailable as error:  # This error alone would mean that nothing was changed.
            raise OutcomeUnknown(
                "the configuration is stored, but the state of the log could not be read",
                reason=error.code.reason,
            ) from error

    async def list_logs(self, request: messages.ListLogs, due: float) -> messages.LogNames:
        """The names of logs that are not deleted."""
        limit = max(1, min(request.limit, _NAMES_MAX))
        after_namespace, _, after = request.start_after.partition("/")
        namespaces = [request.namespace] if request.namespace else await self._nodes.namespaces()
        found: list[LogName] = []
        for namespace in namespaces:
            if namespace < after_namespace:
                continue
            start_after = after if namespace == after_namespace else ""
            while len(found) <= limit:
                names = await in_time(
                    due, self._nodes.names(namespace, request.prefix, start_after, limit + 1)
                )
                found += await in_time(due, self._those_alive(names))
                if len(names) <= limit:
                    break
                start_after = names[-1].name
        next_page = str(found[limit - 1]) if len(found) > limit else ""
        return messages.LogNames(tuple(found[:limit]), next_page)

    async def delete_log(self, request: messages.DeleteLog, due: float) -> messages.DeleteLogAnswer:
        """Delete a log. If the log has an owner, only the owner deletes the log, and then no longer owns it. If
        the log has no owner, any server deletes it, and fences its unclosed ledgers: no append is acked
        afterwards (LS12).
        """
        if not 0 <= (request.grace_ms or 0) <= DELETE_GRACE_MS_MAX:
            raise InvalidRequest(
                "grace_ms has to be 0 to a hundred years", grace_ms=request.grace_ms
            )
        stored = await in_time(due, self._nodes.read(request.log))
        check_life(request.log, text_of(stored.list.uid), request.uid)
        if (
            stored.list.state is ListedLogState.DELETED
        ):  # The log was deleted before, but perhaps its ledgers were not fenced.
            await in_time(due, stop_writer(self._ledgers, stored))
            return await self._freed_sooner(stored, request.grace_ms, due)
        listed = await self._ends.list_of(request.log)
        self._require_no_other_owner(listed)
        now_us, config = self._clock.wall_us(), listed.config
        grace_ms = config.delete_grace_s * 1000 if request.grace_ms is None else request.grace_ms
        event = LogEvent("log_deleted", now_us, server_id=self.server.server_id)
        stored = await in_time(
            due,
            delete_log(
                self._nodes,
                request.log,
                now_us + grace_ms * 1000,
                event,
                uid=request.uid,
                etag=request.etag,
                owned_by=listed.owner_epoch,
            ),
        )
        owner = self.server.find(request.log)
        if owner is not None:
            owner.lose("the log was deleted")
        else:
            await in_time(due, stop_writer(self._ledgers, stored))
        if not grace_ms:
            await self._free(stored, due)
        return messages.DeleteLogAnswer(stored.list.free_at_us)

    async def _freed_sooner(
        self, stored: StoredLog, grace_ms: int | None, due: float
    ) -> messages.DeleteLogAnswer:
        """Shorten the grace period of a log that is already deleted. It is never extended."""
        if grace_ms is not None:
            free_at_us = self._clock.wall_us() + grace_ms * 1000
            stored = await in_time(
                due,
                self._nodes.change_stored(
                    stored, lambda listed: listed.with_shorter_grace(free_at_us)
                ),
            )
            if not grace_ms:
                await self._free(stored, due)
        return messages.DeleteLogAnswer(stored.list.free_at_us)

    async def _free(self, stored: StoredLog, due: float) -> None:
        """Free as much of a deleted log as is possible now. The next sweep frees the rest."""
        with suppress(RollbookError):
            now_us = self._clock.wall_us()
            await in_time(
                due, free_log(self._ledgers, self._nodes, stored, now_us, keeps_name=True)
            )

    async def list_deleted_logs(
        self, request: messages.ListDeletedLogs, due: float
    ) -> messages.DeletedLogs:
        limit = max(1, min(request.limit, _NAMES_MAX))
        found = [
            each
            for each in await in_time(due, self._nodes.all_displaced())
            if request.namespace in ("", each.name.namespace)
            and each.name.name.startswith(request.prefix)
            and not each.list.is_condemned
        ]
        namespaces = [request.namespace] if request.namespace else await self._nodes.namespaces()
        for namespace in namespaces:
            names = await in_time(due, self._nodes.names(namespace, request.prefix))
            for start in range(0, len(names), _READS_MAX):
                part = map(self._deleted_as, names[start : start + _READS_MAX])
                found += [each for each in await in_time(due, asyncio.gather(*part)) if each]
        found.sort(key=lambda each: (str(each.name), each.list.deleted_us))
        logs = tuple(map(_shown_deleted, found[:limit]))
        return messages.DeletedLogs(logs, len(found) <= limit)

    async def _deleted_as(self, name: LogName) -> StoredLog | None:
        with suppress(NoSuchLog):
            stored = await self._nodes.read(name)
            if stored.list.state is ListedLogState.DELETED and not stored.list.is_condemned:
                return stored
        return None

    async def undelete_log(self, request: messages.UndeleteLog, due: float) -> messages.LogState:
        event = LogEvent(
            "log_undeleted",
            self._clock.wall_us(),
            server_id=self.server.server_id,
            reason=f"it was {request.log}" if request.to else "",
        )
        work = self._nodes.undelete(request.log, request.uid, request.to, event)
        stored = await in_time(due, work)
        return await in_time(due, self._state_of(stored, due))

    async def roll_log(self, request: messages.RollLog, due: float) -> messages.RollLogAnswer:
        owner = await self.server.owner_of(request.log, due, uid=request.uid)
        return messages.RollLogAnswer(await in_time(due, owner.roll()))

    async def list_segments(self, request: messages.ListSegments, due: float) -> messages.Segments:
        listed = await in_time(due, self._ends.list_of(request.log))
        await self._reads.require_life(request.log, text_of(listed.uid), request.uid)
        sizes = await in_time(due, self._sizes_of(request.log, listed, due))
        page = segments_page(listed, request.start, max(1, min(request.limit, _NAMES_MAX)), sizes)
        try:
            async with asyncio.timeout(min(_LOST_LOOK_S, self._detail_s(due))):
                lost = await self.server.lost_segments.look(
                    request.log, [each.ledger_id for each in page.segments]
                )
        except (Unavailable, OutcomeUnknown, TimeoutError):
            return page  # Lost segments are not known without the metadata store.
        return with_lost(page, lost)

    async def get_journal(self, request: messages.GetJournal, due: float) -> messages.LogJournal:
        listed = await in_time(due, self._ends.list_of(request.log))
        await self._reads.require_life(request.log, text_of(listed.uid), request.uid)
        return history_of(listed, request.limit)

    async def get_limits(self, request: messages.GetLimits, due: float) -> messages.ServiceLimits:
        return messages.ServiceLimits(
            record_bytes_max=BATCH_BYTES_CEILING,
            block_bytes_max=BATCH_BYTES_CEILING,
            block_unpacked_bytes_max=BATCH_BYTES_CEILING,
            block_records_max=BATCH_RECORDS_CEILING,
            message_bytes_max=MESSAGE_BYTES_MAX,
            stream_bytes_max=self.server.config.stream_bytes_max,
            cursor_blob_bytes_max=CURSOR_BLOB_BYTES_MAX,
            usable_bookies=self.server.ledgers.count_usable(),
            quorum=self.server.config.quorum,
        )

    async def _stored_of(self, log: LogName, due: float) -> StoredLog:
        """Read the log's list. If the metadata store does not respond in time, return the list that the owner
        at this server last knew. Raises `NoSuchLog`, `LogDeleted`.
        """
        owner = self.server.find(log)
        if owner is None:
            return await in_time(due, self._nodes.read_living(log))
        try:
            async with asyncio.timeout(self._detail_s(due)):
                return await self._nodes.read_living(log)
        except (Unavailable, OutcomeUnknown, TimeoutError):
            return owner.stored

    def _detail_s(self, due: float) -> float:
        """The time limit for details that a response can omit."""
        return min(_DETAIL_S, max(due - self._loop.time(), 0.0) / 3)

    def _require_no_other_owner(self, listed: LedgerList) -> None:
        """Call this before changes that an owner must know immediately. Raises `NotOwner` if another server owns
        the log.
        """
        owner = listed.owner
        if owner is None or owner.server_id == self.server.server_id:
            return
        if self.server.is_alive(owner.server_id):
            raise NotOwner(owner=owner.address, owner_epoch=listed.owner_epoch)

    async def _those_alive(self, names: list[LogName]) -> list[LogName]:
        async def exists(name: LogName) -> bool:
            try:
                await self._nodes.read_living(name)
            except (NoSuchLog, LogDeleted):
                return False
            return True

        found: list[LogName] = []
        for start in range(0, len(names), _READS_MAX):
            part = names[start : start + _READS_MAX]
            alive = await asyncio.gather(*map(exists, part))
            found += [name for name, each in zip(part, alive, strict=True) if each]
        return found

    async def _state_of(
        self, stored: StoredLog, due: float, *, was_created: bool = False
    ) -> messages.LogState:
        listed, owner = stored.list, self.server.find(stored.name)
        tail = listed.tail
        if tail is None:
            tail = (
                owner.tail
                if owner is not None
                else await self._reported_tail(stored.name, listed, due)
            )
        sizes = await self._sizes_of(stored.name, listed, due)
        unopened = self.server.find_unopened(stored.name) if owner is None else None
        return messages.LogState(
            log=stored.name,
            config=listed.config,
            etag=etag_of(listed),
            was_created=was_created,
            head=listed.head,
            tail=max(tail, owner.tail) if owner is not None else tail,
            is_sealed=listed.state is ListedLogState.SEALED,
            owner_id=listed.owner.server_id if listed.owner is not None else "",
            owner=listed.owner.address if listed.owner is not None else "",
            owner_epoch=listed.owner_epoch,
            writer_epoch=owner.writer_epoch if owner is not None else NO_WRITER_YET,
            writer_holder=owner.writer_holder if owner is not None else "",
            bytes=sum(segment.size(sizes).bytes for segment in listed.segments),
            records=tail - listed.head,
            segments=len(listed.segments),
            roll_due_us=owner.roll_due_us if owner is not None else 0,
            uid=text_of(listed.uid),
            vacant_seats=_vacant_in_words(owner.vacant_slots) if owner is not None else (),
            problem=_problem_of(unopened) if unopened is not None else "",
            next_step=unopened.next_step if unopened is not None else "",
        )

    async def _reported_tail(self, name: LogName, listed: LedgerList, due: float) -> Offset:
        """The tail that the owner at another server reports. If there is no owner, the tail that bookies report; if
        no response comes in time, the end of the last closed segment. No server opens the log for this.
        """
        owner = listed.owner
        is_elsewhere = owner is not None and owner.server_id != self.server.server_id
        with suppress(RollbookError, TimeoutError):
            async with asyncio.timeout(self._detail_s(due)):
                if is_elsewhere and owner is not None and self.server.is_alive(owner.server_id):
                    return (await self._ends.tail_of(name)).tail
                return (await find_tail(listed, self._ledgers))[0]
        return max(listed.head, closed_end(listed) or listed.head)

    async def _sizes_of(self, log: LogName, listed: LedgerList, due: float) -> Sizes:
        """The sizes of unclosed segments. The owner at this server counts them; if there is no owner here, bookies
        report them. If they do not respond in time, no sizes are returned.
        """
        if (owner := self.server.find(log)) is not None:
            return owner.written
        with suppress(RollbookError, TimeoutError):
            async with asyncio.timeout(self._detail_s(due)):
                return await find_sizes(listed, self._ledgers)
        return NOT_COUNTED

    # --- Cursors and guards -----------------------------------------------------------------

    async def get_cursor(self, request: messages.GetCursor, due: float) -> messages.Cursor:
        return await in_time(due, self._nodes.read_cursor(request.log, request.name, request.uid))

    async def commit_cursor(self, request: messages.CommitCursor, due: float) -> messages.Cursor:
        owner = self.server.find(request.log)
        if owner is not None and request.offset > owner.tail:
            listed = (await in_time(due, self._nodes.read(request.log))).list
            if listed.owner_epoch != owner.owner_epoch:
                # The owner was replaced and does not know it yet. The log's tail may be beyond the tail
                # that it knows.
                owner = None
        tail = None if owner is None else owner.tail
        return await in_time(due, self._nodes.commit_cursor(request, tail))

    async def list_cursors(self, request: messages.ListCursors, due: float) -> messages.Cursors:
        limit = max(1, min(request.limit, _CURSORS_IN_PAGE))
        page = self._nodes.first_cursors(request.log, limit, request.start_after, request.uid)
        found, more = await in_time(due, page)
        return messages.Cursors(tuple(found), found[-1].name if found and more else "")

    async def delete_cursor(self, request: messages.DeleteCursor, due: float) -> messages.Done:
        await in_time(due, self._nodes.delete_cursor(request))
        return messages.Done()

    # --- Cluster ----------------------------------------------------------------------------

    async def lookup(self, request: messages.Lookup, due: float) -> messages.LogOwners:
        owners: list[messages.LogOwner] = []
        for log in request.logs:
            try:
                owner = self.server.find(log)
                # While the metadata store is unavailable, report the owner that this server knows.
                if owner is not None and self.server.outage.store_is_away:
                    epoch = owner.owner_epoch
                    owners.append(messages.LogOwner(log, self.server.address, epoch, True))
                    continue
                listed, info, is_owner = await in_time(due, self.server.whom_to_ask(log))
            except Missing:
                continue
            address = info.address if info is not None else ""
            owners.append(messages.LogOwner(log, address, listed.owner_epoch, is_owner))
        return messages.LogOwners(tuple(owners))

    async def list_servers(self, request: messages.ListServers, due: float) -> messages.Servers:
        return messages.Servers(
            tuple(
                messages.ServerView(
                    server_id=each.info.server_id,
                    address=each.info.address,
                    state=_DRAINING if each.is_draining else _SERVING,
                    version=each.release,
                    started_us=each.started_us,
                    logs_owned=each.logs_owned,
                    logs_degraded=each.logs_degraded,
                    logs_unopened=each.logs_unopened,
                )
                for each in self.server.membership.servers
            )
        )

    async def transfer_log(self, request: messages.TransferLog, due: float) -> messages.LogOwner:
        target = self.server.membership.find(request.to)
        if target is None or not self.server.membership.takes_logs(target):
            raise NoSuchServer(server=request.to)
        owner = await self.server.owner_of(request.log, due, uid=request.uid)
        if target.info.server_id != self.server.server_id:
            await in_time(due, self.server.transfer(request.log, target))
        return messages.LogOwner(request.log, target.info.address, owner.owner_epoch, False)

    async def drain_server(self, request: messages.DrainServer, due: float) -> messages.DrainAnswer:
        target = self.server.membership.find(request.server)
        if target is None:
            raise NoSuchServer(server=request.server)
        if target.info.server_id != self.server.server_id:
            return await self._drain_elsewhere(request, target.info.address, due)
        if request.resume:
            await self.server.resume(due)
            return messages.DrainAnswer(len(self.server.owned_logs))
        return messages.DrainAnswer(await self.server.drain(due))

    async def _drain_elsewhere(
        self, request: messages.DrainServer, address: str, due: float
    ) -> messages.DrainAnswer:
        """Forward the request to the server that it names. Raises `NotOwner` with that server's address if this
        server cannot ask it, or is not authorized to: then the caller can ask it.
        """
        itself = NotOwner("send this request to that server", owner=address, owner_epoch=0)
        if self._ask_peer is None or address == self.server.address:
            raise itself
        try:
            answer: messages.DrainAnswer = await in_time(due, self._ask_peer(request, address, due))
        except Unauthorized as error:
            raise itself from error
        return answer

    async def get_server_stats(
        self, request: messages.GetServerStats, due: float
    ) -> messages.ServerStats:
        server = self.server
        return messages.ServerStats(
            server.server_id,
            {
                f"{NAMESPACE}_{metric.name}": float(value)
                for metric, value in read(self.stats)
                if isinstance(value, int | float)
            },
        )

    async def get_outage(self, request: messages.GetOutage, due: float) -> messages.Outage:
        return await self.server.outage.look()

    def on_waiting(self) -> None:
        self.server.outage.begin_look()

    def explained(self, error: RollbookError) -> RollbookError:
        return self.server.outage.explained(error)


def _shown_deleted(stored: StoredLog) -> messages.DeletedLog:
    listed = stored.list
    return messages.DeletedLog(
        stored.name,
        text_of(listed.uid),
        listed.deleted_us,
        listed.free_at_us,
        len(listed.segments),
        not stored.is_displaced,
    )


def _vacant_in_words(vacant: Mapping[BookieId, str]) -> tuple[str, ...]:
    return tuple(f"{bookie}: {why}" for bookie, why in sorted(vacant.items()))


def _problem_of(failed: FailedOpening) -> str:
    return f"it could not be opened {failed.attempts} times in a row: {failed.why}"
