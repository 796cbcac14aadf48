"""What can be asked of the log service, and what it answers: one frozen value each, but for the two
that stand for an append and its result inside a stream.

`ServiceCore` is the service without any transport: one method for each RPC of `proto/v1`. The
doors (`api/grpc`, HTTP) translate requests into these words and these words into responses. A
failure raises `RollbookError`; its `ids` hold what the caller may act upon, of these types only:
int, str, bytes, bool, and tuples of them. Some of them have a meaning for doors:

    owner, owner_epoch   of `NotOwner`: the address to ask instead, and since which epoch it owns
    retry_after_ms       of whatever is retryable: asking sooner is of no use
    head                 of `Truncated`: the first offset that is kept
    tail                 of `BeyondTail`, `LogSealed`, `OffsetMismatch`: the offset after the last

`due` is the time of the event loop by which the response has to be there; the service gives up
then, and starts nothing that cannot be done by then.

Clients import this module: it loads nothing heavy.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Protocol, Self

from rollbook.logservice.ids import (
    FIRST_SEGMENT,
    ONCE,
    AtOffset,
    CursorName,
    LogName,
    Offset,
    OwnerEpoch,
    Position,
    ProducerRef,
    SegmentId,
    ServerId,
    WriterEpoch,
)
from rollbook.logservice.log_config import ConfigValues, LogConfig
from rollbook.proto.errors import InvalidRequest, RollbookError
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.quorum import Quorum

# --- Appending --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Condition:
    """All of it has to hold where the append gets its place in the order."""

    expected_offset: Offset | None = None  # The append's first record gets exactly this offset.
    must_be_empty: bool = False  # Nothing was ever appended.
    writer_epoch: WriterEpoch | None = None  # This one is in force.


@dataclass(frozen=True, slots=True)
class AppendAck:
    """The records are on disk on an ack quorum of bookies."""

    first_offset: Offset
    next_offset: Offset
    timestamp_us: int
    is_duplicate: bool  # It had been appended before; these are its offsets.
    owner_epoch: OwnerEpoch
    writer_epoch: WriterEpoch
    ledger_id: LedgerId
    entry_id: EntryId


@dataclass(frozen=True, slots=True)
class Append:
    log: LogName
    block: bytes  # As `core/record_block.py` frames it: one atomic batch.
    condition: Condition | None = None
    uid: str = ""  # Of the intended log, as in `LogTail`: otherwise `LogReplaced`. Empty: any.


@dataclass(frozen=True, slots=True)
class Bind:
    """From here on `ref` means this log on this stream. Binding again forgets earlier failures."""

    ref: int
    log: LogName
    is_ordered: (
        bool  # After a failure, later appends under this ref are refused until it is bound again.
    )
    uid: str = ""  # As of `Append`.


# Not frozen, since that is slow: there is one for every append, and users do not keep it.
@dataclass(slots=True)
class StreamAppend:
    number: int  # Chosen by the client; its result bears it.
    ref: int
    block: bytes
    condition: Condition | None = None


@dataclass(slots=True)  # Not frozen: one for each append, and frozen ones are slow to make.
class AppendResult:
    """Either `ack` or `error` is set."""

    number: int
    ack: AppendAck | None = None
    error: RollbookError | None = None


class AppendStream(Protocol):
    """Many logs, any number of appends in flight; for each ref they are decided in the order in which
    they come.
    """

    def submit(self, binds: Sequence[Bind], appends: Sequence[StreamAppend]) -> None:
        """The binds come first. Never waits; a failure becomes a result.

        Raises `InvalidRequest` for a message that none of our clients sends: the stream ends
        with it.
        """

    async def ready(self) -> None:
        """Waits while more is in flight than a stream may have; ask before `submit`."""

    async def results(self) -> Sequence[AppendResult]:
        """Waits for a result, and returns all that are ready. One caller waits at a time; a
        cancelled one takes none."""

    async def close(self) -> None:
        """The client is gone. Submitted appends go on, and their results are dropped."""


class CoreStream(AppendStream, Protocol):
    """As the service opens it. The access layer settles some appends itself."""

    def tell(self, results: Sequence[AppendResult]) -> None:
        """They are among its results, too: appends that were refused before they came here."""


# --- Reading ----------------------------------------------------------------------------------


class AtTail(Enum):
    """What a reader does at the tail."""

    FOLLOW = "follow"
    # At the tail as it is known when the read begins. The first event is a `Progress` that has this tail, so that
    # a resumed read can name it (`ReadStream.resumed_at`).
    STOP = "stop"
    STOP_AT_BARRIER = "stop_at_barrier"  # As STOP; every append acknowledged before is below it.
    STOP_AT_READ_BARRIER = (
        "stop_at_read_barrier"  # The same, found as by `Consistency.READ_BARRIER`.
    )


class OnTruncated(Enum):
    """What happens to a start below the head."""

    FAIL = "fail"
    SKIP = "skip"  # A `Gap` is sent, and reading starts at the head.


@dataclass(frozen=True, slots=True)
class Read:
    """Bounded: answered as soon as there is something, after `wait_ms` at the latest."""

    log: LogName
    start: Position
    records_max: int = 10_000  # At least one block is answered, cut to size by `next_offset`.
    bytes_max: int = 1024 * 1024
    wait_ms: int = 0
    on_truncated: OnTruncated = OnTruncated.FAIL
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """The records from `first_offset` up to `next_offset`; the first and the last block may hold more."""

    blocks: tuple[bytes, ...]
    first_offset: Offset
    next_offset: Offset  # Where to go on.
    head: Offset
    tail: Offset
    is_sealed: bool
    uid: str = ""  # As of `LogTail`.
    # The owner could not be asked: the tail is as bookies know it, and may lack the last that was acknowledged.
    is_tail_uncertain: bool = False


@dataclass(frozen=True, slots=True)
class ReadStream:
    log: LogName
    start: Position
    until_offset: Offset | None = None
    until_timestamp_us: int | None = None  # Only records before that time.
    at_tail: AtTail = AtTail.FOLLOW
    on_truncated: OnTruncated = OnTruncated.FAIL
    heartbeat_ms: int = 5000  # No longer silence than this.
    uid: str = ""  # As of `Append`.

    def resumed_at(self, offset: Offset, tail: Offset | None = None) -> Self:
        """From there on. The last event may have been a gap that ended beyond the range.

        `tail`: where it was when the read began, if that is where it stops.
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
    """All records that were there when this was sent have been sent."""

    tail: Offset


