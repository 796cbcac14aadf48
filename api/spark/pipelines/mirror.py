"""Mirrors a log into another one, perhaps of another cluster: each record once, with headers that name its
origin.

The mirror is a stream from the source to the sink. Its checkpoint makes it exactly-once. With a new checkpoint, it
starts after the source record that the mirror's last record names, so no record is lost or repeated if the
checkpoint is lost (SA6). If all records of the mirror were truncated, it needs its old checkpoint.
"""

from typing import Any, Final

from rollbook.api.spark.core import mirror_origin
from rollbook.api.spark.core.options import Selection
from rollbook.api.spark.failures import original_from_spark
from rollbook.api.spark.log_bounds import require_some
from rollbook.api.spark.pipelines.connection import Way
from rollbook.api.spark.pipelines.job_report import Progress, Report
from rollbook.api.spark.session_functions import register
from rollbook.proto.errors import MirrorHeld

_COLUMNS: Final = "log,offset,timestamp,key,value,event_time,headers"
_TRIGGER_BYTES: Final = "64m"


def start_of(
    way: Way, to: Way, log: str, target: str, *, has_checkpoint: bool = False
) -> tuple[str, int]:
    """Returns the uid of the source, and the offset of its first record that the mirror lacks. Raises
    `MirrorHeld`.

    If `has_checkpoint`, Spark takes the start from the checkpoint and ignores the returned offset.
    """
    selection = Selection(names=(log,))
    tails = way.tails(selection)
    require_some(selection, tails)
    tail = tails[log]
    handle = to.channel.patiently(lambda: to.channel.client.open(target))
    ends_at = to.channel.patiently(lambda: handle.tail_offset("read_barrier"))
    if ends_at == 0:
        return tail.uid, tail.head
    if ends_at == to.channel.patiently(handle.head_offset):
        if has_checkpoint:
            return tail.uid, tail.head
        raise MirrorHeld(
            f"all {ends_at} records of {target} were truncated, so no record shows how far the mirror has read {log}",
            next_step="use the checkpoint that the mirror had, or mirror into a new log",
            log=target,
        )
    last = list(handle.read(ends_at - 1, ends_at))[-1]
    origin = mirror_origin.origin_of(dict(last.headers))
    if origin is None or (origin.log, origin.uid) != (log, tail.uid):
        raise MirrorHeld(
            f"{target} has records that do not come from {log}: the last one, at offset {last.offset}, does not",
            next_step="mirror it into a log of its own",
            log=target,
        )
    return tail.uid, origin.offset + 1


def mirror(
    spark: Any,
    way: Way,
    to: Way,
    log: str,
    target: str,
    checkpoint: str,
    report: Report,
    on_progress: Progress,
    every_s: float = 0.0,
) -> None:
    """Mirrors a log. With `every_s`, it runs until it is stopped, with a batch at this interval. With 0, it mirrors
    the existing records and ends.
    """
    register(spark)
    uid, start = start_of(way, to, log, target, has_checkpoint=_has_begun(spark, checkpoint))
    stream = (
        spark.readStream.format("rollbook")
        .options(**way.options, log=log, columns=_COLUMNS, maxBytesPerTrigger=_TRIGGER_BYTES)
        .option("startingOffsets", str(start))
        .load()
    )
    rows = stream.selectExpr("value", "key", "event_time", f"{_headers(log, uid)} AS headers")
    writer = (
        rows.writeStream.format("rollbook")
        .options(**to.options, log=target, checkpointLocation=checkpoint)
        .trigger(
            **({"processingTime": f"{every_s} seconds"} if every_s else {"availableNow": True})
        )
    )
    row = report.logs.setdefault(target, {"from": log, "first": start, "records": 0})
    with original_from_spark():
        query = writer.start()
        seen = -1
        try:
            while not query.awaitTermination(1):
                seen = _note(query, row, seen, on_progress)
            _note(query, row, seen, on_progress)
        finally:
            query.stop()


def _has_begun(spark: Any, checkpoint: str) -> bool:
    """Returns whether a query has recorded its first batch in this checkpoint, which may be in any file system that
    Spark knows.
    """
    hadoop = spark._jvm.org.apache.hadoop.fs  # noqa: SLF001 - Spark has no public way to list files.
    offsets = hadoop.Path(checkpoint, "offsets")
    system = offsets.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001
    if not system.exists(offsets):
        return False
    return any(each.getPath().getName().isdigit() for each in system.listStatus(offsets))


def _headers(log: str, uid: str) -> str:
    """Returns the expression for a record's headers. The source may itself be a mirror; the expression replaces the
    headers that name its source.
    """
    ours = ", ".join(
        f"'{name}'" for name in (mirror_origin.LOG, mirror_origin.OFFSET, mirror_origin.TIME)
    )
    said = {
        mirror_origin.LOG: f"'{mirror_origin.as_text(log, uid)}'",
        mirror_origin.OFFSET: "cast(offset AS string)",
        mirror_origin.TIME: "cast(unix_micros(timestamp) AS string)",
    }
    pairs = ", ".join(
        f"named_struct('key', '{name}', 'value', cast({value} AS binary))"
        for name, value in said.items()
    )
    return f"concat(filter(headers, h -> h.key NOT IN ({ours})), array({pairs}))"


def _note(query: Any, row: dict[str, Any], seen: int, on_progress: Progress) -> int:
    """Counts the records of each batch once. Spark keeps the reports of the last hundred batches."""
    from rollbook.api.spark.lag import lag

    for each in query.recentProgress:
        if each.batchId > seen:
            seen = each.batchId
            row["records"] += max(each.numInputRows, 0)
    done = row["records"]
    on_progress(done, done + lag(query).records)
    return seen
