"""Reads and writes protobuf as text and as bytes. Hostile input raises `BadMetadata`.

Text is written as Java writes it: one field per line in the order of field numbers, two spaces of
indentation, names of enum values, and escapes for everything except printable ASCII. Any legal text
is read.
"""

from functools import lru_cache
from typing import Final, TypeVar

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from rollbook.proto.errors import BadMetadata, InvalidRequest
from rollbook.proto.formats.node_byte_checks import METADATA_BYTES_MAX, check_size
from rollbook.proto.ids import BookieId, parse_bookie_id

M = TypeVar("M", bound=Message)

_BOOKIES_KNOWN: Final = 10_000
# The parser uses 160 bytes for each of them for a while, 32 MB in total.
_ESCAPES_MAX: Final = 200_000


def pack_text(message: Message) -> bytes:
    return text_format.MessageToString(message, as_utf8=False).encode("ascii")


def unpack_text(kind: type[M], data: bytes) -> M:
    check_size(data)
    if data.count(b"\\") > _ESCAPES_MAX:
        raise BadMetadata(f"more than {_ESCAPES_MAX} escaped characters")
    message = kind()
    try:
        text_format.Parse(data.decode(), message)
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise BadMetadata(f"not the text of a {kind.__name__}: {str(error)[:200]}") from None
    return _complete(message)


def pack_binary(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def unpack_binary(kind: type[M], data: bytes, bytes_max: int = METADATA_BYTES_MAX) -> M:
    check_size(data, bytes_max)
    message = kind()
    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise BadMetadata(f"not the bytes of a {kind.__name__}: {str(error)[:200]}") from None
    return _complete(message)


def as_text(value: str) -> str:
    """Checks a string field of a binary message, since protobuf returns `bytes` if the field is not UTF-8."""
    if not isinstance(value, str):
        raise BadMetadata(f"{value!r:.80} is not UTF-8")
    return value


@lru_cache(maxsize=_BOOKIES_KNOWN)
def as_bookie_id(value: str) -> BookieId:
    """Checks and interns a bookie id, since few ids occur in very many ledgers."""
    try:
        return parse_bookie_id(as_text(value))
    except InvalidRequest as error:
        raise BadMetadata(error.message) from None


def _complete(message: M) -> M:
    """Refuses a message with an unknown enum value, which protobuf treats as a missing field.
    Without this check we would guess the value, and the next write would lose it.
    """
    known = message.DESCRIPTOR.fields_by_number
    strays = UnknownFieldSet(message)
    for index in range(len(strays)):
        if (number := strays[index].field_number) in known:
            name = f"{message.DESCRIPTOR.name}.{known[number].name}"
            raise BadMetadata(f"{name} has an unknown value")
    if not message.IsInitialized():
        raise BadMetadata(f"{message.DESCRIPTOR.name} lacks a required field")
    return message
