"""The file of `rollbook log export`: the log's blocks of records, each compressed and with a checksum.

    head     "RBKX", 1 (u32), length (u32) and CRC-32C (u32) of the JSON that follows, with `log` and `uid`
    frame    "RBKF", length (u32), first offset (u64), records (u32), CRC-32C (u32) of the block that follows, in zstd
    end      "RBKE", the offset after the last record (u64)

Each of the three begins with fields that are followed by the CRC-32C (u32) of these fields, so that a damaged length
is never used. An interrupted export leaves a file without the end mark. The file's complete frames are valid, and
the next export continues after them. Any other deviation is damage.
"""

import json
import os
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, NamedTuple

import google_crc32c
import zstandard

from rollbook.proto.errors import BlockCorrupt, InvalidRequest, UnsupportedVersion

_HEAD: Final = struct.Struct("<4sIII")
_FRAME: Final = struct.Struct("<4sIQII")
_END: Final = struct.Struct("<4sQ")
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = b"RBKX"
_FRAME_MAGIC: Final = b"RBKF"
_END_MAGIC: Final = b"RBKE"
_VERSION: Final = 1
_HEAD_BYTES_MAX: Final = 64 * 1024
_BLOCK_BYTES_MAX: Final = 64 * 1024 * 1024
_LEVEL: Final = 3


class ExportedLog(NamedTuple):
    """The identity of the exported log."""

    log: str
    uid: str


class ExportedBlock(NamedTuple):
    block: bytes
    first_offset: int
    records: int
    end: int  # The position in the file directly after the block.

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.records


def pack_head(origin: ExportedLog) -> bytes:
    text = json.dumps(origin._asdict()).encode()
    return _with_crc(_HEAD.pack(_MAGIC, _VERSION, len(text), google_crc32c.value(text))) + text


def pack_frame(block: bytes, first_offset: int, records: int) -> bytes:
    packed = zstandard.ZstdCompressor(level=_LEVEL).compress(block)
    crc = google_crc32c.value(packed)
    return _with_crc(_FRAME.pack(_FRAME_MAGIC, len(packed), first_offset, records, crc)) + packed


def pack_end(next_offset: int) -> bytes:
    return _with_crc(_END.pack(_END_MAGIC, next_offset))


def _with_crc(fields: bytes) -> bytes:
    return fields + _CRC.pack(google_crc32c.value(fields))


def _read_fields(
    file: BinaryIO, layout: struct.Struct, start: bytes = b""
) -> tuple[Any, ...] | None:
    """Reads fields and their checksum. Returns None if the file ends within them. Raises `BlockCorrupt`."""
    at = file.tell() - len(start)
    data = start + file.read(layout.size + _CRC.size - len(start))
    if len(data) < layout.size + _CRC.size:
        return None
    if data != _with_crc(data[: layout.size]):
        raise _damaged(at)
    return layout.unpack_from(data)


def _damaged(at: int) -> BlockCorrupt:
    return BlockCorrupt(
        f"the file is damaged at byte {at}", next_step="export the log again, to another file"
    )


def read_head(file: BinaryIO) -> ExportedLog | None:
    """Returns the log's identity, or None if the file is empty or its export was interrupted before the head
    was complete.

    Raises `InvalidRequest`, `UnsupportedVersion`, `BlockCorrupt`.
    """
    magic = file.read(len(_MAGIC))
    if not _MAGIC.startswith(magic):
        raise InvalidRequest(
            "this file was not written by `rollbook log export`", next_step="name another file"
        )
    fields = _read_fields(file, _HEAD, magic)
    if fields is None:
        return None
    _, version, length, crc = fields
    if version != _VERSION:
        raise UnsupportedVersion(
            f"the file has version {version}, but this program reads only version {_VERSION}"
        )
    text = file.read(min(length, _HEAD_BYTES_MAX))
    if len(text) < length:
        return None
    if google_crc32c.value(text) != crc:
        raise _damaged(file.tell() - length)
    header = json.loads(text)
    return ExportedLog(str(header["log"]), str(header["uid"]))


def is_ended(file: BinaryIO) -> bool:
    """Returns whether an export completed the file, without moving the file's position."""
    at, size = file.tell(), _END.size + _CRC.size
    file.seek(max(file.seek(0, os.SEEK_END) - size, 0))
    last = file.read(size)
    file.seek(at)
    return last.startswith(_END_MAGIC) and last == _with_crc(last[: _END.size])


def read_frames(file: BinaryIO) -> Iterator[ExportedBlock]:
    """Yields the complete frames. `file` must be positioned after its head. Raises `BlockCorrupt`."""
    while len(magic := file.read(len(_MAGIC))) == len(_MAGIC):
        at = file.tell() - len(magic)
        if magic == _END_MAGIC:
            if _read_fields(file, _END, magic) is not None and file.read(1):
                raise _damaged(at)  # Nothing may follow the end mark.
            return
        if magic != _FRAME_MAGIC:
            raise _damaged(at)
        fields = _read_fields(file, _FRAME, magic)
        if fields is None:
            return
        _, length, first_offset, records, crc = fields
        packed = file.read(length)
        if len(packed) < length:
            return
        if google_crc32c.value(packed) != crc:
            raise _damaged(at)
        yield ExportedBlock(_unpacked(packed, at), first_offset, records, file.tell())


def _unpacked(packed: bytes, at: int) -> bytes:
    try:
        if zstandard.frame_content_size(packed) > _BLOCK_BYTES_MAX:
            raise _damaged(at)
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=_BLOCK_BYTES_MAX)
    except zstandard.ZstdError:
        raise _damaged(at) from None
