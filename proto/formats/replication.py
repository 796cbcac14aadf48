"""The nodes below the ledgers root that auditors and replication workers share.

    underreplication/LAYOUT                                  text: type BASIC, version 1
    underreplication/ledgers/hhhh/hhhh/hhhh/hhhh/urLdddd…    text: bookies with missing copies
    underreplication/locks/urLdddd…                          text, ephemeral: the worker that repairs it
    underreplication/auditorelection                         text: the auditor, only shown to people
    underreplication/auditorelection/V_dddddddddd            text, ephemeral: a candidate
    underreplication/disable                                 empty: no repair starts
    underreplication/lostBookieRecoveryDelay                 seconds as decimal digits
    underreplication/{checkallledgers,placementpolicycheck,replicascheck}ctime
                                                             binary: time of the last check

`hhhh` are the 16-bit groups of the ledger id in lower-case hex, the highest first; `dddd…` is the
id in decimal with at least ten digits. The lock of a marked ledger has the name of its mark.

Java refuses any other LAYOUT, parses the vote as a bookie id, and writes its host name into locks.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

from rollbook.proto.errors import BadMetadata
from rollbook.proto.formats.checked_protobuf import (
    as_bookie_id,
    pack_binary,
    pack_text,
    unpack_binary,
    unpack_text,
)
from rollbook.proto.formats.node_byte_checks import decode_ascii
from rollbook.proto.ids import LEDGER_ID_MAX, BookieId, LedgerId
from rollbook.proto.wire.schema.data_formats_pb2 import (
    AuditorVoteFormat,
    CheckAllLedgersFormat,
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    UnderreplicatedLedgerFormat,
)

# This node is below the ledgers root, and the other nodes are below it.
ROOT: Final = "underreplication"
LAYOUT: Final = "LAYOUT"
MARKS: Final = "ledgers"
LOCKS: Final = "locks"
ELECTION: Final = "auditorelection"
# The prefix of ephemeral sequential nodes; the candidate with the lowest number is the auditor.
VOTE_PREFIX: Final = "V_"
DISABLED: Final = "disable"
# If it is written again unchanged, the auditor audits at once.
LOST_BOOKIE_DELAY: Final = "lostBookieRecoveryDelay"
CHECKED_ALL: Final = "checkallledgersctime"
CHECKED_PLACEMENT: Final = "placementpolicycheckctime"
CHECKED_REPLICAS: Final = "replicascheckctime"

_LEAF: Final = re.compile(r"urL(\d{10,19})", re.ASCII)
_SECONDS: Final = re.compile(r"\d{1,10}", re.ASCII)
_LAYOUT: Final = ("BASIC", 1)


# --- Marks ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnderreplicatedMark:
    """The bookies whose copies of a ledger are missing, in the order in which this was found."""

    missing: tuple[BookieId, ...]
    marked_ms: int | None = None  # When the ledger was last marked.

    def with_missing(self, bookies: Iterable[BookieId], now_ms: int) -> Self:
        """Adds new bookies at the end. If none is new, the result equals the old mark."""
        new = tuple(bookie for bookie in dict.fromkeys(bookies) if bookie not in self.missing)
        return replace(self, missing=self.missing + new, marked_ms=now_ms) if new else self


def mark_path(ledger_id: LedgerId) -> str:
    """Returns the path of a ledger's mark below MARKS."""
    digits = f"{ledger_id:016x}"
    groups = (digits[start : start + 4] for start in range(0, 16, 4))
    return "/".join((*groups, mark_name(ledger_id)))


def mark_name(ledger_id: LedgerId) -> str:
    """Returns the name of a ledger's mark and of its lock."""
    return f"urL{ledger_id:010d}"


def ledger_of_mark(name: str) -> LedgerId | None:
    """Returns the ledger whose mark has this name, or None if no mark has such a name."""
    match = _LEAF.fullmatch(name)
    if not match or (value := int(match[1])) > LEDGER_ID_MAX:
        return None
    return LedgerId(value) if mark_name(LedgerId(value)) == name else None


def pack_mark(mark: UnderreplicatedMark) -> bytes:
    return pack_text(UnderreplicatedLedgerFormat(replica=mark.missing, ctime=mark.marked_ms))


def unpack_mark(data: bytes) -> UnderreplicatedMark:
    message = unpack_text(UnderreplicatedLedgerFormat, data)
    return UnderreplicatedMark(
        tuple(dict.fromkeys(map(as_bookie_id, message.replica))),
        message.ctime if message.HasField("ctime") else None,
    )


# --- Locks, votes, settings -------------------------------------------------------------------


def pack_lock(holder: str) -> bytes:
    """Returns the contents of a lock. They are only for people, since a lock belongs to the session
    that created it.
    """
    return pack_text(LockDataFormat(bookieId=holder))


def unpack_lock(data: bytes) -> str:
    return unpack_text(LockDataFormat, data).bookieId


def pack_vote(candidate: BookieId) -> bytes:
    return pack_text(AuditorVoteFormat(bookieId=candidate))


def unpack_vote(data: bytes) -> BookieId:
    return as_bookie_id(unpack_text(AuditorVoteFormat, data).bookieId)


def number_of_vote(name: str) -> int | None:
    """Returns the number by which candidates are ranked. It may be negative, since the store's
    counter wraps.
    """
    digits = name.removeprefix(VOTE_PREFIX)
    return int(digits) if digits != name and re.fullmatch(r"-?\d{10}", digits, re.ASCII) else None


def pack_replication_layout() -> bytes:
    kind, version = _LAYOUT
    return pack_text(LedgerRereplicationLayoutFormat(type=kind, version=version))


def check_replication_layout(data: bytes) -> None:
    message = unpack_text(LedgerRereplicationLayoutFormat, data)
    if (message.type, message.version) != _LAYOUT:
        raise BadMetadata(
            f"marks have the format {message.type[:40]!r} {message.version}; only {_LAYOUT} is known"
        )


def pack_seconds(seconds: int) -> bytes:
    return str(seconds).encode()


def unpack_seconds(data: bytes) -> int:
    text = decode_ascii(data, "a delay")
    if not _SECONDS.fullmatch(text):
        raise BadMetadata(f"{text[:40]!r} is not a number of seconds")
    return int(text)


def pack_checked_at(at_ms: int) -> bytes:
    """Packs the contents of any of the three CHECKED_* nodes. Their messages differ only in names."""
    return pack_binary(CheckAllLedgersFormat(checkAllLedgersCTime=at_ms))


def unpack_checked_at(data: bytes) -> int | None:
    message = unpack_binary(CheckAllLedgersFormat, data)
    return message.checkAllLedgersCTime if message.HasField("checkAllLedgersCTime") else None
