"""Sends recovered entries to their bookies. `core/write_back.py` picks the bookies and decides when
the write-back is complete.

Entries are sent as adds of a recovery, which pass the fence, with high priority. They carry the LAC
that was known when recovery began (FR4). If the LAC grew from entry to entry, a recovery that dies
could leave a bookie with a LAC that the metadata does not support.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from rollbook.ledger.bookie_pool import AddChannel, Bookies
from rollbook.ledger.client_context import ClientContext
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.write_back import WriteBack
from rollbook.proto.errors import (
    NotEnoughBookies,
    Overloaded,
    QuorumTimeout,
    RollbookError,
    Throttled,
    Unauthorized,
)
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment
from rollbook.proto.quorum import Ensemble, Quorum
from rollbook.proto.wire import v2_layout
from rollbook.proto.wire.adds import AddPacker, AddReplies
from rollbook.proto.wire.digest import Entry, LedgerDigest
from rollbook.proto.wire.v2_adds import V2AddPacker
from rollbook.proto.wire.v3_adds import V3AddPacker

logger = structlog.get_logger()

_BUSY_PAUSE_S: Final = 0.05
# Lost connections in a row: after the first one the member is connected again, after the second one
# the bookie is replaced.
_LOSSES_MAX: Final = 2


def make_recovery_packer(
    bookies: Bookies,
    ledger_key: bytes,
    digest: LedgerDigest,
    config: ClientConfig,
    *,
    is_urgent: bool = True,
) -> AddPacker:
    """Returns a packer of adds that pass a fence, for channels of adds.

    Urgent adds overtake others and may use the reserve of a full disk, because a caller waits for them.
    """
    if bookies.protocol_version == v2_layout.VERSION:
        return V2AddPacker(
            ledger_key,
            digest,
            is_recovery=True,
            is_high_priority=is_urgent,
            frame_bytes_max=config.frame_bytes_max,
        )
    return V3AddPacker(
        ledger_key,
        digest,
        bookies.txn_ids,
        is_recovery=True,
        is_high_priority=is_urgent,
        frame_bytes_max=config.frame_bytes_max,
    )


class _Seat:
    """A slot of the ensemble, and its present bookie."""

    def __init__(self, slot: int, bookie: BookieId, now: float) -> None:
        self.slot = slot
        self.bookie = bookie
        self.channel: AddChannel | None = None
        self.losses = 0
        self.progress_at = now
        # Entries that a busy bookie refused; they are sent again.
        self.refused: dict[EntryId, None] = {}
        self.busy_timer: asyncio.TimerHandle | None = None


class WriteBacks:
    def __init__(
        self,
        quorum: Quorum,
        first_entry: EntryId,
        ensemble: Ensemble,
        last_add_confirmed: EntryId,
        *,
        digest: LedgerDigest,
        ledger_key: bytes,
        context: ClientContext,
        on_news: Callable[[], None],
    ) -> None:
        bookies, config = context.bookies, context.config
        self.error: RollbookError | None = None  # The error that ended the write-back.
        self._ledger_id: LedgerId = digest.ledger_id
        self._quorum = quorum
        self._copies = WriteBack(quorum, first_entry, ensemble)
        self._last_add_confirmed = last_add_confirmed
        self._bookies = bookies
        self._placement = context.placement
        self._clock = context.clock
        self._deadline_s = config.add_deadline_s
        self._patience_s = config.recovery_patience_s
        self._on_news = on_news
        self._loop = asyncio.get_running_loop()
        self._packer = make_recovery_packer(bookies, ledger_key, digest, config)
        self._seats = [
            _Seat(slot, bookie, self._loop.time()) for slot, bookie in enumerate(ensemble)
        ]
        self._of_channel: dict[AddChannel, _Seat] = {}
        self._failed: dict[BookieId, None] = {}
        self._enough_since: float | None = None

    # --- Used by the recovery -----------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        return self._copies.is_complete

    @property
    def kept_bytes(self) -> int:
        return self._copies.entry_bytes

    def new_fragments(self) -> list[Fragment]:
        return self._copies.new_fragments()

    def open(self) -> None:
        """Connects before there are entries to write back, because connecting takes a moment."""
        for seat in self._seats:
            self._open_channel(seat)

    def add(self, entries: list[Entry]) -> None:
        """Sends entries, in order, to all their members at once."""
        frames: dict[int, list[bytes]] = {}
        for entry in entries:
            frame = self._pack(entry)
            for slot in self._copies.add(entry):
                frames.setdefault(slot, []).append(frame)
        for slot, parts in frames.items():
            seat = self._seats[slot]
            if seat.channel is None:
                self._open_channel(seat)
            elif seat.channel.is_open:
                seat.channel.write(parts, len(parts))

    def look(self) -> float:
        """Gives up members that have not answered for too long. Returns the time until the next
        check."""
        now = self._loop.time()
        if not self._copies.has_ack_quorums():
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
        next_look_s = self._deadline_s
        for seat in self._seats:
            if not self._copies.owes(seat.slot):
                seat.progress_at = now
                continue
            due = seat.progress_at + self._deadline_s
            if self._enough_since is not None:
                due = min(due, max(seat.progress_at, self._enough_since) + self._patience_s)
            if now >= due:
                if seat.channel is not None:
                    seat.channel.complain(now - seat.progress_at)
                self._give_up(seat, QuorumTimeout.code.reason)
            else:
                next_look_s = min(next_look_s, due - now)
        return next_look_s

    def close(self) -> None:
        for seat in self._seats:
            self._close_channel(seat)

    # --- Called by channels -------------------------------------------------------------------

    def on_channel_open(self, channel: AddChannel) -> None:
        seat = self._of_channel[channel]
        seat.losses = 0
        self._send_owed(seat)

    def on_channel_lost(self, channel: AddChannel, error: RollbookError) -> None:
        seat = self._of_channel[channel]
        seat.losses += 1
        if seat.losses >= _LOSSES_MAX and self._copies.owes(seat.slot):
            self._give_up(seat, error.code.reason)
            self._on_news()

    def on_add_replies(self, channel: AddChannel, replies: AddReplies) -> None:
        seat = self._of_channel[channel]
        if replies.error is None:
            seat.progress_at = self._loop.time()
            self._copies.on_acks(seat.slot, seat.bookie, replies.entry_ids)
        elif issubclass(replies.error, Overloaded | Throttled):
            seat.refused.update(dict.fromkeys(replies.entry_ids))
            if seat.busy_timer is None:
                seat.busy_timer = self._loop.call_later(_BUSY_PAUSE_S, self._send_refused, seat)
        elif issubclass(replies.error, Unauthorized):
            self.error = replies.error("recovery adds are refused", ledger_id=self._ledger_id)
        else:
            self._give_up(seat, replies.error.code.reason)
        self._on_news()

    # ------------------------------------------------------------------------------------------

    def _pack(self, entry: Entry) -> bytes:
        return self._packer.pack(
            entry.entry_id, self._last_add_confirmed, entry.ledger_length, entry.payload
        )

    def _send_owed(self, seat: _Seat) -> None:
        seat.refused.clear()
        self._send(seat, self._copies.unacked(seat.slot))

    def _send_refused(self, seat: _Seat) -> None:
        seat.busy_timer = None
        refused, seat.refused = seat.refused, {}
        owed = self._copies.unacked(seat.slot)
        self._send(seat, [entry for entry in owed if entry.entry_id in refused])

    def _send(self, seat: _Seat, entries: list[Entry]) -> None:
        if entries and seat.channel is not None and seat.channel.is_open:
            seat.channel.write([self._pack(entry) for entry in entries], len(entries))

    def _give_up(self, seat: _Seat, reason: str) -> None:
        """Replaces the slot's bookie, if there is another one for the slot."""
        if not self._copies.owes(seat.slot):
            return
        self._failed[seat.bookie] = None
        self._close_channel(seat)
        now_ns = self._clock.monotonic_ns()
        picked = self._placement.pick_replacements(
            self._quorum,
            self._copies.ensemble,
            [seat.slot],
            self._bookies.live(),
            now_ns,
            excluded=[*self._failed, *self._copies.holders()],
            is_urgent=True,
        )
        replacement = picked.get(seat.slot)
        logger.warning(
            "recovery_bookie_given_up",
            ledger_id=self._ledger_id,
            bookie=seat.bookie,
            reason=reason,
            replacement=replacement,
        )
        if replacement is None:
            self._copies.abandon(seat.slot)
            if self._copies.is_hopeless:
                self.error = NotEnoughBookies(
                    "too few bookies are left for the recovered entries",
                    ledger_id=self._ledger_id,
                    failed=", ".join(self._failed),
                )
            return
        self._copies.replace(seat.slot, replacement)
        seat.bookie = replacement
        seat.losses = 0
        seat.progress_at = self._loop.time()
        self._open_channel(seat)

    def _open_channel(self, seat: _Seat) -> None:
        seat.progress_at = self._loop.time()
        seat.channel = self._bookies.add_channel(
            seat.bookie, self._ledger_id, self, is_high_priority=True
        )
        self._of_channel[seat.channel] = seat

    def _close_channel(self, seat: _Seat) -> None:
        if seat.busy_timer is not None:
            seat.busy_timer.cancel()
            seat.busy_timer = None
        if seat.channel is not None:
            seat.channel.close()
            del self._of_channel[seat.channel]
            seat.channel = None
