"""Keeps the entries in flight, from their append until all their bookies have a copy.

An entry gets its id, the ledger's length and its place in the queue in one step (WR1). When a frame
is to be sent, frames are built for all entries appended so far: that is cheaper than building them
one by one, and they carry the newest LAC. One frame serves all bookies. A frame is kept until its
entry is confirmed and no copy is outstanding; all kept frames fit into the window. A bookie that
reconnects or replaces another one is sent the entries again that it has not acknowledged; the other
bookies are not.

Time is counted in ticks. The writer makes them regularly while entries are in flight. Entries have
no timers: each tick records which entries exist. A process that was stopped for a while has not
ticked, so responses that wait in its sockets are read before anything expires. Ticks measure three
deadlines (WR6):

- A bookie has failed when an add has had no answer for `DEADLINE_TICKS`, whether the bookie is silent
  or busy. Before that, "busy" alone is no failure: the add is sent again after a pause.
- A bookie has also failed when entries that are confirmed without it fill half of the window and
  it has acknowledged nothing for `LAGGARD_TICKS`. Until then it slows the writer down.
- If a bookie has failed and has no successor yet, its entries are dropped once confirmed entries
  without its copy have filled half of the window for `PATIENCE_TICKS`: the writer goes on without it.

The writer gives up when an entry has not been confirmed for `DEADLINE_TICKS` and too few bookies are
left to confirm it. In any other case it gives up after twice that time: one deadline for a bookie
that hangs and one for its successor.

These rules decide how much a connection is sent at a time:

- While more than half of `_SEND_AHEAD_BYTES` waits for the socket, nothing is sent; otherwise
  frames up to that size are sent.
- While the bookie owes answers, entries are gathered for `_GATHER_S` at most (WR10).
- After "busy", nothing is sent during a pause. The pause doubles with each further "busy" until the
  bookie acknowledges an entry (WR8).
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from operator import itemgetter
from typing import Final

from rollbook.ledger.core.acks import AckTracker
from rollbook.proto.errors import (
    EntryTooLarge,
    InvalidRequest,
    NotEnoughBookies,
    Overloaded,
    QuorumTimeout,
    RollbookError,
)
from rollbook.proto.ids import FIRST_ENTRY, EntryId
from rollbook.proto.quorum import Quorum, Slots
from rollbook.proto.wire.add_columns import AddPacker

DEADLINE_TICKS: Final = 20
LAGGARD_TICKS: Final = 4
PATIENCE_TICKS: Final = 2
LOOK_AGAIN_S: Final = 0.01  # A socket that was full is checked again after this time.
# The maximum number of bytes that are written to a connection and not yet accepted by its socket.
_SEND_AHEAD_BYTES: Final = 1024 * 1024
_GATHER_S: Final = 0.002  # Larger: fewer writes; readers see later what is confirmed.
_BUSY_PAUSE_S_MIN: Final = 0.02
_BUSY_PAUSE_S_MAX: Final = 0.64
_CHUNK_BYTES: Final = 256 * 1024  # A chunk of this size is sent without waiting for more.
_NOTHING: Final = (b"", 0)
_AROUND_BYTES: Final = 160  # An upper bound on what a frame adds to its payload, in either version.
_FULL: Final = "the writer's window is full"
_WAIT: Final = "wait until it is ready"


@dataclass(slots=True)
class SlotProgress:
    """Describes which entries were sent to one slot of the ensemble."""

    # All entries below this one that the slot should hold were sent on the present connection.
    sent: EntryId
    takes_entries: bool = True
    since: int = 0  # The tick since which the slot has had copies to acknowledge.
    # Entries refused as "busy"; they will be sent again.
    refused: list[EntryId] = field(default_factory=list)
    is_paused: bool = False  # Whether sending to the slot is paused.
    acked_seen: EntryId = FIRST_ENTRY
    last_sign: int = 0  # The last tick with new acks or a "busy".


class AddPipeline:
    def __init__(
        self,
        quorum: Quorum,
        packer: AddPacker,
        window_bytes: int,
        window_entries: int,
    ) -> None:
        self.acks = AckTracker(quorum)
        self.next_entry = FIRST_ENTRY
        self.appended_bytes = 0  # An upper estimate of the bytes of all frames ever appended.
        self.sent_lac = self.acks.last_add_confirmed  # The newest LAC that a frame carries.
        self.handed_end = FIRST_ENTRY  # This entry and later ones were not sent to any slot yet.
        self.tick = 0
        self._quorum = quorum
        self._packer = packer
        self._payload_bytes_max = packer.payload_bytes_max
        self._window_bytes = window_bytes
        self._window_entries = window_entries
        self._is_striped = quorum.write < quorum.ensemble
        self._first = FIRST_ENTRY  # The first entry that is kept.
        self._frames: list[bytes] = []
        self._payloads: list[bytes] = []  # Payloads of the entries after those in `_frames`.
        self._lengths: list[int] = []  # The ledger's length at each entry in `_frames`.
        self._length_before = 0
        self._released_bytes = 0  # The part of `appended_bytes` whose frames were dropped.
        self._full_at_bytes = window_bytes  # The window is full when `appended_bytes` reaches this.
        self._full_at_entry = FIRST_ENTRY + window_entries  # The first entry that does not fit.
        self._progress = [SlotProgress(FIRST_ENTRY) for _ in range(quorum.ensemble)]
        self._busy_pauses_s = [0.0] * quorum.ensemble  # The latest pause of each slot.
        self._joined_of = (FIRST_ENTRY, FIRST_ENTRY)
        self._joined = b""
        # Pairs of a tick and the id of the next entry at that tick.
        self._ages: deque[tuple[int, EntryId]] = deque()
        # The first tick since which half of the window has been full; 0: it is not full now.
        self._half_full_since = 0

    # --- Appending ----------------------------------------------------------------------------

    def has_room(self, entries: int, payload_bytes: int) -> bool:
        """Returns whether the window has room. An entry that is larger than the window fits if the
        window is empty."""
        size = payload_bytes + entries * _AROUND_BYTES
        return self.has_all_replies or (
            self.next_entry + entries <= self._full_at_entry
            and self.appended_bytes + size <= self._full_at_bytes
        )

    @property
    def free_entries(self) -> int:
        return self._full_at_entry - self.next_entry

    def append(self, payload: bytes) -> EntryId:
        """Appends an entry. If it raises `Overloaded`, `EntryTooLarge` or `TypeError`, nothing was
        appended."""
        kept = payload if type(payload) is bytes else _kept(payload)
        size = len(kept)
        entry_id, end = self.next_entry, self.appended_bytes + size + _AROUND_BYTES
        # `has_room` is inlined, because calling it takes half as long as all of `append`.
        is_full = end > self._full_at_bytes or entry_id >= self._full_at_entry
        if is_full and not self.has_all_replies:
            raise Overloaded(_FULL, next_step=_WAIT)
        if size > self._payload_bytes_max:
            raise self._too_large(size)
        self._payloads.append(kept)
        self.appended_bytes = end
        self.next_entry = entry_id + 1  # type: ignore[assignment]  # Naming it takes a tenth.
        return entry_id

    def append_all(self, payloads: Sequence[bytes]) -> range:
        """Appends all payloads or none; returns their ids. Raises `Overloaded`, `EntryTooLarge`,
        `TypeError`, and `InvalidRequest` if the payloads can never fit."""
        kept = [each if type(each) is bytes else _kept(each) for each in payloads]
        count, size = len(kept), sum(map(len, kept))
        if count > self._window_entries or (
            count > 1 and size + count * _AROUND_BYTES > self._window_bytes
        ):
            raise InvalidRequest(
                f"{count} entries of {size} bytes are more than the writer's window",
                next_step="append fewer at once",
            )
        if not self.has_room(count, size):
            raise Overloaded(_FULL, next_step=_WAIT)
        if (largest := max(map(len, kept), default=0)) > self._payload_bytes_max:
            raise self._too_large(largest)
        first = self.next_entry
        self._payloads += kept
        self.appended_bytes += size + count * _AROUND_BYTES
        self.next_entry = EntryId(first + count)
        return range(first, self.next_entry)

    def _too_large(self, size: int) -> EntryTooLarge:
        limit = self._payload_bytes_max
        return EntryTooLarge(f"a payload of {size} bytes is over the limit of {limit}")

    def _build_frames(self) -> None:
        """Builds the frames of all entries that have none yet."""
        if self._payloads:
            built, lac = len(self._frames), self.acks.last_add_confirmed
            before = self._lengths[-1] if built else self._length_before
            first, payloads = EntryId(self._first + built), self._payloads
            if len(payloads) == 1:
                lengths = [before + len(payloads[0])]
                self._frames.append(self._packer.pack(first, lac, lengths[0], payloads[0]))
            else:
                lengths = [*accumulate(map(len, payloads), initial=before)][1:]
                self._frames += self._packer.pack_all(first, lac, lengths, payloads)
            self._lengths += lengths
            payloads.clear()
            self.sent_lac = lac

    @property
    def confirmed_length(self) -> int:
        """The number of payload bytes in the ledger up to and including the entry at the LAC."""
        index = self.acks.last_add_confirmed - self._first
        return self._lengths[index] if index >= 0 else self._length_before

    @property
    def kept_bytes(self) -> int:
        return self.appended_bytes - self._released_bytes

    @property
    def has_all_replies(self) -> bool:
        """Whether no response is outstanding."""
        return self._first == self.next_entry

    # --- Sending ------------------------------------------------------------------------------

    def owes(self, slot: int) -> bool:
        """Returns whether the slot has entries that it has not acknowledged."""
        return self.acks.acked_below(slot) < self.next_entry

    def has_more(self, slot: int) -> bool:
        progress = self._progress[slot]
        return progress.sent < self.next_entry and progress.takes_entries and not progress.is_paused

    def gathers(self, slot: int, unanswered: int) -> bool:
        """Returns whether the slot's unsent entries should wait for more: they are fewer than the
        `unanswered` adds, and smaller than a full chunk (WR10)."""
        count = self.next_entry - self._progress[slot].sent
        return (
            count * self._quorum.write < unanswered * self._quorum.ensemble
            and count * self.kept_bytes < _CHUNK_BYTES * (self.next_entry - self._first)
        )

    def next_frames(
        self, slot: int, queued_bytes: int, unanswered: int, *, is_overdue: bool
    ) -> tuple[bytes, int, float]:
        """Returns the frames to write to the slot's connection now, their number, and the seconds
        after which to check again if no acknowledgement arrives before.

        `queued_bytes` bytes wait for the socket, and `unanswered` adds wait for answers.
        `is_overdue` says that entries have gathered for `_GATHER_S`.
        """
        if 2 * queued_bytes > _SEND_AHEAD_BYTES:  # This avoids small writes.
            return b"", 0, LOOK_AGAIN_S
        if unanswered and not is_overdue and self.gathers(slot, unanswered):
            return b"", 0, _GATHER_S
        frames, count = self.take(slot, _SEND_AHEAD_BYTES - queued_bytes)
        return frames, count, LOOK_AGAIN_S

    def take(self, slot: int, bytes_max: int) -> tuple[bytes, int]:
        """Returns the next frames for the slot, as many as fit but at least one, and their number."""
        if not self.has_more(slot):
            return _NOTHING
        self._build_frames()
        progress, end = self._progress[slot], self.next_entry
        if progress.sent == self.handed_end and not self._is_striped:
            self._join(progress.sent, bytes_max)
        if (progress.sent, end) != self._joined_of or len(self._joined) > bytes_max:
            return self._take_some(slot, bytes_max)
        count = end - progress.sent
        progress.sent = self.handed_end = end
        return self._joined, count

    def _join(self, start: EntryId, bytes_max: int) -> None:
        """Joins the frames that were sent to no slot yet, once for all slots that keep up."""
        frames = self._frames[start - self._first :]
        if self.kept_bytes > bytes_max and sum(map(len, frames)) > bytes_max:
            return
        self._joined_of = (start, self.next_entry)
        self._joined = b"".join(frames)

    def _take_some(self, slot: int, bytes_max: int) -> tuple[bytes, int]:
        """Returns the next frames for a slot that lags behind or does not hold every entry."""
        progress, holds = self._progress[slot], self._quorum.holds
        if self.kept_bytes <= bytes_max:
            kept = islice(self._frames, progress.sent - self._first, None)
            held = list(self._quorum.held(slot, progress.sent, kept))
            progress.sent = self.handed_end = self.next_entry
            return b"".join(held), len(held)
        frames: list[bytes] = []
        entry_id, room = progress.sent, bytes_max
        while entry_id < self.next_entry:
            if holds(slot, entry_id):
                frame = self._frames[entry_id - self._first]
                room -= len(frame)
                if frames and room < 0:
                    break
                frames.append(frame)
            entry_id = EntryId(entry_id + 1)
        progress.sent = entry_id
        self.handed_end = max(self.handed_end, entry_id)
        return b"".join(frames), len(frames)

    def restart(self, slot: int) -> None:
        """Prepares a slot for its new connection: all unacknowledged entries will be sent again."""
        progress = self._progress[slot]
        progress.sent = max(self.acks.acked_below(slot), self._first)
        progress.refused.clear()
        progress.is_paused = False

    # --- Answers ------------------------------------------------------------------------------

    def on_acks(self, slot: int, entry_ids: Sequence[EntryId]) -> bool:
        """Counts acks of a slot. Returns whether entries were confirmed."""
        self._busy_pauses_s[slot] = 0.0
        return self.acks.on_acks(slot, entry_ids, self._progress[slot].sent)

    def on_busy(self, slot: int, entry_ids: Sequence[EntryId]) -> bool:
        """Notes that the bookie refused these entries as "busy"; `retry` sends them again. Returns
        whether the caller has to begin a pause."""
        progress = self._progress[slot]
        progress.refused += [
            e for e in entry_ids if e < progress.sent and self.acks.is_waiting_for(slot, e)
        ]
        progress.last_sign = self.tick
        is_news = not progress.is_paused and bool(progress.refused)
        progress.is_paused = progress.is_paused or is_news
        return is_news

    def next_pause_s(self, slot: int, chance: float) -> float:
        """Returns the pause after a "busy". `chance`, from 0 to 1, varies the pause, so that
        writers do not all return at once."""
        pause_s = min(max(2 * self._busy_pauses_s[slot], _BUSY_PAUSE_S_MIN), _BUSY_PAUSE_S_MAX)
        self._busy_pauses_s[slot] = pause_s
        return pause_s * (0.5 + chance / 2)

    def retry(self, slot: int, bytes_max: int = _SEND_AHEAD_BYTES) -> tuple[bytes, int]:
        """Ends a pause. Returns the refused entries, as many as fit but at least one, and their
        number. If some entries are left, the slot stays paused, and the caller has to call `retry`
        again."""
        progress = self._progress[slot]
        refused = [each for each in sorted(set(progress.refused)) if self._lacks(slot, each)]
        frames = [self._frames[each - self._first] for each in refused]
        count = _count_that_fit(frames, bytes_max)
        progress.refused = refused[count:]
        progress.is_paused = bool(progress.refused)
        return b"".join(frames[:count]), count

    def is_paused(self, slot: int) -> bool:
        return self._progress[slot].is_paused

    def _lacks(self, slot: int, entry_id: EntryId) -> bool:
        is_kept = entry_id >= self._first and self._progress[slot].takes_entries
        return is_kept and self.acks.is_waiting_for(slot, entry_id)

    def release(self) -> bool:
        """Drops entries for which no copy is outstanding; returns whether there were any."""
        count = self.acks.complete_to() - self._first
        if count <= 0:
            return False
        self._released_bytes += self._bytes_of(count)
        self._full_at_bytes = self._released_bytes + self._window_bytes
        self._length_before = self._lengths[count - 1]
        del self._frames[:count], self._lengths[:count]
        self._first = EntryId(self._first + count)
        self._full_at_entry = self._first + self._window_entries
        for progress in self._progress:
            if progress.takes_entries and progress.sent < self._first:
                progress.sent = self._first  # The slot holds none of these.
        if self.has_all_replies:
            self._joined = b""
        return True

    # --- Slots that get another bookie --------------------------------------------------------

    def suspend(self, slot: int) -> None:
        """Stops sending to the slot, whose bookie has failed. Its copies count until `withdraw` is
        called."""
        self._progress[slot].takes_entries = False

    def resume(self, slot: int) -> tuple[EntryId, EntryId]:
        """Sends to the slot again, because its bookie is back. Returns the range of entries that
        the bookie will never get."""
        lacks_from = self.acks.recall(slot, self._first)
        self._reset_progress(slot)
        return lacks_from, max(lacks_from, self._first)

    def withdraw(self, slot: int) -> None:
        """Stops counting the slot's copies, because it will get another bookie."""
        self.suspend(slot)
        self.acks.withdraw(slot)

    def admit(self, slot: int, first_entry: EntryId) -> tuple[EntryId, EntryId]:
        """Begins to send to the slot's new bookie, which the metadata names from `first_entry` on.
        Returns the range of entries that the bookie will never get."""
        start = max(first_entry, self._first)
        self._busy_pauses_s[slot] = 0.0
        self.acks.admit(slot, start)
        self._reset_progress(slot)
        return first_entry, start

    def _reset_progress(self, slot: int) -> None:
        acked = self.acks.acked_below(slot)
        self._progress[slot] = SlotProgress(
            max(acked, self._first), since=self.tick, acked_seen=acked, last_sign=self.tick
        )

    # --- Time ---------------------------------------------------------------------------------

    def on_tick(self) -> list[int]:
        """Counts a tick. Returns the slots whose bookies have failed by now."""
        self.tick += 1
        self._note_ages()
        self._note_fullness()
        overdue: list[int] = []
        if not self._half_full_since and (not self._ages or self._ages[0][0] == self.tick):
            return overdue  # All adds of the previous tick have their replies.
        for slot, progress in enumerate(self._progress):
            acked = self.acks.acked_below(slot)
            if acked != progress.acked_seen or acked >= self.next_entry:
                progress.acked_seen, progress.last_sign = acked, self.tick
            if not progress.takes_entries:
                self._excuse_if_full(slot)
            elif self._age(acked, progress.since) >= DEADLINE_TICKS or self._is_laggard(progress):
                overdue.append(slot)
        return overdue

    def find_hopeless(self, standing: Slots, *, is_changing: bool) -> RollbookError | None:
        """Returns the error with which the writer has to give up, or None. `standing` are the slots
        whose bookies have not failed. `is_changing` says that an ensemble change is under way, so
        that successors will soon take over.
        """
        oldest = EntryId(self.acks.last_add_confirmed + 1)
        age = self._age(oldest)
        if age < DEADLINE_TICKS:
            return None
        usable = (standing & self._quorum.write_mask(oldest)).bit_count()
        if usable < self._quorum.ack and not is_changing:
            return NotEnoughBookies(
                f"{usable} bookies can be used for an entry that needs {self._quorum.ack}",
                entry_id=oldest,
            )
        if age >= 2 * DEADLINE_TICKS:
            return QuorumTimeout("no quorum confirmed an entry in time", entry_id=oldest)
        return None

    def _note_ages(self) -> None:
        ages = self._ages
        while ages and ages[0][1] <= self._first:
            ages.popleft()
        if self.next_entry > self._first and (not ages or ages[-1][1] < self.next_entry):
            ages.append((self.tick, self.next_entry))

    def _age(self, entry_id: EntryId, since: int = 0) -> int:
        index = bisect_right(self._ages, entry_id, key=itemgetter(1))
        if entry_id >= self.next_entry or index == len(self._ages):
            return 0
        return self.tick - max(since, self._ages[index][0])

    def _note_fullness(self) -> None:
        waiting = self.acks.last_add_confirmed + 1 - self._first
        is_half_full = (
            2 * waiting >= self._window_entries or 2 * self._bytes_of(waiting) >= self._window_bytes
        )
        self._half_full_since = (self._half_full_since or self.tick) if is_half_full else 0

    def _bytes_of(self, count: int) -> int:
        """Returns the frame bytes of the first `count` entries that are kept."""
        if count <= 0:
            return 0
        return self._lengths[count - 1] - self._length_before + count * _AROUND_BYTES

    def _is_laggard(self, progress: SlotProgress) -> bool:
        """Returns whether the bookie is too slow. A bookie that answered "busy" is not too slow
        before the deadline, because it waits for us to send again (WR8)."""
        silent_for = self.tick - max(progress.last_sign, self._half_full_since)
        return (
            self._half_full_since > 0
            and silent_for >= LAGGARD_TICKS
            and progress.acked_seen <= self.acks.last_add_confirmed
            and not progress.refused
        )

    def _excuse_if_full(self, slot: int) -> None:
        if self._half_full_since and self.tick - self._half_full_since >= PATIENCE_TICKS:
            self.acks.excuse(slot)
            self.release()


def _kept(payload: bytes) -> bytes:
    """Returns an immutable copy of the payload; for arrays, a copy of their bytes."""
    return bytes(memoryview(payload))


def _count_that_fit(frames: Sequence[bytes], bytes_max: int) -> int:
    """Returns how many of the first frames fit, but at least one."""
    return min(len(frames), max(1, bisect_right(list(accumulate(map(len, frames))), bytes_max)))
