"""LB1: every length, offset and count of a block may lie, and whatever it unpacks to is bounded."""

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
LONE = pack_block([b"alone"], producer=ProducerRef(b"producer", 5, 6))  # Checked in one go.
LIMITS = Limits(record_bytes_max=1000, batch_bytes_max=10_000, batch_records_max=1000)


def assert_sound(block: bytes) -> None:
    """What was let in is read without surprise, and is as much as it said."""
    info = check_block(block, CEILING)
    read = Block(stamped_at(block))
    assert len(read.records()) == len(read.values()) == info.count
    assert sum(map(len, read.values())) <= info.unpacked_bytes
    assert read.producer == info.producer


def is_refused(block: bytes, limits: Limits = CEILING) -> bool:
    try:
        check_block(block, limits)
    except REFUSALS:
        with pytest.raises((BlockCorrupt, UnsupportedVersion)):  # LB2: readers look, too.
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
def test_no_number_of_the_header_may_lie(block: bytes) -> None:
    for field, value, lie in lies(block, header_fields()):
        if field.name in FREE and block is not PLAIN and value < 2**63:
            assert not is_refused(lie)
        else:
            assert is_refused(lie), (field, value)


@pytest.mark.parametrize("block", [FULL, LONE], ids=["full", "lone"])
def test_no_number_of_the_directory_may_lie(block: bytes) -> None:
    for field, value, lie in lies(block, directory_fields(block)):
        if field.name.endswith("flags") and value == 1:
            assert not is_refused(lie)  # That a section must be known is no lie.
        elif field.name.endswith("section") and value not in set(Section):
            is_refused(lie)  # What may be missing may be something of the future as well.
        else:
            assert is_refused(lie), (field, value)


def test_no_offset_may_lie() -> None:
    """Except where the bytes are divided up: 5 bytes may be 4 and 1, as their sender likes."""
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
def test_a_lone_value_is_held_to_its_padding_and_its_limits(size: int) -> None:
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
def test_a_bit_that_flips_on_the_way_is_noticed(block: bytes) -> None:
    """G10: but in the server's half, which the client did not write."""
    for position in range(len(block)):
        flipped = bytearray(block)
        flipped[position] ^= 0x10
        if not 8 <= position < 40:
            assert is_refused(bytes(flipped)), position


@given(batches(), st.data())
def test_whatever_is_changed_is_refused_or_harmless(
    batch: BlockSource, data: st.DataObject
) -> None:
    block = bytearray(batch.pack())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(40, len(block) - 1))
        block[position] = data.draw(st.integers(0, 255))
    is_refused(with_crc(bytes(block)))


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(REFUSALS):
        check_block(data, CEILING)
    if len(data) > 40:
        with pytest.raises(REFUSALS):
            check_block(with_crc(b"RBK\x01" + data), CEILING)


# --- What is to be known ----------------------------------------------------------------------


def sectioned(*sections: tuple[int, int, int, bytes], records: int = 1) -> bytes:
    """Of (section, encoding, flags, bytes)."""
    directory, data = b"", b""
    for section, encoding, flags, content in sections:
        start = 16 * len(sections) + len(data)
        directory += struct.pack("<HBBIII", section, encoding, flags, start, len(content), 0)
        data += content + bytes(-len(content) % 8)
    return framed(records=records, sections=len(sections), body=directory + data)


OFFSETS = (1, 0, 0, struct.pack("<ii", 0, 1))
VALUES = (2, 0, 0, b"x")


def test_sections_of_the_future_are_passed_over_unless_they_must_be_known() -> None:
    assert not is_refused(sectioned(OFFSETS, VALUES, (500, 3, 0, b"of a later release")))
    for section in ((500, 0, 1, b"x"), (3, 1, 0, b"x"), (500, 0, 2, b"x")):
        assert is_refused(sectioned(OFFSETS, VALUES, section))
    with pytest.raises(UnsupportedVersion):
        check_block(sectioned(OFFSETS, VALUES, (500, 0, 1, b"x")), CEILING)
    with pytest.raises(UnsupportedVersion):
        check_block(sectioned((1, 9, 0, OFFSETS[3]), VALUES), CEILING)
    with pytest.raises(UnsupportedVersion):
        check_block(b"RBK\x02" + PLAIN[4:], CEILING)


def test_nothing_is_hidden_between_sections() -> None:
    good = sectioned(OFFSETS, VALUES)
    assert not is_refused(good)
    for position in range(len(good) - 7, len(good)):  # Behind a value of one byte.
        hidden = bytearray(good)
        hidden[position] = 1
        assert is_refused(with_crc(bytes(hidden)))


def test_sections_that_lack_their_other_half_are_refused() -> None:
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
    assert is_refused(sectioned((32, 0, 0, b"control"), records=0))  # No flag says so.


@pytest.mark.parametrize("name", [b"", b"a b", b"\n", b"\x7f", "ä".encode(), b"a" * 256])
def test_names_of_headers_are_held_to_their_rule(name: bytes) -> None:
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


def test_limits_are_those_of_each_item() -> None:
    packed = pack_block([b"v"], keys=[b"k" * 11], headers=[{"h": b"x" * 10}])
    with pytest.raises(EntryTooLarge):
        check_block(packed, Limits(10, 10_000, 10))
    check_block(packed, Limits(11, 10_000, 10))


# --- What is unpacked -------------------------------------------------------------------------

BODY = PLAIN[72:]


def zstd(body: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(level=1, **options).compress(body)  # type: ignore[arg-type]  # Flags.


def packed(stored: bytes, unpacked_bytes: int = len(BODY)) -> bytes:
    return framed(
        records=3, sections=2, body=BODY, codec=1, stored=stored, unpacked_bytes=unpacked_bytes
    )


def test_a_body_unpacks_to_what_it_says_or_not_at_all() -> None:
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


def test_a_bomb_is_not_unpacked() -> None:
    """64 MiB of zeros in 6 KB: whether it says so, or says less, or says nothing."""
    zeros = bytes(64 * 1024 * 1024)
    honest, silent = zstd(zeros), zstd(zeros, write_content_size=False)
    # A frame's size stands in its header: these 4 bytes of this one, behind magic and descriptor.
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


def test_a_block_of_nothing_but_offsets_takes_a_few_times_its_size() -> None:
    """The most lanes that fit into a batch: empty records, and empty headers."""
    count = 50_000
    empty = pack_block([b""] * count)
    assert peak_bytes(lambda: check_block(empty, CEILING)) < 12 * len(empty)
    many = pack_block([b""], headers=[{f"h{index}": b"" for index in range(count)}])
    assert peak_bytes(lambda: check_block(many, CEILING)) < 12 * len(many)


def test_the_codec_of_random_bytes_is_none_and_of_text_is_zstd() -> None:
    text = pack_block([b"all work and no play"] * 100, codec=Codec.ZSTD)
    assert not is_refused(text)
    for position in range(72, len(text)):
        flipped = bytearray(text)
        flipped[position] ^= 0xFF
        is_refused(with_crc(bytes(flipped)))  # Read or refused, and nothing else.
