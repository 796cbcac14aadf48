"""The file of `rollbook log export`: blocks of records as the log has them, each packed and with a checksum.

    head     "RBKX", 1 (u32), length (u32) and CRC-32C (u32) of what follows: JSON with `log` and `uid`
    frame    "RBKF", length (u32), first offset (u64), records (u32), CRC-32C (u32) of the bytes that follow: a block, by zstd

A file that ends within a frame was left by an export that was ended; the frames before it are whole, and an export that is run again
goes on after them. A frame whose checksum is wrong is damage.
"""

import json
import struct
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

import google_crc32c
import zstandard

from rollbook.proto.errors import BlockCorrupt, InvalidRequest, UnsupportedVersion

_HEAD: Final = struct.Struct("<4sIII")
_FRAME: Final = struct.Struct("<4sIQII")
_MAGIC: Final = b"RBKX"
_FRAME_MAGIC: Final = b"RBKF"
_VERSION: Final = 1
_HEAD_BYTES_MAX: Final = 64 * 1024
_BLOCK_BYTES_MAX: Final = 64 * 1024 * 1024
_LEVEL: Final = 3


class Origin(NamedTuple):
    """The log that was exported."""

    log: str
    uid: str


class Frame(NamedTuple):
    block: bytes
    first_offset: int
    records: int
    end: int  # The position in the file after it.

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.records


def pack_head(origin: Origin) -> bytes:
    text = json.dumps(origin._asdict()).encode()
    return _HEAD.pack(_MAGIC, _VERSION, len(text), google_crc32c.value(text)) + text


def pack_frame(block: bytes, first_offset: int, records: int) -> bytes:
    packed = zstandard.ZstdCompressor(level=_LEVEL).compress(block)
    crc = google_crc32c.value(packed)
    return _FRAME.pack(_FRAME_MAGIC, len(packed), first_offset, records, crc) + packed


def read_head(file: BinaryIO) -> Origin | None:
    """None: the file is empty, or its export was ended before it had a head. Raises `InvalidRequest`, `UnsupportedVersion`."""
    head = file.read(_HEAD.size)
    if not _MAGIC.startswith(head[: len(_MAGIC)]):
        raise InvalidRequest(
            "it is no file that `rollbook log export` has written", next_step="name another file"
        )
    if len(head) < _HEAD.size:
        return None
    _, version, length, crc = _HEAD.unpack(head)
    if version != _VERSION:
        raise UnsupportedVersion(
            f"the file has version {version}, and this program knows {_VERSION}"
        )
    text = file.read(min(length, _HEAD_BYTES_MAX))
    if len(text) < length:
        return None
    if google_crc32c.value(text) != crc:
        raise BlockCorrupt("the head of the file has a wrong checksum")
    return Origin(**json.loads(text))


def read_frames(file: BinaryIO) -> Iterator[Frame]:
    """Those that are whole; `file` is after its head. Raises `BlockCorrupt`."""
    while len(head := file.read(_FRAME.size)) == _FRAME.size:
        magic, length, first_offset, records, crc = _FRAME.unpack(head)
        if magic != _FRAME_MAGIC:
            raise BlockCorrupt(f"the file is damaged at byte {file.tell() - len(head)}")
        packed = file.read(length)
        if len(packed) < length:
            return
        if google_crc32c.value(packed) != crc:
            raise BlockCorrupt(
                f"a frame of the file has a wrong checksum: records from offset {first_offset} on",
                next_step="export the log again, to another file",
            )
        block = zstandard.ZstdDecompressor().decompress(packed, max_output_size=_BLOCK_BYTES_MAX)
        yield Frame(block, first_offset, records, file.tell())
