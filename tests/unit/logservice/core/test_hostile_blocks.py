"""LB1: any length, offset or count of a block may be wrong, and unpacking is bounded."""

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rollbook.logservice.core.record_block import (
    CEILING,
    Block,
    Codec,
    Limits,
    Section,
    check_block,
    pack_block,
)
from rollbook.logservice.ids import ProducerRef
from rollbook.proto.errors import (
    BadChecksum,
    BlockCorrupt,
    EntryTooLarge,
    InvalidBlock,
    UnsupportedVersion,
)
from tests.unit.logservice.core.blocks import BlockSource, batches, stamped_at
from tests.unit.logservice.core.hostile import (
    Field,
    directory_fields,
    framed,
    header_fields,
    offset_fields,
    with_crc,
)

REFUSALS = (InvalidBlock, UnsupportedVersion, BadChecksum, EntryTooLarge)
FULL = pack_block(
    [b"first", b"", b"the third one"],
    keys=[b"k", None, b"key"],
    headers=[{"a": b"1", "bb": b""}, None, {"c": b"333"}],
    event_times=[1, None, 3],
    producer=ProducerRef(b"producer", 5, 6),
)
PLAIN = pack_block([b"first", b"", b"the third one"])
LONE = pack_block(
    [b"alone"], producer=ProducerRef(b"producer", 5, 6)
)  # A lone value is checked in one step.
LIMITS = Limits(record_bytes_max=1000, batch_bytes_max=10_000, batch_records_max=1000)


def assert_sound(block: bytes) -> None:
    """An accepted block can be read, and its size is what it declares."""
    info = check_block(block, CEILING)
    read = Block(stamped_at(block))
    assert len(read.records()) == len(read.values()) == info.count
    assert sum(map(len, read.values())) <= info.unpacked_bytes
    assert read.producer == info.producer


def is_refused(block: bytes, limits: Limits = CEILING) -> bool:
    try:
        check_block(block, limits)
    except REFUSALS:
        with pytest.raises((BlockCorrupt, UnsupportedVersion)):  # LB2: readers check, too.
            Block(stamped_at(block)).records()
        return True
    assert_sound(block)
    return False


def lies(block: bytes, fields: Iterator[Field]) -> Iterator[tuple[Field, int, bytes]]:
    for field in fields:
        for value in field.values(block):
            yield field, value, field.put(block, value)


# A producer's epoch and number may be anything: the server does not interpret them.
FREE = {"producer_epoch", "producer_seq"}


@pytest.mark.parametrize("block", [FULL, PLAIN, LONE], ids=["full", "plain", "lone"])
def test_wrong_header_number_is_refused(block: bytes) -> None:
    for field, value, lie in lies(block, header_fields()):
        if field.name in FREE and block is not PLAIN and value < 2**63:
            assert not is_refused(lie)
        else:
            assert is_refused(lie), (field, value)


@pytest.mark.parametrize("block", [FULL, LONE], ids=["full", "lone"])
def test_wrong_directory_number_is_refused(block: bytes) -> None:
    for field, value, lie in lies(block, directory_fields(block)):
        if field.name.endswith("flags") and value == 1:
            assert not is_refused(lie)  # The flag of a mandatory section is valid.
        elif field.name.endswith("section") and value not in set(Section):
            is_refused(lie)  # An optional section may be one of a future release.
        else:
            assert is_refused(lie), (field, value)


def test_wrong_offset_is_refused() -> None:
    """Except where it only divides the bytes differently: 5 bytes may be 4 and 1."""
    for field, value, lie in lies(FULL, offset_fields(FULL)):
        if value < 0x4000:
            is_refused(lie)
        else:
            assert is_refused(lie), (field, value)
    first_of_values = next(offset_fields(PLAIN))
    assert is_refused(first_of_values.put(PLAIN, 1))
    for field, value, lie in lies(LONE, offset_fields(LONE)):
        assert is_refused(lie), (field, value)


@pytest.mark.parametrize("size", range(17))
def test_padding_and_limits_of_a_lone_value_are_checked(size: int) -> None:
    block = pack_block([b"x" * size])
    stored_bytes = len(block) - 72
    check_block(block, Limits(max(size, 1), stored_bytes, 1))
    tighter = [Limits(size - 1, stored_bytes, 1)] if size > 1 else []
    for limits in (*tighter, Limits(max(size, 1), stored_bytes - 1, 1)):
        with pytest.raises(EntryTooLarge):
            check_block(block, limits)
    if size % 8:
        assert is_refused(with_crc(block[:-1] + b"x"))