@dataclass(frozen=True, slots=True)
class FellBehind:
    """Records come from the bookies again, no longer from the owner's memory."""

    tail: Offset


class WaitsFor(Enum):
    NOTHING = "nothing"  # Caught up: an append.
    FETCHING = "fetching"
    REPLICA = "replica"
    ROLL = "roll"
    OWNER = "owner"  # The log is between two owners, or its owner cannot be asked: there may be more than the tail.
    CLIENT = "client"  # It does not read what it is sent.
    THROTTLE = "throttle"


@dataclass(frozen=True, slots=True)
class Progress:
    """The reader's position. The lag may be estimated in bytes and time."""

    position: Offset
    head: Offset
    tail: Offset
    lag_records: int
    lag_bytes: int
    lag_us: int
    waits_for: WaitsFor

    @classmethod
    def held_back(cls, position: Offset, head: Offset, tail: Offset) -> Self:
        """For a reader that waits for its quota or its turn."""
        lag = max(tail - position, 0)
        return cls(position, head, tail, lag, 0, 0, WaitsFor.THROTTLE)


class GapKind(Enum):
    TRUNCATED = "truncated"
    LOST = "lost"  # No copy can be read.


@dataclass(frozen=True, slots=True)
class Gap:
    """These records are not sent; reading goes on at `end`."""

    kind: GapKind
    start: Offset
    end: Offset


@dataclass(frozen=True, slots=True)
class Sealed:
    """The last event: nothing will ever follow."""

    tail: Offset


@dataclass(frozen=True, slots=True)
class Moving:
    """The last event of this stream: go on there."""

    server: str  # Its address; empty if it is not known yet.
    resume_offset: Offset


@dataclass(frozen=True, slots=True)
class Stopped:
    """The last event: what was requested has been sent."""

    offset: Offset


ReadEvent = Records | CaughtUp | FellBehind | Progress | Gap | Sealed | Moving | Stopped


# --- Tail, positions --------------------------------------------------------------------------


