import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.logservice.core.record_block import (
    CEILING,
    NO_HEADERS,
    Block,
    Codec,
    Limits,
    Record,
    Section,
    check_block,
    pack_block,
    pack_control_block,
    packed_body_of,
    producer_of,
    span_of,
    stamped,
    with_producer,
)
from rollbook.logservice.ids import Offset, ProducerRef
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import BadChecksum, BlockCorrupt, EntryTooLarge, InvalidRequest
from tests.unit.logservice.core.blocks import BlockSource, batches, stamped_at


@given(batches())
def test_batch_survives_a_round_trip(batch: BlockSource) -> None:
    packed = batch.pack()
    info = check_block(packed, CEILING)
    assert (info.count, info.producer, info.bytes) == (
        len(batch.values),
        batch.producer,
        len(packed),
    )

    block = Block(stamped_at(packed, 1000))
    count = len(batch.values)
    nothing: list[None] = [None] * count
    assert block.values() == batch.values
    assert block.keys() == (batch.keys or nothing)
    assert block.event_times() == (batch.event_times or nothing)
    assert block.headers() == [headers or {} for headers in batch.headers or nothing]
    assert [block.value(index) for index in range(count)] == batch.values
    assert block.records() == [
        Record(Offset(1000 + index), *row, 1_700_000, time)
        for index, (row, time) in enumerate(
            zip(
                zip(block.values(), block.keys(), block.headers(), strict=True),
                block.event_times(),
                strict=True,
            )
        )
    ]


@given(batches(), st.data())
def test_range_of_records_equals_a_slice_of_all(batch: BlockSource, data: st.DataObject) -> None:
    block = Block(stamped_at(batch.pack(), 1000))
    start = data.draw(st.integers(0, block.count))
    end = data.draw(st.integers(start, block.count))
    assert block.records(start, end) == block.records()[start:end]
    sizes = [block.bytes_before(index) for index in range(block.count + 1)]
    for record, (before, behind) in zip(block.records(), pairwise(sizes), strict=True):
        held = len(record.value) + len(record.key or b"")
        held += sum(len(name) + len(value) for name, value in record.headers.items())
        assert behind - before >= held + 4
    assert sizes[0] == 0
    assert sizes[-1] <= block.unpacked_bytes


@pytest.mark.parametrize("count", [31, 32, 33, 63, 64, 100, 255, 4096, 4097])
@pytest.mark.parametrize("other", [None, 0, 1, 15, -1])
@pytest.mark.parametrize("size", [0, 1, 40])
def test_strings_of_equal_size_are_read_correctly(size: int, count: int, other: int | None) -> None:
    """One string may have another size, also the first or last, and a range may start anywhere."""
    values = [bytes([number % 251]) * size for number in range(count)]
    if other is not None:
        values[other] = b"another"
    block = Block(pack_block(values, keys=values[::-1]))
    assert block.values() == values
    assert block.keys() == values[::-1]
    for start, end in ((0, count), (1, count), (0, count - 1), (7, min(count, 40)), (30, 31)):
        found = block.records(start, end)
        assert [each.value for each in found] == values[start:end]
        assert [each.key for each in found] == values[::-1][start:end]


@pytest.mark.parametrize("codec", Codec)
def test_strings_of_equal_mean_size_are_read_correctly(codec: Codec) -> None:
    values = [b"aaaa", b"bbb", b"ccccc", *[b"dddd"] * 61]
    headers = [{f"{number:02}": value} for number, value in enumerate(values)]
    block = Block(pack_block(values, headers=headers, codec=codec))
    assert block.values() == values
    assert block.headers() == headers
    assert [each.headers for each in block.records(1, 40)] == headers[1:40]


@given(batches())
def test_stamping_changes_only_the_servers_half(batch: BlockSource) -> None:
    packed = batch.pack()
    block = stamped(
        packed,
        base_offset=2**62,
        base_timestamp_us=2**61,
        owner_epoch=2**60,
        writer_epoch=2**59,
    )
    assert (block[:8], block[40:]) == (packed[:8], packed[40:])
    assert span_of(block) == (2**62, 2**62 + len(batch.values))
    read = Block(block)
    assert (read.base_offset, read.next_offset) == span_of(block)
    assert (read.timestamp_us, read.owner_epoch, read.writer_epoch) == (2**61, 2**60, 2**59)
    assert read.producer == batch.producer
    is_packed = read.codec is not Codec.NONE
    assert packed_body_of(block) == (read.unpacked_bytes if is_packed else 0)
    assert check_block(block, CEILING) == check_block(
        packed, CEILING
    )  # A block that was read may be sent again.


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("before", [None, ProducerRef(b"p" * 16, 1, 7), ProducerRef(b"abc", 0, 0)])
def test_replacing_the_producer_equals_packing_with_it(
    before: ProducerRef | None, codec: Codec
) -> None:
    values = [b"a" * 40, b"bc"] * 20
    after = ProducerRef(b"p" * 16, 2**32 - 1, 2**40)
    block = pack_block(values, producer=before, codec=codec)
    expected = pack_block(values, producer=after, codec=codec)
    assert with_producer(block, after) == expected
    assert with_producer(stamped_at(block), after) == expected  # A block that was read from a log.
    assert (producer_of(block), producer_of(expected)) == (before, after)


def test_replacing_the_producer_rejects_a_damaged_block() -> None:
    block = bytearray(pack_block([b"value"] * 3))
    block[-9] ^= 1
    with pytest.raises(BadChecksum):
        with_producer(bytes(block), ProducerRef(b"p", 0, 0))


