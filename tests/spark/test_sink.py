"""The sink with a real server and kills between its steps, without a JVM."""

import time
from typing import Any

import pytest
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rollbook.api.client.log import Log
from rollbook.api.client.sync import SyncClient, SyncLog
from rollbook.api.spark import exactly_once_append
from rollbook.api.spark.failures import RollbookFailure
from rollbook.api.spark.source_schema import HEADERS
from rollbook.logservice.ids import ProducerRef
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.messages import AppendAck
from rollbook.proto.errors import OutcomeUnknown, RollbookError, Unavailable
from rollbook.proto.quorum import Quorum
from tests.regressions.lone_server import Site
from tests.spark.drive import Sink, forget_process, write_batch

VALUE = StructType([StructField("value", BinaryType())])
SMALL = LogConfig(quorum=Quorum(1, 1, 1), batch_records_max=5, dedupe_batches=4)


@pytest.fixture(autouse=True)
def _another_process() -> None:
    forget_process()


def rows(first: int, last: int) -> list[dict[str, Any]]:
    return [{"value": b"v%d" % n} for n in range(first, last)]


def sink_of(site: Site, name: str, schema: StructType = VALUE, **options: str) -> Sink:
    return Sink(schema, endpoint=site.url, log=name, checkpointLocation=f"/c/{name}", **options)


def values(log: SyncLog) -> list[bytes]:
    return [record.value for record in log.read()]


def expected(*ranges: tuple[int, int]) -> list[bytes]:
    return [row["value"] for first, last in ranges for row in rows(first, last)]


def test_sink_writes_every_column(site: Site, client: SyncClient, name: str) -> None:
    log = client.open(name, create=True)
    schema = StructType(
        [
            StructField("value", StringType()),
            StructField("key", StringType()),
            StructField("event_time", TimestampType()),
            StructField("headers", HEADERS),
        ]
    )
    row = {"value": "é", "key": "k", "event_time": 5, "headers": [{"key": "h", "value": b"1"}]}
    bare = {"value": "", "key": None, "event_time": None, "headers": None}
    sink_of(site, name, schema).run(0, [row, bare])
    first, second = log.read()
    assert (first.value, first.key, dict(first.headers)) == ("é".encode(), b"k", {"h": b"1"})
    assert first.event_time_us == 5
    assert (second.value, second.key, dict(second.headers), second.event_time_us) == (
        b"",
        None,
        {},
        None,
    )


def test_batch_of_several_partitions_is_one_block(
    site: Site, client: SyncClient, name: str
) -> None:
    log = client.open(name, create=True)
    sink_of(site, name).run(0, rows(0, 4), [], rows(4, 9), rows(9, 10))
    (block,) = [block for batch in log.read_batches() for block in batch.blocks]
    assert block.values() == expected((0, 10))
    assert block.producer is not None
    assert (block.producer.epoch, block.producer.seq) == (0, 0)


def test_rewritten_batch_is_not_appended_twice(site: Site, client: SyncClient, name: str) -> None:
    """SK6: killed before Spark wrote the commit, and run again with other partitions."""
    log = client.open(name, create=True)
    sink = sink_of(site, name)
    sink.run(0, rows(0, 10))
    forget_process()
    sink.run(0, rows(0, 3), rows(3, 10))
    sink.run(1, rows(10, 12))
    sink.run(1, rows(10, 12))  # Also in the process that wrote the batch.
    sink.run(2, rows(12, 14))
    assert values(log) == expected((0, 14))


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("is_marked", [True, False])
def test_half_written_batch_is_completed(
    site: Site, client: SyncClient, name: str, blocks: int, is_marked: bool
) -> None:
    """SK6: killed between two blocks, with an append of another writer in between."""
    log = client.open(name, create=SMALL)
    sink = sink_of(site, name)
    if is_marked:
        sink.run(6, rows(0, 7))
    messages = sink.write(rows(7, 20), rows(20, 27))
    appended = 0
    write = exactly_once_append.LogSink._append_block

    def killed(self: Any, *arguments: Any) -> int:
        nonlocal appended
        if appended == blocks:
            raise KeyboardInterrupt
        appended += 1
        return write(self, *arguments)

    forget_process()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exactly_once_append.LogSink, "_append_block", killed)
        patch.setattr(exactly_once_append, "_AHEAD", 0)
        with pytest.raises(KeyboardInterrupt):
            sink.commit(messages, 7)
    log.append(b"another")
    forget_process()
    sink.run(7, rows(7, 10), rows(10, 27))
    found = values(log)
    found.remove(b"another")
    assert found == expected(*([(0, 7)] if is_marked else []), (7, 27))


