"""The requests and responses of the log service. They are frozen values, except an append in a stream
and its result.

`ServiceCore` is the service without any transport, with one method for each RPC of `proto/v1`. The
interfaces (`api/grpc`, `api/rest`) translate between these classes and their own messages. A
failure raises `RollbookError`; its `ids` hold the values that a caller may need, of these types only:
int, str, bytes, bool, and tuples of them. The interfaces use these ids:

    owner, owner_epoch   of `NotOwner`: the address of the owner, and its epoch
    retry_after_ms       of errors after which a retry may succeed: how long to wait before it
    head                 of `Truncated`: the first offset that is kept
    tail                 of `BeyondTail`, `LogSealed`, `OffsetMismatch`: the offset after the last record

`due` is the time of the event loop by which the response must be ready. The service gives up at that time,
and starts nothing that it cannot finish by then.

Clients import this module, so it imports nothing heavy.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Protocol, Self

from rollbook.logservice.ids import (
    FIRST_SEGMENT,
    ONCE,
    CursorName,
    LogName,
    Offset,
    OwnerEpoch,
    ProducerRef,
    SegmentId,
    ServerId,
    WriterEpoch,
)
from rollbook.logservice.log_config import ConfigValues, LogConfig
from rollbook.logservice.position_syntax import AtOffset, Position
from rollbook.proto.errors import InvalidRequest, RollbookError
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.quorum import Quorum

# --- Appending --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Condition:
    """Conditions that must all hold when the append gets its place in the order."""

    expected_offset: Offset | None = None  # The offset that the first record must get.
    must_be_empty: bool = False  # True: the log must never have had a record.
    writer_epoch: WriterEpoch | None = None  # The writer epoch that must be in force.


@dataclass(frozen=True, slots=True)
class AppendAck:
    """The records are on disk on an ack quorum of bookies."""

    first_offset: Offset
    next_offset: Offset
    timestamp_us: int
    is_duplicate: bool  # True: the batch was appended before, at these offsets.
    owner_epoch: OwnerEpoch
    writer_epoch: WriterEpoch
    ledger_id: LedgerId
    entry_id: EntryId


@dataclass(frozen=True, slots=True)
class Append:
    log: LogName
    block: bytes  # One atomic batch, framed as in `core/record_block.py`.
    condition: Condition | None = None
    uid: str = ""  # The uid that the log must have, or else `LogReplaced` is raised. Empty: any.


@dataclass(frozen=True, slots=True)
class Bind:
    """Make `ref` mean this log on this stream. Binding again forgets earlier failures."""

    ref: int
    log: LogName
    is_ordered: (
        bool  # After a failure, later appends under this ref are refused until it is bound again.
    )
    uid: str = ""  # The uid that the log must have; empty: any.


# Mutable, since frozen objects are slow to make: there is one for every append, and users do not
# keep it.
@dataclass(slots=True)
class StreamAppend:
    number: int  # Chosen by the client; the result has the same number.
    ref: int
    block: bytes
    condition: Condition | None = None


@dataclass(slots=True)  # Mutable, since frozen objects are slow to make: one for each append.
class AppendResult:
    """Either `ack` or `error` is set."""

    number: int
    ack: AppendAck | None = None
    error: RollbookError | None = None


class AppendStream(Protocol):
    """A stream of appends to many logs, with any number in flight. The appends of each ref are decided in
    the order in which they arrive.
    """

    def submit(self, binds: Sequence[Bind], appends: Sequence[StreamAppend]) -> None:
        """Process the binds, then the appends. Never waits; a failed append gets a result with its error.

        Raises `InvalidRequest` for an invalid message, which our clients never send; the stream then
        ends.
        """

    async def ready(self) -> None:
        """Wait while the stream has as many bytes in flight as it may have. Call this before `submit`."""

    async def results(self) -> Sequence[AppendResult]:
        """Wait for a result, and return all that are ready. Only one caller may wait at a time; a cancelled
        call takes no result.
        """

    async def close(self) -> None:
        """End the stream after its client has gone. Submitted appends continue, and their results are
        dropped.
        """


class CoreStream(AppendStream, Protocol):
    """An append stream as the service opens it. The access layer refuses some appends itself."""

    def tell(self, results: Sequence[AppendResult]) -> None:
        """Add results of appends that were refused before they reached this stream."""


# --- Reading ----------------------------------------------------------------------------------


class AtTail(Enum):
    """The behaviour of a reader at the tail."""

    FOLLOW = "follow"
    # Ends at the tail that is known when the read begins. The first event is a `Progress` that has
    # this tail, so that a resumed read can name it (`ReadStream.resumed_at`).
    STOP = "stop"
    # Stops at a tail above every append acknowledged before the request.
    STOP_AT_BARRIER = "stop_at_barrier"
    STOP_AT_READ_BARRIER = "stop_at_read_barrier"  # Stops at a tail that a read barrier finds.


class OnTruncated(Enum):
    """The treatment of a start below the head."""

    FAIL = "fail"
    SKIP = "skip"  # A `Gap` is sent, and reading starts at the head.


@dataclass(frozen=True, slots=True)
class Read:
    """A bounded read. The response comes as soon as there is a record, and after `wait_ms` at the latest."""

    log: LogName
    start: Position
    records_max: int = 10_000  # Limits `next_offset`; the last block is sent whole.
    bytes_max: int = 1024 * 1024
    wait_ms: int = 0
    on_truncated: OnTruncated = OnTruncated.FAIL
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """The records from `first_offset` up to `next_offset`; the first and the last block may hold more."""

    blocks: tuple[bytes, ...]
    first_offset: Offset
    next_offset: Offset  # The offset of the next read.
    head: Offset
    tail: Offset
    is_sealed: bool
    uid: str = ""  # The log's uid.
    # True: the owner did not respond. `tail` is the tail that bookies report, and may not cover the
    # last acknowledged append.
    is_tail_uncertain: bool = False


@dataclass(frozen=True, slots=True)
class ReadStream:
    log: LogName
    start: Position
    until_offset: Offset | None = None
    until_timestamp_us: int | None = None  # Only records before that time.
    at_tail: AtTail = AtTail.FOLLOW
    on_truncated: OnTruncated = OnTruncated.FAIL
    heartbeat_ms: int = 5000  # The longest time between two events.
    uid: str = ""  # The uid that the log must have; empty: any.

    def resumed_at(self, offset: Offset, tail: Offset | None = None) -> Self:
        """The same read, resumed at `offset`. After a gap, `offset` may be beyond the end of the read.

        `tail`: the tail when the read began. A read that does not follow the log stops there.
        """
        until, at_tail = self.until_offset, self.at_tail
        if tail is not None and at_tail is not AtTail.FOLLOW:
            until, at_tail = tail if until is None else min(until, tail), AtTail.FOLLOW
        if until is not None:
            until = max(until, offset)
        return replace(self, start=AtOffset(offset), until_offset=until, at_tail=at_tail)


@dataclass(frozen=True, slots=True)
class Records:
    """The records from `base_offset` up to `next_offset`; the first and the last block may hold more."""

    blocks: tuple[bytes, ...]
    base_offset: Offset
    next_offset: Offset


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """All records that the log had when this event was sent have been sent."""

    tail: Offset


@dataclass(frozen=True, slots=True)
class FellBehind:
    """Records come from the bookies again, no longer from the owner's memory."""

    tail: Offset


