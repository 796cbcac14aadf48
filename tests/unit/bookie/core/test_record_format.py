"""Records, alone and in a file, and bytes that are not records."""

import random

import pytest

from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    HEAD_BYTES,
    SECTOR,
    RecordReader,
    bodies_in,
    unpack_file_header,
)
from rollbook.bookie.core.torn_tail import scan
from rollbook.proto.errors import UnsupportedVersion
from tests.unit.bookie.core.record_files import BODIES, FILE_ID, HEADER, read, write


def test_records_are_read_as_written() -> None:
    file = write(BODIES)
    bodies, found = read(file.contents)
    assert bodies == BODIES
    assert (found.end, found.next_sequence) == (len(file.contents), 5)
    assert not found.rot
    assert not found.is_ended


def test_journal_bytes_in_a_payload_are_not_read_as_records() -> None:
    """B2: checksums are seeded with the file's id and the position."""
    inner = write(BODIES, ended=True)
    file = write([bytes(inner.contents), b"x", bytes(inner.contents[FILE_HEADER_BYTES:])])
    assert read(file.contents)[0] == file.bodies
    file.contents[FILE_HEADER_BYTES] ^= 1
    file.contents[file.ends[0] - SECTOR :] = bytes(len(file.contents) - file.ends[0] + SECTOR)
    assert read(file.contents)[0] == []


def test_records_of_an_older_file_are_ignored() -> None:
    """B2: reused disk blocks may hold an older journal."""
    older = write(BODIES, ended=True)
    contents = HEADER.pack() + bytes(older.contents[FILE_HEADER_BYTES:])
    reader = RecordReader(contents, bytes(16))
    assert scan(reader).records == ()


def test_file_header_survives_any_flipped_byte() -> None:
    packed = HEADER.pack()
    assert unpack_file_header(packed) == HEADER
    for position in range(len(packed)):
        damaged = bytearray(packed)
        damaged[position] ^= 0x10
        assert unpack_file_header(bytes(damaged)) == HEADER
    assert unpack_file_header(bytes(FILE_HEADER_BYTES)) is None
    assert unpack_file_header(packed[:60]) is None
    assert unpack_file_header(b"") is None


def test_later_format_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from rollbook.bookie.core import record_format as records

    monkeypatch.setattr(records, "_VERSION", 2)
    packed = HEADER.pack()
    file = write([b"x"])
    monkeypatch.undo()
    with pytest.raises(UnsupportedVersion):
        unpack_file_header(packed)
    with pytest.raises(UnsupportedVersion):
        read(file.contents)


@pytest.mark.parametrize("seed", range(200))
def test_hostile_bytes_are_not_read_as_records(seed: int) -> None:
    chance = random.Random(seed)
    noise = bytearray(chance.randbytes(4000))
    for _ in range(40):
        at = chance.randrange(3900)
        noise[at : at + 5] = chance.choice((b"\xb5rec\x01", b"\xb5cer\x01"))
    assert read(HEADER.pack() + bytes(noise))[0] == []


@pytest.mark.parametrize("seed", range(30))
def test_bodies_read_together_equal_bodies_read_one_by_one(seed: int) -> None:
    """For damage in any part of a record, and for reads that begin anywhere."""
    chance = random.Random(seed)
    file = write([chance.randbytes(chance.choice((0, 1, 40, 700))) for _ in range(20)])
    positions = [
        record.position for record in scan(RecordReader(bytes(file.contents), FILE_ID)).records
    ]
    contents = file.contents
    for position in positions:
        if chance.random() < 0.5:
            contents[position + chance.randrange(HEAD_BYTES + 40)] ^= 1 << chance.randrange(8)
    positions.append(positions[3] + 1)  # No record begins here.
    origin = positions[first := chance.randrange(3)]
    reader = RecordReader(bytes(contents[origin:]), FILE_ID, origin)

    def body_at(position: int) -> bytes | None:
        record = reader.at(position)
        return reader.body(record) if record and reader.is_sound(record) else None

    found = bodies_in(memoryview(contents)[origin:], FILE_ID, origin, positions[first:])
    assert found == [body_at(position) for position in positions[first:]]
    assert 0 < found.count(None) < len(found)
