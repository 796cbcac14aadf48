"""Queries during owner changes, truncations, silent servers and repeated tasks."""

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.api import spark as rollbook_spark
from rollbook.api.client.sync import SyncClient, SyncLog
from rollbook.api.spark.failures import RollbookFailure
from tests.regressions.lone_server import PATIENCE_S, Site
from tests.spark.drive import Loaded, Query, copied
from tests.support import processes

_BLOCK = [bytes(1000) for _ in range(1000)]
_BLOCKS = 40  # More than a server sends ahead of its reader.
ROWS = len(_BLOCK) * _BLOCKS


@pytest.fixture(scope="module")
def _second(site: Site) -> Iterator[None]:
    """Starts a second log server of the cluster, named `b`."""
    with processes.family() as children:
        server = children.start_module(
            "rollbook.api.cli.main",
            "server",
            "log",
            "--metadata",
            site.metadata,
            "--server-name",
            "b",
            "--listen",
            "127.0.0.1:0",
            "--log-level",
            "error",
        )
        server.line(PATIENCE_S)
        yield


def filled(client: SyncClient, name: str) -> SyncLog:
    log = client.open(name, create=True)
    for _ in range(_BLOCKS):
        log.append_many(_BLOCK)
    return log


def begun(site: Site, name: str, **options: str) -> tuple[list[int], Iterator[list[int]]]:
    """Starts a task; returns the offsets of its first batch and an iterator over the rest."""
    loaded = Loaded(endpoint=site.url, log=name, columns="offset,value", **options)
    (partition,) = loaded.partitions()
    batches = copied(loaded.source).reader(schema=loaded.schema).read(partition)
    offsets = (batch.column(0).to_pylist() for batch in batches)
    return next(offsets), offsets


@pytest.mark.usefixtures("_second")
def test_owner_change_during_a_read_loses_nothing(
    site: Site, client: SyncClient, name: str
) -> None:
    log = filled(client, name)
    query = Query(endpoint=site.url, log=name, pollWait="20ms", startingOffsets=str(ROWS))
    assert query.rows() == []
    first, rest = begun(site, name)
    client.transfer(name, "b")
    found = [*first, *(offset for offsets in rest for offset in offsets)]
    assert found == list(range(ROWS))
    log.append_many([b"after"])
    assert [row["offset"] for row in query.rows(1)] == [ROWS]
    client.transfer(name, "a")
    log.append_many([b"back"])
    assert [row["offset"] for row in query.rows(1)] == [ROWS + 1]


def test_truncation_during_a_read_fails_it_or_is_skipped(
    site: Site, client: SyncClient, name: str
) -> None:
    """If a slow machine had sent all records before the truncation, tries again with a new log."""
    assert any(
        truncated_in_time(site, client, f"{name}-{attempt}", attempt) for attempt in range(5)
    )


def truncated_in_time(site: Site, client: SyncClient, name: str, attempt: int) -> bool:
    log = filled(client, name)
    head = ROWS - 5
    own = f"{40 + attempt}s"  # Forces a new connection: an old one takes more at once.
    found, rest = begun(site, name, fetchTimeout=own)
    tolerant, rest_of_tolerant = begun(site, name, failOnDataLoss="false", fetchTimeout=own)
    log.truncate(head)
    error = ""
    try:
        found.extend(offset for offsets in rest for offset in offsets)
    except RollbookFailure as failure:
        error = str(failure)
    tolerant += [offset for offsets in rest_of_tolerant for offset in offsets]
    if ROWS in (len(found), len(tolerant)):
        assert found == list(range(len(found)))
        return False
    assert re.search(rf"LOG_DATA_LOSS: .*, {head}\) of default/{name}", error)
    assert found == list(range(len(found)))
    assert tolerant == [*range(len(tolerant) - 5), *range(head, ROWS)]
    return True


def test_silent_server_fails_the_read_in_time() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = "log://{}:{}".format(*deaf.getsockname())
        before_s = time.monotonic()
        with pytest.raises(RollbookFailure, match=r"DEADLINE|no log server answers at 127"):
            Loaded(endpoint=url, log="a", retries="0", fetchTimeout="1s").rows()
        assert time.monotonic() - before_s < 30


@pytest.mark.timeout(300)
def test_rows_of_a_repeated_task_are_written_once(
    spark: Any, site: Site, client: SyncClient, name: str, tmp_path: Path
) -> None:
    """The first attempt of the task has already given rows to the sink."""
    from pyspark.sql.functions import udf

    log = client.open(name, create=True)

    def failing_once(number: int, flag: str = str(tmp_path / "failed")) -> str:
        import os

        if number == 199 and not os.path.exists(flag):
            with open(flag, "w"):
                raise RuntimeError("the first attempt")
        return str(number)

    numbers = spark.range(200).coalesce(1)
    rows = numbers.select(udf(failing_once, useArrow=False)("id").alias("value"))
    rollbook_spark.register(spark)
    rows.write.format("rollbook").options(endpoint=site.url, log=name).mode("append").save()
    assert (tmp_path / "failed").exists()
    assert [record.value for record in log.read()] == [b"%d" % n for n in range(200)]
