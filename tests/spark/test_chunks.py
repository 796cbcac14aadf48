"""How rows become blocks, and how a replay finds the blocks of its batch."""

import random
from typing import Any

import pyarrow as pa
import pytest

from rollbook.api.spark.core.exactly_once import LastBatch, WrittenBlock, cut, rows_written
from rollbook.api.spark.rows_to_blocks import SCHEMA, ArrowRows, by_log
from rollbook.logservice.core.record_block import HEADER_BYTES, Block, Codec, Limits, check_block
from rollbook.logservice.ids import ProducerRef
from rollbook.proto.errors import InvalidRequest, SinkReplayDiverged


@pytest.mark.parametrize("seed", range(60))
def test_rows_are_cut_into_blocks_by_size_alone(seed: int) -> None:
    """SK5"""
    chance = random.Random(seed)
    sizes = [chance.choice((1, 10, 500)) for _ in range(chance.randrange(1, 200))]
    limit, records_max = chance.choice((10, 600, 10**6)), chance.choice((1, 7, 10**6))

    def size_of(start: int, end: int) -> int:
        return sum(sizes[start:end])

    first = chance.randrange(len(sizes))
    runs = cut(first, len(sizes), size_of, limit, records_max)
    assert [start for start, _ in runs] == [first, *(end for _, end in runs[:-1])]
    assert runs[-1][1] == len(sizes)
    for start, end in runs:
        assert end - start <= records_max
        assert end - start == 1 or size_of(start, end) <= limit
        is_full = end == len(sizes) or size_of(start, end + 1) > limit or end - start == records_max
        assert is_full
    assert cut(runs[-1][0], len(sizes), size_of, limit, records_max) == runs[-1:]


def test_written_blocks_must_hold_the_first_rows_of_the_batch() -> None:
    """SK6"""
    blocks = [WrittenBlock(10, 3, 0), WrittenBlock(15, 2, 1)]
    asked: list[int] = []

    def is_same(_: WrittenBlock, at: int) -> bool:
        asked.append(at)
        return True

    assert rows_written(blocks, 9, is_same, "ns/a") == 5
    assert asked == [0, 3]
    assert rows_written([], 9, is_same, "ns/a") == 0
    with pytest.raises(SinkReplayDiverged, match="ns/a has other records of this batch at 15"):
        rows_written(blocks, 4, is_same, "ns/a")
    with pytest.raises(SinkReplayDiverged, match="rowOrder=bytes"):
        rows_written(blocks, 9, lambda *_: False, "ns/a")


def test_batch_is_searched_for_after_the_last_complete_one() -> None:
    mark = LastBatch(4, 100, 120)
    assert (mark.looks_from(5, "ns/a"), mark.looks_from(4, "ns/a")) == (120, 100)
    with pytest.raises(SinkReplayDiverged, match="batch 3 is written to ns/a after batch 4"):
        mark.looks_from(3, "ns/a")


def some_rows(chance: random.Random, count: int) -> "pa.Table":
    def maybe(make: Any) -> list[Any]:
        holes = chance.choice((0.0, 0.3, 1.0))
        return [None if chance.random() < holes else make(n) for n in range(count)]

    columns = {
        "value": [b"v" * chance.randrange(9) for _ in range(count)],
        "key": maybe(lambda n: b"k%d" % n),
        "event_time": maybe(lambda n: 10**15 + n),
        "headers": maybe(lambda n: [{"key": f"h{i}", "value": b"%d" % n} for i in range(n % 3)]),
    }
    return pa.Table.from_pydict(columns, schema=SCHEMA)


@pytest.mark.parametrize("seed", range(40))
def test_packed_block_holds_its_rows(seed: int) -> None:
    """The block of rows from several tables passes the server's check."""
    chance = random.Random(seed)
    tables = [some_rows(chance, chance.randrange(1, 40)) for _ in range(3)]
    tables = [table.slice(chance.randrange(table.num_rows)) for table in tables]
    rows = ArrowRows.of(tables)
    start = chance.randrange(len(rows))
    end = chance.randrange(start, len(rows)) + 1
    codec = chance.choice((Codec.NONE, Codec.ZSTD))
    producer = ProducerRef(b"spark/query", 3, 7)
    packed = rows.pack(start, end, producer, codec)
    check_block(packed, Limits(100, 10_000, 1000))
    block = Block(packed)
    assert (block.count, block.producer) == (end - start, producer)
    assert block.unpacked_bytes <= rows.size(start, end)
    headers = [dict(each) for each in block.headers()]
    found = list(zip(block.values(), block.keys(), headers, block.event_times(), strict=True))
    assert found == rows.records(start, end)
    # The bytes depend on the rows only, not on their division into tables.
    assert ArrowRows.of([pa.concat_tables(tables)]).pack(start, end, producer, codec) == packed
    assert len(packed) > HEADER_BYTES


def test_rows_are_grouped_by_the_log_that_they_name() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"log": ["b", "a", "ns/c", "b"], "value": [b"1", b"2", b"3", b"4"]}
    )
    found = {log: table.column("value").to_pylist() for log, table in by_log(batch, "")}
    assert found == {"default/a": [b"2"], "default/b": [b"1", b"4"], "ns/c": [b"3"]}


def test_a_row_without_a_value_is_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"1", None], pa.binary())})
    with pytest.raises(InvalidRequest, match="1 rows have no value"):
        list(by_log(batch, "ns/a"))