class Consistency(Enum):
    CACHED = "cached"  # Whatever the server that is asked knows.
    COMMITTED = "committed"  # What the owner has confirmed.
    BARRIER = "barrier"  # Every append that any server acknowledged before the request is below it.
    # The same, by a read of the metadata store instead of an entry in the log: for callers without
    # the right to append.
    READ_BARRIER = "read_barrier"


@dataclass(frozen=True, slots=True)
class GetTail:
    log: LogName
    consistency: Consistency = Consistency.COMMITTED
    uid: str = ""  # As of `Append`.
    # COMMITTED: answered when the tail is beyond this offset, and after `wait_ms` in any case.
    beyond: Offset | None = None
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class LogTail:
    head: Offset
    tail: Offset
    is_sealed: bool
    timestamp_us: int  # Of the last record; 0 if there is none, or it cannot be looked up.
    owner: str  # Address; empty: none at present.
    owner_epoch: OwnerEpoch
    uid: str = ""  # 32 hexadecimal digits, drawn as the log is created.
    # The ledger that the tail is in, and its last entry that the owner has confirmed. None: the owner does not write it.
    ledger_id: LedgerId | None = None
    last_entry: EntryId | None = None


@dataclass(frozen=True, slots=True)
class WatchTail:
    """Answered at once and then whenever it has changed, at most every `interval_ms`; unchanged, too,
    after `heartbeat_ms`.
    """

    log: LogName
    interval_ms: int = 100
    heartbeat_ms: int = 5000
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class WatchTails:
    """The tails of many logs: first all that this server knows of, then what changes. No log is opened (TW1).

    A server answers for the logs that it owns, and for those that their names suggest to it: a client that
    wants all of them watches all servers, and merges (`core/log_tails.py`).
    """

    logs: tuple[LogName, ...] = ()  # Of these names: those that exist,
    prefixes: tuple[str, ...] = ()  # and those that begin so: `namespace/prefix`. `""`: all logs.
    interval_ms: int = 20  # At most one message per interval. Longer: fewer messages, later news.
    heartbeat_ms: int = 5000


@dataclass(frozen=True, slots=True)
class TailOfLog:
    """As one server knows it. Of one `uid` neither head nor tail goes back."""

    log: LogName
    head: Offset
    tail: Offset
    is_sealed: bool
    timestamp_us: int  # Of the last record; 0 if there is none, or it takes a search.
    uid: str  # As of `LogTail`.
    # The tail is the owner's, or the log ends with a closed segment. False: acknowledged records
    # may be beyond it, since another server owns the log, or its owner died. Its next owner finds
    # them.
    is_exact: bool
    owner: str  # Address; empty: none at present.
    owner_epoch: OwnerEpoch


@dataclass(frozen=True, slots=True)
class Tails:
    """The changes since the previous message."""

    tails: tuple[TailOfLog, ...] = ()  # New ones, and those that have changed.
    gone: tuple[LogName, ...] = ()  # Deleted, or left to other servers.
    is_complete: bool = (
        False  # All logs that this server answers for, with `servers` in place, were sent.
    )
    servers: tuple[str, ...] = ()  # The addresses of all servers.


@dataclass(frozen=True, slots=True)
class FindOffset:
    log: LogName
    position: Position
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class FoundOffset:
    offset: Offset
    head: Offset
    tail: Offset
    uid: str = ""  # As of `LogTail`.


# --- Truncation, seal, writer epochs ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Truncate:
    log: LogName
    before: Position  # The first record that is kept.
    dry_run: bool = False  # Only the plan.
    force_roll: bool = False  # Also free records in the segment that is written.
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class TruncateAnswer:
    """What was done, or would be. Readers see the new head at once; ledgers go as a whole."""

    old_head: Offset
    new_head: Offset
    records: int  # Those that are no longer readable.
    segments: tuple[SegmentId, ...]  # Whose ledgers are deleted.
    freed_bytes: int
    kept_bytes: int  # Below the head, in a segment that holds others, too.
    guards: tuple[CursorName, ...]  # Protected marks below `before`: it is refused.


@dataclass(frozen=True, slots=True)
class Seal:
    """No record is ever appended again. Repeated, it is answered alike."""

    log: LogName
    block: bytes | None = None  # The last records, atomically with the seal.
    condition: Condition | None = None
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class SealAnswer:
    tail: Offset


HOLDER_CHARACTERS_MAX: Final = 255
ATTEMPT_BYTES_MAX: Final = 64
TTL_MS_MAX: Final = (1 << 32) - 1