class WaitsFor(Enum):
    NOTHING = "nothing"  # The reader has all records, and waits for an append.
    FETCHING = "fetching"
    REPLICA = "replica"
    ROLL = "roll"
    # The log has no owner at present, or the owner does not respond: there may be records beyond the
    # tail.
    OWNER = "owner"
    CLIENT = "client"  # The client does not read the events that it is sent.
    THROTTLE = "throttle"


@dataclass(frozen=True, slots=True)
class Progress:
    """The reader's position and its lag. The lag in bytes and in time may be estimated."""

    position: Offset
    head: Offset
    tail: Offset
    lag_records: int
    lag_bytes: int
    lag_us: int
    waits_for: WaitsFor

    @classmethod
    def held_back(cls, position: Offset, head: Offset, tail: Offset) -> Self:
        """The progress of a reader that waits for its quota or its turn."""
        lag = max(tail - position, 0)
        return cls(position, head, tail, lag, 0, 0, WaitsFor.THROTTLE)


class GapKind(Enum):
    TRUNCATED = "truncated"
    LOST = "lost"  # No copy of the records can be read.


@dataclass(frozen=True, slots=True)
class Gap:
    """These records are not sent; reading goes on at `end`."""

    kind: GapKind
    start: Offset
    end: Offset


@dataclass(frozen=True, slots=True)
class Sealed:
    """The last event: the log is sealed, so no record will follow."""

    tail: Offset


