"""The messages between clients and bookies, the same for both protocols.

Adds and their replies are handled a chunk at a time (`rollbook.proto.wire.add_columns`); the single adds
in this module are for unusual forms that the hot path does not handle. The error of a reply is a
class of `rollbook.proto.errors`, or None for success; the module of each protocol gives it a code.
Version 2 has only Read, BatchRead and Auth; BookKeeper's version 3 has no BatchRead.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from rollbook.proto.errors import RollbookError
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.ports import Buffer
from rollbook.proto.wire.entry_list import EntryList

Failure = type[RollbookError] | None

AUTH_DISABLED_PLUGIN = "AuthDisabledPlugin"
"""A bookie without authentication sends back Auth requests that have this name."""

IDENTITY_PLUGIN = "rollbook.identity"
"""The reply to an Auth request with this name has the bookie's id as its payload. This is
Rollbook's extension.
"""


class BookieOperation(IntEnum):
    """The operations, numbered as in version 3."""

    READ = 1
    ADD = 2
    RANGE_READ = 3  # No peer uses it, nor RANGE_ADD.
    RANGE_ADD = 4
    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    GET_BOOKIE_INFO = 8
    START_TLS = 9
    FORCE_LEDGER = 10
    LIST_ENTRIES = 11
    BATCH_READ = 12  # In version 3 this is Rollbook's extension.


# --- Requests ---------------------------------------------------------------------------------


class EntryRead(NamedTuple):
    """A read of one entry. It is a tuple for speed: there are tens of thousands of reads.

    `entry_id` NO_ENTRY asks for the entry with the highest id. `previous_lac` makes it a long poll:
    it waits up to `timeout_ms` until the ledger's LAC is higher, and with `piggyback` returns the
    entry after `previous_lac`. `following_bytes_max` is Rollbook's extension: the reply also has
    some of the confirmed entries after that entry. A bookie that does not know the extension
    returns none of them.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    ledger_key: bytes | None = None
    fence: bool = False
    previous_lac: EntryId | None = None
    timeout_ms: int | None = None
    piggyback: bool = False
    following_bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class Add:
    ledger_id: LedgerId
    entry_id: EntryId
    ledger_key: bytes
    body: bytes
    is_recovery: bool = False
    is_sync_deferred: bool = False


@dataclass(frozen=True, slots=True)
class BatchRead:
    """A read of consecutive entries; a bookie may always return fewer than requested.

    `is_sparse` skips missing entries, for example where a bookie holds every other entry;
    `count_max` then counts ids. It is Rollbook's extension: a bookie that does not know it stops at
    the first gap.
    """

    ledger_id: LedgerId
    first_entry: EntryId
    request_id: int
    count_max: int  # 0 or less means as many as fit.
    bytes_max: int
    ledger_key: bytes | None = None
    fence: bool = False
    is_sparse: bool = False


@dataclass(frozen=True, slots=True)
class Auth:
    plugin: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class WriteLac:
    ledger_id: LedgerId
    last_add_confirmed: EntryId
    ledger_key: bytes
    packet: bytes  # The result of `LedgerDigest.pack_lac`, which the bookie stores unchanged.


@dataclass(frozen=True, slots=True)
class ReadLac:
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class ForceLedger:
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class GetBookieInfo:
    total_bytes: bool
    free_bytes: bool


@dataclass(frozen=True, slots=True)
class ListEntries:
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class StartTls:
    pass


@dataclass(frozen=True, slots=True)
class Unknown:
    """A request with an unknown operation, or without the message of its operation."""


Request = (
    EntryRead
    | Add
    | BatchRead
    | Auth
    | WriteLac
    | ReadLac
    | ForceLedger
    | GetBookieInfo
    | ListEntries
    | StartTls
    | Unknown
)


# --- Replies ----------------------------------------------------------------------------------


class ReadReply(NamedTuple):
    """The reply to a read. Its ids are those of the request; if a long poll returns an entry,
    `entry_id` is that of the entry.
    """

    error: Failure
    ledger_id: LedgerId
    entry_id: EntryId
    body: Buffer | None = None
    last_add_confirmed: EntryId | None = None
    lac_updated_ms: int | None = None
    following: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class AddReply:
    error: Failure
    ledger_id: LedgerId
    entry_id: EntryId


