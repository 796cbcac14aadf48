"""Converts ledger metadata to and from the bytes of its node, in BookKeeper's three versions.

`BookieMetadataFormatVersion`, TAB, the version in decimal, LF; then, by version:

    1  lines of text: write quorum, ensemble size, length; a line for each fragment, its first entry
       and its bookies after TABs; if closed, the last entry, TAB, `CLOSED`; in recovery the same
       with -102 for the last entry. It has neither ack quorum nor digest nor password.
    2  the protobuf text of a LedgerMetadataFormat
    3  the bytes of that message, after their number as a varint; further bytes are ignored

New ledgers are written in version 3; an existing ledger keeps the version in which it was read. The
message's length and last entry count only in CLOSED ledgers; others are written with length 0 and
last entry -1. Unknown fields are dropped, as in Java.
"""

import re
from typing import Any, Final

from rollbook.proto.errors import BadMetadata, InvalidRequest
from rollbook.proto.formats.checked_protobuf import (
    as_bookie_id,
    as_text,
    pack_binary,
    pack_text,
    unpack_binary,
    unpack_text,
)
from rollbook.proto.formats.node_byte_checks import check_size
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata, LedgerState, find_flaw
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import DigestType
from rollbook.proto.wire.schema.data_formats_pb2 import LedgerMetadataFormat

_HEADER: Final = re.compile(rb"BookieMetadataFormatVersion\t([0-9]{1,10})\n")
_V1_CLOSED: Final = "CLOSED"
_V1_IN_RECOVERY: Final = -102
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_VARINT_BYTES_MAX: Final = 5

_STATE_NUMBERS: Final = {
    LedgerState.OPEN: LedgerMetadataFormat.OPEN,
    LedgerState.IN_RECOVERY: LedgerMetadataFormat.IN_RECOVERY,
    LedgerState.CLOSED: LedgerMetadataFormat.CLOSED,
}
_STATES: Final = {number: state for state, number in _STATE_NUMBERS.items()}


def pack_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    header = f"BookieMetadataFormatVersion\t{metadata.format_version}\n".encode()
    match metadata.format_version:
        case 1:
            return header + _pack_lines(metadata)
        case 2:
            return header + pack_text(_to_message(metadata))
        case _:
            message = _to_message(metadata)
            if metadata.creation_token is not None:
                message.cToken = metadata.creation_token
            body = pack_binary(message)
            return header + _pack_varint(len(body)) + body


def unpack_ledger_metadata(ledger_id: LedgerId, data: bytes) -> LedgerMetadata:
    check_size(data)
    header = _HEADER.match(data)
    if not header:
        raise BadMetadata(f"not the start of ledger metadata: {data[:40]!r}", ledger_id=ledger_id)
    body = data[header.end() :]
    try:
        match int(header[1]):
            case 1:
                return _unpack_lines(ledger_id, body)
            case 2:
                return _from_message(ledger_id, unpack_text(LedgerMetadataFormat, body), 2)
            case 3:
                message = unpack_binary(LedgerMetadataFormat, _delimited(body))
                return _from_message(ledger_id, message, 3)
            case version:
                raise BadMetadata(f"version {version}; 1, 2 and 3 can be read")
    except BadMetadata as error:
        raise BadMetadata(error.message, ledger_id=ledger_id) from None


# --- Versions 2 and 3 -------------------------------------------------------------------------


