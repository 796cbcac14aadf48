"""The data source in a real Spark session: batch reads, SQL and streams."""

import time
from pathlib import Path
from typing import Any

import pytest

from rollbook.api import spark as rollbook_spark
from rollbook.api.client.sync import SyncClient
from tests.regressions.lone_server import PATIENCE_S, Site

pytestmark = pytest.mark.timeout(300)  # The first test waits for the JVM.


def numbered(first: int, last: int) -> list[bytes]:
    return [b"v%d" % n for n in range(first, last)]


def loaded(spark: Any, site: Site, name: str, **options: Any) -> Any:
    return rollbook_spark.read(spark, endpoint=site.url, log=name, **options)


def run(frame: Any, site: Site, name: str, folder: Path, **options: str) -> Any:
    """Copies all records that are available now into another log."""
    query = (
        frame.writeStream.format("rollbook")
        .options(
            endpoint=site.url, log=name, checkpointLocation=str(folder / "checkpoint"), **options
        )
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    return query


def test_log_is_read_as_a_table(spark: Any, site: Site, client: SyncClient, name: str) -> None:
    log = client.open(name, create=True)
    log.append_many(numbered(0, 3000), keys=[b"k", None] * 1500)
    log.append(b"last", headers={"h": b"1"}, event_time_us=1_700_000_000_000_000)
    wanted = "offset,key,event_time,headers,writer_epoch,log,timestamp,value"
    table = loaded(spark, site, name, columns=wanted, minPartitions=3)
    found = table.selectExpr(
        "count(*)",
        "sum(offset)",
        "count(key)",
        "max(cast(event_time as long))",
        "sum(size(headers))",
    ).collect()
    assert [tuple(row) for row in found] == [(3001, 3001 * 1500, 1500, 1_700_000_000, 1)]
    assert table.rdd.getNumPartitions() == 3
    assert table.count() == 3001


def test_filter_of_one_scan_does_not_affect_another(
    spark: Any, site: Site, client: SyncClient, name: str
) -> None:
    """Spark passes filters that a source accepts to its next scan, so this source accepts none."""
    client.open(name, create=True).append_many(numbered(0, 1000))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = loaded(spark, site, name)
        some = rows.where("offset < 100")
        assert (some.count(), rows.count()) == (100, 1000)
        assert some.union(rows).count() == 1100
        assert some.union(rows.where("offset >= 995")).count() == 105
        assert some.union(rows.where("value is null")).count() == 100
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_sql_reads_and_writes_views_and_tables(
    spark: Any, site: Site, client: SyncClient, name: str
) -> None:
    log = client.open(name, create=True)
    log.append_many(numbered(0, 5))
    rollbook_spark.register(spark)
    view = f"view_{name.replace('-', '_')}"
    options = f"endpoint '{site.url}', log '{name}', columns 'value'"
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING rollbook OPTIONS ({options})")
    assert spark.sql(f"SELECT count(*) FROM {view}").collect()[0][0] == 5
    spark.sql(f"INSERT INTO {view} SELECT cast('v5' AS binary)")
    spark.sql(f"CREATE TABLE table_{view} (value BINARY) USING rollbook")
    given = f"endpoint = '{site.url}', log = '{name}'"
    spark.sql(f"INSERT INTO table_{view} WITH ({given}) SELECT cast('v6' AS binary)")
    assert spark.sql(f"SELECT count(*) FROM table_{view} WITH ({given})").collect()[0][0] == 7
    assert [record.value for record in log.read()] == numbered(0, 7)
    with pytest.raises(Exception, match=r"(?s)CREATE TABLE.*CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE t_{view} USING rollbook OPTIONS ({options})")


def test_invalid_option_and_missing_log_raise_clear_errors(spark: Any, site: Site) -> None:
    with pytest.raises(
        Exception, match=r"BAD_CONFIG: option startingoffset='x' is unknown · use startingOffsets"
    ):
        loaded(spark, site, "any", startingOffset="x")
    with pytest.raises(Exception, match="LOG_NOT_FOUND: there is no log default/nobody"):
        loaded(spark, site, "nobody").count()


def rows_of(query: Any) -> list[int]:
    return [each.numInputRows for each in query.recentProgress if each.numInputRows]


def test_stream_is_written_once_across_a_restart(
    spark: Any, site: Site, client: SyncClient, name: str, tmp_path: Path
) -> None:
    log, copy = client.open(name, create=True), client.open(f"{name}-copy", create=True)
    log.append_many(numbered(0, 250), keys=[b"k", None] * 125)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 100, "minPartitions": 3}
    stream = rollbook_spark.read_stream(spark, endpoint=site.url, log=name, **options)
    rows = stream.select("key", "value")
    query = run(rows, site, f"{name}-copy", tmp_path)
    assert rows_of(query) == [100, 100, 50]
    assert rollbook_spark.lag(query) == rollbook_spark.Lag(0, {f"default/{name}": 0})
    (
        tmp_path / "checkpoint" / "commits" / "2"
    ).unlink()  # As if killed before Spark wrote the commit.
    for left in (tmp_path / "checkpoint" / "commits").glob(".2*"):
        left.unlink()
    log.append_many(numbered(250, 260))
    query = run(rows, site, f"{name}-copy", tmp_path)
    assert rows_of(query) == [50, 10]
    found = list(copy.read())
    assert [each.value for each in found] == numbered(0, 260)
    assert [each.key for each in found[:250]] == [b"k", None] * 125
    producers = [block.producer for batch in copy.read_batches() for block in batch.blocks]
    assert [each and (each.epoch, each.seq) for each in producers] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (3, 0),
    ]
    assert producers[0] is not None
    assert producers[0].id == f"spark/{query.id}".encode()


def test_data_frame_is_appended_and_overwrite_is_refused(
    spark: Any, site: Site, client: SyncClient, name: str
) -> None:
    rollbook_spark.register(spark)
    log = client.open(name, create=True)
    spark.range(3).selectExpr("cast(id as string) AS value").coalesce(1).write.format(
        "rollbook"
    ).options(endpoint=site.url, log=name).mode("append").save()
    assert [record.value for record in log.read()] == [b"0", b"1", b"2"]
    with pytest.raises(Exception, match="a log cannot be overwritten"):
        spark.range(3).selectExpr("cast(id as string) AS value").write.format("rollbook").options(
            endpoint=site.url, log=name
        ).mode("overwrite").save()


def test_listener_counts_the_rows_of_a_query(
    spark: Any, site: Site, client: SyncClient, name: str, tmp_path: Path
) -> None:
    from prometheus_client import CollectorRegistry

    client.open(name, create=True).append_many(numbered(0, 10))
    client.open(f"{name}-copy", create=True)
    registry = CollectorRegistry()
    listener = rollbook_spark.RollbookListener(registry)
    spark.streams.addListener(listener)
    try:
        stream = rollbook_spark.read_stream(
            spark, endpoint=site.url, log=name, startingOffsets="earliest"
        )
        query = run(stream.select("value"), site, f"{name}-copy", tmp_path)
        due_s = time.monotonic() + PATIENCE_S
        while (
            registry.get_sample_value("rollbook_spark_rows_total", {"query": str(query.id)}) != 10
        ):
            assert time.monotonic() < due_s
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(listener)
