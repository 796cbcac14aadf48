"""Files of records under every kind of damage."""

import random
from dataclasses import dataclass

import pytest

from rollbook.bookie.core.group_commit import RecordPacker
from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    HEAD_BYTES,
    SECTOR,
    FileHeader,
    Purpose,
    RecordKind,
    RecordReader,
    Row,
    Scan,
    bodies_in,
    pack_rows,
    scan,
    unpack_file_header,
)
from rollbook.proto.errors import UnsupportedVersion

FILE_ID = bytes(range(16))
HEADER = FileHeader(Purpose.JOURNAL, 7, b"store of sixteen", FILE_ID, 1 << 20)


@dataclass
class Written:
    """A file, and where each write of it ended."""

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


def test_what_was_written_is_read() -> None:
    file = write(BODIES)
    bodies, found = read(file.contents)
    assert bodies == BODIES
    assert (found.end, found.next_sequence) == (len(file.contents), 5)
    assert not found.rot
    assert not found.is_ended


def test_preallocated_space_is_the_end() -> None:
    file = write(BODIES)
    bodies, found = read(file.contents + bytes(10_000))
    assert bodies == BODIES
    assert found.end == len(file.contents)


def test_nothing_follows_an_end() -> None:
    file = write(BODIES[:2], ended=True)
    again = RecordPacker(FILE_ID, len(file.contents), file.packer.next_sequence, 0)
    put(file.contents, again, RecordKind.CHANGES, b"from another life")
    bodies, found = read(file.contents)
    assert bodies == BODIES[:2]
    assert found.is_ended
    assert found.next_sequence == 4


@pytest.mark.parametrize("cut", range(FILE_HEADER_BYTES, 5120, 37))
def test_a_file_cut_anywhere_keeps_what_lies_before(cut: int) -> None:
    """B3: without a proof that it was durable, damage is a torn tail."""
    file = write(BODIES)
    bodies, found = read(file.contents[:cut] + bytes(5000))
    whole = [body for body, end in zip(BODIES, file.ends, strict=True) if end <= cut]
    assert bodies[: len(whole)] == whole  # More if only padding was cut.
    assert bodies == BODIES[: len(bodies)]
    assert not found.rot


def test_every_flipped_byte_of_an_idle_file_costs_at_most_its_own_record() -> None:
    """B2, B3: with a last word on what is durable, damage is rot, and it is known whose."""
    file = write(BODIES, idle=True)
    for position in range(FILE_HEADER_BYTES, len(file.contents)):
        damaged = bytearray(file.contents)
        damaged[position] ^= 0x40
        bodies, found = read(damaged)
        if len(found.rot) == 1:
            (rot,) = found.rot
            assert rot.rows is not None
            (row,) = rot.rows
            assert bodies == BODIES[: row.ledger_id] + BODIES[row.ledger_id + 1 :]
        else:
            assert not found.rot
            assert bodies == BODIES


def test_the_last_record_without_a_last_word_is_torn_or_whole() -> None:
    file = write(BODIES)
    start = file.ends[-2]
    for position in range(start, len(file.contents)):
        damaged = bytearray(file.contents)
        damaged[position] ^= 1
        bodies, found = read(damaged)
        assert bodies in (BODIES, BODIES[:-1])
        assert not found.rot


@pytest.mark.parametrize("seed", range(300))
def test_torn_writes_lose_nothing_that_was_synced(seed: int) -> None:
    """B3: any subset of the sectors of the last write, in which several records lie."""
    chance = random.Random(seed)
    file = write(BODIES[: chance.randint(0, 4)])
    durable = bytes(file.contents) + bytes(6000)
    packer, torn = file.packer, bytearray(durable)
    for _ in range(chance.randint(1, 4)):  # Without a sync in between: one write.
        written = packer.pack_body(
            RecordKind.CHANGES, chance.randbytes(chance.choice((0, 90, 1500)))
        )
        data = b"".join(written.buffers)
        torn[written.position : written.position + len(data)] = data
    image = bytearray(durable)
    for sector in range(0, len(image), SECTOR):
        if chance.random() < 0.6:
            image[sector : sector + SECTOR] = torn[sector : sector + SECTOR]
    bodies, found = read(image)
    assert bodies[: len(file.bodies)] == file.bodies
    assert not found.rot

    # Boot cuts the tail off with an END; from then on the file is whole, whatever lies behind.
    packer = RecordPacker(FILE_ID, found.end, found.next_sequence, found.next_sequence - 1)
    put(image, packer, RecordKind.END)
    again, found = read(image, durable_through=2**62)
    assert again == bodies
    assert found.is_ended
    assert not found.rot