@pytest.mark.parametrize("block", [FULL, PLAIN, LONE], ids=["full", "plain", "lone"])
def test_a_block_cut_short_or_lengthened_is_refused(block: bytes) -> None:
    for length in range(len(block)):
        assert is_refused(with_crc(block[:length]) if length >= 40 else block[:length])
    for more in (b"\0", bytes(8), block):
        assert is_refused(with_crc(block + more))


@pytest.mark.parametrize("block", [FULL, PLAIN, LONE], ids=["full", "plain", "lone"])
def test_flipped_bit_is_refused(block: bytes) -> None:
    """G10: except in the server's half, which the client does not write."""
    for position in range(len(block)):
        flipped = bytearray(block)
        flipped[position] ^= 0x10
        if not 8 <= position < 40:
            assert is_refused(bytes(flipped)), position


@given(batches(), st.data())
def test_random_changes_are_refused_or_harmless(batch: BlockSource, data: st.DataObject) -> None:
    block = bytearray(batch.pack())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(40, len(block) - 1))
        block[position] = data.draw(st.integers(0, 255))
    is_refused(with_crc(bytes(block)))


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(REFUSALS):
        check_block(data, CEILING)
    if len(data) > 40:
        with pytest.raises(REFUSALS):
            check_block(with_crc(b"RBK\x01" + data), CEILING)


# --- Sections ----------------------------------------------------------------------


def sectioned(*sections: tuple[int, int, int, bytes], records: int = 1) -> bytes:
    """A block of sections, each given as (section, encoding, flags, bytes)."""
    directory, data = b"", b""
    for section, encoding, flags, content in sections:
        start = 16 * len(sections) + len(data)
        directory += struct.pack("<HBBIII", section, encoding, flags, start, len(content), 0)
        data += content + bytes(-len(content) % 8)
    return framed(records=records, sections=len(sections), body=directory + data)


OFFSETS = (1, 0, 0, struct.pack("<ii", 0, 1))
VALUES = (2, 0, 0, b"x")


def test_unknown_sections_are_skipped_unless_mandatory() -> None:
    assert not is_refused(sectioned(OFFSETS, VALUES, (500, 3, 0, b"of a later release")))
    for section in ((500, 0, 1, b"x"), (3, 1, 0, b"x"), (500, 0, 2, b"x")):
        assert is_refused(sectioned(OFFSETS, VALUES, section))
    with pytest.raises(UnsupportedVersion):
        check_block(sectioned(OFFSETS, VALUES, (500, 0, 1, b"x")), CEILING)
    with pytest.raises(UnsupportedVersion):
        check_block(sectioned((1, 9, 0, OFFSETS[3]), VALUES), CEILING)
    with pytest.raises(UnsupportedVersion):
        check_block(b"RBK\x02" + PLAIN[4:], CEILING)


def test_nonzero_padding_between_sections_is_refused() -> None:
    good = sectioned(OFFSETS, VALUES)
    assert not is_refused(good)
    for position in range(len(good) - 7, len(good)):  # The padding after a value of one byte.
        hidden = bytearray(good)
        hidden[position] = 1
        assert is_refused(with_crc(bytes(hidden)))


def test_incomplete_or_repeated_sections_are_refused() -> None:
    bits = (5, 0, 0, b"\x01")
    for sections in (
        [OFFSETS],
        [VALUES],
        [OFFSETS, VALUES, VALUES],
        [OFFSETS, VALUES, (3, 0, 0, OFFSETS[3])],
        [OFFSETS, VALUES, (4, 0, 0, b"k")],
        [OFFSETS, VALUES, bits],
        [OFFSETS, VALUES, (7, 0, 0, b"\x01")],
        [OFFSETS, VALUES, (6, 0, 0, bytes(7))],
        [OFFSETS, VALUES, (6, 0, 0, bytes(16))],
        [OFFSETS, VALUES, (6, 0, 0, bytes(8)), (7, 0, 0, b"\x02")],
        [OFFSETS, VALUES, (6, 0, 0, bytes(8)), (7, 0, 0, b"\x01\x00")],
        [OFFSETS, VALUES, (8, 0, 0, bytes(8))],
        [OFFSETS, VALUES, (10, 0, 0, b"name")],
        [OFFSETS, VALUES, (32, 0, 0, b"control")],
    ):
        assert is_refused(sectioned(*sections)), sections
    assert is_refused(
        sectioned((32, 0, 0, b"control"), records=0)
    )  # The header's control flag is missing.


