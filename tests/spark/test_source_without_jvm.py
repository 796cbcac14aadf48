"""The source against a real server, called as Spark calls it, without a JVM."""

import json
import re
import subprocess
import sys
import time
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from rollbook.api.client.sync import SyncClient
from rollbook.api.spark.core.options import ServerAccess
from rollbook.api.spark.failures import RollbookFailure
from rollbook.api.spark.shared_client import ServerChannel
from rollbook.logservice.core.record_block import Headers
from rollbook.proto.errors import LogDeleted, NoSuchLog, Overloaded
from tests.regressions.lone_server import PATIENCE_S, Site
from tests.spark.drive import Loaded, Query, copied


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


def numbered(first: int, last: int) -> list[bytes]:
    return [b"v%d" % n for n in range(first, last)]


def replace(client: SyncClient, name: str, *values: bytes) -> None:
    """Creates another log of the same name, after the ledgers of the deleted log are gone."""
    due_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            log = client.open(name, create=True)
        except LogDeleted:  # The ledgers of the deleted log still exist.
            assert time.monotonic() < due_s
            time.sleep(0.02)
        else:
            break
    log.append_many(values)


# --- Batch ------------------------------------------------------------------------------------


def test_batch_read_returns_every_column(site: Site, client: SyncClient, name: str) -> None:
    headers: list[Headers | None] = [{"h": b"1"}, None]
    log = client.open(name, create=True)
    ack = log.append_many([b"a", b"b"], keys=[None, b"k"], headers=headers, event_times=[5, None])
    log.append(b"c")
    wanted = "log,offset,timestamp,key,value,event_time,headers,writer_epoch"
    first, second, third = Loaded(endpoint=site.url, log=name, columns=wanted).rows()
    assert (first["log"], first["offset"], first["key"], first["value"]) == (
        f"default/{name}",
        0,
        None,
        b"a",
    )
    assert first["headers"] == [{"key": "h", "value": b"1"}]
    assert first["event_time"].microsecond == 5
    assert round(first["timestamp"].timestamp() * 1e6) == ack.timestamp_us
    assert (second["key"], second["headers"], second["event_time"]) == (b"k", [], None)
    assert (third["value"], third["writer_epoch"]) == (b"c", 0)


def test_ranges_begin_and_end_within_blocks(site: Site, client: SyncClient, name: str) -> None:
    log = client.open(name, create=True)
    for n in range(0, 3000, 1500):
        log.append_many(numbered(n, n + 1500))
    loaded = Loaded(
        endpoint=site.url,
        log=name,
        startingOffsets="7",
        endingOffsets=f'{{"{name}": 2993}}',
        minPartitions="7",
    )
    assert len(loaded.partitions()) == 7
    rows = loaded.rows()
    assert offsets(rows) == list(range(7, 2993))
    assert [row["value"] for row in rows] == numbered(7, 2993)


def test_loaded_table_does_not_grow_with_its_log(site: Site, client: SyncClient, name: str) -> None:
    """SK4"""
    log = client.open(name, create=True)
    log.append_many(numbered(0, 2))
    loaded = Loaded(endpoint=site.url, log=name)
    log.append(b"later")
    assert len(loaded.rows()) == 2
    assert len(Loaded(endpoint=site.url, log=name).rows()) == 3


def test_many_small_logs_share_a_task(site: Site, client: SyncClient, name: str) -> None:
    for n in range(12):
        client.open(f"{name}/x{n:02}", create=True).append(b"%d" % n)
    loaded = Loaded(endpoint=site.url, prefix=f"{name}/x")
    assert len(loaded.partitions()) == 1
    assert [row["value"] for row in loaded.rows()] == [b"%d" % n for n in range(12)]
    assert len(loaded.batches()) == 1
    some = Loaded(endpoint=site.url, logPattern=f"{name}/x0[0-4]")
    assert len(some.rows()) == 5


def test_user_schema_selects_columns(site: Site, client: SyncClient, name: str) -> None:
    client.open(name, create=True).append(b"a")
    wanted = StructType([StructField("value", BinaryType())])
    assert Loaded(wanted, endpoint=site.url, log=name).rows() == [{"value": b"a"}]
    price = StructType([StructField("price", LongType())])
    with pytest.raises(RollbookFailure, match="BAD_CONFIG: there is no column price"):
        Loaded(price, endpoint=site.url, log=name).partitions()
    number = StructType([StructField("value", LongType())])
    with pytest.raises(RollbookFailure, match="column value is binary, not bigint"):
        Loaded(number, endpoint=site.url, log=name).partitions()


