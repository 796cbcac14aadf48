"""An entry in a damaged record may be sound itself: its own digest says so.

A bookie does not know a ledger's digest type or password, but a CRC that fits by chance is as rare
as a false one of our own. Digests with a key, and none, prove nothing here.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final

import google_crc32c

from rollbook.proto.wire import v2_adds, v3_adds
from rollbook.proto.wire.adds import Adds
from rollbook.proto.wire.digest import ENTRY_HEADER_BYTES

_IDS: Final = struct.Struct(">qq")
_CRC32C: Final = struct.Struct(">I")
_CRC32: Final = struct.Struct(">Q")
_FRAME_BYTES_MAX: Final = 2**31  # Whatever the limit was when it was accepted.


def proves_itself(entry: bytes, ledger_id: int, entry_id: int) -> bool:
    if len(entry) < ENTRY_HEADER_BYTES or _IDS.unpack_from(entry) != (ledger_id, entry_id):
        return False
    header = entry[:ENTRY_HEADER_BYTES]
    for digest, payload_at in ((_CRC32C, 36), (_CRC32, 40)):
        if len(entry) >= payload_at:
            payload = entry[payload_at:]
            value = (
                google_crc32c.extend(google_crc32c.value(header), payload)
                if digest is _CRC32C
                else zlib.crc32(payload, zlib.crc32(header))
            )
            if entry[ENTRY_HEADER_BYTES:payload_at] == digest.pack(value):
                return True
    return False


def take_frames(body: bytes) -> Iterator[Adds]:
    """The adds of a FRAMES record, as far as they can be read."""
    position = 0
    while position < len(body):
        adds, end = v2_adds.take_adds(body, position, _FRAME_BYTES_MAX)
        if adds is None:
            adds, end = v3_adds.take_adds(body, position, _FRAME_BYTES_MAX)
        if adds is None:
            return
        yield adds
        position = end