@pytest.mark.parametrize("failing", range(1, 6))
@pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown])
@pytest.mark.parametrize("is_marked", [True, False])
def test_failed_block_of_a_pipeline_is_sent_again(
    site: Site,
    client: SyncClient,
    name: str,
    failing: int,
    error: type[RollbookError],
    is_marked: bool,
) -> None:
    """SK6: later blocks were refused or are found; the log has each row once, in order."""
    log = client.open(name, create=SMALL)
    sink = sink_of(site, name)
    if is_marked:
        sink.run(0, rows(0, 2))
    write, sent = Log.append_block, 0

    async def failed(self: Log, block: bytes, **_: Any) -> AppendAck:
        nonlocal sent
        sent += 1
        if sent != failing:
            return await write(self, block)
        if error is OutcomeUnknown:
            await write(self, block)  # Only the response is lost.
        raise error

    messages = sink.write(rows(2, 20), rows(20, 32))
    if not is_marked:
        forget_process()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "append_block", failed)
        sink.commit(messages, 1)
    assert sent > 6
    assert values(log) == expected((0 if is_marked else 2, 32))


def test_replay_needs_no_producer_memory_of_the_log(
    site: Site, client: SyncClient, name: str
) -> None:
    """The batch has more blocks than the log remembers of one producer."""
    log = client.open(name, create=SMALL)
    sink = sink_of(site, name)
    sink.run(0, rows(0, 60))  # 12 blocks, of which the log remembers 4.
    forget_process()
    sink.run(0, rows(0, 60))
    assert values(log) == expected((0, 60))


def test_forgotten_producer_completes_its_batch(site: Site, client: SyncClient, name: str) -> None:
    """SK6: the log forgets the producer in the middle of a batch."""
    config = LogConfig(quorum=Quorum(1, 1, 1), batch_records_max=5, dedupe_age_s=1)
    log = client.open(name, create=config)
    sink = sink_of(site, name)
    messages = sink.write(rows(0, 12))
    write = exactly_once_append.LogSink._append_block

    def killed(self: Any, rows: Any, first: int, last: int, seq: int) -> int:
        if seq == 2:
            raise KeyboardInterrupt
        return write(self, rows, first, last, seq)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exactly_once_append.LogSink, "_append_block", killed)
        patch.setattr(exactly_once_append, "_AHEAD", 0)
        with pytest.raises(KeyboardInterrupt):
            sink.commit(messages, 0)
    time.sleep(1.2)
    log.append(b"another")  # Advances the log's time.
    forget_process()
    sink.run(0, rows(0, 12))
    assert values(log) == [*expected((0, 10)), b"another", *expected((10, 12))]


def test_only_committed_messages_of_repeated_tasks_are_appended(
    site: Site, client: SyncClient, name: str
) -> None:
    log = client.open(name, create=True)
    sink = sink_of(site, name)
    sink.write(rows(0, 5))
    sink.commit(sink.write(rows(0, 5)), 0)
    assert values(log) == expected((0, 5))


def test_two_queries_write_to_one_log(site: Site, client: SyncClient, name: str) -> None:
    log = client.open(name, create=True)
    first, second = (
        sink_of(site, name),
        Sink(VALUE, endpoint=site.url, log=name, checkpointLocation=f"/other/{name}"),
    )
    first.run(0, rows(0, 2))
    second.run(0, rows(2, 4))
    first.run(1, rows(4, 6))
    forget_process()
    second.run(0, rows(2, 4))
    first.run(1, rows(4, 6))
    assert values(log) == expected((0, 6))


