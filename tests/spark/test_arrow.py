"""Conversion of whole and partial blocks to Arrow batches, for any choice of columns."""

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from rollbook.api.spark.arrow import BYTES_ALONE, ROWS_ALONE, Batches, Slice
from rollbook.api.spark.core.options import COLUMNS, ON_DEMAND
from rollbook.api.spark.source_schema import schema_of
from rollbook.logservice.core.record_block import Block, Codec, pack_block, stamped

EVERY = (*COLUMNS, *ON_DEMAND)


def some_block(chance: random.Random, count: int, base: int) -> Block:
    def maybe(make: Any) -> Any:
        """Returns no column, a column with nulls or a full column."""
        holes = chance.choice((None, 0.0, 0.4))
        if holes is None:
            return None
        return [None if chance.random() < holes else make(n) for n in range(count)]

    packed = pack_block(
        [b"v" * chance.randrange(30) for _ in range(count)],
        keys=maybe(lambda n: b"k%d" % n),
        headers=maybe(lambda n: {f"h{i}": b"%d" % n for i in range(chance.randrange(3))}),
        event_times=maybe(lambda n: 10**15 + n),
        codec=chance.choice((Codec.NONE, Codec.ZSTD)),
    )
    stamp = {"base_timestamp_us": 10**15 + base, "owner_epoch": 1, "writer_epoch": 7}
    return Block(stamped(packed, base_offset=base, **stamp))


def expected(part: Slice) -> list[dict[str, Any]]:
    return [
        {
            "log": part.log,
            "offset": record.offset,
            "timestamp": record.timestamp_us,
            "key": record.key,
            "value": record.value,
            "event_time": record.event_time_us,
            "headers": [{"key": k, "value": v} for k, v in record.headers.items()],
            "writer_epoch": int(part.block.writer_epoch),
        }
        for record in part.block.records(part.first, part.last)
    ]


def rows_of(batches: list["pa.RecordBatch"]) -> list[dict[str, Any]]:
    found = []
    for batch in batches:
        batch.validate(full=True)
        plain = [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
            for column in batch.columns
        ]
        found += pa.RecordBatch.from_arrays(plain, names=batch.schema.names).to_pylist()
    return found


@pytest.mark.parametrize("seed", range(40))
def test_batches_hold_the_records_of_blocks_in_order(seed: int) -> None:
    chance = random.Random(seed)
    columns = chance.sample(EVERY, chance.randrange(1, len(EVERY) + 1))
    schema = to_arrow_schema(schema_of(columns), timezone="UTC")
    batches, parts, made, base = Batches(schema), [], [], 0
    for _ in range(chance.randrange(1, 12)):
        count = chance.choice((1, 1, 2, 9, 50, ROWS_ALONE + 8))
        block = some_block(chance, count, base)
        first = chance.randrange(count)
        parts.append(Slice("ns/a", block, first, chance.randrange(first, count) + 1))
        made += list(batches.add(parts[-1]))
        base += count
    made += list(batches.flush())
    assert all(batch.schema.equals(schema) for batch in made)
    wanted = [row for part in parts for row in expected(part)]
    assert rows_of(made) == [{name: row[name] for name in columns} for row in wanted]


def test_large_block_is_not_copied() -> None:
    block = some_block(random.Random(1), ROWS_ALONE, 0)
    schema = to_arrow_schema(schema_of(["value"]), timezone="UTC")
    (batch,) = Batches(schema).add(Slice("ns/a", block, 0, ROWS_ALONE))
    opened = pa.py_buffer(block._open()[0])
    data = batch.column(0).buffers()[2]
    assert opened.address <= data.address < opened.address + opened.size


def test_small_blocks_are_merged_up_to_a_bound() -> None:
    schema = to_arrow_schema(schema_of(COLUMNS), timezone="UTC")
    batches, made = Batches(schema), []
    for n in range(21_000):
        block = Block(
            stamped(
                pack_block([b"x"]),
                base_offset=n,
                base_timestamp_us=1,
                owner_epoch=1,
                writer_epoch=0,
            )
        )
        made += list(batches.add(Slice("ns/a", block, 0, 1)))
    made += list(batches.flush())
    assert len(made) == 3
    assert sum(batch.num_rows for batch in made) == 21_000


def test_a_block_of_many_bytes_is_a_batch_of_its_own() -> None:
    packed = pack_block([bytes(BYTES_ALONE)])
    block = Block(
        stamped(packed, base_offset=0, base_timestamp_us=1, owner_epoch=1, writer_epoch=0)
    )
    schema = to_arrow_schema(schema_of(["value"]), timezone="UTC")
    assert len(list(Batches(schema).add(Slice("ns/a", block, 0, 1)))) == 1


def test_count_reads_no_columns() -> None:
    schema = pa.schema([])
    batches = Batches(schema)
    list(batches.add(Slice("ns/a", some_block(random.Random(1), 9, 0), 2, 7)))
    (batch,) = batches.flush()
    assert (batch.num_rows, batch.num_columns) == (5, 0)
