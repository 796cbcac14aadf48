"""Names, offsets and epochs of logs. The layers below the log service do not use them.

An **offset** is the dense position of a record in its log, from 0; starts are inclusive, ends
exclusive. A **segment** is one ledger as a part of a log. The **owner epoch** grows each time a
server becomes the log's owner, the **writer epoch** each time an application becomes its exclusive
writer. The two are separate, so a change of owner does not fence an application.

Names of namespaces, logs and cursors have 1 to 255 characters of `a-z 0-9 . _ -` and begin with a
letter or digit, so they need no escaping in metadata paths, URLs and shells. All numbers fit into
signed 64-bit integers.

Clients import this module, so it imports nothing heavy.
"""

import re
from dataclasses import dataclass
from operator import index
from typing import Final, NewType, Self, SupportsIndex

from rollbook.proto.errors import InvalidRequest

Offset = NewType("Offset", int)
OwnerEpoch = NewType("OwnerEpoch", int)  # 0: the log has had no owner yet.
WriterEpoch = NewType("WriterEpoch", int)  # 0: the log has had no exclusive writer yet.
SegmentId = NewType("SegmentId", int)  # Numbers the segments of a log from 0; never reused.
LogUid = NewType(
    "LogUid", bytes
)  # Random. A log that is created again under the same name gets another uid.
ServerId = NewType("ServerId", str)  # Each start of a log server draws a new id.
CursorName = NewType("CursorName", str)

FIRST_OFFSET: Final = Offset(0)
FIRST_SEGMENT: Final = SegmentId(0)
NO_OWNER_YET: Final = OwnerEpoch(0)
NO_WRITER_YET: Final = WriterEpoch(0)

INT64_MAX: Final = 2**63 - 1
OFFSET_MAX: Final = Offset(INT64_MAX)
PRODUCER_ID_BYTES_MAX: Final = 64
ONCE: Final = b"once:"  # An idempotency key is stored as the producer id `once:KEY`.
PRODUCER_EPOCH_MAX: Final = 2**32 - 1
# The lowest epoch that a log assigns. An assigned epoch is the time in seconds since 1970, or the
# producer's previous epoch plus one.
NAMED_EPOCH_MIN: Final = 2**30
PRODUCER_SEQ_MAX: Final = INT64_MAX
LOG_UID_BYTES: Final = 16
TIMESTAMP_US_MAX: Final = 253_402_300_799_999_999  # The last microsecond of the year 9999.
DEFAULT_NAMESPACE: Final = "default"
NAME_BYTES_MAX: Final = 255

NAME: Final = r"[a-z0-9][a-z0-9._-]{0,254}"  # The pattern of all names that users choose.
_NAME: Final = re.compile(NAME, re.ASCII)
_UID: Final = re.compile(rf"[0-9a-f]{{{2 * LOG_UID_BYTES}}}", re.ASCII)


def parse_name(text: str, what: str) -> str:
    """Check a name that a user chose. Raises `InvalidRequest`."""
    if not _NAME.fullmatch(text):
        raise InvalidRequest(
            f"{what} {text[:80]!r} is not 1 to {NAME_BYTES_MAX} characters of `a-z 0-9 . _ -`, "
            "beginning with a letter or digit"
        )
    return text


def parse_cursor_name(text: str) -> CursorName:
    return CursorName(parse_name(text, "the cursor name"))


def parse_uid(text: str) -> str:
    """Check a log's uid, in the form that servers return. Raises `InvalidRequest`."""
    if not _UID.fullmatch(text):
        raise InvalidRequest(
            f"{text[:80]!r} is not a log's uid", next_step="write its 32 hexadecimal digits"
        )
    return text


def parse_offset(value: SupportsIndex) -> Offset:
    return Offset(_parse_number(value, "offset"))


def parse_writer_epoch(value: SupportsIndex) -> WriterEpoch:
    return WriterEpoch(_parse_number(value, "writer epoch"))


def _parse_number(value: SupportsIndex, what: str) -> int:
    """Return the value as an int; integer types of other libraries are accepted. Raises `InvalidRequest`."""
    try:
        number = index(value)
    except TypeError:
        raise InvalidRequest(f"{what} {value!r:.80} is not a whole number") from None
    if not 0 <= number <= INT64_MAX:
        raise InvalidRequest(f"{what} {number} is outside 0 … 2^63-1")
    return number


@dataclass(frozen=True, slots=True, order=True)
class LogName:
    namespace: str
    name: str

    def __post_init__(self) -> None:
        parse_name(self.namespace, "the namespace")
        parse_name(self.name, "the log name")

    @classmethod
    def parse(cls, text: "str | Self") -> Self:
        """Parse `ns/log`, or `log` for `default/log`. A parsed name is returned unchanged."""
        if isinstance(text, cls):
            return text
        if not isinstance(text, str):
            raise InvalidRequest(f"the log name {text!r:.80} is not a string")
        namespace, slash, name = text.partition("/")
        return cls(namespace, name) if slash else cls(DEFAULT_NAMESPACE, namespace)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def parse_prefix(text: str) -> tuple[str, str]:
    """Parse `ns/pre`, `ns/`, or `pre` for `default/pre`. Returns the namespace and the prefix of the name; for
    an empty text, two empty strings, which match every name. Raises `InvalidRequest`.
    """
    if not text:
        return "", ""
    namespace, slash, prefix = text.partition("/")
    if not slash:
        namespace, prefix = DEFAULT_NAMESPACE, namespace
    parse_name(namespace, "the namespace")
    if prefix:
        parse_name(prefix, "the prefix")
    return namespace, prefix


@dataclass(frozen=True, slots=True)
class ProducerRef:
    """The producer of a batch, and the batch's number, by which a log recognises a repeated batch.

    An id has 1 to 64 bytes.
    """

    id: bytes
    epoch: int  # One session of the producer; a higher epoch fences lower ones.
    seq: int  # Counts the batches of an epoch from 0.

    def __post_init__(self) -> None:
        if not 1 <= len(self.id) <= PRODUCER_ID_BYTES_MAX:
            raise InvalidRequest(f"a producer id has 1 to {PRODUCER_ID_BYTES_MAX} bytes")
        if not 0 <= self.epoch <= PRODUCER_EPOCH_MAX:
            raise InvalidRequest(f"producer epoch {self.epoch} is outside 0 … 2^32-1")
        if not 0 <= self.seq <= PRODUCER_SEQ_MAX:
            raise InvalidRequest(f"producer sequence number {self.seq} is outside 0 … 2^63-1")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """One run of a log server, and its address."""

    server_id: ServerId  # Each start draws a new id.
    address: str  # `host:port` of its gRPC interface.