@dataclass(frozen=True, slots=True)
class Moving:
    """The last event of this stream: reading goes on at another server."""

    server: str  # The other server's address; empty: not known yet.
    resume_offset: Offset


@dataclass(frozen=True, slots=True)
class Stopped:
    """The last event: everything that was requested has been sent."""

    offset: Offset


ReadEvent = Records | CaughtUp | FellBehind | Progress | Gap | Sealed | Moving | Stopped


# --- Tail, positions --------------------------------------------------------------------------


class Consistency(Enum):
    CACHED = "cached"  # The tail that this server knows.
    COMMITTED = "committed"  # The tail that the owner has confirmed.
    BARRIER = "barrier"  # A tail above every append acknowledged before the request.
    # Like BARRIER, but costs a read of the metadata store instead of an entry in the log. For callers
    # without the right to append.
    READ_BARRIER = "read_barrier"


@dataclass(frozen=True, slots=True)
class GetTail:
    log: LogName
    consistency: Consistency = Consistency.COMMITTED
    uid: str = ""  # The uid that the log must have; empty: any.
    # With COMMITTED, the response waits up to `wait_ms` until the tail is beyond this offset.
    beyond: Offset | None = None
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class LogTail:
    head: Offset
    tail: Offset
    is_sealed: bool
    timestamp_us: int  # The last record's time; 0: there is no record, or its time is not known.
    owner: str  # The owner's address; empty: the log has no owner at present.
    owner_epoch: OwnerEpoch
    uid: str = ""  # 32 hexadecimal digits, drawn when the log is created.
    # The ledger that the owner writes, and its last confirmed entry. None: the owner writes
    # no ledger, or did not report the tail.
    ledger_id: LedgerId | None = None
    last_entry: EntryId | None = None


@dataclass(frozen=True, slots=True)
class WatchTail:
    """Watch a log's tail. It is sent immediately, and then after changes, at most once every `interval_ms`.

    An unchanged tail is sent again after `heartbeat_ms`.
    """

    log: LogName
    interval_ms: int = 100
    heartbeat_ms: int = 5000
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class WatchTails:
    """Watch the tails of many logs: the server sends all tails, and then the changes. No log is opened (TW1).

    A server reports the logs that it owns, and the logs for which it is the suggested server. A client that
    wants all logs watches all servers, and merges their reports (`core/watched_tails.py`).
    """

    logs: tuple[LogName, ...] = ()  # Watched logs by name; missing logs are ignored.
    prefixes: tuple[str, ...] = ()  # Watched logs by `namespace/prefix`. `""`: all logs.
    interval_ms: int = 20  # At most one message per interval. Longer: fewer messages, later news.
    heartbeat_ms: int = 5000


@dataclass(frozen=True, slots=True)
class TailOfLog:
    """A log's tail as one server knows it. While the `uid` stays the same, head and tail never decrease."""

    log: LogName
    head: Offset
    tail: Offset
    is_sealed: bool
    timestamp_us: int  # The last record's time; 0: no record, or its time needs a search.
    uid: str  # The log's uid.
    # True: the owner reports the tail, or the log ends with a closed segment. False: acknowledged
    # records may be beyond the tail, since another server owns the log, or its owner died and the next
    # owner has not found them yet.
    is_exact: bool
    owner: str  # The owner's address; empty: the log has no owner at present.
    owner_epoch: OwnerEpoch


@dataclass(frozen=True, slots=True)
class Tails:
    """The changes since the previous message."""

    tails: tuple[TailOfLog, ...] = ()  # Tails that are new or have changed.
    gone: tuple[LogName, ...] = ()  # Logs that were deleted, or that other servers report now.
    is_complete: bool = (
        False  # True: all logs that this server reports, given these `servers`, have been sent.
    )
    servers: tuple[str, ...] = ()  # The addresses of all servers.


@dataclass(frozen=True, slots=True)
class FindOffset:
    log: LogName
    position: Position
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class FoundOffset:
    offset: Offset
    head: Offset
    tail: Offset
    uid: str = ""  # The log's uid.


