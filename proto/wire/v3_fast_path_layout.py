"""The frames of version 3 that are read and written without protobuf. Each layout is drawn once.

`schema/bookkeeper_protocol.proto` gives the fields their numbers. The pictures show their bytes in
hexadecimal, in the order in which Java writes them. V is a varint, and *size* is a varint that
counts the bytes after it in its field. Fields in brackets may be absent. Positions count bytes from
the start of the frame.

    any frame         0 u32 length, big-endian (`frames.py`) · 4 header · fields of its operation
    header            4 0a · 5 size, one byte · 6 08 03 · 8 10 operation · 10 18 · 11 V transaction id
                      [· 20 V priority]         operations: 01 READ, 02 ADD, 0c BATCH_READ

    ADD request       aa 06 size [· a0 06 01 recovery] · 08 V ledger · 10 V entry ·
                      1a 14 key, 20 bytes · 22 size, the entry as stored (`digest.py`)
                      [· 28 01 deferred sync] [· a0 06 01 recovery]
    ADD reply         10 V status · aa 06 size · 08 V status · 10 V ledger · 18 V entry
    READ request      a2 06 size · 08 V ledger · 10 V entry
    READ reply        10 V status · a2 06 size · 08 V status · 10 V ledger · 18 V entry
                      [· 22 size, the entry as stored] [· 28 V LAC] [· 30 V when the LAC changed]
                      [· ca 3e size, following entries (`entry_batches.py`)]
    BATCH_READ reply  10 V status · ca 3e size · 08 V status · 10 V ledger · 18 V first entry ·
                      20 V request id [· 2a size, entries (`entry_batches.py`)]

Java before 4.18 writes the recovery flag of an add last; since then Java writes it first. Peers may
write every message in other orders and with other fields; then protobuf decodes it (`v3.py`).
"""

import re
import struct
from functools import lru_cache
from typing import Final

from rollbook.proto.wire.frames import LENGTH_BYTES, V3_FIRST_BYTE
from rollbook.proto.wire.varint import message_pattern

# --- Tags -------------------------------------------------------------------------------------

HEADER_TAG: Final = bytes((V3_FIRST_BYTE,))
# The bytes of a header before its transaction id.
READ_HEADER: Final = b"\x08\x03\x10\x01\x18"
ADD_HEADER: Final = b"\x08\x03\x10\x02\x18"
BATCH_READ_HEADER: Final = b"\x08\x03\x10\x0c\x18"
PRIORITY_TAG: Final = b"\x20"

# The tags of fields of a Request and of a Response.
READ_TAG: Final = b"\xa2\x06"
ADD_TAG: Final = b"\xaa\x06"
BATCH_READ_TAG: Final = b"\xca\x3e"
RESPONSE_STATUS_TAG: Final = b"\x10"

# The tags of fields of an AddRequest.
ADD_LEDGER_TAG: Final = b"\x08"
ADD_ENTRY_TAG: Final = b"\x10"
ADD_KEY_TAG: Final = b"\x1a\x14"  # The tag, with the size of a key.
ADD_BODY_TAG: Final = b"\x22"
DEFERRED_SYNC: Final = b"\x28\x01"
FLAG_RECOVERY: Final = b"\xa0\x06\x01"
# Everything that may follow the entry.
ADD_TAILS: Final = (b"", FLAG_RECOVERY, DEFERRED_SYNC, DEFERRED_SYNC + FLAG_RECOVERY)

# The tags of fields of an AddResponse, a ReadResponse and a BatchReadResponse.
STATUS_TAG: Final = b"\x08"
LEDGER_TAG: Final = b"\x10"
ENTRY_TAG: Final = b"\x18"
# The tags of further fields of a ReadResponse.
READ_BODY_TAG: Final = b"\x22"
READ_LAC_TAG: Final = b"\x28"
READ_LAC_UPDATED_TAG: Final = b"\x30"
READ_FOLLOWING_TAG: Final = b"\xca\x3e"
# The tags of further fields of a BatchReadResponse.
BATCH_REQUEST_ID_TAG: Final = b"\x20"
BATCH_ENTRIES_TAG: Final = b"\x2a"

# --- Positions --------------------------------------------------------------------------------

HEADER_SIZE_AT: Final = LENGTH_BYTES + len(HEADER_TAG)
HEADER_AT: Final = HEADER_SIZE_AT + 1
TXN_ID_AT: Final = HEADER_AT + len(ADD_HEADER)
# The sum of this and the header's size is the position of the size of a request's READ or ADD.
OWN_SIZE_AT: Final = HEADER_AT + len(ADD_TAG)
# The possible positions of the entry in an ADD request. The lowest is for varints of one byte and
# no optional field; the highest is for the longest varints, a priority, and a flag before the
# entry.
ADD_ENTRY_AT: Final = range(43, 93)

# --- Patterns of a frame's body ---------------------------------------------------------------
# The patterns check the order and the tags; the code that uses them compares the sizes with one another.

