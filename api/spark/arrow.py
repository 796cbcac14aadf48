"""Turns blocks into Arrow batches without unpacking a record.

The sections of a block are buffers in Arrow's layout, so columns of a block or of a part of it use them
unchanged. Small blocks are merged, since each Arrow batch costs about 100 µs in Spark, regardless of its
size.
"""

from array import array
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from rollbook.logservice.core.record_block import Block, Section

ROWS_ALONE: Final = 1000  # A block of at least this many rows is a batch of its own.
BYTES_ALONE: Final = 64 * 1024  # A block of at least this many bytes is a batch of its own.
_ROWS_MERGED: Final = 10_000
_BYTES_MERGED: Final = 1024 * 1024
_IOTA: Final = 16 * 1024


class Slice(NamedTuple):
    """The records of one block from index `first` up to `last`, which is excluded."""

    log: str
    block: Block
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first


class Batches:
    """Turns slices of blocks into batches of one schema, in order."""

    def __init__(self, schema: "pa.Schema") -> None:
        self._schema = schema
        self._pending: list[Slice] = []
        self._rows = self._bytes = 0

    def add(self, part: Slice) -> Iterator["pa.RecordBatch"]:
        size = part.block.unpacked_bytes
        if part.rows >= ROWS_ALONE or size >= BYTES_ALONE:
            yield from self.flush()
            yield self._made([_column(part, field) for field in self._schema], part.rows)
            return
        self._pending.append(part)
        self._rows, self._bytes = self._rows + part.rows, self._bytes + size
        if self._rows >= _ROWS_MERGED or self._bytes >= _BYTES_MERGED:
            yield from self.flush()

    def flush(self) -> Iterator["pa.RecordBatch"]:
        parts, rows = self._pending, self._rows
        if not parts:
            return
        self._pending, self._rows, self._bytes = [], 0, 0
        if len(parts) == 1:
            columns = [_column(parts[0], field) for field in self._schema]
        else:
            columns = [_merged(parts, field) for field in self._schema]
        yield self._made(columns, rows)

    def _made(self, columns: list[Any], rows: int) -> "pa.RecordBatch":
        if not columns:  # `count()` selects no column.
            return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _column(part: Slice, field: "pa.Field") -> "pa.Array":
    _, block, first, _ = part
    rows = part.rows
    match field.name:
        case "log":
            return pa.repeat(pa.scalar(part.log, field.type), rows)
        case "offset":
            return _offsets(block.base_offset + first, rows)
        case "timestamp":
            return pa.repeat(pa.scalar(block.timestamp_us, field.type), rows)
        case "writer_epoch":
            return pa.repeat(pa.scalar(int(block.writer_epoch), field.type), rows)
        case "value":
            return _strings(part, field.type, Section.VALUE_OFFSETS, None)
        case "key":
            return _strings(part, field.type, Section.KEY_OFFSETS, Section.KEY_VALIDITY)
        case "event_time":
            times = block.section(Section.EVENT_TIMES)
            if times is None:
                return pa.nulls(rows, field.type)
            buffers = [_buffer(block.section(Section.EVENT_TIME_VALIDITY)), pa.py_buffer(times)]
            return pa.Array.from_buffers(field.type, rows, buffers, offset=first)
        case _:
            return _headers(part, field.type)


def _buffer(section: memoryview | None) -> "pa.Buffer | None":
    return None if section is None else pa.py_buffer(section)


def _strings(
    part: Slice, kind: "pa.DataType", offsets: Section, validity: Section | None
) -> "pa.Array":
    _, block, first, _ = part
    ends = block.section(offsets)
    if ends is None:
        return pa.nulls(part.rows, kind)
    buffers = [
        None if validity is None else _buffer(block.section(validity)),
        pa.py_buffer(ends),
        _buffer(block.section(Section(offsets + 1))),
    ]
    return pa.Array.from_buffers(kind, part.rows, buffers, offset=first)


def _headers(part: Slice, kind: "pa.DataType") -> "pa.Array":
    """Returns the column of headers. A record without headers has an empty array."""
    _, block, first, last = part
    ends = block.section(Section.HEADER_OFFSETS)
    pair = kind.value_type
    if ends is None:
        none = pa.py_buffer(bytes(4 * (part.rows + 1)))
        return pa.Array.from_buffers(kind, part.rows, [None, none], children=[pa.array([], pair)])
    names = block.section(Section.HEADER_NAME_OFFSETS)
    assert names is not None
    count = len(names) // 4 - 1
    children = [
        pa.Array.from_buffers(
            pair.field(index).type,
            count,
            [None, _buffer(block.section(offsets)), _buffer(block.section(Section(offsets + 1)))],
        )
        for index, offsets in enumerate((Section.HEADER_NAME_OFFSETS, Section.HEADER_VALUE_OFFSETS))
    ]
    pairs = pa.Array.from_buffers(pair, count, [None], children=children)
    return pa.Array.from_buffers(
        kind, last - first, [None, pa.py_buffer(ends)], offset=first, children=[pairs]
    )


def _offsets(start: int, rows: int) -> "pa.Array":
    numbers = _iota() if rows <= _IOTA else pa.array(array("q", range(rows)), pa.int64())
    return pc.add(numbers.slice(0, rows), pa.scalar(start, pa.int64()))


@lru_cache(1)
def _iota() -> "pa.Array":
    return pa.Array.from_buffers(pa.int64(), _IOTA, [None, pa.py_buffer(array("q", range(_IOTA)))])


def _merged(parts: list[Slice], field: "pa.Field") -> "pa.Array":
    found: list[Any] = []
    for log, block, first, last in parts:
        rows = last - first
        match field.name:
            case "log":
                found += [log] * rows
            case "offset":
                found += range(block.base_offset + first, block.base_offset + last)
            case "timestamp":
                found += [block.timestamp_us] * rows
            case "writer_epoch":
                found += [int(block.writer_epoch)] * rows
            case "value":
                found += _cut(block.values(), first, last)
            case "key":
                found += _cut(block.keys(), first, last)
            case "event_time":
                found += _cut(block.event_times(), first, last)
            case _:
                found += [list(each.items()) for each in _cut(block.headers(), first, last)]
    if pa.types.is_timestamp(field.type):
        return pa.array(found, pa.int64()).view(field.type)
    return pa.array(found, field.type)


def _cut(items: list[Any], first: int, last: int) -> list[Any]:
    return items if first == 0 and last == len(items) else items[first:last]
