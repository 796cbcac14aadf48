"""The ledger list of a log, and every change that can be made to it.

A log consists of the ledgers that its list names, in order, as segments. Every change of the list is a
compare-and-swap, which all servers see; nothing else decides what belongs to the log.

    head                                            tail, known when all is CLOSED
      v                                               v
    [ CLOSED 0…999 ][ CLOSED 1000…1999 ][ OPEN 2000… ][ OPEN, base unknown ]
                                          last but one   last

- Offsets are dense: each segment starts where the one before ends. A segment's base is known once all
  segments before it are CLOSED. No base is derived from an unclosed ledger.
- At most the last two segments are unclosed (LL1): a successor is listed only when everything before the
  last one is CLOSED.
- A segment that is listed after a CLOSED one follows it: its first entry names that ledger's last
  entry (LL2). A server that closes a segment in the list has checked this. If the successor does not follow,
  the server discards it in the same step. Only the last segments can be discarded, while they are unclosed.
- Ledgers that leave the list enter `discarded` in the same step (LL3), are deleted afterwards, and leave
  `discarded` when they are gone. So an existing ledger of the log that is neither listed nor in `discarded`
  was never listed.
- The head never goes back and never passes what is known to be confirmed (LL4). Truncation removes whole
  ledgers, each only after its successor has begun. A ledger begins with a snapshot of the log's state, so the
  newest snapshot stays.
- The owner's epoch only grows (LL5). A SEALED log gets no new owner or segment; a DELETED one also cannot be
  truncated or configured.

Each `with_*` method returns a new list, which the caller writes by compare-and-swap from the version that
was read. A change that would break a rule raises an error. If the new list equals the old one, there is
nothing to write.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Final, NamedTuple, Self

from rollbook.logservice.ids import (
    FIRST_OFFSET,
    FIRST_SEGMENT,
    LOG_UID_BYTES,
    NO_OWNER_YET,
    OFFSET_MAX,
    LogName,
    LogUid,
    Offset,
    OwnerEpoch,
    SegmentId,
    ServerId,
    ServerInfo,
)
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import (
    InvalidRequest,
    LogDeleted,
    LogSealed,
    MetadataConflict,
    NoSuchLog,
    OwnerFenced,
)
from rollbook.proto.ids import LedgerId
from rollbook.proto.ports import Randomness

EVENTS_MAX: Final = 64
_TEXT_CHARACTERS_MAX: Final = 200

# Keys in the custom metadata of a log's ledgers.
LEDGER_OF_LOG: Final = "rollbook.log"  # The log's uid, in hexadecimal.
# The ledger may be listed only by a change from this version of the list.
LEDGER_OF_VERSION: Final = "rollbook.log-version"
LOG_DELETED: Final = "log_deleted"  # An event kind that later changes depend on.
LOG_SEALED: Final = "log_sealed"
LEDGER_OF_NAME: Final = (
    "rollbook.log-name"  # The log's name: people see it, and it leads to the list.
)


def custom_metadata(name: LogName, uid: LogUid, version: int) -> dict[str, bytes]:
    return {
        LEDGER_OF_LOG: uid.hex().encode(),
        LEDGER_OF_VERSION: str(version).encode(),
        LEDGER_OF_NAME: str(name).encode(),
    }


def draw_log_uid(randomness: Randomness) -> LogUid:
    return LogUid(randomness.randbytes(LOG_UID_BYTES))


class ListedLogState(Enum):
    OPEN = "open"
    SEALED = "sealed"
    DELETED = "deleted"  # Ledgers are kept until the grace period is over.


class ListedSegmentState(Enum):
    OPEN = "open"  # The list calls it open; the ledger may have been closed in the meantime.
    CLOSED = "closed"


class Size(NamedTuple):
    bytes: int
    records: int


Sizes = Mapping[LedgerId, Size]
"""The sizes of the segments that are being written, by ledger id. The list does not have them yet."""

NOT_COUNTED: Final[Sizes] = {}


@dataclass(frozen=True, slots=True)
class Segment:
    segment_id: SegmentId
    ledger_id: LedgerId
    owner_epoch: OwnerEpoch  # The owner's epoch when the segment was listed.
    reason: str  # Why the segment was begun.
    first_timestamp_us: int  # When the segment was begun, on the log's clock.
    state: ListedSegmentState = ListedSegmentState.OPEN
    base_offset: Offset | None = None  # None: a segment before it is not CLOSED.
    next_offset: Offset | None = (
        None  # This and the next two fields are set when the segment is CLOSED.
    )
    last_timestamp_us: int | None = None
    bytes: int | None = None  # The size of the ledger.
    degraded_to: int = 0  # How many bookies the ledger has, if the log wanted more; else 0.
    # When the segment was listed, by its owner's clock. `first_timestamp_us` is by the log's clock, which
    # stops while nothing is appended. 0: an older release listed it.
    began_us: int = 0

    @property
    def is_closed(self) -> bool:
        return self.state is ListedSegmentState.CLOSED

    @property
    def records(self) -> int | None:
        if self.next_offset is None or self.base_offset is None:
            return None
        return self.next_offset - self.base_offset

    def size(self, written: Sizes) -> Size:
        """The segment's size: as listed if it is closed, else as counted in `written`, else 0."""
        counted = written.get(self.ledger_id, Size(0, 0))
        if self.bytes is None:
            return counted
        return Size(self.bytes, counted.records if self.records is None else self.records)