# --- Truncation, seal, writer epochs ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Truncate:
    log: LogName
    before: Position  # The first record that is kept.
    dry_run: bool = False  # True: only plan the truncation.
    force_roll: bool = False  # True: also free records in the segment that is written.
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class TruncateAnswer:
    """The truncation that was made or planned. Readers see the new head immediately.

    Only whole ledgers are deleted.
    """

    old_head: Offset
    new_head: Offset
    records: int  # The number of records that are no longer readable.
    segments: tuple[SegmentId, ...]  # Segments whose ledgers are deleted.
    freed_bytes: int
    # Bytes below the head that stay: their segment has later records, or no later segment has begun.
    kept_bytes: int
    guards: tuple[
        CursorName, ...
    ]  # Protected cursors below `before`, which prevent the truncation.


@dataclass(frozen=True, slots=True)
class Seal:
    """End the log: it takes no more records. A repeated request gets the same response."""

    log: LogName
    block: bytes | None = None  # The last records, appended atomically with the seal.
    condition: Condition | None = None
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class SealAnswer:
    tail: Offset


HOLDER_CHARACTERS_MAX: Final = 255
ATTEMPT_BYTES_MAX: Final = 64
TTL_MS_MAX: Final = (1 << 32) - 1


class AcquireMode(Enum):
    STEAL = "steal"  # Fences the holder.
    WAIT = "wait"  # Waits until the epoch is released or has run out, or the deadline passes.
    FAIL = "fail"  # Fails if another holder has the epoch.


@dataclass(frozen=True, slots=True)
class AcquireWriter:
    log: LogName
    holder: str  # Shown to others. Kept in every snapshot of the log.
    mode: AcquireMode = AcquireMode.FAIL  # Without STEAL no holder is fenced.
    ttl_ms: int = 0  # 0: held until it is released or stolen.
    # A random name that the client draws for this acquisition. A restarted process draws another
    # name; otherwise it would not fence its predecessor. A holder that got no response repeats the
    # request with the same attempt, and is granted the same epoch. If another holder was granted an
    # epoch since, the request counts as a first request, so a late STEAL fences that holder. If the
    # epoch was released, `StaleEpoch` is raised. Empty: each request gets a new epoch.
    attempt: str = ""
    uid: str = ""  # The uid that the log must have; empty: any.

    def __post_init__(self) -> None:
        if not 1 <= len(self.holder) <= HOLDER_CHARACTERS_MAX:
            raise InvalidRequest(f"a holder's name has 1 to {HOLDER_CHARACTERS_MAX} characters")
        if not 0 <= self.ttl_ms <= TTL_MS_MAX:
            raise InvalidRequest(f"a writer's lease of {self.ttl_ms} ms is outside 0 … 2^32-1")
        if len(self.attempt.encode()) > ATTEMPT_BYTES_MAX:
            raise InvalidRequest(f"an attempt's name has at most {ATTEMPT_BYTES_MAX} bytes")


@dataclass(frozen=True, slots=True)
class WriterGrant:
    """The granted epoch. No append of an older epoch is acked any more. All acked appends of older
    epochs are below `fence_offset`.
    """

    writer_epoch: WriterEpoch
    fence_offset: Offset
    holder: str
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class RenewWriter:
    log: LogName
    writer_epoch: WriterEpoch
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class ReleaseWriter:
    log: LogName
    writer_epoch: WriterEpoch
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class BeginProducer:
    """Begin the next epoch of a named producer. Batches of older epochs are refused from then on."""

    log: LogName
    producer: bytes  # The producer's id.
    uid: str = ""  # The uid that the log must have; empty: any.

    def __post_init__(self) -> None:
        ProducerRef(self.producer, 0, 0)
        if self.producer.startswith(ONCE):
            raise InvalidRequest("an idempotency key cannot be the name of a producer")


@dataclass(frozen=True, slots=True)
class ProducerProgress:
    """A producer's progress when its epoch begins. The first batch of the epoch has number 0."""

    epoch: int
    records: int | None = None  # The number of records of all its epochs; None: not known.
    last_offset: Offset | None = None  # The last record's offset; None: there is no record.


@dataclass(frozen=True, slots=True)
class Done:
    """The response of a request that returns nothing."""


# --- Cursors and guards -----------------------------------------------------------------------

NO_CURSOR: int = -1  # The expected version of a cursor that does not exist yet.


