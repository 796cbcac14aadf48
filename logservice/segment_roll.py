"""Changes from one segment of a log to the next. A segment is listed, written and closed, in that order
(LS1, LS2, LS3).

    N ──────────────── written ──────────────┐ last add confirmed, CLOSED
                                             │      │
    list        N+1 is listed                │      │      N is closed there
                     │                       │      │
    N+1              └─ Follows(N, 41), then all that is appended ── acked from here on

If a roll cannot list N+1, it is postponed, and appends continue in N. If it cannot close N at the entry that
N+1 names, the ownership ends, since the owner no longer knows the end of the log.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from rollbook.ledger.writer import LedgerWriter
from rollbook.logservice.append_path import AppendPath, SegmentWriter
from rollbook.logservice.core.degraded_ensembles import (
    BetterSegment,
    RollToMoreBookies,
    better_segment,
    degraded_to,
)
from rollbook.logservice.core.ledger_list import NOT_COUNTED, LedgerList, Size, Sizes
from rollbook.logservice.core.roll_rules import SEGMENTS_MAX, SegmentLimits
from rollbook.logservice.ids import Offset, SegmentId
from rollbook.logservice.ledger_list_store import LedgerListStore
from rollbook.logservice.server_context import OwnerContext
from rollbook.proto.errors import InvalidRequest, Missing, RollbookError, Superseded
from rollbook.proto.ids import BookieId, EntryId, LedgerId

_ROLL_AGAIN_S: Final = 1.0  # The pause after a failed roll.
_LOOK_S: Final = (
    1.0  # The pause between two searches for more bookies; at random up to twice as long.
)


class SegmentRoll:
    def __init__(
        self,
        context: OwnerContext,
        append_path: AppendPath,
        list_store: LedgerListStore,
        log: structlog.typing.FilteringBoundLogger,
        *,
        on_disowned: Callable[[RollbookError], RollbookError],
    ) -> None:
        """`on_disowned` is called when the list shows that this server no longer owns the log. It returns
        the error to raise."""
        self.rolling: asyncio.Task[SegmentId] | None = None
        self._context, self._append_path, self._list_store, self._log = (
            context,
            append_path,
            list_store,
            log,
        )
        self._on_disowned = on_disowned
        append_path.on_full = self.roll_if_due
        self._loop = asyncio.get_running_loop()
        self._not_before_s = 0.0
        self._age_timer: asyncio.TimerHandle | None = None
        self._to_more = RollToMoreBookies()
        self._widening: asyncio.Task[None] | None = None  # Runs while the segment lacks bookies.
        # The segments that may be unclosed; at most two.
        self._unclosed: list[SegmentWriter] = []

    # --- Rolling ------------------------------------------------------------------------------

    def watch(self) -> None:
        """Watch the written segment: its age, so that even an idle segment ends, and its vacant slots."""
        self._stop_age_timer()
        writing = self._append_path.writing
        if writing is not None and self._append_path.failure is None:
            if writing not in self._unclosed:
                self._unclosed.append(writing)
            wait_s = max(writing.oldest_s - self._loop.time(), _ROLL_AGAIN_S)
            self._age_timer = self._loop.call_later(wait_s, self._on_old)
            writing.writer.watch_seats(self._on_vacant)
            if self.lacking_slots:
                self._on_vacant()

    @property
    def degraded_to(self) -> int:
        """The number of bookies of the written segment, if it was made with too few; else 0 (LS13)."""
        writing, listed = self._append_path.writing, self._list_store.list.segments
        if writing is None or not listed or listed[-1].ledger_id != writing.ledger_id:
            return 0
        return listed[-1].degraded_to

    @property
    def vacant_slots(self) -> Mapping[BookieId, str]:
        """Bookies of the written segment that are not expected to get its next entry, and why (LS16)."""
        writing = self._append_path.writing
        return {} if writing is None else writing.writer.vacant_seats

    @property
    def lacking_slots(self) -> int:
        """How many of the bookies that the log wants will not get the written segment's next entry."""
        bookies = self.degraded_to
        missing = self._list_store.list.config.quorum.ensemble - bookies if bookies else 0
        return max(0, missing) + len(self.vacant_slots)

    def _on_vacant(self) -> None:
        is_watched = self._widening is not None and not self._widening.done()
        if self._append_path.failure is None and not is_watched:
            self._widening = self._loop.create_task(self._widen())

    async def _widen(self) -> None:
        """Begin a new segment as soon as enough bookies take new ledgers (LS16). Many logs may be degraded
        at the same time: a random pause and a limit keep them from rolling together.
        """
        context = self._context
        while True:
            await asyncio.sleep(_LOOK_S * (1 + context.randomness.random()))
            better = self._better_segment()
            is_over = self._to_more.is_over and not self.degraded_to
            if is_over or self._takes_no_more:
                return
            if better is None:
                continue
            if await context.ledgers.check_healthy_bookies(better.bookies_min):
                async with context.may_widen:
                    await self._roll_to_more()

    async def _roll_to_more(self) -> None:
        better = self._better_segment()
        if better is not None and self.rolling is None and not self._takes_no_more:
            rolling = self.start(better.reason, bookies_min=better.bookies_min)
            await asyncio.gather(asyncio.shield(rolling), return_exceptions=True)
            self._to_more.on_attempt(self._loop.time(), better.reason)

    def _better_segment(self) -> BetterSegment | None:
        """The segment to begin now, if enough bookies take new ledgers."""
        reason = self._to_more.reason_to_roll(
            self._loop.time(), is_made_short=self.degraded_to > 0, vacant=len(self.vacant_slots)
        )
        config, writing = self._list_store.list.config, self._append_path.writing
        if reason is None or writing is None:  # There is no segment to replace.
            return None
        made = writing.writer.metadata.quorum
        return better_segment(config.quorum, made, reason, allows_degraded=config.degraded_segments)

    @property
    def _takes_no_more(self) -> bool:
        return self._append_path.memory.is_sealed or not self._append_path.takes_more

    def roll_if_due(self) -> None:
        append_path, now_s = self._append_path, self._loop.time()
        if append_path.writing is None or self.rolling is not None or self._takes_no_more:
            return
        if now_s >= self._not_before_s and (reason := append_path.writing.reason_to_roll(now_s)):
            self.start(reason)

    def start(self, reason: str, *, bookies_min: int = 0) -> "asyncio.Task[SegmentId]":
        """Begin a roll, or join a running one. The task returns the segment that is written afterwards."""
        if self.rolling is None:
            self.rolling = self._loop.create_task(self._roll(reason, bookies_min))
            self.rolling.add_done_callback(self._on_rolled)
        return self.rolling

    def _on_old(self) -> None:
        self._age_timer = None
        self.roll_if_due()
        if self.rolling is None:
            self.watch()

    def _on_rolled(self, rolling: "asyncio.Task[SegmentId]") -> None:
        self.rolling = None
        error = None if rolling.cancelled() else rolling.exception()
        # After a failed roll, appends still go to the old segment.
        if error is not None and self._append_path.failure is None:
            reason = error.code.reason if isinstance(error, RollbookError) else repr(error)
            self._log.warning("segment_not_rolled", reason=reason)
            self._not_before_s = self._loop.time() + _ROLL_AGAIN_S
        self.watch()

    async def _roll(self, reason: str, bookies_min: int) -> SegmentId:
        append_path, old = self._append_path, self._append_path.writing
        assert old is not None
        if len(self._list_store.list.segments) >= SEGMENTS_MAX:
            raise InvalidRequest(
                f"a log has at most {SEGMENTS_MAX} segments",
                next_step="truncate the log, or give it larger segments (roll_bytes, roll_age_s)",
            )

        def with_successor(listed: LedgerList, writer: LedgerWriter) -> LedgerList:
            return listed.with_successor(
                writer.ledger_id,
                reason,
                append_path.memory.timestamp_us,
                degraded_to=degraded_to(listed.config.quorum, writer.metadata.quorum),
                began_us=self._context.clock.wall_us(),
            )

        try:
            writer, segment = await self._list_store.list_ledger(
                with_successor, bookies_min=bookies_min
            )
        except (Superseded, Missing) as error:
            raise self._on_disowned(error) from error
        if append_path.failure is not None:
            await writer.stop()
            raise append_path.refusal()
        limits = SegmentLimits(self._list_store.list.config, self._context.randomness)
        follows = append_path.memory.follows(old.ledger_id, old.writer.last_appended)
        append_path.take(writer, segment.segment_id, limits)
        self._unclosed = [old, append_path.writing] if append_path.writing else [old]
        try:
            append_path.say(follows)
        except RollbookError as error:  # The successor's first entry must be this one.
            append_path.on_ledger_failed(error)
            raise append_path.refusal() from error
        next_offset, timestamp_us = append_path.memory.tail, append_path.memory.timestamp_us
        await self._close_ledger(old)
        append_path.on_closed()
        await self._list_closed(old, next_offset, timestamp_us)
        self._unclosed.remove(old)
        self._log.info(
            "segment_rolled",
            ledger_id=old.ledger_id,
            successor=writer.ledger_id,
            reason=reason,
            next_offset=next_offset,
        )
        return segment.segment_id

    def has_begun(self, listed: LedgerList) -> bool:
        """Return whether earlier segments may be truncated: the first unclosed segment of this list has begun, or
        all segments are closed (LS5).
        """
        unclosed = [each.segment_id for each in listed.unclosed[:1]]
        return not unclosed or any(
            each.is_begun for each in self._unclosed if each.segment_id in unclosed
        )

    @property
    def confirmed(self) -> Mapping[LedgerId, EntryId]:
        """The last confirmed entry of each ledger that may be unclosed."""
        return {each.ledger_id: each.writer.last_add_confirmed for each in self._unclosed}

    @property
    def last_confirmed(self) -> tuple[LedgerId, EntryId] | None:
        """The ledger that has the confirmed tail of the log, and its last confirmed entry. Entries of a
        second ledger count only when the first one is closed (LS1).
        """
        for each in self._unclosed:
            if not each.writer.metadata.is_closed:
                return each.ledger_id, each.writer.last_add_confirmed
        return None

    @property
    def written(self) -> Sizes:
        """The sizes of the segments that may be unclosed."""
        if not self._unclosed:
            return NOT_COUNTED
        ends = [*(each.base_offset for each in self._unclosed[1:]), self._append_path.memory.tail]
        return {
            each.ledger_id: Size(each.length.bytes, end - each.base_offset)
            for each, end in zip(self._unclosed, ends, strict=True)
        }

    # --- Closing ------------------------------------------------------------------------------

    async def close_last(self) -> None:
        """Close the written segment after its last record. No segment follows."""
        append_path, writing = self._append_path, self._append_path.writing
        assert writing is not None
        await self._close_ledger(writing)
        await self._list_closed(writing, append_path.memory.tail, append_path.memory.timestamp_us)
        append_path.writing = None
        self._stop_watching()

    async def stop(self) -> None:
        """Stop all writers without closing their segments."""
        self._stop_watching()
        rolling, widening = self.rolling, self._widening
        if rolling is not None:
            rolling.cancel()
        for each in self._unclosed:
            await each.writer.stop()
        works = [each for each in (rolling, widening) if each is not None]
        await asyncio.gather(*works, return_exceptions=True)

    async def _close_ledger(self, segment: SegmentWriter) -> None:
        """Close the ledger at exactly the entry that was appended last. If that fails, the ownership ends
        (LS2).
        """
        end = segment.writer.last_appended
        try:
            await segment.writer.close()
        except RollbookError as error:
            self._append_path.on_ledger_failed(error)
            raise self._append_path.refusal() from error
        assert segment.writer.metadata.last_entry == end

    async def _list_closed(
        self, segment: SegmentWriter, next_offset: Offset, timestamp_us: int
    ) -> None:
        length = segment.writer.metadata.length
        assert length is not None

        def with_closed(listed: LedgerList) -> LedgerList:
            return listed.with_closed(
                segment.segment_id,
                next_offset=next_offset,
                last_timestamp_us=timestamp_us,
                bytes=length,
            )

        await self.change(with_closed)

    async def change(self, make: Callable[[LedgerList], LedgerList]) -> None:
        """Change the list as its owner. Raises `OwnerChanging` if this is no longer the owner."""
        try:
            await self._list_store.change(make)
        except (Superseded, Missing) as error:
            raise self._on_disowned(error) from error

    def _stop_watching(self) -> None:
        self._stop_age_timer()
        if self._widening is not None:
            self._widening.cancel()

    def _stop_age_timer(self) -> None:
        if self._age_timer is not None:
            self._age_timer.cancel()
            self._age_timer = None
