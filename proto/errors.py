"""Defines every error of the system: what happened, whether a change took effect, and the error's
name in each protocol.

The family says how the caller may react, the class says what happened, and the attributes say to
which ids it happened. This is the only table of errors (E1): a class is defined together with its
`Code`, that is, its stable `reason` and its name in gRPC, in HTTP and in BookKeeper's two
protocols. No other module maps errors to protocols.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, Self


class Outcome(Enum):
    """The effect of a request that was refused or failed: whether it changed anything."""

    APPLIED = "applied"
    NOT_APPLIED = "not_applied"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Code:
    reason: str
    grpc: str  # The name of a grpc.StatusCode, as text: this package does not import grpc.
    http: int
    v2: int | None = None  # BookKeeper's V2 code; None if bookies never send this error.
    v3: int | None = None


class RollbookError(Exception):
    """The server failed unexpectedly.

    This class is also the root: `except RollbookError` catches everything that Rollbook raises on purpose.
    """

    code: ClassVar[Code] = Code("INTERNAL", "INTERNAL", 500, v2=101, v3=501)
    # The default of the class; an instance may replace it with what it knows.
    outcome: Outcome = Outcome.UNKNOWN
    retryable: bool = False
    http_step: str = ""  # The next step for users of HTTP, if `next_step` names a command.

    def __init__(self, message: str = "", *, next_step: str = "", **ids: Any) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step  # The next step for the reader: "stop it first", or a command.
        self.ids = ids  # The ledger, bookie, path and so on of the error; logs need no more.

    def __str__(self) -> str:
        subject = " ".join(f"{name}={value}" for name, value in self.ids.items())
        parts = (self.message or (self.__doc__ or "").partition("\n")[0], subject, self.next_step)
        return " · ".join(part for part in parts if part)

    def __repr__(self) -> str:
        ids = "".join(f", {name}={value!r}" for name, value in self.ids.items())
        return f"{type(self).__name__}({self.message!r}, outcome={self.outcome.value}{ids})"

    def with_http_step(self, step: str) -> Self:
        self.http_step = step
        return self

    def copy(self) -> Self:
        """Returns a copy of the error for another caller, since each caller adds its own traceback."""
        copy = type(self)()
        vars(copy).update(vars(self), ids=dict(self.ids))
        copy.args, copy.__cause__ = self.args, self.__cause__
        return copy


# --- Families ---------------------------------------------------------------------------------


class Unavailable(RollbookError):
    """Nothing was done; the caller may retry."""

    code = Code("UNAVAILABLE", "UNAVAILABLE", 503)
    outcome = Outcome.NOT_APPLIED
    retryable = True


class OutcomeUnknown(RollbookError):
    """The request may have taken effect; the caller must find out before trying again."""

    code = Code("OUTCOME_UNKNOWN", "UNKNOWN", 503)
    outcome = Outcome.UNKNOWN


class Superseded(RollbookError):
    """Another client has changed the state; the caller must stop and read it again."""

    code = Code("SUPERSEDED", "ABORTED", 409)
    outcome = Outcome.NOT_APPLIED


class Missing(RollbookError):
    """The caller has a definite answer: what it asked for does not exist."""

    code = Code("NOT_FOUND", "NOT_FOUND", 404)
    outcome = Outcome.NOT_APPLIED


class Corrupt(RollbookError):
    """The bytes must not be used."""

    code = Code("CORRUPT", "DATA_LOSS", 500)
    outcome = Outcome.NOT_APPLIED


class Invalid(RollbookError):
    """The caller has a bug, or passed on invalid input."""

    code = Code("INVALID", "INVALID_ARGUMENT", 400, v2=100, v3=404)
    outcome = Outcome.NOT_APPLIED


# --- Unavailable ------------------------------------------------------------------------------


class BookieUnreachable(Unavailable):
    """The bookie cannot be reached; nothing was sent to it."""

    code = Code("BOOKIE_UNREACHABLE", "UNAVAILABLE", 503)


class BookieReadOnly(Unavailable):
    """The bookie takes no new entries."""

    code = Code("BOOKIE_READ_ONLY", "UNAVAILABLE", 503, v2=105, v3=505)


class EntryStateUnknown(Unavailable):
    """This bookie may have lost the entry, so it cannot say that the entry does not exist."""

    # V2 has no code for this error.
    code = Code("ENTRY_STATE_UNKNOWN", "UNAVAILABLE", 503, v2=101, v3=507)


class EntryUnavailable(Unavailable):
    """No copy of the entry can be read at present."""

    code = Code("ENTRY_UNAVAILABLE", "UNAVAILABLE", 503)


class RecoveryIncomplete(Unavailable):
    """The ledger's end is not known yet; the ledger stays in recovery."""

    code = Code("RECOVERY_INCOMPLETE", "UNAVAILABLE", 503)