def test_columns_have_the_arrow_layout() -> None:
    block = Block(
        stamped_at(
            pack_block([b"ab", b"", b"cde"], keys=[None, b"k", b""], event_times=[7, None, 9])
        )
    )

    def column(section: Section) -> memoryview:
        found = block.section(section)
        assert found is not None
        return found

    assert column(Section.VALUE_OFFSETS).cast("i").tolist() == [0, 2, 2, 5]
    assert bytes(column(Section.VALUES)) == b"abcde"
    assert column(Section.KEY_OFFSETS).cast("i").tolist() == [0, 0, 1, 1]
    assert bytes(column(Section.KEY_VALIDITY)) == bytes([0b110])
    assert column(Section.EVENT_TIMES).cast("q").tolist() == [7, 0, 9]
    assert bytes(column(Section.EVENT_TIME_VALIDITY)) == bytes([0b101])
    assert block.section(Section.HEADER_OFFSETS) is None


def test_codec_is_used_only_if_it_saves_bytes() -> None:
    same = pack_block([b"the same again"] * 1000, codec=Codec.ZSTD)
    info = check_block(same, CEILING)
    assert info.codec is Codec.ZSTD
    assert info.bytes * 5 < info.unpacked_bytes
    assert Block(stamped_at(same)).values() == [b"the same again"] * 1000
    assert check_block(pack_block([b"once"], codec=Codec.ZSTD), CEILING).codec is Codec.NONE


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [*range(10), 1000, 2**16 - 1, 2**16, 2**16 + 1])
def test_a_lone_value_is_framed_like_any_other(size: int, codec: Codec) -> None:
    value, producer = b"x" * size, ProducerRef(b"producer", 1, 2)
    packed = pack_block([value], producer=producer, codec=codec)
    assert packed == pack_block([value], keys=[None], producer=producer, codec=codec)
    assert Block(stamped_at(packed, 0)).values() == [value]


def test_a_control_block_has_no_records() -> None:
    block = Block(stamped_at(pack_control_block(b"what happened"), 5))
    assert block.is_control
    assert block.control() == b"what happened"
    assert (block.base_offset, block.next_offset) == (5, 5)
    assert (block.values(), block.records(), block.keys()) == ([], [], [])


def test_repeated_header_name_reads_as_its_last_value() -> None:
    """A block packed from a mapping has none, but a client may send any."""
    names = {"a": b"1", "b": b"2"}
    packed = pack_block([b""], headers=[names])
    twice = packed.replace(b"ab", b"aa")
    from tests.unit.logservice.core.hostile import with_crc

    assert Block(stamped_at(with_crc(twice))).headers() == [{"a": b"2"}]


@pytest.mark.parametrize(
    "wrong",
    [
        {"values": []},
        {"values": [b"x"], "keys": []},
        {"values": [b"x"], "keys": [b"", b""]},
        {"values": [b"x"], "headers": []},
        {"values": [b"x"], "headers": [{"": b""}]},
        {"values": [b"x"], "headers": [{"ä": b""}]},
        {"values": [b"x"], "headers": [{"\ud800": b""}]},
        {"values": [b"x"], "headers": [{"a b": b""}]},
        {"values": [b"x"], "headers": [{"a" * 256: b""}]},
        {"values": [b"x"], "event_times": []},
        {"values": [b"x"], "event_times": [2**63]},
        {"values": [b"x"], "event_times": [-(2**63)]},
    ],
)
def test_invalid_batch_is_not_packed(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        pack_block(**wrong)  # type: ignore[arg-type]  # Wrong on purpose.


def test_limits_hold_to_the_byte() -> None:
    body = 16 * 2 + 8 * 2 + 104  # Directory, offsets of three values padded, 100 B padded.
    packed = pack_block([b"x" * 60, b"", b"y" * 40], producer=ProducerRef(b"me", 0, 0))
    assert check_block(packed, Limits(60, body, 3)).unpacked_bytes == body
    for limits in (Limits(59, body, 3), Limits(60, body - 1, 3), Limits(60, body, 2)):
        with pytest.raises(EntryTooLarge):
            check_block(packed, limits)
    keyed = pack_block([b"x"], keys=[b"long key"])
    check_block(keyed, Limits(8, 1000, 1))
    with pytest.raises(EntryTooLarge):
        check_block(keyed, Limits(7, 1000, 1))
    assert Limits.of(LogConfig(batch_records_max=7)).batch_records_max == 7


def test_reading_a_damaged_block_raises() -> None:
    """LB2: no record of it is returned."""
    packed = bytearray(stamped_at(pack_block([b"value"] * 10)))
    packed[-20] ^= 1
    block = Block(bytes(packed))
    for look in (block.values, block.records, block.keys, lambda: block.value(0)):
        with pytest.raises(BlockCorrupt):
            look()
    with pytest.raises(BlockCorrupt):
        Block(b"RBK\x01 and no more")


def test_shared_empty_headers_are_immutable() -> None:
    assert Block(stamped_at(pack_block([b"x"]))).records()[0].headers is NO_HEADERS
    with pytest.raises(TypeError):
        NO_HEADERS["a"] = b""  # type: ignore[index]  # Wrong on purpose.


def test_import_of_record_blocks_loads_no_heavy_module() -> None:
    code = "import sys, rollbook.logservice.core.record_block; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = {name.partition(".")[0] for name in found.stdout.split()}
    assert not loaded & {"structlog", "zstandard", "google.protobuf", "asyncio", "kazoo", "ssl"}
