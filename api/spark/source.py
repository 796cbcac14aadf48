"""The data source `rollbook`, which Spark creates from its name and options."""

import os
from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from rollbook.api.spark.batch import BatchReader, spans_of
from rollbook.api.spark.core.options import SourceOptions, sink_options, source_options, values_of
from rollbook.api.spark.core.plan import Span
from rollbook.api.spark.failures import RollbookFailure, shown_in_spark
from rollbook.api.spark.source_schema import check_schema, schema_of
from rollbook.api.spark.stream import StreamReader
from rollbook.proto.errors import BadConfig


class RollbookSource(DataSource):
    """Spark makes a source at each `load()` and pickles it, so the source has no open connection. The ends of
    a batch read are resolved in `schema()`, so that a DataFrame keeps the contents that it had at `load()`
    (SK4).
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = {name.lower(): value for name, value in options.items()}
        self._spans: tuple[Span, ...] | None = None
        # Why the ranges of a batch read could not be resolved; empty if they were. A stream ignores it.
        self._refusal = ""
        with shown_in_spark():
            self._values: dict[str, Any] = values_of(self.options, os.environ)

    @classmethod
    def name(cls) -> str:
        return "rollbook"

    def schema(self) -> StructType:
        with shown_in_spark():
            options = source_options(self._values)
        try:
            with shown_in_spark():
                self._spans = spans_of(options)
        except RollbookFailure as failure:
            # A stream ignores the failure, since its checkpoint may be far ahead.
            self._refusal = str(failure)
        return schema_of(options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        with shown_in_spark():
            options = self._checked(schema, "batch")
        if self._refusal:
            raise RollbookFailure(self._refusal)
        return BatchReader(options, schema, self._spans)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name.
        with shown_in_spark():
            return StreamReader(self._checked(schema, "stream"), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rollbook.api.spark.sink import BatchSink, check

        with shown_in_spark():
            options = sink_options(self._values)
            check(options, schema, overwrite)
            return BatchSink(options, schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from rollbook.api.spark.sink import StreamSink, check

        with shown_in_spark():
            options = sink_options(self._values, is_stream=True)
            if options.txn_id:
                raise BadConfig("option txnId is for batch writes: a stream uses its query's id")
            check(options, schema, overwrite)
            return StreamSink(options, schema, self.options.get("checkpointlocation", ""))

    def _checked(self, schema: StructType, kind: str) -> SourceOptions:
        check_schema(schema)
        options = source_options(self._values)
        options.require_for(kind)
        return options