class ArchiveUnwritable(Unavailable):
    """Files of an archive cannot be written; this step has no effect."""

    code = Code("ARCHIVE_UNWRITABLE", "UNAVAILABLE", 503)


class NotEnoughBookies(Unavailable):
    """Fewer bookies can be used than the quorum needs."""

    code = Code("QUORUM_UNAVAILABLE", "UNAVAILABLE", 503)


class DrainBlocked(NotEnoughBookies):
    """For some ledgers, no other bookie can replace the one that is to be drained."""

    code = Code("DRAIN_BLOCKED", "FAILED_PRECONDITION", 409)


class OperationIncomplete(Unavailable):
    """The operation has ended, but a part of it could not be done."""

    code = Code("OPERATION_INCOMPLETE", "UNAVAILABLE", 503)
    outcome = Outcome.UNKNOWN
    retryable = False


class Overloaded(Unavailable):
    """A queue is full; try again after a moment."""

    code = Code("OVERLOADED", "RESOURCE_EXHAUSTED", 503, v2=106, v3=506)


class Throttled(Unavailable):
    """A quota is used up for now."""

    code = Code("THROTTLED", "RESOURCE_EXHAUSTED", 429)


class MetadataUnavailable(Unavailable):
    """The metadata store cannot be reached; the request was not sent."""

    code = Code("METADATA_UNAVAILABLE", "UNAVAILABLE", 503)


class MetadataFull(Unavailable):
    """The disk of the metadata store is nearly full; it refuses writes that need more space."""

    code = Code("METADATA_FULL", "UNAVAILABLE", 503)


class ServerUnreachable(Unavailable):
    """No log server can be reached; nothing was sent."""

    code = Code("SERVER_UNREACHABLE", "UNAVAILABLE", 503)


class ReaderStalled(Unavailable):
    """The log has sent nothing for too long, not even a report of what it waits for."""

    code = Code("STALLED", "UNAVAILABLE", 503)


class NotOwner(Unavailable):
    """Another server owns this log."""

    code = Code("NOT_OWNER", "UNAVAILABLE", 307)


class ClockDisagrees(Unavailable):
    """The clock of this server disagrees with most others, so it owns no logs."""

    code = Code("CLOCK_DISAGREES", "UNAVAILABLE", 503)


class OwnerChanging(Unavailable):
    """The log is between two owners."""

    code = Code("OWNER_CHANGING", "UNAVAILABLE", 503)


# --- OutcomeUnknown ---------------------------------------------------------------------------


class ConnectionLost(OutcomeUnknown):
    """The connection broke after the request was sent and before its answer came."""

    code = Code("CONNECTION_LOST", "UNAVAILABLE", 503)


class QuorumTimeout(OutcomeUnknown):
    """The deadline passed before all necessary answers came."""

    code = Code("DEADLINE", "DEADLINE_EXCEEDED", 504)


class BookieTimeout(OutcomeUnknown):
    """The bookie did not answer in time."""

    code = Code("BOOKIE_TIMEOUT", "DEADLINE_EXCEEDED", 504)


class BookieFailed(OutcomeUnknown):
    """The bookie met an I/O error while it served the request."""

    code = Code("BOOKIE_FAILED", "UNAVAILABLE", 503, v2=101, v3=501)


class AppendUnsettled(OutcomeUnknown):
    """The writer stopped before the entry was confirmed; the entry may or may not be kept."""

    code = Code("APPEND_UNSETTLED", "UNKNOWN", 503)


class Interrupted(OutcomeUnknown):
    """The command was interrupted."""

    code = Code("INTERRUPTED", "UNKNOWN", 503)


class RecordsUnacked(OutcomeUnknown):
    """The client was closed before all submitted records were acknowledged."""

    code = Code("RECORDS_UNACKED", "UNKNOWN", 503)


class OwnerLost(OutcomeUnknown):
    """The server was fenced while the append was in flight."""

    code = Code("OWNER_LOST", "ABORTED", 503)