class AcquireMode(Enum):
    STEAL = "steal"  # Fences the holder.
    WAIT = "wait"  # Until it is released or has run out, or the deadline passes.
    FAIL = "fail"  # If it is held.


@dataclass(frozen=True, slots=True)
class AcquireWriter:
    log: LogName
    holder: str  # Shown to others: who it is. Kept in every snapshot of the log.
    mode: AcquireMode = AcquireMode.FAIL  # Without STEAL no holder is fenced.
    ttl_ms: int = 0  # 0: until it is released or stolen.
    # Drawn at random by the client, for this one acquisition: a restarted process draws another,
    # otherwise it would not fence its earlier self. A holder that got no response and repeats the
    # request with the same attempt is granted the same epoch, as long as no other holder was
    # granted one since (then the request counts as a first one: a late STEAL fences); `StaleEpoch`
    # if it was released. Empty: a new one each time.
    attempt: str = ""
    uid: str = ""  # As of `Append`.

    def __post_init__(self) -> None:
        if not 1 <= len(self.holder) <= HOLDER_CHARACTERS_MAX:
            raise InvalidRequest(f"a holder's name has 1 to {HOLDER_CHARACTERS_MAX} characters")
        if not 0 <= self.ttl_ms <= TTL_MS_MAX:
            raise InvalidRequest(f"a writer's lease of {self.ttl_ms} ms is outside 0 … 2^32-1")
        if len(self.attempt.encode()) > ATTEMPT_BYTES_MAX:
            raise InvalidRequest(f"an attempt's name has at most {ATTEMPT_BYTES_MAX} bytes")


@dataclass(frozen=True, slots=True)
class WriterGrant:
    """Everything acked under an older epoch is below `fence_offset`, and nothing will be any more."""

    writer_epoch: WriterEpoch
    fence_offset: Offset
    holder: str
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class RenewWriter:
    log: LogName
    writer_epoch: WriterEpoch
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class ReleaseWriter:
    log: LogName
    writer_epoch: WriterEpoch
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class BeginProducer:
    """Begins the next epoch of a named producer: blocks of an older one are refused from then on."""

    log: LogName
    producer: bytes  # Its id.
    uid: str = ""  # As of `Append`.

    def __post_init__(self) -> None:
        ProducerRef(self.producer, 0, 0)
        if self.producer.startswith(ONCE):
            raise InvalidRequest("an idempotency key is no producer's name")


@dataclass(frozen=True, slots=True)
class ProducerProgress:
    """How many records a producer has appended when its epoch begins; its next batch has number
    0."""

    epoch: int
    records: int | None = None  # That it has appended, in all its epochs; None: not known.
    last_offset: Offset | None = None  # Of the last one; None: there is none.


@dataclass(frozen=True, slots=True)
class Done:
    """It was done; there is no other result."""


# --- Cursors and marks ------------------------------------------------------------------------

NO_CURSOR: int = -1  # As an expected version: the cursor does not exist yet.


@dataclass(frozen=True, slots=True)
class Cursor:
    """A named position. Protected it is a mark, and holds truncation and retention back."""

    name: CursorName
    offset: Offset
    version: int  # Changes with each commit.
    blob: bytes
    is_protected: bool
    updated_us: int
    uid: str = ""  # Of its log, as of `LogTail`; empty if an earlier release made it.


@dataclass(frozen=True, slots=True)
class GetCursor:
    log: LogName
    name: CursorName
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class CommitCursor:
    log: LogName
    name: CursorName
    offset: Offset
    blob: bytes | None = None  # None: as it was.
    is_protected: bool | None = None  # None: as it was; False if it is new.
    expected_version: int | None = None  # None: any.
    may_rewind: bool = False
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class CommitCursorBy(CommitCursor):
    """As passed on by a door, which knows the caller."""

    principal: str = ""


@dataclass(frozen=True, slots=True)
class ListCursors:
    log: LogName
    start_after: str = ""  # The `next_page` of the answer before.
    limit: int = 1000  # At most this many in a page, and at most 1000.
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class Cursors:
    cursors: tuple[Cursor, ...]
    next_page: str = ""  # Empty: that was all.


@dataclass(frozen=True, slots=True)
class DeleteCursor:
    log: LogName
    name: CursorName
    expected_version: int | None = None
    uid: str = ""  # As of `Append`.


