"""The frames of BookKeeper's protocol version 2. Each layout is drawn once. Big-endian.

The number before each field is its position in the frame. Fields in brackets may be absent.

    any frame           0 u32 length (`frames.py`) · 4 u32 word · 8 the fields of its operation
    word                u8 version · u8 operation · u16 flags; in version 0 only u32 operation

    ADD request         8 key, 20 bytes · 28 the entry as stored (`digest.py`), which begins with
                        28 i64 ledger · 36 i64 entry · 44 i64 LAC
    ADD reply           8 i32 code · 12 i64 ledger · 20 i64 entry
    READ request        8 i64 ledger · 16 i64 entry [· 24 key, 20 bytes, if fencing and version 2]
    READ reply          8 i32 code · 12 i64 ledger · 20 i64 entry [· 28 the entry as stored]
    BATCH_READ request  8 i64 ledger · 16 i64 first entry · 24 i64 request id · 32 i32 count ·
                        36 i64 bytes [· 44 key, as in READ]
    BATCH_READ reply    8 i32 code · 12 i64 ledger · 20 i64 first entry · 28 i64 request id ·
                        36 entries (`entry_batches.py`)
    AUTH, both ways     8 the AuthMessage of version 3

Bytes after a request's last field are ignored, as in Java.

Some layouts of adds divide a frame differently. The bytes that are equal in all adds of one writer
to one ledger, or in all replies to these adds, are then one field, which is compared as a whole.
"""

import struct
from typing import Final, NamedTuple

from rollbook.proto.wire.digest import ENTRY_HEADER_BYTES, ENTRY_ID_AT, LEDGER_KEY_BYTES
from rollbook.proto.wire.frames import LENGTH_BYTES

VERSION: Final = 2

ADD: Final = 1
READ: Final = 2
AUTH: Final = 3
BATCH_READ: Final = 7

DO_FENCING: Final = 0x0001
RECOVERY_ADD: Final = 0x0002
HIGH_PRIORITY: Final = 0x0004
# A flag of batch reads. It is Rollbook's extension, and other servers ignore it.
SPARSE: Final = 0x0100

# --- Without the length -----------------------------------------------------------------------

WORD: Final = struct.Struct(">I")
# The fields up to and including the entry's own ids.
ADD_BODY: Final = struct.Struct(f">I{LEDGER_KEY_BYTES}sqq")
READ_BODY: Final = struct.Struct(">Iqq")
REPLY_BODY: Final = struct.Struct(">Iiqq")  # This is the reply to ADD and to READ.
BATCH_READ_BODY: Final = struct.Struct(">Iqqqiq")
BATCH_READ_REPLY_BODY: Final = struct.Struct(">Iiqqq")
BATCH_READ_REPLY_HEAD_BYTES: Final = LENGTH_BYTES + BATCH_READ_REPLY_BODY.size

# --- Whole frames -----------------------------------------------------------------------------

READ_FRAME: Final = struct.Struct(">IIqq")  # The fields are length, word and ids.
REPLY_FRAME: Final = struct.Struct(">IIiqq")  # The fields are length, word, code and ids.
REPLY_HEAD: Final = struct.Struct(">IIiq")  # The fields of a reply before the entry id.
# `REPLY_HEAD` as one field, then the entry id.
REPLY_BY_LEDGER: Final = struct.Struct(f">{REPLY_HEAD.size}sq")

ADD_KEY_AT: Final = LENGTH_BYTES + WORD.size
ADD_ENTRY_AT: Final = ADD_KEY_AT + LEDGER_KEY_BYTES
ADD_ENTRY_ID_AT: Final = ADD_ENTRY_AT + ENTRY_ID_AT
ADD_BYTES_MIN: Final = ADD_ENTRY_AT + ENTRY_HEADER_BYTES
# The fields before the entry: length, word, key.
ADD_HEAD: Final = struct.Struct(f">II{LEDGER_KEY_BYTES}s")
# The fields are length, word, the entry's ids and its LAC.
ADD_IDS: Final = struct.Struct(f">II{LEDGER_KEY_BYTES}xqqq")
# The fields are word, key and ledger id.
ADD_WRITER: Final = struct.Struct(f">I{LEDGER_KEY_BYTES}sq")
# The fields are length, `ADD_WRITER`, entry id and LAC.
ADD_BY_WRITER: Final = struct.Struct(f">I{ADD_WRITER.size}sqq")


class Header(NamedTuple):
    """The fields of a frame's word."""

    version: int
    operation: int
    flags: int

    @property
    def is_supported(self) -> bool:
        return self.version <= VERSION


def pack_header(version: int, operation: int, flags: int = 0) -> int:
    return version << 24 | operation << 16 | flags if version else operation


def unpack_header(word: int) -> Header:
    version = word >> 24
    if version == 0:
        return Header(0, word, 0)
    return Header(version, word >> 16 & 0xFF, word & 0xFFFF)
