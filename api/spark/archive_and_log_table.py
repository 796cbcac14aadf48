"""Makes one table from an archive and its logs."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from rollbook.api.spark.archive_folder import Archive
from rollbook.api.spark.batch import BatchReader
from rollbook.api.spark.core.archive_manifests import Chain
from rollbook.api.spark.core.archive_seam import Clip, Parts, divide, is_overtaken
from rollbook.api.spark.core.options import SourceOptions, StartPositions, source_options, values_of
from rollbook.api.spark.core.plan import Span
from rollbook.api.spark.core.stream_offsets import TailPoint
from rollbook.api.spark.failures import shown_in_spark
from rollbook.api.spark.log_bounds import require_some
from rollbook.api.spark.parquet_output import ARCHIVED
from rollbook.api.spark.shared_client import channel_of
from rollbook.api.spark.source_schema import schema_of
from rollbook.api.spark.tails import SelectionTails
from rollbook.logservice.position_syntax import AtOffset, AtTime, Earliest, Latest, Position
from rollbook.proto.errors import BadConfig

# The number of attempts to read manifests, if logs are truncated at the same time.
_LOOKS: Final = 3
_SPANS: Final = "spans"


class SpansSource(DataSource):
    """The data source `rollbook` with fixed ranges. It has the options of batch reads, and the option `spans`."""

    @classmethod
    def name(cls) -> str:
        return "rollbook_spans"

    def schema(self) -> StructType:
        return schema_of(self._parsed()[0].columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options, spans = self._parsed()
        return BatchReader(options, schema, spans)

    def _parsed(self) -> tuple[SourceOptions, tuple[Span, ...]]:
        given = {name.lower(): value for name, value in self.options.items()}
        text = given.pop(_SPANS)
        with shown_in_spark():
            options = source_options(values_of(given, os.environ))
        return options, _spans_in(text)


def _spans_in(text: str) -> tuple[Span, ...]:
    return tuple(
        Span(log, uid, int(start), int(end))
        for log, uid, start, end in (each.split(" ") for each in text.split("\n") if each)
    )


def _spans_as_text(spans: Sequence[Span]) -> str:
    return "\n".join(" ".join(map(str, span)) for span in spans)


def table(spark: Any, path: str, given: Mapping[str, str]) -> Any:
    """Returns a DataFrame with the archived and live records that exist now."""
    with shown_in_spark():
        options = source_options(values_of(given, os.environ))
        options.require_for("batch")
        parts = parts_of(options, Archive(path))
    clips = [clip for each in parts for clip in each.clips]
    spans = [span for each in parts for span in each.spans]
    frames = []
    if clips:
        frames.append(_archived(spark, os.path.abspath(path), clips, options))
    if spans or not frames:
        spark.dataSource.register(SpansSource)
        more = {_SPANS: _spans_as_text(spans)}
        frames.append(spark.read.format("rollbook_spans").options(**given, **more).load())
    rows = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
    return _within(rows, options)


def parts_of(options: SourceOptions, archive: Archive) -> list[Parts]:
    """Returns the parts of the table. Manifests are read before the tails, so records that are archived in
    the meantime are read from the log.
    """
    for look in range(_LOOKS):
        chains = archive.chains(options.selection.covers)
        tails = _tails(options)
        if look == _LOOKS - 1 or not any(
            is_overtaken(chains.get(log), tail) for log, tail in tails.items()
        ):
            break
    return divided(options, chains, tails)


def divided(
    options: SourceOptions, chains: Mapping[str, Chain], tails: Mapping[str, TailPoint]
) -> list[Parts]:
    known = {**chains, **tails}
    require_some(options.selection, known)
    return [
        divide(
            log,
            chains.get(log),
            tails.get(log),
            _offset(log, options.starting or StartPositions(Earliest()), at_latest=-1),
            _offset(log, options.ending, at_latest=None),
            is_strict=options.fails_on_data_loss,
        )
        for log in sorted(known)
    ]


def _tails(options: SourceOptions) -> dict[str, TailPoint]:
    view = SelectionTails(channel_of(options.access), options.selection)
    try:
        return view.ask()
    finally:
        view.close()


def _offset(log: str, wanted: StartPositions, *, at_latest: int | None) -> int | None:
    """Returns the offset to pass to `divide`. A time selects the whole log, since Spark filters the rows by time."""
    position: Position = wanted.of(log)
    match position:
        case AtOffset(offset):
            return int(offset)
        case Latest():
            return at_latest
        case Earliest() | AtTime():
            return None
    raise BadConfig(
        f"with an archive, a start or an end cannot be {position}",
        next_step="name an offset, a time, earliest or latest",
    )


def _archived(spark: Any, root: str, clips: Sequence[Clip], options: SourceOptions) -> Any:
    from pyspark.sql import functions as f
    from pyspark.sql.types import DateType, StringType, StructField

    stored = schema_of(ARCHIVED)
    by_folder = [StructField("log", StringType()), StructField("date", DateType())]
    paths = [os.path.join(root, clip.file.path) for clip in clips]
    rows = (
        spark.read.schema(StructType([*stored.fields, *by_folder]))
        .option("basePath", root)
        .parquet(*paths)
    )
    bounds: dict[str, tuple[int, int]] = {}
    for clip in clips:
        low, high = bounds.get(clip.log, (clip.start, clip.end))
        bounds[clip.log] = (min(low, clip.start), max(high, clip.end))
    cut = dict.fromkeys(clip.log for clip in clips if not clip.is_whole)
    for log in sorted(cut):
        low, high = bounds[log]
        inside = (f.col("offset") >= low) & (f.col("offset") < high)
        rows = rows.where((f.col("log") != log) | inside)
    return rows.select(*options.columns)


def _within(rows: Any, options: SourceOptions) -> Any:
    """Filters rows by time, which never goes back within a log."""
    from pyspark.sql import functions as f

    for wanted, is_start in ((options.starting, True), (options.ending, False)):
        if wanted is None:
            continue
        named = dict(wanted.named)
        if any(isinstance(each, AtTime) for each in (wanted.others, *named.values())):
            if "timestamp" not in options.columns or (named and "log" not in options.columns):
                raise BadConfig("with an archive, times need the columns log and timestamp")
            rows = rows.where(_condition(f, wanted, is_start))
    return rows


def _condition(f: Any, wanted: StartPositions, is_start: bool) -> Any:
    def one(position: Position) -> Any:
        if not isinstance(position, AtTime):
            return f.lit(True)
        at = f.timestamp_micros(f.lit(position.timestamp_us))
        return f.col("timestamp") >= at if is_start else f.col("timestamp") < at

    condition = one(wanted.others)
    for log, position in wanted.named:
        condition = f.when(f.col("log") == log, one(position)).otherwise(condition)
    return condition