def _to_message(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat(
        quorumSize=metadata.quorum.write,
        ensembleSize=metadata.quorum.ensemble,
        length=metadata.length or 0,
        lastEntryId=NO_ENTRY if metadata.last_entry is None else metadata.last_entry,
        state=_STATE_NUMBERS[metadata.state],
        digestType=_digest_number(metadata.digest_type),
        # It is written even if it is empty, since Java cannot rewrite a ledger without it.
        password=metadata.password,
        ackQuorumSize=metadata.quorum.ack,
        ctime=metadata.created_ms,
    )
    for fragment in metadata.fragments:
        message.segment.add(ensembleMember=fragment.ensemble, firstEntryId=fragment.first_entry)
    for key, value in metadata.custom:
        message.customMetadata.add(key=key, value=value)
    return message


def _digest_number(digest: DigestType | None) -> LedgerMetadataFormat.DigestType.ValueType | None:
    return None if digest is None else LedgerMetadataFormat.DigestType.ValueType(digest.value)


def _from_message(
    ledger_id: LedgerId, message: LedgerMetadataFormat, version: int
) -> LedgerMetadata:
    state = _STATES[message.state]
    is_closed = state is LedgerState.CLOSED
    if is_closed and not message.HasField("lastEntryId"):
        raise BadMetadata("the ledger is closed, but its last entry is missing")
    ack = message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize
    has_password = message.HasField("password")
    # CRC32 is also the default in Java.
    has_digest = message.HasField("digestType") or has_password
    return _checked(
        ledger_id,
        (message.ensembleSize, message.quorumSize, ack),
        tuple(
            Fragment(EntryId(each.firstEntryId), tuple(map(as_bookie_id, each.ensembleMember)))
            for each in message.segment
        ),
        state,
        EntryId(message.lastEntryId) if is_closed else None,
        message.length if is_closed else None,
        digest_type=DigestType(message.digestType) if has_digest else None,
        password=message.password if has_password else None,
        custom=tuple({as_text(each.key): each.value for each in message.customMetadata}.items()),
        created_ms=message.ctime if message.HasField("ctime") else None,
        creation_token=message.cToken if message.HasField("cToken") else None,
        format_version=version,
    )


def _delimited(body: bytes) -> bytes:
    size, start = _unpack_varint(body)
    if size > len(body) - start:
        raise BadMetadata(f"{size} bytes are announced and {len(body) - start} are there")
    return body[start : start + size]


def _pack_varint(value: int) -> bytes:
    low = bytearray()
    while value > 0x7F:
        low.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*low, value))


def _unpack_varint(data: bytes) -> tuple[int, int]:
    """Returns the value of a varint, and where it ends."""
    value = 0
    for index, byte in enumerate(data[:_VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, index + 1
    raise BadMetadata("the size of the message is incomplete")


# --- Version 1 --------------------------------------------------------------------------------


def _pack_lines(metadata: LedgerMetadata) -> bytes:
    assert metadata.quorum.ack == metadata.quorum.write
    lines = [str(metadata.quorum.write), str(metadata.quorum.ensemble), str(metadata.length or 0)]
    lines += ["\t".join((str(f.first_entry), *f.ensemble)) for f in metadata.fragments]
    match metadata.state:
        case LedgerState.OPEN:
            lines.append("")
        case LedgerState.IN_RECOVERY:
            lines.append(f"{_V1_IN_RECOVERY}\t{_V1_CLOSED}")
        case LedgerState.CLOSED:
            lines.append(f"{metadata.last_entry}\t{_V1_CLOSED}")
    return "\n".join(lines).encode()


def _unpack_lines(ledger_id: LedgerId, body: bytes) -> LedgerMetadata:
    try:
        lines = body.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise BadMetadata("not UTF-8") from None
    if len(lines) < 3:
        raise BadMetadata("the text ends within its first three lines")
    write, ensemble, length = map(_number, lines[:3])
    state, last_entry = LedgerState.OPEN, None
    fragments: list[Fragment] = []
    for line in lines[3:]:
        head, *fields = line.split("\t")
        if fields == [_V1_CLOSED]:
            is_closed = _number(head) != _V1_IN_RECOVERY
            state = LedgerState.CLOSED if is_closed else LedgerState.IN_RECOVERY
            last_entry = EntryId(_number(head)) if is_closed else None
            break
        fragments.append(Fragment(EntryId(_number(head)), tuple(map(as_bookie_id, fields))))
    return _checked(
        ledger_id,
        (ensemble, write, write),
        tuple(fragments),
        state,
        last_entry,
        length if state is LedgerState.CLOSED else None,
        format_version=1,
    )


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise BadMetadata(f"{text[:40]!r} is not a number")
    return int(text)


# ----------------------------------------------------------------------------------------------


def _checked(
    ledger_id: LedgerId,
    sizes: tuple[int, int, int],
    fragments: tuple[Fragment, ...],
    state: LedgerState,
    last_entry: EntryId | None,
    length: int | None,
    **rest: Any,
) -> LedgerMetadata:
    """Builds the metadata. Refuses invalid input, which would fail the assertions of `LedgerMetadata`."""
    try:
        quorum = Quorum(*sizes)
    except InvalidRequest as error:
        raise BadMetadata(error.message) from None
    if flaw := find_flaw(ledger_id, quorum, fragments, state, last_entry, length):
        raise BadMetadata(flaw)
    return LedgerMetadata(ledger_id, quorum, fragments, state, last_entry, length, **rest)