def test_an_empty_log_has_no_tasks(site: Site, client: SyncClient, name: str) -> None:
    client.open(name, create=True)
    loaded = Loaded(endpoint=site.url, log=name)
    assert loaded.partitions() == []
    from pyspark.sql.datasource import InputPartition

    reader = copied(loaded.source).reader(schema=loaded.schema)
    assert list(reader.read(InputPartition(None))) == []  # Spark adds a partition of its own.


def test_ranges_can_be_given_by_timestamp(site: Site, client: SyncClient, name: str) -> None:
    log = client.open(name, create=True)
    log.append(b"a")
    second = log.append(b"b").timestamp_us
    at = str(-(-second // 1000))
    found = Loaded(
        endpoint=site.url, log=name, endingTimestamp=at, startingOffsets="earliest"
    ).rows()
    assert len(found) in (1, 2)  # Both records may be in the same millisecond.
    with pytest.raises(RollbookFailure, match=r"BEYOND_TAIL.*timestampNotFound=latest"):
        Loaded(endpoint=site.url, log=name, startingTimestamp="4000000000000").rows()
    later = {"startingTimestamp": "4000000000000", "timestampNotFound": "latest"}
    assert Loaded(endpoint=site.url, log=name, **later).rows() == []


def test_missing_log_is_named_in_the_error(site: Site) -> None:
    with pytest.raises(RollbookFailure, match="LOG_NOT_FOUND: there is no log default/nobody"):
        Loaded(endpoint=site.url, log="nobody").rows()


def test_truncated_records_fail_the_read_or_are_left_out(
    site: Site, client: SyncClient, name: str
) -> None:
    log = client.open(name, create=True)
    log.append_many(numbered(0, 50))
    strict = Loaded(endpoint=site.url, log=name)
    tolerant = Loaded(endpoint=site.url, log=name, failOnDataLoss="false")
    log.truncate(20)
    with pytest.raises(
        RollbookFailure,
        match=rf"LOG_DATA_LOSS: records \[0, 20\) of default/{name} were truncated.*failOnDataLoss=false",
    ):
        strict.rows()
    assert offsets(tolerant.rows()) == list(range(20, 50))


def test_deleted_or_replaced_log_fails_the_batch_read(
    site: Site, client: SyncClient, name: str
) -> None:
    """SK2: the new log's tail may be higher, so offsets cannot tell the logs apart."""
    client.open(name, create=True).append_many(numbered(0, 5))
    loaded = Loaded(endpoint=site.url, log=name)
    client.delete(name, grace_s=0)
    with pytest.raises(RollbookFailure, match="LOG_DELETED"):
        loaded.rows()
    replace(client, name, *numbered(0, 50))
    with pytest.raises(RollbookFailure, match="LOG_REPLACED"):
        loaded.rows()


def test_a_sealed_log_is_read_to_its_end(site: Site, client: SyncClient, name: str) -> None:
    log = client.open(name, create=True)
    log.append_many(numbered(0, 5))
    log.seal()
    assert len(Loaded(endpoint=site.url, log=name).rows()) == 5


# --- Streams ----------------------------------------------------------------------------------


def streamed(site: Site, name: str, **options: str) -> Query:
    return Query(endpoint=site.url, log=name, **{"pollWait": "20ms", **options})


def test_stream_starts_at_the_tail_and_resumes(site: Site, client: SyncClient, name: str) -> None:
    log = client.open(name, create=True)
    log.append_many(numbered(0, 5))
    query = streamed(site, name)
    assert query.rows() == []
    log.append_many(numbered(5, 9))
    assert offsets(query.rows(4)) == [5, 6, 7, 8]
    assert query.rows() == []
    query.restart()
    log.append(b"v9")
    assert offsets(query.rows(1)) == [9]


def test_rerun_of_the_first_batch_loses_nothing(site: Site, client: SyncClient, name: str) -> None:
    """SK1: the checkpoint has the start before anything is read."""
    log = client.open(name, create=True)
    log.append_many(numbered(0, 5))
    query = streamed(site, name)
    assert query.plan()
    query.restart()  # The driver is killed in batch 0.
    log.append_many(numbered(5, 505))  # The log grows before the driver restarts.
    query.reader.initialOffset()
    assert offsets(query.rows(500)) == list(range(5, 505))


def test_start_offset_is_resolved_once(site: Site, client: SyncClient, name: str) -> None:
    """SK1: Spark asks twice for the initial offset of batch 0."""
    log = client.open(name, create=True)
    query = streamed(site, name)
    limit = query.reader.getDefaultReadLimit()
    first = query.reader.latestOffset(query.reader.initialOffset(), limit)
    log.append_many(numbered(0, 3))
    again = query.reader.latestOffset(query.reader.initialOffset(), limit)
    assert (first["from"], first["logs"]) == ({}, again["from"])
    assert again["logs"][f"default/{name}"][1] == 3


def test_each_trigger_stays_within_its_limits(site: Site, client: SyncClient, name: str) -> None:
    for n in range(3):
        client.open(f"{name}/x{n}", create=True).append_many(numbered(0, 100))
    options = {"prefix": f"{name}/", "startingOffsets": "earliest", "pollWait": "20ms"}
    query = Query(endpoint=site.url, maxOffsetsPerTrigger="120", **options)
    sizes = [len(rows) for rows in query.batches()]
    assert sizes == [120, 120, 60]
    by_bytes = Query(endpoint=site.url, maxBytesPerTrigger="1k", **options)
    sizes = [len(rows) for rows in by_bytes.batches()]
    assert sum(sizes) == 300
    assert max(sizes) <= 1024


def test_trigger_waits_for_its_minimum_until_the_delay_ends(
    site: Site, client: SyncClient, name: str
) -> None:
    log = client.open(name, create=True)
    query = streamed(site, name, minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    assert query.rows() == []
    log.append_many(numbered(0, 3))
    assert not query.plan()
    log.append_many(numbered(3, 12))
    assert len(query.rows(12)) == 12
    soon = streamed(site, name, minOffsetsPerTrigger="10", maxTriggerDelay="50ms")
    assert soon.rows() == []
    log.append(b"late")
    assert offsets(soon.rows(1)) == [12]


def test_available_now_stops_at_the_tail_of_its_start(
    site: Site, client: SyncClient, name: str
) -> None:
    log = client.open(name, create=True)
    log.append_many(numbered(0, 25))
    query = streamed(site, name, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    query.reader.prepareForTriggerAvailableNow()
    log.append_many(numbered(25, 30))
    assert [len(rows) for rows in query.batches()] == [10, 10, 5]
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert offsets(query.rows()) == list(range(25, 30))


def test_new_log_is_read_from_its_head(site: Site, client: SyncClient, name: str) -> None:
    """SK3"""
    client.open(f"{name}/a", create=True).append(b"old")
    query = Query(endpoint=site.url, prefix=f"{name}/", pollWait="0")
    assert query.rows() == []
    client.open(f"{name}/b", create=True).append_many([b"x", b"y"])
    assert [row["value"] for row in query.rows(2)] == [b"x", b"y"]


def test_poll_without_records_waits_for_poll_wait(
    site: Site, client: SyncClient, name: str
) -> None:
    client.open(name, create=True)
    query = streamed(site, name, pollWait="300ms")
    assert query.plan()  # Batch 0 does not wait.
    query.commit()
    before_s = time.monotonic()
    assert not query.plan()
    assert time.monotonic() - before_s >= 0.3


def test_trigger_sends_no_requests(site: Site, client: SyncClient, name: str) -> None:
    """Servers push changes, so the number of logs costs no requests."""
    for n in range(30):
        client.open(f"{name}/x{n}", create=True)
    query = Query(endpoint=site.url, prefix=f"{name}/", pollWait="20ms")
    assert query.rows() == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerChannel, "ask", lambda *_: pytest.fail("a server was asked"))
        assert query.rows() == []
        client.open(f"{name}/x7").append(b"a")
        assert [row["log"] for row in query.rows(1)] == [f"{name}/x7"]


def test_lost_records_end_a_strict_stream_and_a_tolerant_one_skips_them(
    site: Site, client: SyncClient, name: str
) -> None:
    log = client.open(name, create=True)
    log.append_many(numbered(0, 10))
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "4"}
    strict, tolerant = (
        streamed(site, name, failOnDataLoss=flag, **options) for flag in ("true", "false")
    )
    assert [len(next(query.batches())) for query in (strict, tolerant)] == [4, 4]
    log.truncate(7)
    assert re.match(r"LOG_DATA_LOSS: records \[4, 7\).*head=7 tail=10", strict.failure())
    assert offsets(tolerant.rows(3)) == [7, 8, 9]
    client.delete(name, grace_s=0)
    assert re.match(r"LOG_DELETED.*failOnDataLoss=false", strict.failure())
    replace(client, name, *numbered(0, 20))
    assert offsets(tolerant.rows(20)) == list(range(20))


def test_replaced_log_ends_the_stream(site: Site, client: SyncClient, name: str) -> None:
    """SK2"""
    client.open(name, create=True).append_many(numbered(0, 5))
    query = streamed(site, name, startingOffsets="earliest")
    assert len(query.rows(5)) == 5
    client.delete(name, grace_s=0)
    replace(client, name, *numbered(0, 20))
    query.restart()
    assert "LOG_REPLACED" in query.failure()


def test_truncated_start_does_not_end_a_stream_beyond_it(
    site: Site, client: SyncClient, name: str
) -> None:
    log = client.open(name, create=True)
    log.append_many(numbered(0, 20))
    query = streamed(site, name, startingOffsets="2")
    assert offsets(query.rows()) == list(range(2, 20))
    log.truncate(10)
    log.append(b"v20")
    again = streamed(site, name, startingOffsets="2")
    again.offsets, again.commits = query.offsets, query.commits
    assert offsets(again.rows(1)) == [20]


def test_stream_commits_its_cursor(site: Site, client: SyncClient, name: str) -> None:
    log = client.open(name, create=True)
    log.append_many(numbered(0, 10))
    query = streamed(site, name, startingOffsets="earliest", cursor="etl", protect="true")
    assert len(query.rows()) == 10
    found = log.cursor("etl").get()
    assert (found.offset, found.is_protected) == (10, True)


def test_two_queries_each_read_the_whole_log(site: Site, client: SyncClient, name: str) -> None:
    client.open(name, create=True).append_many(numbered(0, 10))
    first, second = (streamed(site, name, startingOffsets="earliest") for _ in range(2))
    assert len(first.rows()) == len(second.rows()) == 10


def test_a_checkpoint_of_a_newer_release_is_refused(
    site: Site, client: SyncClient, name: str
) -> None:
    client.open(name, create=True)
    query = streamed(site, name)
    assert query.rows() == []
    query.offsets[-1] = json.dumps({**json.loads(query.offsets[-1]), "v": 2})
    with pytest.raises(RollbookFailure, match="UNSUPPORTED_VERSION"):
        query.plan()


def test_batch_option_is_refused_for_a_stream(site: Site, client: SyncClient, name: str) -> None:
    client.open(name, create=True)
    with pytest.raises(RollbookFailure, match="endingOffsets is for batch reads"):
        streamed(site, name, endingOffsets="latest")


def test_a_range_without_records_has_no_tasks(site: Site, client: SyncClient, name: str) -> None:
    client.open(name, create=True)
    query = streamed(site, name)
    assert query.rows() == []
    end = json.loads(query.offsets[-1])
    assert query.reader.partitions(end, end) == []


# --- Failures ---------------------------------------------------------------------------------


def test_unreachable_server_fails_the_read_in_time() -> None:
    before_s = time.monotonic()
    with pytest.raises(RollbookFailure, match=r"no log server answers at 127\.0\.0\.1:9"):
        Loaded(endpoint="log://127.0.0.1:9", log="a", retries="0", fetchTimeout="1s").rows()
    assert time.monotonic() - before_s < 30


def test_refused_calls_are_retried_up_to_the_limit(site: Site) -> None:
    """Spark does not retry calls on the driver."""
    access = ServerAccess(site.url, retries=10, retry_delay_s=0.001)
    channel, refused = ServerChannel(access), 0

    def call() -> str:
        nonlocal refused
        if refused < 10:
            refused += 1
            raise Overloaded("later")
        return "done"

    assert channel.patiently(call) == "done"
    refused = -1
    with pytest.raises(Overloaded):
        channel.patiently(call)


def test_permanent_errors_are_not_retried(site: Site) -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        raise NoSuchLog("nobody")

    with pytest.raises(NoSuchLog):
        ServerChannel(ServerAccess(site.url)).patiently(call)
    assert calls == 1


def test_workers_import_no_heavy_packages() -> None:
    code = (
        "import sys, pyspark.sql.datasource, pyarrow; import rollbook.api.spark.source, rollbook.api.spark.fetch\n"
        "import json; print(json.dumps(sorted(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = {each.partition(".")[0] for each in json.loads(found.stdout)}
    assert not loaded & {"pandas", "numpy", "fastapi", "structlog", "kazoo", "prometheus_client"}