# --- Administration ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnsureLog:
    """Creates it unless it exists with the same configuration, in one change."""

    log: LogName
    config: ConfigValues | None = None  # None: all defaults, and any existing log is accepted.
    # Of `config`: those that are named. A new log has the server's defaults for the others, and an
    # existing one keeps its own. Empty: all of `config`.
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GetLog:
    log: LogName
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class UpdateLog:
    log: LogName
    config: ConfigValues
    fields: tuple[str, ...]  # The fields of `config` that change, and no others.
    etag: str = ""  # Empty: whatever it has become.
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class LogState:
    """A log's summary."""

    log: LogName
    config: LogConfig
    etag: str  # Changes whenever the configuration does.
    was_created: bool  # By this request.
    head: Offset
    tail: Offset  # As far as it is known without asking the owner.
    is_sealed: bool
    owner_id: str  # Empty: none at present.
    owner: str  # Its address.
    owner_epoch: OwnerEpoch
    writer_epoch: WriterEpoch
    writer_holder: str  # Empty: none.
    bytes: int
    records: int
    segments: int
    roll_due_us: int = 0  # When the open segment ends at the latest. 0: not known here.
    uid: str = ""  # As of `LogTail`.
    # Bookies of the open segment that are not expected to get its next entry, and why. From its owner only.
    vacant_seats: tuple[str, ...] = ()
    problem: str = ""  # Why this server, which should own it, cannot open it. Empty: nothing known.
    next_step: str = ""  # What would help against that.


@dataclass(frozen=True, slots=True)
class ListLogs:
    namespace: str = ""  # Empty: all of them.
    prefix: str = ""
    start_after: str = ""  # The `next_page` of the answer before.
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class LogNames:
    logs: tuple[LogName, ...]
    next_page: str  # Empty: that was all.


@dataclass(frozen=True, slots=True)
class DeleteLog:
    log: LogName
    etag: str = ""  # Empty: whatever it has become.
    grace_ms: int | None = None  # None: as configured. Its records are freed only then.
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class DeleteLogAnswer:
    freed_at_us: int


@dataclass(frozen=True, slots=True)
class ListDeletedLogs:
    """Deleted logs whose records are still kept."""

    namespace: str = ""  # Empty: all of them.
    prefix: str = ""
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class DeletedLog:
    log: LogName  # The name that it had.
    uid: str
    deleted_us: int
    free_at_us: int  # When its records go, or a minute or so later.
    segments: int
    has_name: bool  # No other log was created under it.


@dataclass(frozen=True, slots=True)
class DeletedLogs:
    logs: tuple[DeletedLog, ...]  # By name, then by when they were deleted.
    is_all: bool


@dataclass(frozen=True, slots=True)
class UndeleteLog:
    log: LogName  # The name that it had.
    uid: str = ""  # Empty: there is only one.
    to: LogName | None = None  # Another name, if that one is taken.


@dataclass(frozen=True, slots=True)
class RollLog:
    """Starts a new segment, unless the one that is written is still empty."""

    log: LogName
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class RollLogAnswer:
    segment_id: SegmentId  # The written one.


class SegmentState(Enum):
    OPEN = "open"
    CLOSED = "closed"
    LOST = "lost"  # Its ledger was deleted, and its records with it.


@dataclass(frozen=True, slots=True)
class SegmentView:
    segment_id: SegmentId
    ledger_id: LedgerId
    state: SegmentState
    base_offset: Offset | None  # None as long as its predecessor is not settled.
    next_offset: Offset | None  # None as long as it is open.
    first_timestamp_us: int
    last_timestamp_us: int
    bytes: int
    records: int
    reason: str  # Why it was started.
    degraded_to: int = 0  # The bookies it was made with, fewer than its log wanted; 0: all of them.
    began_us: int = 0  # When it was started; its first timestamp is that of the last record before.


@dataclass(frozen=True, slots=True)
class ListSegments:
    log: LogName
    start: SegmentId = FIRST_SEGMENT
    limit: int = 1000
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class Segments:
    segments: tuple[SegmentView, ...]
    next_segment: SegmentId | None  # None: that was all.


