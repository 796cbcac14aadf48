"""The rows that the workers of a scan pass to Spark: records, and one row of facts for each piece. The facts tell
whether the records were in order.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from rollbook.api.spark.arrow import Slice

ROWS: Final = StructType(
    [
        StructField("piece", LongType(), nullable=False),
        StructField("offset", LongType()),
        StructField("value", BinaryType()),
        StructField("facts", StringType()),
    ]
)
_SCHEMA: Final = to_arrow_schema(ROWS, timezone="UTC")


def record_rows(piece: int, batch: "pa.RecordBatch") -> "pa.RecordBatch":
    count = batch.num_rows
    columns = [
        pa.repeat(pa.scalar(piece, pa.int64()), count),
        batch.column("offset"),
        batch.column("value"),
        pa.nulls(count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def facts_row(piece: int, facts: Mapping[str, Any]) -> "pa.RecordBatch":
    row = {"piece": piece, "offset": None, "value": None, "facts": json.dumps(facts)}
    return pa.RecordBatch.from_pylist([row], schema=_SCHEMA)


class RecordOrder:
    """Checks that records are in order by offset and time. The check compares blocks, so its cost does not
    depend on the number of records.
    """

    def __init__(self, at: int) -> None:
        self.first = self.next = at
        self.first_us = self.last_us = 0

    def fault(self, part: Slice) -> str:
        """Returns the reason why `part` does not follow the last part, or an empty string if it does."""
        at, time_us = part.block.base_offset + part.first, part.block.timestamp_us
        expected, last_us = self.next, self.last_us
        self.next = at + part.rows
        self.last_us = time_us
        if expected == self.first and not self.first_us:
            self.first_us = time_us
        if at != expected:
            return f"offset {at} follows {expected - 1}"
        return (
            f"the time of record {at} is before that of record {at - 1}"
            if time_us < last_us
            else ""
        )