# --- Superseded -------------------------------------------------------------------------------


class LedgerFenced(Superseded):
    """Another client recovers or has closed this ledger; its writer has to stop."""

    code = Code("LEDGER_FENCED", "FAILED_PRECONDITION", 409, v2=104, v3=504)


class LedgerClosed(Superseded):
    """The ledger is closed."""

    code = Code("LEDGER_CLOSED", "FAILED_PRECONDITION", 409)


class StaleEpoch(Superseded):
    """A newer epoch is in force."""

    code = Code("WRITER_FENCED", "FAILED_PRECONDITION", 412)


class ProducerFenced(Superseded):
    """A newer session of this producer has taken over."""

    code = Code("PRODUCER_FENCED", "FAILED_PRECONDITION", 412)


class ProducerGap(Superseded):
    """A sequence number was skipped."""

    code = Code("PRODUCER_GAP", "FAILED_PRECONDITION", 409)


class EarlierFailed(Superseded):
    """An earlier append on the same stream failed, so this one was not tried."""

    code = Code("EARLIER_FAILED", "ABORTED", 409)


class DuplicateTooOld(Superseded):
    """The batch is in the log already, but it is so old that its offsets are no longer known."""

    code = Code("DUPLICATE_TOO_OLD", "ALREADY_EXISTS", 409)
    outcome = Outcome.APPLIED


class SinkReplayDiverged(Superseded):
    """A batch that was written again differs from the batch in the log."""

    code = Code("SINK_REPLAY_DIVERGED", "ABORTED", 409)


class MirrorHeld(Superseded):
    """The log cannot become a mirror, since it has records from another origin."""

    code = Code("MIRROR_HELD", "FAILED_PRECONDITION", 409)


class ArchiveHeld(Superseded):
    """Another export writes to this archive or holds its cursor."""

    code = Code("ARCHIVE_HELD", "ABORTED", 409)


class WriterHeld(Superseded):
    """Another client is the exclusive writer of this log."""

    code = Code("WRITER_HELD", "FAILED_PRECONDITION", 409)


class OffsetMismatch(Superseded):
    """The tail is not where the append expected it."""

    code = Code("OFFSET_MISMATCH", "FAILED_PRECONDITION", 412)


class LogSealed(Superseded):
    """The log takes no more records."""

    code = Code("SEALED", "FAILED_PRECONDITION", 409)


class LogReplaced(Superseded):
    """The log was deleted, and another log now has its name."""

    code = Code("LOG_REPLACED", "FAILED_PRECONDITION", 412)


class LogExists(Superseded):
    """A log of this name exists with another configuration."""

    code = Code("LOG_EXISTS", "ALREADY_EXISTS", 409)


class Guarded(Superseded):
    """A protected cursor prevents this."""

    code = Code("GUARDED", "FAILED_PRECONDITION", 409)


class CursorAhead(Superseded):
    """The cursor is at a later position, and the request does not allow it to move back."""

    code = Code("CURSOR_AHEAD", "FAILED_PRECONDITION", 409)


class OwnerFenced(Superseded):
    """Another server has become the owner of this log."""

    code = Code("OWNER_FENCED", "ABORTED", 409)


class MetadataConflict(Superseded):
    """The metadata has changed since the version on which this change is based."""

    code = Code("CONFLICT", "ABORTED", 409)


class NodeExists(Superseded):
    """A metadata node of this name exists."""

    code = Code("NODE_EXISTS", "ALREADY_EXISTS", 409)


class NodeNotEmpty(Superseded):
    """The metadata node has children."""

    code = Code("NODE_NOT_EMPTY", "FAILED_PRECONDITION", 409)


class SessionExpired(Superseded):
    """The metadata session is over, and its ephemeral nodes are gone."""

    code = Code("SESSION_EXPIRED", "ABORTED", 409)


class ClusterExists(Superseded):
    """A cluster has been initialised here already."""

    code = Code("CLUSTER_EXISTS", "ALREADY_EXISTS", 409)


class LifecycleConflict(Superseded):
    """The bookie's lifecycle state does not allow this."""

    code = Code("LIFECYCLE_CONFLICT", "FAILED_PRECONDITION", 409)


class OperationEnded(Superseded):
    """The operation has ended or cannot be stopped, so a request no longer changes it."""

    code = Code("OPERATION_ENDED", "FAILED_PRECONDITION", 409)