@dataclass(frozen=True, slots=True)
class Cursor:
    """A stored cursor. Truncation and retention keep all records at and above a protected cursor."""

    name: CursorName
    offset: Offset
    version: int  # Changes with each commit.
    blob: bytes
    is_protected: bool
    updated_us: int
    uid: str = ""  # The log's uid; empty if an earlier release made the cursor.


@dataclass(frozen=True, slots=True)
class GetCursor:
    log: LogName
    name: CursorName
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class CommitCursor:
    log: LogName
    name: CursorName
    offset: Offset
    blob: bytes | None = None  # None: the blob does not change.
    is_protected: bool | None = None  # None: unchanged, or False in a new cursor.
    expected_version: int | None = None  # None: any version.
    may_rewind: bool = False
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class CommitCursorBy(CommitCursor):
    """A commit with the caller's principal, as the access layer passes it on."""

    principal: str = ""


@dataclass(frozen=True, slots=True)
class ListCursors:
    log: LogName
    start_after: str = ""  # The `next_page` of the previous response.
    limit: int = 1000  # Cursors in a page: 1 to 1000.
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class Cursors:
    cursors: tuple[Cursor, ...]
    next_page: str = ""  # Empty: this was the last page.


@dataclass(frozen=True, slots=True)
class DeleteCursor:
    log: LogName
    name: CursorName
    expected_version: int | None = None
    uid: str = ""  # The uid that the log must have; empty: any.


# --- Administration ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnsureLog:
    """Create a log, or accept an existing one with the same configuration, in one change."""

    log: LogName
    config: ConfigValues | None = None  # None: all defaults, and any existing log is accepted.
    # The fields of `config` that count. For the other fields, a new log gets the server's defaults,
    # and an existing log may have any values. Empty: all fields.
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GetLog:
    log: LogName
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class UpdateLog:
    log: LogName
    config: ConfigValues
    fields: tuple[str, ...]  # The fields of `config` that are changed.
    etag: str = ""  # The ETag that the log must have; empty: any.
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class LogState:
    """A log's summary."""

    log: LogName
    config: LogConfig
    etag: str  # Changes with the configuration.
    was_created: bool  # True: this request created the log.
    head: Offset
    # The tail as the owner reports it, or as bookies report it if there is no owner. If no response
    # comes in time, the end of the last closed segment.
    tail: Offset
    is_sealed: bool
    owner_id: str  # The owner's server id; empty: the log has no owner at present.
    owner: str  # The owner's address.
    owner_epoch: OwnerEpoch
    # `writer_epoch` is 0 and `writer_holder` is empty if this server does not own the log.
    writer_epoch: WriterEpoch
    writer_holder: str  # Empty: nobody holds the writer epoch.
    bytes: int
    records: int
    segments: int
    roll_due_us: int = 0  # The latest time at which the open segment ends. 0: not known here.
    uid: str = ""  # The log's uid.
    # Bookies of the open segment that are not expected to get its next entry, and why. Only the
    # owner reports them.
    vacant_seats: tuple[str, ...] = ()
    # Why this server, which should own the log, cannot open it. Empty: no failure is known.
    problem: str = ""
    next_step: str = ""  # The step that could solve `problem`.


@dataclass(frozen=True, slots=True)
class ListLogs:
    namespace: str = ""  # Empty: all namespaces.
    prefix: str = ""
    start_after: str = ""  # The `next_page` of the previous response.
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class LogNames:
    logs: tuple[LogName, ...]
    next_page: str  # Empty: this was the last page.


@dataclass(frozen=True, slots=True)
class DeleteLog:
    log: LogName
    etag: str = ""  # The ETag that the log must have; empty: any.
    grace_ms: int | None = None  # How long the records are kept; None: as configured.
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class DeleteLogAnswer:
    freed_at_us: int


@dataclass(frozen=True, slots=True)
class ListDeletedLogs:
    """Deleted logs whose records are still kept."""

    namespace: str = ""  # Empty: all namespaces.
    prefix: str = ""
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class DeletedLog:
    log: LogName  # The log's name when it was deleted.
    uid: str
    deleted_us: int
    free_at_us: int  # The records are freed at this time, or a minute or so later.
    segments: int
    has_name: bool  # True: no other log was created under the name.