@dataclass(frozen=True, slots=True)
class LogEvent:
    """An event in a log's history. Rolls are not stored as events, since they follow from the segments."""

    kind: str  # A constant, in the past tense: log_opened, log_truncated …
    at_us: int
    owner_epoch: OwnerEpoch = NO_OWNER_YET
    server_id: ServerId | None = None
    reason: str = ""
    offset: Offset = FIRST_OFFSET

    def __post_init__(self) -> None:
        assert len(self.kind) <= _TEXT_CHARACTERS_MAX


class FlawedList(ValueError):
    """A list breaks a rule. This is a bug, unless the list was read from the metadata store."""


@dataclass(frozen=True, slots=True)
class LedgerList:
    uid: LogUid
    config: LogConfig
    created_us: int
    state: ListedLogState = ListedLogState.OPEN
    owner_epoch: OwnerEpoch = NO_OWNER_YET
    # None: the log has no owner yet, or the last one has released it.
    owner: ServerInfo | None = None
    preferred_server: str = (
        ""  # The server to suggest as owner; empty: `owner_placement.py` suggests one.
    )
    head: Offset = FIRST_OFFSET
    next_segment_id: SegmentId = FIRST_SEGMENT
    segments: tuple[Segment, ...] = ()
    discarded: tuple[LedgerId, ...] = ()  # Ledgers that are to be deleted, oldest first.
    events: tuple[LogEvent, ...] = ()  # The latest events, oldest first.
    free_at_us: int = 0  # When the grace period of a DELETED log ends.

    def __post_init__(self) -> None:
        if flaw := find_flaw(self):
            raise FlawedList(flaw)

    # --- Questions ----------------------------------------------------------------------------

    @property
    def tail(self) -> Offset | None:
        """The end of the log. None while a segment is unclosed, since then the list alone does not show the end."""
        if not self.segments:
            return self.head
        return self.segments[-1].next_offset

    @property
    def unclosed(self) -> tuple[Segment, ...]:
        """The segments that are not CLOSED: at most two, the last ones (LL1)."""
        return tuple(segment for segment in self.segments[-2:] if not segment.is_closed)

    @property
    def closed_bytes(self) -> int:
        return sum(segment.bytes or 0 for segment in self.segments)

    def lists(self, ledger_id: LedgerId) -> bool:
        return any(segment.ledger_id == ledger_id for segment in self.segments)

    def check_owner(self, epoch: OwnerEpoch) -> None:
        """Raises `OwnerFenced` unless this is the epoch in force."""
        if self.owner_epoch != epoch:
            raise OwnerFenced(
                owner=self.owner.address if self.owner else "",
                owner_epoch=self.owner_epoch,
                epoch=epoch,
            )

    # --- Ownership ----------------------------------------------------------------------------

    def with_owner(self, server: ServerInfo) -> Self:
        """The list with this owner and the next epoch (LL5), to be written with the owner's first ledger."""
        self._refuse_unless_open()
        return replace(self, owner=server, owner_epoch=OwnerEpoch(self.owner_epoch + 1))

    def with_released(self) -> Self:
        """The list without an owner. The epoch stays, and no server has to wait for the released owner."""
        return replace(self, owner=None)

    def with_preferred_server(self, server: str) -> Self:
        return replace(self, preferred_server=server[:_TEXT_CHARACTERS_MAX])

    # --- Segments -----------------------------------------------------------------------------

    def with_successor(
        self,
        ledger_id: LedgerId,
        reason: str,
        first_timestamp_us: int,
        *,
        degraded_to: int = 0,
        began_us: int = 0,
    ) -> Self:
        """The list with this ledger as its last segment. The ledger was made for the present version of the
        list (LL8).

        Raises `MetadataConflict` if a segment before the last one is unclosed (LL1) or the ledger was
        listed before, `LogSealed`, `LogDeleted`.
        """
        self._refuse_unless_open()
        if any(not segment.is_closed for segment in self.segments[:-1]):
            raise MetadataConflict(
                "two segments are unclosed already",
                next_step="first close the second-to-last segment",
            )
        if self.lists(ledger_id) or ledger_id in self.discarded:
            raise MetadataConflict("this ledger was listed before", ledger_id=ledger_id)
        segment = Segment(
            self.next_segment_id,
            ledger_id,
            self.owner_epoch,
            reason[:_TEXT_CHARACTERS_MAX],
            first_timestamp_us=max(first_timestamp_us, self._last_timestamp_us()),
            base_offset=self.tail,
            degraded_to=degraded_to,
            began_us=began_us,
        )
        return replace(
            self,
            segments=(*self.segments, segment),
            next_segment_id=SegmentId(self.next_segment_id + 1),
        )

    def with_closed(
        self,
        segment_id: SegmentId,
        *,
        next_offset: Offset,
        last_timestamp_us: int,
        bytes: int,  # noqa: A002  # The field has this name.
    ) -> Self:
        """The list with this segment CLOSED. Its successor, if there is one, gets its base offset.

        Nothing changes if the segment is already CLOSED at `next_offset`. Raises `MetadataConflict` if it
        is CLOSED at another offset, is not listed, or follows an unclosed segment; `InvalidRequest` for an
        offset before its base or beyond `OFFSET_MAX`.
        """
        index = self._index_of(segment_id)
        segment = self.segments[index]
        if segment.is_closed:
            if segment.next_offset == next_offset:
                return self
            raise MetadataConflict(
                "the segment was closed at another offset",
                segment_id=segment_id,
                next_offset=segment.next_offset,
                wanted=next_offset,
            )
        if segment.base_offset is None:
            raise MetadataConflict("the previous segment is unclosed", segment_id=segment_id)
        if not segment.base_offset <= next_offset <= OFFSET_MAX:
            raise InvalidRequest(
                "a segment ends before it starts",
                segment_id=segment_id,
                base_offset=segment.base_offset,
                next_offset=next_offset,
            )
        closed = replace(
            segment,
            state=ListedSegmentState.CLOSED,
            next_offset=next_offset,
            last_timestamp_us=max(last_timestamp_us, segment.first_timestamp_us),
            bytes=bytes,
        )
        after = self.segments[index + 1 :]
        if after:
            after = (
                replace(
                    after[0],
                    base_offset=next_offset,
                    first_timestamp_us=max(
                        after[0].first_timestamp_us, closed.last_timestamp_us or 0
                    ),
                ),
            )
        return replace(self, segments=(*self.segments[:index], closed, *after))

    def with_discarded(self, segment_id: SegmentId) -> Self:
        """The list after discarding a segment that does not follow the previous one, or is empty, and all
        segments after it. Nothing in them was acked (LL2).

        Raises `MetadataConflict` if one of these segments is CLOSED, or the segment before them is
        unclosed. The first segment of the list is discarded only if it begins at offset 0; otherwise it may
        have the only snapshot of the log's state.
        """
        index = self._index_of(segment_id)
        dropped = self.segments[index:]
        if any(segment.is_closed for segment in dropped):
            raise MetadataConflict("only the last, unclosed segments can be discarded")
        if index and not self.segments[index - 1].is_closed:
            raise MetadataConflict("the previous segment must be closed first (LL2)")
        if not index and dropped[0].base_offset != FIRST_OFFSET:
            raise MetadataConflict("the only snapshot of the log's state may be in this segment")
        return replace(
            self,
            segments=self.segments[:index],
            discarded=(*self.discarded, *(segment.ledger_id for segment in dropped)),
        )

    def without_discarded(self, ledger_ids: Iterable[LedgerId]) -> Self:
        """The list after these ledgers were deleted: they leave `discarded`."""
        gone = frozenset(ledger_ids)
        return replace(self, discarded=tuple(each for each in self.discarded if each not in gone))

    # --- The ends -----------------------------------------------------------------------------

    def with_head(self, head: Offset, confirmed: Offset, *, is_begun: bool = False) -> Self:
        """The list with `head` as the log's head. `confirmed`: the caller knows that all records below this
        offset are confirmed.

        Whole segments below the head leave the list (LL3). `is_begun`: the caller owns the log, and the
        first entry of the first unclosed segment is confirmed; otherwise the segment before that one stays.
        The last segment always stays (LL4). The head never goes back, but segments that an earlier call had
        to keep may be removed now. Raises `InvalidRequest` for a head beyond `confirmed`, `LogDeleted`.
        """
        self._refuse_deleted()
        if head > confirmed:
            raise InvalidRequest(
                "a log cannot be truncated beyond its tail",
                next_step=f"truncate up to {confirmed}, the tail, or to `latest`",
                before=head,
                tail=confirmed,
            )
        head = max(head, self.head)
        kept = self.first_kept(head, is_begun=is_begun)
        assert kept < max(len(self.segments), 1), "LL4: the last segment was to be removed"
        if head == self.head and not kept:
            return self
        return replace(
            self,
            head=head,
            segments=self.segments[kept:],
            discarded=(
                *self.discarded,
                *(segment.ledger_id for segment in self.segments[:kept]),
            ),
        )

    def first_kept(self, head: Offset, *, is_begun: bool) -> int:
        """The index of the first segment that stays when the log starts at `head`."""
        candidates = len(self.segments) - 1
        if self.unclosed and not is_begun:
            candidates -= len(self.unclosed)
        for index in range(candidates):
            next_offset = self.segments[index].next_offset
            if next_offset is None or next_offset > head:
                return index
        return max(candidates, 0)

    def with_sealed(self, tail: Offset) -> Self:
        """Seal the log permanently. Raises `MetadataConflict` unless every segment is CLOSED and
        the log ends at `tail`.
        """
        if self.state is ListedLogState.SEALED and self.tail == tail:
            return self
        self._refuse_unless_open()
        if self.tail != tail or self.unclosed:
            raise MetadataConflict("the log does not end there", tail=tail, listed=self.tail)
        return replace(self, state=ListedLogState.SEALED)

    def with_deleted(self, free_at_us: int) -> Self:
        """Mark the log as deleted: it can no longer be read or written. Ledgers are kept until
        `free_at_us`.
        """
        if self.state is ListedLogState.DELETED:
            return self
        return replace(
            self, state=ListedLogState.DELETED, owner=None, free_at_us=max(free_at_us, 1)
        )

    @property
    def is_condemned(self) -> bool:
        """Return whether the log's grace is over, and its ledgers are being deleted or are gone. Always
        False for a log that never had a segment.
        """
        has_lost_all = not self.segments and (bool(self.discarded) or self.next_segment_id > 0)
        return self.state is ListedLogState.DELETED and has_lost_all

    def require_living(self, log: LogName) -> None:
        """Raises `NoSuchLog` if the log's records are being deleted or are gone, so that it cannot be undeleted;
        `LogDeleted` if it was deleted and can be undeleted."""
        if self.is_condemned:
            raise NoSuchLog(log=str(log))
        if self.state is ListedLogState.DELETED:
            raise LogDeleted(log=str(log), free_at_us=self.free_at_us)

    @property
    def deleted_us(self) -> int:
        """The time when a DELETED log was deleted."""
        deleted_us = [event.at_us for event in self.events if event.kind == LOG_DELETED]
        return deleted_us[-1] if deleted_us else self.free_at_us

    def with_shorter_grace(self, free_at_us: int) -> Self:
        """The list of a DELETED log with a grace that ends at this time, unless it ends sooner already."""
        return replace(self, free_at_us=min(self.free_at_us, max(free_at_us, 1)))

    def with_undeleted(self) -> Self:
        """The list as it was before the deletion. Raises `MetadataConflict` unless DELETED, `LogDeleted` if the
        log's ledgers are being deleted.
        """
        if self.state is not ListedLogState.DELETED:
            raise MetadataConflict("the log is not deleted")
        if self.is_condemned:
            raise LogDeleted("its grace is over, and its records are being deleted")
        was_sealed = not self.unclosed and any(event.kind == LOG_SEALED for event in self.events)
        state = ListedLogState.SEALED if was_sealed else ListedLogState.OPEN
        return replace(self, state=state, owner=None, free_at_us=0)

    def with_ledgers_condemned(self) -> Self:
        """The list after the grace, with all ledgers in `discarded` (LL3). Raises `MetadataConflict` unless DELETED."""
        if self.state is not ListedLogState.DELETED:
            raise MetadataConflict("the log is not deleted")
        ledger_ids = tuple(segment.ledger_id for segment in self.segments)
        return replace(
            self, segments=(), discarded=(*self.discarded, *ledger_ids), head=self._end_at_least()
        )

    # --- The rest -----------------------------------------------------------------------------

    def with_config(self, config: LogConfig) -> Self:
        self._refuse_deleted()
        return replace(self, config=config)

    def with_event(self, event: LogEvent) -> Self:
        if len(event.reason) > _TEXT_CHARACTERS_MAX:
            event = replace(event, reason=event.reason[:_TEXT_CHARACTERS_MAX])
        return replace(self, events=(*self.events, event)[-EVENTS_MAX:])

    # ------------------------------------------------------------------------------------------

    def _index_of(self, segment_id: SegmentId) -> int:
        # Search from the end: the wanted segment is usually among the last.
        for index in range(len(self.segments) - 1, -1, -1):
            if self.segments[index].segment_id == segment_id:
                return index
        raise MetadataConflict("the segment is not listed", segment_id=segment_id)

    def _last_timestamp_us(self) -> int:
        if not self.segments:
            return 0
        last = self.segments[-1]
        return last.first_timestamp_us if last.last_timestamp_us is None else last.last_timestamp_us

    def _end_at_least(self) -> Offset:
        known = [s.next_offset or s.base_offset or FIRST_OFFSET for s in self.segments]
        return max((self.head, *known))

    def _refuse_deleted(self) -> None:
        if self.state is ListedLogState.DELETED:
            raise LogDeleted

    def _refuse_unless_open(self) -> None:
        self._refuse_deleted()
        if self.state is ListedLogState.SEALED:
            raise LogSealed(tail=self.tail)