class DirectoryInUse(Superseded):
    """Another process holds this directory or file."""

    code = Code("DIRECTORY_IN_USE", "ABORTED", 409)


# --- Missing ----------------------------------------------------------------------------------


class NoSuchLedger(Missing):
    """There is no such ledger."""

    code = Code("LEDGER_NOT_FOUND", "NOT_FOUND", 404, v2=1, v3=402)


class NoSuchEntry(Missing):
    """There is no such entry."""

    code = Code("ENTRY_NOT_FOUND", "NOT_FOUND", 404, v2=2, v3=403)


class NoSuchLog(Missing):
    """There is no log of this name."""

    code = Code("LOG_NOT_FOUND", "NOT_FOUND", 404)


class NoSuchArchive(Missing):
    """There is no archive of logs in this folder."""

    code = Code("ARCHIVE_NOT_FOUND", "NOT_FOUND", 404)


class LogDeleted(Missing):
    """The log was deleted."""

    code = Code("LOG_DELETED", "NOT_FOUND", 410)


class Truncated(Missing):
    """The position is before the head of the log."""

    code = Code("TRUNCATED", "OUT_OF_RANGE", 410)


class BeyondTail(Missing):
    """The position is beyond the tail of the log."""

    code = Code("BEYOND_TAIL", "OUT_OF_RANGE", 416)


class NoSuchServer(Missing):
    """There is no such log server, or it accepts no logs."""

    code = Code("SERVER_NOT_FOUND", "NOT_FOUND", 404)


class NoSuchCursor(Missing):
    """There is no cursor of this name."""

    code = Code("CURSOR_NOT_FOUND", "NOT_FOUND", 404)


class NoSuchNode(Missing):
    """There is no such metadata node."""

    code = Code("NODE_NOT_FOUND", "NOT_FOUND", 404)


class NoSuchCluster(Missing):
    """No cluster has been initialised here."""

    code = Code("CLUSTER_NOT_FOUND", "NOT_FOUND", 404)


# --- Corrupt ----------------------------------------------------------------------------------


class DigestMismatch(Corrupt):
    """The bytes differ from those that were written."""

    code = Code("DIGEST_MISMATCH", "DATA_LOSS", 500)


class BlockCorrupt(Corrupt):
    """A stored block cannot be read."""

    code = Code("BLOCK_CORRUPT", "DATA_LOSS", 500)


class BadFrame(Corrupt):
    """A peer sent bytes that are not a message of its protocol."""

    code = Code("BAD_FRAME", "INVALID_ARGUMENT", 400, v2=100, v3=404)


class BadMetadata(Corrupt):
    """A metadata node holds bytes that cannot be read."""

    code = Code("BAD_METADATA", "DATA_LOSS", 500)


class TornRecord(Corrupt):
    """A record on disk is shorter than its length says."""

    code = Code("TORN_RECORD", "DATA_LOSS", 500)


class DataLost(Corrupt):
    """No copy of these records can be read."""

    code = Code("DATA_LOST", "DATA_LOSS", 500)


class LogDataLoss(Corrupt):
    """Records that a reader was going to read are lost."""

    code = Code("LOG_DATA_LOSS", "DATA_LOSS", 500)


class ArchiveDamaged(Corrupt):
    """An archive of logs does not match its manifests."""

    code = Code("ARCHIVE_DAMAGED", "DATA_LOSS", 500)


# --- Invalid ----------------------------------------------------------------------------------


class InvalidRequest(Invalid):
    """The request is invalid."""


class InvalidBlock(Invalid):
    """A block of records is malformed."""

    code = Code("INVALID_BLOCK", "INVALID_ARGUMENT", 400)


class DuplicateDiffers(Invalid):
    """An earlier request with this number or key was accepted, and it was a different one."""

    code = Code("DUPLICATE_DIFFERS", "INVALID_ARGUMENT", 422)


class BadChecksum(Invalid):
    """A block of records was damaged on its way here."""

    code = Code("CHECKSUM", "INVALID_ARGUMENT", 422)
    retryable = True


