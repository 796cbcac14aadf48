"""Writes record files as a bookie does, and reads them back."""

from dataclasses import dataclass

from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    FileHeader,
    Purpose,
    RecordKind,
    RecordReader,
    pack_rows,
)
from rollbook.bookie.core.record_packer import RecordPacker
from rollbook.bookie.core.torn_tail import Scan, scan

FILE_ID = bytes(range(16))
HEADER = FileHeader(Purpose.JOURNAL, 7, b"store of sixteen", FILE_ID, 1 << 20)


@dataclass
class Written:
    """A record file, and the end position of each write."""

    contents: bytearray
    bodies: list[bytes]
    ends: list[int]
    packer: RecordPacker


def write(bodies: list[bytes], *, ended: bool = False, idle: bool = False) -> Written:
    packer = RecordPacker(FILE_ID, FILE_HEADER_BYTES, 1, 0)
    contents = bytearray(HEADER.pack())
    ends: list[int] = []
    for number, body in enumerate(bodies):
        put(contents, packer, RecordKind.CHANGES, body, pack_rows([(number, 0, 5)]))
        ends.append(len(contents))
    if idle or ended:
        put(contents, packer, RecordKind.END if ended else RecordKind.IDLE)
    return Written(contents, bodies, ends, packer)


def put(
    contents: bytearray,
    packer: RecordPacker,
    kind: RecordKind,
    body: bytes = b"",
    rows: bytes = b"",
) -> None:
    written = packer.pack_body(kind, body, rows)
    packer.on_synced(written)
    data = b"".join(written.buffers)
    contents[written.position : written.position + len(data)] = data


def read(contents: bytes | bytearray, **known: int) -> tuple[list[bytes], Scan]:
    reader = RecordReader(bytes(contents), FILE_ID)
    found = scan(reader, **known)
    return [reader.body(record) for record in found.records], found


BODIES = [b"a" * 10, b"", b"b" * 700, b"c" * 1300]
