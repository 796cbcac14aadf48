"""Blocks with wrong parts and a correct checksum, as a hostile client could send them."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c

_HEADER = struct.Struct("<BBBBIIIIIq")
_NAMES = (
    "flags",
    "codec",
    "producer_id_bytes",
    "zero",
    "records",
    "sections",
    "stored_bytes",
    "unpacked_bytes",
    "producer_epoch",
    "producer_seq",
)
# Where numbers of each width wrap, change sign, or mean nothing.
EXTREMES = (
    0,
    1,
    2,
    3,
    7,
    8,
    63,
    64,
    65,
    127,
    128,
    255,
    256,
    2**15,
    2**16 - 1,
    2**24,
    2**31 - 1,
    2**31,
    2**31 + 1,
    2**32 - 8,
    2**32 - 1,
)


def with_crc(block: bytes) -> bytes:
    return block[:4] + struct.pack("<I", google_crc32c.value(block[40:])) + block[8:]


@dataclass(frozen=True)
class Field:
    """A number somewhere in a block."""

    name: str
    position: int
    format: str

    def values(self, block: bytes) -> Iterator[int]:
        """Wrong values for this field."""
        size = struct.calcsize(self.format)
        true = struct.unpack_from(self.format, block, self.position)[0]
        ends = (1 << 8 * size) - 1
        for value in (*EXTREMES, true - 1, true + 1, true + 8, true - 8, ends, ends >> 1, ends - 1):
            if 0 <= value <= ends and value != true:
                yield value

    def put(self, block: bytes, value: int) -> bytes:
        changed = bytearray(block)
        size = struct.calcsize(self.format)
        changed[self.position : self.position + size] = value.to_bytes(size, "little")
        return with_crc(bytes(changed))


def header_fields() -> Iterator[Field]:
    position = 40
    for name, code in zip(_NAMES, "BBBBIIIIIQ", strict=True):
        yield Field(name, position, f"<{code}")
        position += struct.calcsize(f"<{code}")


def body_of(block: bytes) -> int:
    return 72 + block[42] + -block[42] % 8


def directory_fields(block: bytes) -> Iterator[Field]:
    count = struct.unpack_from("<I", block, 48)[0]
    for index in range(count):
        position = body_of(block) + 16 * index
        for name, offset, code in (
            ("section", 0, "H"),
            ("encoding", 2, "B"),
            ("flags", 3, "B"),
            ("start", 4, "I"),
            ("length", 8, "I"),
            ("zero", 12, "I"),
        ):
            yield Field(f"directory {index} {name}", position + offset, f"<{code}")


def offset_fields(block: bytes) -> Iterator[Field]:
    """Every number of every section of offsets."""
    count = struct.unpack_from("<I", block, 48)[0]
    body = body_of(block)
    for index in range(count):
        section, _, _, start, length, _ = struct.unpack_from("<HBBIII", block, body + 16 * index)
        if section in (1, 3, 8, 9, 11):
            for position in range(start, start + length, 4):
                yield Field(f"section {section} at {position - start}", body + position, "<I")


def framed(
    *,
    records: int,
    sections: int,
    body: bytes,
    codec: int = 0,
    stored: bytes | None = None,
    unpacked_bytes: int | None = None,
) -> bytes:
    """A block of these parts, valid or not."""
    stored = body if stored is None else stored
    unpacked_bytes = len(body) if unpacked_bytes is None else unpacked_bytes
    header = _HEADER.pack(0, codec, 0, 0, records, sections, len(stored), unpacked_bytes, 0, 0)
    return with_crc(b"RBK\x01" + bytes(36) + header + stored)