@dataclass(frozen=True, slots=True)
class DeletedLogs:
    logs: tuple[DeletedLog, ...]  # Sorted by name, then by time of deletion.
    is_all: bool


@dataclass(frozen=True, slots=True)
class UndeleteLog:
    log: LogName  # The log's name when it was deleted.
    uid: str = ""  # Empty: only one log was deleted under this name.
    to: LogName | None = None  # The new name, if the old one is taken.


@dataclass(frozen=True, slots=True)
class RollLog:
    """Start a new segment, unless the written one is still empty."""

    log: LogName
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class RollLogAnswer:
    segment_id: SegmentId  # The segment that is written now.


class SegmentState(Enum):
    OPEN = "open"
    CLOSED = "closed"
    LOST = "lost"  # The segment's ledger was deleted, and the records with it.


@dataclass(frozen=True, slots=True)
class SegmentView:
    segment_id: SegmentId
    ledger_id: LedgerId
    state: SegmentState
    base_offset: Offset | None  # None as long as an earlier segment is not closed.
    next_offset: Offset | None  # None as long as the segment is open.
    first_timestamp_us: int
    last_timestamp_us: int
    bytes: int
    records: int
    reason: str  # Why the segment was started.
    # The number of the segment's bookies, if it began with fewer than the log wanted; else 0.
    degraded_to: int = 0
    # When the segment was started. `first_timestamp_us` is the time of the last record before it.
    began_us: int = 0


@dataclass(frozen=True, slots=True)
class ListSegments:
    log: LogName
    start: SegmentId = FIRST_SEGMENT
    limit: int = 1000
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class Segments:
    segments: tuple[SegmentView, ...]
    next_segment: SegmentId | None  # None: this was the last page.


@dataclass(frozen=True, slots=True)
class GetJournal:
    """The log's events, newest first."""

    log: LogName
    limit: int = 100
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class JournalEvent:
    time_us: int
    kind: str  # A past-tense fact: log_opened, segment_rolled, log_truncated …
    server: str
    owner_epoch: OwnerEpoch
    reason: str
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogJournal:
    events: tuple[JournalEvent, ...]


@dataclass(frozen=True, slots=True)
class GetLimits:
    pass


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    record_bytes_max: int
    block_bytes_max: int  # The most bytes of a packed block.
    block_unpacked_bytes_max: int
    block_records_max: int
    message_bytes_max: int  # The most bytes of a gRPC message.
    # The most bytes in flight on one append stream; at this limit the stream is not read.
    stream_bytes_max: int
    cursor_blob_bytes_max: int
    # How many bookies take new ledgers at present. If this is 0 and `quorum` is None, the server has
    # an earlier release, which reports neither.
    usable_bookies: int = 0
    # The quorum of a new log, unless its configuration has another quorum.
    quorum: Quorum | None = None


# --- Cluster ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lookup:
    logs: tuple[LogName, ...]


@dataclass(frozen=True, slots=True)
class LogOwner:
    log: LogName
    address: str  # The address of the owner, or of the suggested server; empty: neither.
    owner_epoch: OwnerEpoch
    is_owner: bool  # False: the server is only suggested.


@dataclass(frozen=True, slots=True)
class LogOwners:
    owners: tuple[LogOwner, ...]  # Owners of those logs that exist, in the order of the request.


@dataclass(frozen=True, slots=True)
class ListServers:
    pass


class ServerState(Enum):
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class ServerView:
    server_id: ServerId
    address: str
    state: ServerState
    version: str
    started_us: int
    logs_owned: int  # The number in the server's last report.
    logs_degraded: int = 0  # Owned logs with too few bookies in their open segment.
    logs_unopened: int = 0  # Logs that this server should own but cannot open.


@dataclass(frozen=True, slots=True)
class Servers:
    servers: tuple[ServerView, ...]


@dataclass(frozen=True, slots=True)
class TransferLog:
    log: LogName
    to: str  # The name or id of a server.
    uid: str = ""  # The uid that the log must have; empty: any.


@dataclass(frozen=True, slots=True)
class DrainServer:
    """Make a server hand over its logs and open no more, until it is restarted or gets `resume`."""

    server: str
    resume: bool = False


@dataclass(frozen=True, slots=True)
class DrainAnswer:
    logs_left: int


@dataclass(frozen=True, slots=True)
class GetServerStats:
    """Request the metrics of the server that gets this request."""