ADD_REQUEST: Final = message_pattern(
    rb"""
    \x0a . \x08\x03 \x10\x02 \x18(U)                        # header: version 3, ADD, transaction id,
    (\xaa\x06 | \x20 [\x80-\xff]{0,3}[\x00-\x7f] \xaa\x06)  # perhaps a priority;
    (V)                                                    # how long the add is,
    (\x08V\x10 | \xa0\x06\x01 \x08V\x10)(V)                 # perhaps its flag, ledger id, entry id,
    (\x1a\x14 .{20} \x22)(V)                               # key, how long the entry is
    """
)
# The groups of the pattern, with the tags around them; group 2 is the priority.
ADD_TXN_ID: Final = 1
ADD_SIZE: Final = 3
ADD_LEDGER: Final = 4
ADD_ENTRY: Final = 5
ADD_KEY: Final = 6
ADD_BODY_SIZE: Final = 7

ADD_REPLY: Final = message_pattern(
    rb"""
    \x0a . \x08\x03 \x10\x02 \x18U (?: \x20V )?               # header
    ( \x10V \xaa\x06 [\x00-\x7f] \x08V \x10V \x18 )(V)        # statuses, size, ledger id; entry id
    """
)
ADD_REPLY_HEAD: Final = message_pattern(  # This matches the first group of `ADD_REPLY`.
    rb"\x10(V) \xaa\x06 ([\x00-\x7f]) \x08(V) \x10(V) \x18"
)

READ_REQUEST: Final = message_pattern(
    rb"""
    \x0a . \x08\x03 \x10\x01 \x18(V)                        # header: version 3, READ, transaction id,
    (\xa2\x06 | \x20 [\x80-\xff]{0,3}[\x00-\x7f] \xa2\x06)  # perhaps a priority;
    ([\x00-\x7f]) \x08(V) \x10(V)                           # how long the read is, ledger id, entry id
    """
)
READ_REPLY: Final = message_pattern(
    rb"""
    \x0a . \x08\x03 \x10\x01 \x18(V) \x10\x00                # header, EOK;
    \xa2\x06(V) \x08\x00 \x10(V) \x18(V) \x22(V)             # size, EOK, ledger id, entry id, body
    """
)
READ_REPLY_TAIL: Final = message_pattern(
    rb"(?: \x28(V) )? (?: \x30(V) )? (?: \xca\x3e(V) )?  # LAC, since when, size of what follows"
)
BATCH_READ_REPLY: Final = message_pattern(
    rb"""
    \x0a . \x08\x03 \x10\x0c \x18(V) \x10\x00                # header, EOK;
    \xca\x3e(V) \x08\x00 \x10(V) \x18(V) \x20(V) \x2a(V)      # size, EOK, ids, size of the entries
    """
)


def is_urgent(priority: bytes) -> bool:
    """Returns whether this group, which ends with the tag of the READ or ADD, holds a priority above 0."""
    return priority[len(PRIORITY_TAG) : -len(ADD_TAG)].strip(b"\x00\x80") != b""


def key_of(key: bytes) -> bytes:
    """Returns the key in the group `ADD_KEY`."""
    return key[len(ADD_KEY_TAG) : -len(ADD_BODY_TAG)]


def ledger_of(ledger: bytes) -> tuple[bytes, bool]:
    """Returns the ledger id in the group `ADD_LEDGER` as a varint, and whether the recovery flag is
    before it.
    """
    has_flag = ledger.startswith(FLAG_RECOVERY)
    start = len(ADD_LEDGER_TAG) + has_flag * len(FLAG_RECOVERY)
    return ledger[start : -len(ADD_ENTRY_TAG)], has_flag


def varying_spans(add: re.Match[bytes]) -> tuple[tuple[int, int], ...]:
    """Returns the positions of the transaction id, ledger id, entry id and key in a match of `ADD_REQUEST`."""
    ledger_varint, _ = ledger_of(add[ADD_LEDGER])
    ledger_end = add.end(ADD_LEDGER) - len(ADD_ENTRY_TAG)
    key_start, key_end = add.span(ADD_KEY)
    return (
        add.span(ADD_TXN_ID),
        (ledger_end - len(ledger_varint), ledger_end),
        add.span(ADD_ENTRY),
        (key_start + len(ADD_KEY_TAG), key_end - len(ADD_BODY_TAG)),
    )


@lru_cache(maxsize=4096)
def add_of_shape(
    before: int, between: int, behind: int, payload_bytes: int, tail: int
) -> struct.Struct:
    """Returns the struct of an add of a known shape. Its fields are the bytes before the
    transaction id, the transaction id's low byte, the bytes before the varint of the entry id, the
    varint's low byte, the bytes up to and including the entry's ledger id, the entry id, the LAC,
    the payload and the tail.
    """
    return struct.Struct(f">{before}sB{between}sB{behind}sqq{payload_bytes}x{tail}s")