def find_flaw(listed: LedgerList) -> str:
    """Return a description of the list's first flaw; empty if it has none."""
    segments = listed.segments
    ledger_ids = [*(segment.ledger_id for segment in segments), *listed.discarded]
    if len(set(ledger_ids)) != len(ledger_ids) or any(each < 0 for each in ledger_ids):
        return "a ledger is listed twice, or has a negative id"
    if len(listed.uid) != LOG_UID_BYTES:
        return "the log has no uid"
    if min(listed.owner_epoch, listed.head, listed.created_us, listed.free_at_us) < 0:
        return "a number is negative"
    if (listed.state is ListedLogState.DELETED) != bool(listed.free_at_us):
        return "a log must have an end of its grace if, and only if, it is deleted"
    if any(not segment.is_closed for segment in segments[:-2]):
        return "a segment before the last two is unclosed (LL1)"
    if listed.state is ListedLogState.SEALED and any(not segment.is_closed for segment in segments):
        return "a sealed log has an unclosed segment"
    if segments and segments[-1].segment_id >= listed.next_segment_id:
        return "the next segment id is used already"
    return _flaw_of_segments(segments) or _flaw_of_head(listed)


def _flaw_of_segments(segments: Sequence[Segment]) -> str:
    for segment in segments:
        base, end = segment.base_offset, segment.next_offset
        known = (end is not None, segment.last_timestamp_us is not None, segment.bytes is not None)
        if any(each is not segment.is_closed for each in known):
            return "the end of a segment must be known if, and only if, it is CLOSED"
        if base is None:
            if segment.is_closed:
                return "a CLOSED segment has no base"
        elif not 0 <= base <= (base if end is None else end) <= OFFSET_MAX:
            return "a segment ends before it starts"
        if segment.first_timestamp_us < 0 or (segment.bytes or 0) < 0 or segment.segment_id < 0:
            return "a number is negative"
        if (segment.last_timestamp_us or segment.first_timestamp_us) < segment.first_timestamp_us:
            return "a segment's last time is before its first"
    if segments and segments[0].base_offset is None:
        return "the first segment has no base"
    for before, after in pairwise(segments):
        if before.segment_id >= after.segment_id:
            return "segment ids do not grow"
        if before.next_offset != after.base_offset:
            return "offsets are not dense"
    return ""


def _flaw_of_head(listed: LedgerList) -> str:
    if not listed.segments:
        return ""
    base, tail = listed.segments[0].base_offset, listed.tail
    if base is not None and listed.head < base:
        return "the head is before the first segment"
    if tail is not None and listed.head > tail:
        return "the head is beyond the tail"
    return ""
