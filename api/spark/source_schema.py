"""The columns of the source with their Spark types, and the check of a schema that a user gives."""

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rollbook.proto.errors import BadConfig

HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_TYPES: Final[dict[str, DataType]] = {
    "log": StringType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "event_time": TimestampType(),
    "headers": HEADERS,
    "writer_epoch": LongType(),
}
_NEVER_NULL: Final = ("log", "offset")


def schema_of(columns: Sequence[str]) -> StructType:
    return StructType(
        [StructField(name, _TYPES[name], nullable=name not in _NEVER_NULL) for name in columns]
    )


def check_schema(schema: StructType) -> None:
    """Checks the schema that a user gave with `.schema()`. Raises `BadConfig`."""
    for field in schema.fields:
        wanted = _TYPES.get(field.name)
        if wanted is None:
            raise BadConfig(
                f"there is no column {field.name}", next_step=f"the columns are {', '.join(_TYPES)}"
            )
        if shape_of(field.dataType) != shape_of(wanted):
            raise BadConfig(
                f"column {field.name} is {wanted.simpleString()}, not {field.dataType.simpleString()}",
                next_step="read it as it is, and cast it in the query",
            )
        if not field.nullable and field.name not in (*_NEVER_NULL, "timestamp", "value"):
            raise BadConfig(f"column {field.name} may be null", next_step="leave NOT NULL out")


def shape_of(kind: Any) -> Any:
    """Returns a type without its nullability."""
    if isinstance(kind, ArrayType):
        return ("array", shape_of(kind.elementType))
    if isinstance(kind, StructType):
        return tuple((field.name, shape_of(field.dataType)) for field in kind.fields)
    return kind.simpleString()
