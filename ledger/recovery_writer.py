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
from rollbook.proto.wire.add_columns import AddPacker, AddReplies
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


class _Member:
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
        self._members = [
            _Member(slot, bookie, self._loop.time()) for slot, bookie in enumerate(ensemble)
        ]
        self._of_channel: dict[AddChannel, _Member] = {}
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
        for member in self._members:
            self._open_channel(member)

    def add(self, entries: list[Entry]) -> None:
        """Sends entries, in order, to all their members at once."""
        frames: dict[int, list[bytes]] = {}
        for entry in entries:
            frame = self._pack(entry)
            for slot in self._copies.add(entry):
                frames.setdefault(slot, []).append(frame)
        for slot, parts in frames.items():
            member = self._members[slot]
            if member.channel is None:
                self._open_channel(member)
            elif member.channel.is_open:
                member.channel.write(parts, len(parts))

    def look(self) -> float:
        """Gives up members that have not answered for too long. Returns the time until the next
        check."""
        now = self._loop.time()
        if not self._copies.has_ack_quorums():
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
        next_look_s = self._deadline_s
        for member in self._members:
            if not self._copies.owes(member.slot):
                member.progress_at = now
                continue
            due = member.progress_at + self._deadline_s
            if self._enough_since is not None:
                due = min(due, max(member.progress_at, self._enough_since) + self._patience_s)
            if now >= due:
                if member.channel is not None:
                    member.channel.complain(now - member.progress_at)
                self._give_up(member, QuorumTimeout.code.reason)
            else:
                next_look_s = min(next_look_s, due - now)
        return next_look_s

    def close(self) -> None:
        for member in self._members:
            self._close_channel(member)

    # --- Called by channels -------------------------------------------------------------------

    def on_channel_open(self, channel: AddChannel) -> None:
        member = self._of_channel[channel]
        member.losses = 0
        self._send_owed(member)

    def on_channel_lost(self, channel: AddChannel, error: RollbookError) -> None:
        member = self._of_channel[channel]
        member.losses += 1
        if member.losses >= _LOSSES_MAX and self._copies.owes(member.slot):
            self._give_up(member, error.code.reason)
            self._on_news()

    def on_add_replies(self, channel: AddChannel, replies: AddReplies) -> None:
        member = self._of_channel[channel]
        if replies.error is None:
            member.progress_at = self._loop.time()
            self._copies.on_acks(member.slot, member.bookie, replies.entry_ids)
        elif issubclass(replies.error, Overloaded | Throttled):
            member.refused.update(dict.fromkeys(replies.entry_ids))
            if member.busy_timer is None:
                member.busy_timer = self._loop.call_later(_BUSY_PAUSE_S, self._send_refused, member)
        elif issubclass(replies.error, Unauthorized):
            self.error = replies.error("recovery adds are refused", ledger_id=self._ledger_id)
        else:
            self._give_up(member, replies.error.code.reason)
        self._on_news()

    # ------------------------------------------------------------------------------------------

    def _pack(self, entry: Entry) -> bytes:
        return self._packer.pack(
            entry.entry_id, self._last_add_confirmed, entry.ledger_length, entry.payload
        )

    def _send_owed(self, member: _Member) -> None:
        member.refused.clear()
        self._send(member, self._copies.unacked(member.slot))

    def _send_refused(self, member: _Member) -> None:
        member.busy_timer = None
        refused, member.refused = member.refused, {}
        owed = self._copies.unacked(member.slot)
        self._send(member, [entry for entry in owed if entry.entry_id in refused])

    def _send(self, member: _Member, entries: list[Entry]) -> None:
        if entries and member.channel is not None and member.channel.is_open:
            member.channel.write([self._pack(entry) for entry in entries], len(entries))

    def _give_up(self, member: _Member, reason: str) -> None:
        """Replaces the slot's bookie, if there is another one for the slot."""
        if not self._copies.owes(member.slot):
            return
        self._failed[member.bookie] = None
        self._close_channel(member)
        now_ns = self._clock.monotonic_ns()
        picked = self._placement.pick_replacements(
            self._quorum,
            self._copies.ensemble,
            [member.slot],
            self._bookies.live(),
            now_ns,
            excluded=[*self._failed, *self._copies.holders()],
            is_urgent=True,
        )
        replacement = picked.get(member.slot)
        logger.warning(
            "recovery_bookie_given_up",
            ledger_id=self._ledger_id,
            bookie=member.bookie,
            reason=reason,
            replacement=replacement,
        )
        if replacement is None:
            self._copies.abandon(member.slot)
            if self._copies.is_hopeless:
                self.error = NotEnoughBookies(
                    "too few bookies are left for the recovered entries",
                    ledger_id=self._ledger_id,
                    failed=", ".join(self._failed),
                )
            return
        self._copies.replace(member.slot, replacement)
        member.bookie = replacement
        member.losses = 0
        member.progress_at = self._loop.time()
        self._open_channel(member)

    def _open_channel(self, member: _Member) -> None:
        member.progress_at = self._loop.time()
        member.channel = self._bookies.add_channel(
            member.bookie, self._ledger_id, self, is_high_priority=True
        )
        self._of_channel[member.channel] = member

    def _close_channel(self, member: _Member) -> None:
        if member.busy_timer is not None:
            member.busy_timer.cancel()
            member.busy_timer = None
        if member.channel is not None:
            member.channel.close()
            del self._of_channel[member.channel]
            member.channel = None