@pytest.mark.parametrize("name", [b"", b"a b", b"\n", b"\x7f", "ä".encode(), b"a" * 256])
def test_invalid_header_names_are_refused(name: bytes) -> None:
    def headers(name: bytes) -> bytes:
        return sectioned(
            OFFSETS,
            VALUES,
            (8, 0, 0, struct.pack("<ii", 0, 1)),
            (9, 0, 0, struct.pack("<ii", 0, len(name))),
            (10, 0, 0, name),
            (11, 0, 0, struct.pack("<ii", 0, 0)),
            (12, 0, 0, b""),
        )

    assert not is_refused(headers(b"name"))
    assert is_refused(headers(name))


def test_record_limit_applies_to_each_item() -> None:
    packed = pack_block([b"v"], keys=[b"k" * 11], headers=[{"h": b"x" * 10}])
    with pytest.raises(EntryTooLarge):
        check_block(packed, Limits(10, 10_000, 10))
    check_block(packed, Limits(11, 10_000, 10))


# --- Unpacking -------------------------------------------------------------------------

BODY = PLAIN[72:]


def zstd(body: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(level=1, **options).compress(body)  # type: ignore[arg-type]  # Flags.


def packed(stored: bytes, unpacked_bytes: int = len(BODY)) -> bytes:
    return framed(
        records=3, sections=2, body=BODY, codec=1, stored=stored, unpacked_bytes=unpacked_bytes
    )


def test_body_that_does_not_unpack_to_its_size_is_refused() -> None:
    good = zstd(BODY)
    assert not is_refused(packed(good))
    skippable = struct.pack("<II", 0x184D2A50, 4) + b"skip"
    for stored in (
        b"",
        BODY,
        good[:-1],
        good + b"\0",
        good + good,
        good + skippable,
        skippable,
        skippable + good,
        zstd(BODY, write_content_size=False),
        zstd(BODY + b"\0"),
        zstd(BODY[:-1]),
        zstd(b""),
    ):
        assert is_refused(packed(stored)), stored
    for unpacked_bytes in (0, len(BODY) - 1, len(BODY) + 1, 2**32 - 1):
        assert is_refused(packed(good, unpacked_bytes))
    assert is_refused(framed(records=3, sections=2, body=BODY, codec=2, stored=good))


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(block: bytes, limits: Limits) -> None:
    with pytest.raises(REFUSALS):
        check_block(block, limits)


def test_compression_bomb_is_not_unpacked() -> None:
    """64 MiB of zeros in 6 KB, whether the frame declares its size, a smaller one or none."""
    zeros = bytes(64 * 1024 * 1024)
    honest, silent = zstd(zeros), zstd(zeros, write_content_size=False)
    # A frame's size is in its header: here these 4 bytes after magic and descriptor.
    assert honest[6:10] == struct.pack("<I", len(zeros))
    liar = honest[:6] + struct.pack("<I", 9_000) + honest[10:]
    assert zstandard.frame_content_size(liar) == 9_000
    del zeros
    small = Limits(1000, 2**18, 1000)

    def bomb(stored: bytes, unpacked_bytes: int) -> None:
        refused(
            framed(
                records=3,
                sections=2,
                body=b"",
                codec=1,
                stored=stored,
                unpacked_bytes=unpacked_bytes,
            ),
            small,
        )

    for stored in (honest, silent, liar):
        for unpacked_bytes in (64 * 1024 * 1024, 9_000, 2**18):
            assert peak_bytes(partial(bomb, stored, unpacked_bytes)) < 2**20


def test_checking_a_block_of_offsets_takes_under_12_times_its_size() -> None:
    """Empty records and empty headers: as many as fit into a batch."""
    count = 50_000
    empty = pack_block([b""] * count)
    assert peak_bytes(lambda: check_block(empty, CEILING)) < 12 * len(empty)
    many = pack_block([b""], headers=[{f"h{index}": b"" for index in range(count)}])
    assert peak_bytes(lambda: check_block(many, CEILING)) < 12 * len(many)


def test_damaged_compressed_block_is_read_or_refused() -> None:
    text = pack_block([b"all work and no play"] * 100, codec=Codec.ZSTD)
    assert not is_refused(text)
    for position in range(72, len(text)):
        flipped = bytearray(text)
        flipped[position] ^= 0xFF
        is_refused(with_crc(bytes(flipped)))  # Read or refused, without any other error.