@dataclass(frozen=True, slots=True)
class GetJournal:
    """The log's events, newest first."""

    log: LogName
    limit: int = 100
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class JournalEvent:
    time_us: int
    kind: str  # A past-tense fact: log_opened, segment_rolled, log_truncated …
    server: str
    owner_epoch: OwnerEpoch
    reason: str
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Journal:
    events: tuple[JournalEvent, ...]


@dataclass(frozen=True, slots=True)
class GetLimits:
    pass


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    record_bytes_max: int
    block_bytes_max: int  # Packed.
    block_unpacked_bytes_max: int
    block_records_max: int
    message_bytes_max: int  # Of gRPC.
    stream_bytes_max: int  # In flight on one append stream, before it is not read any more.
    cursor_blob_bytes_max: int
    usable_bookies: int = (
        0  # They take new records at present. 0 without a quorum: an older server does not say.
    )
    quorum: Quorum | None = None  # Of a new log, unless its configuration has another one.


# --- Cluster ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lookup:
    logs: tuple[LogName, ...]


@dataclass(frozen=True, slots=True)
class LogOwner:
    log: LogName
    address: str  # Of the owner, or of the server that should become it; empty if there is none.
    owner_epoch: OwnerEpoch
    is_owner: bool  # Not only suggested.


@dataclass(frozen=True, slots=True)
class LogOwners:
    owners: tuple[LogOwner, ...]  # Of those logs that exist, in the order asked for.


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
    logs_owned: int  # As it last said.
    logs_degraded: int = 0  # Those whose open segment is written to fewer bookies than they want.
    logs_unopened: int = 0  # Logs that it should own, and cannot open.


@dataclass(frozen=True, slots=True)
class Servers:
    servers: tuple[ServerView, ...]


@dataclass(frozen=True, slots=True)
class TransferLog:
    log: LogName
    to: str  # Name or id of a server.
    uid: str = ""  # As of `Append`.


@dataclass(frozen=True, slots=True)
class DrainServer:
    """It hands over its logs and opens no more, until it is restarted or gets `resume`."""

    server: str
    resume: bool = False


@dataclass(frozen=True, slots=True)
class DrainAnswer:
    logs_left: int


@dataclass(frozen=True, slots=True)
class GetServerStats:
    """Of the server that is asked."""


@dataclass(frozen=True, slots=True)
class ServerStats:
    server_id: ServerId
    stats: Mapping[str, float]  # By their names in /metrics.


class ObstacleKind(Enum):
    METADATA = "metadata"
    BOOKIE = "bookie"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that is away."""

    kind: ObstacleKind
    name: str
    since_us: int  # When the reporting server first noticed.
    why: str  # `does not answer`, `is not registered`, `is read-only`.


@dataclass(frozen=True, slots=True)
class GetOutage:
    """What the asked server knows to be unavailable. Answered within a second, whatever is."""


@dataclass(frozen=True, slots=True)
class Outage:
    obstacles: tuple[Obstacle, ...] = ()
    cause: str = ""  # All of them in one sentence; empty: nothing is known to be unavailable.
    next_step: str = ""  # What would help.


# --- The service ------------------------------------------------------------------------------


class ServiceCore(Protocol):
    """Any server answers; where only the owner can, another one raises `NotOwner`."""

    async def append(self, request: Append, due: float) -> AppendAck: ...
    def open_append_stream(self) -> CoreStream: ...
    async def read(self, request: Read, due: float) -> ReadAnswer: ...
    def read_stream(self, request: ReadStream) -> AsyncIterator[ReadEvent]:
        """An async generator: a caller that leaves early closes it."""

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
    async def get_journal(self, request: GetJournal, due: float) -> Journal: ...
    async def get_limits(self, request: GetLimits, due: float) -> ServiceLimits: ...

    async def lookup(self, request: Lookup, due: float) -> LogOwners: ...
    async def list_servers(self, request: ListServers, due: float) -> Servers: ...
    async def transfer_log(self, request: TransferLog, due: float) -> LogOwner: ...
    async def drain_server(self, request: DrainServer, due: float) -> DrainAnswer: ...
    async def get_server_stats(self, request: GetServerStats, due: float) -> ServerStats: ...
    async def get_outage(self, request: GetOutage, due: float) -> Outage: ...

    def on_waiting(self) -> None:
        """A request waits for longer than it should."""

    def explained(self, error: RollbookError) -> RollbookError:
        """The same, with what it waited for."""