@dataclass(frozen=True, slots=True)
class BatchReadReply:
    error: Failure
    ledger_id: LedgerId
    first_entry: EntryId
    request_id: int
    bodies: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class AuthReply:
    plugin: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class WriteLacReply:
    error: Failure
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class ReadLacReply:
    error: Failure
    ledger_id: LedgerId
    packet: bytes | None = None
    last_entry: bytes | None = None


@dataclass(frozen=True, slots=True)
class ForceLedgerReply:
    error: Failure
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class BookieInfoReply:
    error: Failure
    total_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ListEntriesReply:
    error: Failure
    ledger_id: LedgerId
    entries: EntryList | None = None


@dataclass(frozen=True, slots=True)
class StartTlsReply:
    error: Failure


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reply with an error and nothing else: the operation is not known, or the client is not
    authenticated.
    """

    error: type[RollbookError]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A `BatchReadReply` that a bookie packs from its entries; as bytes the two are equal."""

    ledger_id: LedgerId
    first_entry: EntryId
    request_id: int
    # The result of `pack_bodies` for the entries, cut into pieces anywhere.
    pieces: tuple[bytes, ...]
    error: None = None


Reply = (
    ReadReply
    | AddReply
    | BatchReadReply
    | PackedBatch
    | AuthReply
    | WriteLacReply
    | ReadLacReply
    | ForceLedgerReply
    | BookieInfoReply
    | ListEntriesReply
    | StartTlsReply
    | Refusal
)


def refusal_of(request: Request, error: type[RollbookError]) -> Reply:
    """Returns the reply with this error and the request's ids, which clients expect in every failure."""
    match request:
        case EntryRead(ledger_id, entry_id):
            return ReadReply(error, ledger_id, entry_id)
        case Add():
            return AddReply(error, request.ledger_id, request.entry_id)
        case BatchRead():
            return BatchReadReply(error, request.ledger_id, request.first_entry, request.request_id)
        case WriteLac():
            return WriteLacReply(error, request.ledger_id)
        case ReadLac():
            return ReadLacReply(error, request.ledger_id)
        case ForceLedger():
            return ForceLedgerReply(error, request.ledger_id)
        case GetBookieInfo():
            return BookieInfoReply(error)
        case ListEntries():
            return ListEntriesReply(error, request.ledger_id)
        case StartTls():
            return StartTlsReply(error)
        case Auth() | Unknown():
            return Refusal(error)


# --- Messages as received -----------------------------------------------------------------------


class ReplyHeader(Protocol):
    """The parts of a request that its reply must repeat, and the protocol version of the reply."""

    @property
    def is_supported(self) -> bool:
        """True if the version is supported; otherwise the only reply is UnsupportedVersion."""

    def pack(self, reply: Reply) -> bytes:
        """Returns the reply's frame. It is empty if the protocol cannot express the reply; then the
        connection is closed.
        """

    def pack_in_pieces(self, reply: Reply) -> list[Buffer]:
        """Does the same as `pack`, but returns pieces, so that large bodies are not copied."""


class ReceivedRequest(NamedTuple):
    """A request as a bookie receives it. It is a tuple for speed: there are tens of thousands of reads."""

    request: Request
    is_high_priority: bool
    origin: ReplyHeader

    def answer(self, reply: Reply) -> bytes:
        """Returns the frame to send. If it is empty, the protocol cannot express the reply: then
        close the connection.
        """
        return self.origin.pack(reply)

    def answer_in_pieces(self, reply: Reply) -> list[Buffer]:
        """Does the same as `answer`, but returns pieces, so that large bodies are not copied."""
        return self.origin.pack_in_pieces(reply)

    def refuse(self, error: type[RollbookError]) -> bytes:
        return self.origin.pack(refusal_of(self.request, error))


class ReceivedReply(NamedTuple):
    """A reply as a client receives it.

    `txn_id` identifies the request; in version 2 it is None, and the reply's ids identify the request instead.
    """

    txn_id: int | None
    reply: Reply