@dataclass(frozen=True, slots=True)
class ServerStats:
    server_id: ServerId
    stats: Mapping[str, float]  # Values by their names in /metrics.


class ObstacleKind(Enum):
    METADATA = "metadata"
    BOOKIE = "bookie"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A part of the cluster that is unavailable."""

    kind: ObstacleKind
    name: str
    since_us: int  # When the reporting server first noticed it.
    why: str  # `does not answer`, `is not registered`, `is read-only`.


@dataclass(frozen=True, slots=True)
class GetOutage:
    """Ask a server which parts of the cluster are unavailable. It always responds within a second."""


@dataclass(frozen=True, slots=True)
class Outage:
    obstacles: tuple[Obstacle, ...] = ()
    cause: str = ""  # All obstacles in one sentence; empty: nothing is known to be unavailable.
    next_step: str = ""  # The step that could help.


# --- The service ------------------------------------------------------------------------------


class ServiceCore(Protocol):
    """Any server serves these requests, except those that only the log's owner can serve: for these, other servers
    raise `NotOwner`.
    """

    async def append(self, request: Append, due: float) -> AppendAck: ...
    def open_append_stream(self) -> CoreStream: ...
    async def read(self, request: Read, due: float) -> ReadAnswer: ...
    def read_stream(self, request: ReadStream) -> AsyncIterator[ReadEvent]:
        """Return an async generator. A caller that leaves it early must close it."""

    async def get_tail(self, request: GetTail, due: float) -> LogTail: ...
    def watch_tail(self, request: WatchTail) -> AsyncIterator[LogTail]: ...
    def watch_tails(self, request: WatchTails) -> AsyncIterator[Tails]: ...
    async def find_offset(self, request: FindOffset, due: float) -> FoundOffset: ...
    async def truncate(self, request: Truncate, due: float) -> TruncateAnswer: ...
    async def seal(self, request: Seal, due: float) -> SealAnswer: ...
    async def acquire_writer(self, request: AcquireWriter, due: float) -> WriterGrant: ...
    async def renew_writer(self, request: RenewWriter, due: float) -> WriterGrant: ...
    async def release_writer(self, request: ReleaseWriter, due: float) -> Done: ...
    async def begin_producer(self, request: BeginProducer, due: float) -> ProducerProgress: ...

    async def get_cursor(self, request: GetCursor, due: float) -> Cursor: ...
    async def commit_cursor(self, request: CommitCursor, due: float) -> Cursor: ...
    async def list_cursors(self, request: ListCursors, due: float) -> Cursors: ...
    async def delete_cursor(self, request: DeleteCursor, due: float) -> Done: ...

    async def ensure_log(self, request: EnsureLog, due: float) -> LogState: ...
    async def get_log(self, request: GetLog, due: float) -> LogState: ...
    async def update_log(self, request: UpdateLog, due: float) -> LogState: ...
    async def list_logs(self, request: ListLogs, due: float) -> LogNames: ...
    async def delete_log(self, request: DeleteLog, due: float) -> DeleteLogAnswer: ...
    async def list_deleted_logs(self, request: ListDeletedLogs, due: float) -> DeletedLogs: ...
    async def undelete_log(self, request: UndeleteLog, due: float) -> LogState: ...
    async def roll_log(self, request: RollLog, due: float) -> RollLogAnswer: ...
    async def list_segments(self, request: ListSegments, due: float) -> Segments: ...
    async def get_journal(self, request: GetJournal, due: float) -> LogJournal: ...
    async def get_limits(self, request: GetLimits, due: float) -> ServiceLimits: ...

    async def lookup(self, request: Lookup, due: float) -> LogOwners: ...
    async def list_servers(self, request: ListServers, due: float) -> Servers: ...
    async def transfer_log(self, request: TransferLog, due: float) -> LogOwner: ...
    async def drain_server(self, request: DrainServer, due: float) -> DrainAnswer: ...
    async def get_server_stats(self, request: GetServerStats, due: float) -> ServerStats: ...
    async def get_outage(self, request: GetOutage, due: float) -> Outage: ...

    def on_waiting(self) -> None:
        """Take note that a request waits for longer than it should."""

    def explained(self, error: RollbookError) -> RollbookError:
        """Return the error. If the request waited for unavailable parts of the cluster, the error names them."""