def test_damage_before_what_a_successor_vouches_for_is_rot() -> None:
    """B3: a file has a successor only once it is durable to its end."""
    file = write(BODIES)
    file.contents[file.ends[-2] + 100] ^= 1  # In the last body.
    bodies, found = read(file.contents, durable_through=4)
    assert bodies == BODIES[:-1]
    assert [rot.rows for rot in found.rot] == [(Row(3, 0, 5),)]


def test_a_file_that_stops_short_of_its_successor_is_rotten() -> None:
    file = write(BODIES[:2])
    _, found = read(file.contents, durable_through=3)
    assert [rot.rows for rot in found.rot] == [None]


def test_a_hole_whose_ledgers_are_lost_says_so() -> None:
    """B1: then everything is in doubt."""
    file = write(BODIES, idle=True)
    file.contents[file.ends[1] : file.ends[2]] = bytes(file.ends[2] - file.ends[1])
    bodies, found = read(file.contents)
    assert bodies == [*BODIES[:2], BODIES[3]]
    assert [rot.rows for rot in found.rot] == [None]


def test_a_payload_that_holds_a_journal_is_not_taken_for_one() -> None:
    """B2: the seed is the file's id and the position."""
    inner = write(BODIES, ended=True)
    file = write([bytes(inner.contents), b"x", bytes(inner.contents[FILE_HEADER_BYTES:])])
    assert read(file.contents)[0] == file.bodies
    file.contents[FILE_HEADER_BYTES] ^= 1
    file.contents[file.ends[0] - SECTOR :] = bytes(len(file.contents) - file.ends[0] + SECTOR)
    assert read(file.contents)[0] == []


def test_records_of_an_older_file_are_none_of_ours() -> None:
    """B2: blocks that a disk hands out again may hold yesterday's journal."""
    older = write(BODIES, ended=True)
    contents = HEADER.pack() + bytes(older.contents[FILE_HEADER_BYTES:])
    reader = RecordReader(contents, bytes(16))
    assert scan(reader).records == ()


def test_a_file_header_survives_the_loss_of_one_sector() -> None:
    packed = HEADER.pack()
    assert unpack_file_header(packed) == HEADER
    for position in range(len(packed)):
        damaged = bytearray(packed)
        damaged[position] ^= 0x10
        assert unpack_file_header(bytes(damaged)) == HEADER
    assert unpack_file_header(bytes(FILE_HEADER_BYTES)) is None
    assert unpack_file_header(packed[:60]) is None
    assert unpack_file_header(b"") is None


def test_a_later_version_is_refused_not_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_hostile_bytes_are_no_records(seed: int) -> None:
    chance = random.Random(seed)
    noise = bytearray(chance.randbytes(4000))
    for _ in range(40):
        at = chance.randrange(3900)
        noise[at : at + 5] = chance.choice((b"\xb5rec\x01", b"\xb5cer\x01"))
    assert read(HEADER.pack() + bytes(noise))[0] == []


@pytest.mark.parametrize("seed", range(30))
def test_bodies_taken_together_are_those_taken_one_by_one(seed: int) -> None:
    """Whatever part of a record is damaged, and wherever what was read begins."""
    chance = random.Random(seed)
    file = write([chance.randbytes(chance.choice((0, 1, 40, 700))) for _ in range(20)])
    positions = [
        record.position for record in scan(RecordReader(bytes(file.contents), FILE_ID)).records
    ]
    contents = file.contents
    for position in positions:
        if chance.random() < 0.5:
            contents[position + chance.randrange(HEAD_BYTES + 40)] ^= 1 << chance.randrange(8)
    positions.append(positions[3] + 1)  # Where there is none.
    origin = positions[first := chance.randrange(3)]
    reader = RecordReader(bytes(contents[origin:]), FILE_ID, origin)

    def body_at(position: int) -> bytes | None:
        record = reader.at(position)
        return reader.body(record) if record and reader.is_sound(record) else None

    found = bodies_in(memoryview(contents)[origin:], FILE_ID, origin, positions[first:])
    assert found == [body_at(position) for position in positions[first:]]
    assert 0 < found.count(None) < len(found)
