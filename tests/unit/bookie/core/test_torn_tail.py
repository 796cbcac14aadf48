"""Record files under every kind of damage: rot or a torn tail."""

import random

import pytest

from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    SECTOR,
    EntryRow,
    RecordKind,
)
from rollbook.bookie.core.record_packer import RecordPacker
from tests.unit.bookie.core.record_files import BODIES, FILE_ID, put, read, write


def test_preallocated_space_ends_the_file() -> None:
    file = write(BODIES)
    bodies, found = read(file.contents + bytes(10_000))
    assert bodies == BODIES
    assert found.end == len(file.contents)


def test_records_after_an_end_record_are_ignored() -> None:
    file = write(BODIES[:2], ended=True)
    again = RecordPacker(FILE_ID, len(file.contents), file.packer.next_sequence, 0)
    put(file.contents, again, RecordKind.CHANGES, b"from another life")
    bodies, found = read(file.contents)
    assert bodies == BODIES[:2]
    assert found.is_ended
    assert found.next_sequence == 4


@pytest.mark.parametrize("cut", range(FILE_HEADER_BYTES, 5120, 37))
def test_truncated_file_keeps_all_records_before_the_cut(cut: int) -> None:
    """B3: damage is a torn tail unless the data is proved to have been durable."""
    file = write(BODIES)
    bodies, found = read(file.contents[:cut] + bytes(5000))
    whole = [body for body, end in zip(BODIES, file.ends, strict=True) if end <= cut]
    assert bodies[: len(whole)] == whole  # There are more if only padding was cut.
    assert bodies == BODIES[: len(bodies)]
    assert not found.rot


def test_flipped_byte_in_an_idle_file_loses_at_most_its_record() -> None:
    """B2, B3: an idle record proves what was durable, so damage before it is rot of known ledgers."""
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


def test_damaged_last_record_without_idle_record_is_torn() -> None:
    file = write(BODIES)
    start = file.ends[-2]
    for position in range(start, len(file.contents)):
        damaged = bytearray(file.contents)
        damaged[position] ^= 1
        bodies, found = read(damaged)
        assert bodies in (BODIES, BODIES[:-1])
        assert not found.rot


@pytest.mark.parametrize("seed", range(300))
def test_torn_writes_lose_no_synced_record(seed: int) -> None:
    """B3: any subset of the sectors of the last write may arrive; the write has several records."""
    chance = random.Random(seed)
    file = write(BODIES[: chance.randint(0, 4)])
    durable = bytes(file.contents) + bytes(6000)
    packer, torn = file.packer, bytearray(durable)
    for _ in range(chance.randint(1, 4)):  # These are one write, without a sync in between.
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

    # Boot ends the file with an END record; whatever follows that record is ignored.
    packer = RecordPacker(FILE_ID, found.end, found.next_sequence, found.next_sequence - 1)
    put(image, packer, RecordKind.END)
    again, found = read(image, durable_through=2**62)
    assert again == bodies
    assert found.is_ended
    assert not found.rot


def test_damage_that_a_successor_proves_durable_is_rot() -> None:
    """B3: a file has a successor only once it is durable to its end."""
    file = write(BODIES)
    file.contents[file.ends[-2] + 100] ^= 1  # Damages the last body.
    bodies, found = read(file.contents, durable_through=4)
    assert bodies == BODIES[:-1]
    assert [rot.rows for rot in found.rot] == [(EntryRow(3, 0, 5),)]


def test_gap_before_the_successor_is_rot() -> None:
    file = write(BODIES[:2])
    _, found = read(file.contents, durable_through=3)
    assert [rot.rows for rot in found.rot] == [None]


def test_lost_record_is_rot_of_unknown_ledgers() -> None:
    """B1: then every ledger is in doubt."""
    file = write(BODIES, idle=True)
    file.contents[file.ends[1] : file.ends[2]] = bytes(file.ends[2] - file.ends[1])
    bodies, found = read(file.contents)
    assert bodies == [*BODIES[:2], BODIES[3]]
    assert [rot.rows for rot in found.rot] == [None]