class BadConfig(Invalid):
    """The configuration cannot be used."""

    code = Code("BAD_CONFIG", "INVALID_ARGUMENT", 400)

    def __init__(
        self, message: str = "", *, settings: Iterable[str] = (), next_step: str = "", **ids: Any
    ) -> None:
        super().__init__(message, next_step=next_step, **ids)
        self.settings = tuple(
            settings
        )  # The names of the wrong settings; the command adds where each of them was set.

    @classmethod
    @contextmanager
    def about(cls, *settings: str) -> Iterator[None]:
        """Adds the names of these settings to a `BadConfig` that is raised in this context."""
        try:
            yield
        except (InvalidRequest, cls) as error:
            raise cls(
                error.message, settings=settings, next_step=error.next_step, **error.ids
            ) from error


class NotConfirmed(Invalid):
    """This would destroy data, and it was not confirmed."""

    code = Code("NOT_CONFIRMED", "FAILED_PRECONDITION", 400)


class EntryTooLarge(Invalid):
    """The entry is over the size limit."""

    code = Code("TOO_LARGE", "INVALID_ARGUMENT", 413)


class UnsupportedVersion(Invalid):
    """The peer or the stored format has a version that is not supported."""

    code = Code("UNSUPPORTED_VERSION", "UNIMPLEMENTED", 400, v2=103, v3=503)


class Unauthorized(Invalid):
    """The key or token does not allow this."""

    code = Code("UNAUTHORIZED", "PERMISSION_DENIED", 403, v2=102, v3=502)


class ClientClosed(Invalid):
    """The client, or what was opened with it, has been closed."""

    code = Code("CLIENT_CLOSED", "FAILED_PRECONDITION", 409)


class WriterRequired(Invalid):
    """The log is exclusive and no writer epoch was given."""

    code = Code("WRITER_REQUIRED", "FAILED_PRECONDITION", 428)


class WrongCluster(Invalid):
    """This belongs to another cluster."""

    code = Code("WRONG_CLUSTER", "FAILED_PRECONDITION", 409)


class PartOfLog(Invalid):
    """The ledger is a segment of a log, which would lose records or its owner by this change."""

    code = Code("PART_OF_LOG", "FAILED_PRECONDITION", 409)


class OlderMetadata(Invalid):
    """The metadata store is older than the data that depends on it."""

    code = Code("OLDER_METADATA", "FAILED_PRECONDITION", 409)


class WrongBookie(Invalid):
    """These directories belong to another bookie, are incomplete, or are from an earlier life of it."""

    code = Code("WRONG_BOOKIE", "FAILED_PRECONDITION", 409)


# --- From the wire ----------------------------------------------------------------------------

OK: Final = 0  # This code means success in both of BookKeeper's protocols.


def every_error() -> Iterator[type[RollbookError]]:
    """Returns all rows of the table: the root, the families and the classes, in the order of their
    definition.
    """
    pending: list[type[RollbookError]] = [RollbookError]
    while pending:
        error = pending.pop(0)
        yield error
        pending.extend(error.__subclasses__())


def retry_after_ms(error: RollbookError) -> int:
    """Returns how many milliseconds a caller should wait before a retry, or 0 if that is not known."""
    found = error.ids.get("retry_after_ms")
    return min(max(found, 0), 2**31) if isinstance(found, int) else 0


# A family and one of its classes may share a reason; a received reason means the class.
_BY_REASON: Final = {error.code.reason: error for error in every_error()}


def error_of_reason(reason: str) -> type[RollbookError]:
    """Returns the class of error that has this reason. For an unknown reason it is one with an
    unknown outcome, since such a reason proves nothing.
    """
    return _BY_REASON.get(reason, RollbookError)


# Several classes may share one code; a received code means the first of these.
_HEARD: Final = (
    NoSuchLedger,
    NoSuchEntry,
    InvalidRequest,
    BookieFailed,
    Unauthorized,
    UnsupportedVersion,
    LedgerFenced,
    BookieReadOnly,
    Overloaded,
    EntryStateUnknown,
)
_BY_V2: Final[dict[int, type[RollbookError]]] = {
    e.code.v2: e for e in reversed(_HEARD) if e.code.v2
}
_BY_V3: Final[dict[int, type[RollbookError]]] = {
    e.code.v3: e for e in reversed(_HEARD) if e.code.v3
}


def error_of_v2(code: int) -> type[RollbookError]:
    """Returns the class of error that has this V2 code. For an unknown code it is one with an
    unknown outcome, since such a code proves nothing.
    """
    return _BY_V2.get(code, BookieFailed)


def error_of_v3(status: int) -> type[RollbookError]:
    return _BY_V3.get(status, BookieFailed)
