"""Turns rows of Spark into columns of a log, and columns into blocks, without unpacking a record."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StringType, StructType, TimestampType

from rollbook.api.spark.source_schema import HEADERS, shape_of
from rollbook.logservice.core.record_block import Codec, Section, pack_sections
from rollbook.logservice.ids import LogName, ProducerRef
from rollbook.proto.errors import BadConfig, InvalidRequest

_PAIR: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA: Final = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("key", pa.binary()),
        pa.field("event_time", pa.int64()),
        pa.field("headers", pa.list_(_PAIR)),
    ]
)
_TAKES: Final = {
    "value": (BinaryType(), StringType()),
    "key": (BinaryType(), StringType()),
    "event_time": (TimestampType(),),
    "headers": (HEADERS,),
    "log": (StringType(),),
}
_BLOCK_BYTES: Final = 512  # The maximum bytes of a block's directory and padding.


def check_columns(schema: StructType, log: str) -> None:
    """Checks the columns of rows that will be written. `log` is the option of this name. Raises `BadConfig`."""
    found = {field.name: field.dataType for field in schema.fields}
    for name, kind in found.items():
        if name not in _TAKES:
            raise BadConfig(
                f"column {name} cannot be written", next_step=f"select some of {', '.join(_TAKES)}"
            )
        if all(shape_of(kind) != shape_of(taken) for taken in _TAKES[name]):
            taken = " or ".join(each.simpleString() for each in _TAKES[name])
            raise BadConfig(f"column {name} is {kind.simpleString()}, and must be {taken}")
    if "value" not in found:
        raise BadConfig(
            "there is no column value, which becomes the record",
            next_step="select one, for example to_json(struct(*)) AS value",
        )
    if ("log" in found) == bool(log):
        both = "option log and column log contradict each other" if log else "no log is named"
        raise BadConfig(both, next_step="give the option log or a column log, but not both")


def columns_of(batch: "pa.RecordBatch") -> "pa.Table":
    """Returns the rows with the columns of `SCHEMA`. Raises `InvalidRequest`."""
    arrays: list[Any] = []
    for field in SCHEMA:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(index)
        if field.name == "event_time":
            column = column.cast(pa.timestamp("us", tz="UTC")).view(pa.int64())
        elif field.name == "headers":
            column = column.cast(field.type)
        else:
            column = column.cast(pa.binary())
        arrays.append(column)
    if arrays[0].null_count:
        raise InvalidRequest(
            f"{arrays[0].null_count} rows have no value",
            next_step="leave them out: where value is not null",
        )
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def by_log(batch: "pa.RecordBatch", log: str) -> Iterator[tuple[str, "pa.Table"]]:
    """Yields each log with its rows, in their order."""
    if log:
        yield log, columns_of(batch)
        return
    names = batch.column(batch.schema.get_field_index("log"))
    if names.null_count:
        raise InvalidRequest(f"{names.null_count} rows have no log in their column log")
    for name in sorted(pc.unique(names).to_pylist()):
        chosen = batch.filter(pc.equal(names, pa.scalar(name, names.type)))
        yield str(LogName.parse(name)), columns_of(chosen)


def sorted_by_bytes(table: "pa.Table") -> "pa.Table":
    """Sorts rows, which may arrive in any order, so that their order is the same each time."""
    return table.sort_by(
        [("value", "ascending"), ("key", "ascending"), ("event_time", "ascending")]
    )


@dataclass(frozen=True)
class ArrowRows:
    """Columns from which blocks are cut. Each column is contiguous in memory."""

    table: "pa.Table"

    @classmethod
    def of(cls, tables: Sequence["pa.Table"]) -> "ArrowRows":
        return cls(pa.concat_tables(tables).combine_chunks())

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def _column(self, name: str) -> Any:
        column = self.table.column(name)
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)

    def size(self, start: int, end: int) -> int:
        """Returns the maximum size of a block with these rows."""
        count = end - start
        size = _BLOCK_BYTES + _bytes_in(self._column("value"), start, end) + 4 * (count + 1)
        key = self._column("key")
        if key.null_count < len(key):
            size += _bytes_in(key, start, end) + 4 * (count + 1) + count // 8
        times = self._column("event_time")
        if times.null_count < len(times):
            size += 8 * count + count // 8
        headers = self._column("headers")
        if headers.null_count < len(headers):
            first, last = _ends(headers, start), _ends(headers, end)
            names, contents = headers.values.field(0), headers.values.field(1)
            size += _bytes_in(names, first, last) + _bytes_in(contents, first, last)
            size += 4 * (count + 1) + 8 * (last - first + 1)
        return size

    def pack(self, start: int, end: int, producer: ProducerRef | None, codec: Codec) -> bytes:
        count = end - start
        part = self.table.slice(start, count)
        value, key, times, headers = (_one(part.column(name)) for name in SCHEMA.names)
        sections = _strings(Section.VALUE_OFFSETS, value)
        if key.null_count < count:
            sections += _strings(Section.KEY_OFFSETS, pc.fill_null(key, b""))
            sections += _validity(Section.KEY_VALIDITY, key)
        if times.null_count < count:
            filled = pc.fill_null(times, 0)
            sections.append((Section.EVENT_TIMES, _bytes(filled, 1, 8)))
            sections += _validity(Section.EVENT_TIME_VALIDITY, times)
        if headers.null_count < count:
            sections += _headers(headers)
        return pack_sections(sections, count, producer=producer, codec=codec)

    def records(self, start: int, end: int) -> list[tuple[Any, ...]]:
        """Returns value, key, headers and event time of each row, for comparisons only."""
        part = self.table.slice(start, end - start)
        value, key, times, headers = (part.column(name).to_pylist() for name in SCHEMA.names)
        pairs = ({each["key"]: each["value"] or b"" for each in row or ()} for row in headers)
        return list(zip(value, key, pairs, times, strict=True))


def _one(column: Any) -> Any:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _ends(array: Any, index: int) -> int:
    """Returns the position at which the item before `index` ends."""
    ends = memoryview(array.buffers()[1]).cast("i")
    return int(ends[array.offset + index])


def _bytes_in(array: Any, start: int, end: int) -> int:
    return _ends(array, end) - _ends(array, start) if len(array) else 0


def _bytes(array: Any, buffer: int, width: int, more: int = 0) -> Any:
    data = memoryview(array.buffers()[buffer])
    return data[width * array.offset : width * (array.offset + len(array) + more)]


def _strings(offsets: Section, array: Any) -> list[tuple[Section, Any]]:
    first, last = _ends(array, 0), _ends(array, len(array))
    ends = _bytes(array, 1, 4, more=1)
    if first:
        shifted = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, pa.py_buffer(ends)])
        ends = _bytes(pc.subtract(shifted, pa.scalar(first, pa.int32())), 1, 4)
    data = array.buffers()[2]
    values = memoryview(data)[first:last] if data is not None else b""
    return [(offsets, ends), (Section(offsets + 1), values)]


def _validity(section: Section, array: Any) -> list[tuple[Section, Any]]:
    if not array.null_count:
        return []
    size = (len(array) + 7) // 8
    bits = bytearray(memoryview(pc.is_valid(array).buffers()[1])[:size])
    if len(array) % 8:
        bits[-1] &= (1 << len(array) % 8) - 1
    return [(section, bytes(bits))]


def _headers(array: Any) -> list[tuple[Section, Any]]:
    """Returns the sections of headers. A record without headers has an empty list."""
    counts = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32())
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts)])
    names, contents = array.flatten().flatten()
    if names.null_count or pc.any(pc.equal(pc.binary_length(names), 0)).as_py():
        raise InvalidRequest("a header has no name")
    return [
        (Section.HEADER_OFFSETS, _bytes(ends, 1, 4)),
        *_strings(Section.HEADER_NAME_OFFSETS, names.cast(pa.binary())),
        *_strings(Section.HEADER_VALUE_OFFSETS, pc.fill_null(contents, b"")),
    ]