def test_retry_after_a_late_commit_failure_appends_nothing_twice(
    site: Site, client: SyncClient, name: str
) -> None:
    """The commit raises after its appends; Spark aborts, and the query is restarted."""
    log = client.open(name, create=True)
    sink = sink_of(site, name)
    messages = sink.write(rows(0, 10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exactly_once_append.LogSink, "_on_whole", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sink.commit(messages, 0)
    sink.writer().abort(messages, 0)
    forget_process()
    sink.run(0, rows(0, 10))
    assert values(log) == expected((0, 10))


@pytest.mark.parametrize("again", [rows(1, 11), rows(0, 9), [*rows(0, 9), {"value": b"other"}]])
def test_replay_of_a_batch_with_other_rows_is_refused(
    site: Site, client: SyncClient, name: str, again: list[dict[str, Any]]
) -> None:
    """SK6: nothing is appended, and the option that helps is named."""
    log = client.open(name, create=True)
    sink = sink_of(site, name)
    sink.run(0, rows(0, 10))
    forget_process()
    with pytest.raises(RollbookFailure, match=r"SINK_REPLAY_DIVERGED.*rowOrder=bytes"):
        sink.run(0, again)
    assert values(log) == expected((0, 10))


def test_row_order_by_bytes_allows_replay_in_any_order(
    site: Site, client: SyncClient, name: str
) -> None:
    log = client.open(name, create=True)
    sink = sink_of(site, name, rowOrder="bytes")
    sink.run(0, rows(0, 10)[::-1])
    forget_process()
    sink.run(0, rows(0, 10))
    assert values(log) == expected((0, 10))


def test_blocks_are_compared_by_records_if_their_bytes_differ(
    site: Site, client: SyncClient, name: str
) -> None:
    """After the log's limits changed, a replay cuts its rows into other blocks."""
    log = client.open(name, create=SMALL)
    sink = sink_of(site, name)
    sink.run(0, rows(0, 12))
    log.update(batch_records_max=3)
    forget_process()
    sink.run(0, rows(0, 12))
    assert values(log) == expected((0, 12))


def test_an_older_batch_is_refused(site: Site, client: SyncClient, name: str) -> None:
    client.open(name, create=True)
    sink = sink_of(site, name)
    sink.run(5, rows(0, 2))
    forget_process()
    with pytest.raises(RollbookFailure, match="SINK_REPLAY_DIVERGED: batch 4 is written"):
        sink.run(4, rows(0, 2))


def test_blocks_of_a_second_driver_are_noticed(site: Site, client: SyncClient, name: str) -> None:
    """Another driver has appended a block of the batch that this driver begins."""
    log = client.open(name, create=True)
    sink = sink_of(site, name)
    sink.run(0, rows(0, 2))
    (block,) = [block for batch in log.read_batches() for block in batch.blocks]
    assert block.producer is not None
    log.append_many(expected((2, 4)), producer=ProducerRef(block.producer.id, 1, 0))
    sink.run(1, rows(2, 4))  # The block with the same rows is found.
    log.append_many(expected((9, 11)), producer=ProducerRef(block.producer.id, 2, 0))
    with pytest.raises(RollbookFailure, match="SINK_REPLAY_DIVERGED"):
        sink.run(2, rows(4, 6))
    assert values(log) == expected((0, 4), (9, 11))


def test_batch_write_with_a_transaction_id_is_exactly_once(
    site: Site, client: SyncClient, name: str
) -> None:
    log = client.open(name, create=True)
    write_batch(VALUE, rows(0, 3), endpoint=site.url, log=name, txnId="load-1")
    forget_process()
    write_batch(VALUE, rows(0, 3), endpoint=site.url, log=name, txnId="load-1")
    write_batch(VALUE, rows(3, 5), endpoint=site.url, log=name, txnId="load-2")
    assert values(log) == expected((0, 5))
    forget_process()
    with pytest.raises(RollbookFailure, match="SINK_REPLAY_DIVERGED"):
        write_batch(VALUE, rows(9, 12), endpoint=site.url, log=name, txnId="load-1")
    write_batch(VALUE, rows(5, 6), endpoint=site.url, log=name)
    write_batch(VALUE, rows(5, 6), endpoint=site.url, log=name)
    assert values(log) == expected((0, 6), (5, 6))


def test_rows_are_written_to_the_logs_that_they_name(
    site: Site, client: SyncClient, name: str
) -> None:
    logs = [client.open(f"{name}-{each}", create=True) for each in "ab"]
    schema = StructType([StructField("value", BinaryType()), StructField("log", StringType())])
    sink = Sink(schema, endpoint=site.url, checkpointLocation=f"/c/{name}")
    both = [{"value": b"%d" % n, "log": f"{name}-{'ab'[n % 2]}"} for n in range(6)]
    sink.run(0, both)
    forget_process()
    sink.run(0, both)
    assert [values(log) for log in logs] == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]


def test_a_batch_that_is_too_large_for_the_driver_is_refused(
    site: Site, client: SyncClient, name: str
) -> None:
    log = client.open(name, create=True)
    sink = sink_of(site, name, maxBatchBytes="1k")
    with pytest.raises(RollbookFailure, match=r"TOO_LARGE.*commit=task"):
        sink.run(0, [{"value": bytes(2000)}])
    with pytest.raises(RollbookFailure, match="TOO_LARGE"):
        sink.run(0, [{"value": bytes(600)}], [{"value": bytes(600)}])
    assert values(log) == []
    sink_of(site, name, maxBatchBytes="1k", commit="task").run(0, [{"value": bytes(2000)}])
    assert values(log) == [bytes(2000)]


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        (StructType([StructField("key", BinaryType())]), {}, "there is no column value"),
        (StructType([StructField("value", LongType())]), {}, "column value is bigint"),
        (StructType([*VALUE.fields, StructField("price", LongType())]), {}, "column price cannot"),
        (
            StructType([*VALUE.fields, StructField("log", StringType())]),
            {},
            "contradict each other",
        ),
        (VALUE, {"maxOffsetsPerTrigger": "5"}, "is not one for writes"),
        (VALUE, {"txnId": "a"}, "txnId is for batch writes"),
    ],
)
def test_invalid_sink_schema_or_option_is_named(
    site: Site, name: str, schema: StructType, options: dict[str, str], said: str
) -> None:
    with pytest.raises(RollbookFailure, match=said):
        sink_of(site, name, schema, **options)
