"""Protobuf's varints: seven bits in each byte, low bits first; bit 7 is set if more bytes follow.

An int64 is encoded as its 64-bit two's complement: -1 takes ten bytes. Frequent messages are matched
by regular expressions and packed without protobuf.
"""

import re
from typing import Final

# The pattern matches at most nine bytes, so that every value is less than 2^63.
_VARINT: Final = rb"[\x80-\xff]{0,8}[\x00-\x7f]"
_VARINT_OF_UINT64: Final = rb"(?:[\x80-\xff]{0,8}[\x00-\x7f]|[\x80-\xff]{9}\x01)"


def message_pattern(pattern: bytes) -> re.Pattern[bytes]:
    """Compiles a verbose expression in which V stands for a varint less than 2^63, and U for a
    varint of any uint64.
    """
    named = pattern.replace(b"V", _VARINT).replace(b"U", _VARINT_OF_UINT64)
    return re.compile(named, re.DOTALL | re.VERBOSE)


_ONE_BYTE: Final = [bytes([value]) for value in range(0x80)]
_BITS_64: Final = 2**64 - 1


def pack_varint(value: int) -> bytes:
    """Packs an int64 or uint64. Varints of two or three bytes are packed without a loop, since
    entry ids are packed very often.
    """
    if value < 0:
        value &= _BITS_64
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80)) + pack_varint(value >> 14)


def unpack_varint(data: bytes) -> int:
    """Unpacks exactly the bytes that V matches."""
    match len(data):
        case 1:
            return data[0]
        case 2:
            return data[0] & 0x7F | data[1] << 7
        case 3:
            return data[0] & 0x7F | (data[1] & 0x7F) << 7 | data[2] << 14
    value = 0
    for byte in reversed(data):
        value = value << 7 | byte & 0x7F
    return value
