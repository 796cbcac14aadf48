"""Readers of truncated logs start at the head and report skipped records."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

import rollbook
from tests.regressions.defects import defect
from tests.support import commands, log_processes


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server with a sealed log that begins at 3 and ends at 5."""
    with log_processes.running(tmp_path_factory.mktemp("truncated")) as cluster:
        cluster.start_server("a")
        with rollbook.connect(cluster.url) as client:
            log = client.open("cut", create=True)
            log.append_many([b"0", b"1", b"2"])
            log.append_many([b"3", b"4"])
            log.truncate(3)
            log.seal()
        yield cluster.url


@defect("read-raises-on-truncated-logs", "`log.read()` raised `Truncated` on every truncated log.")
def test_read_of_a_truncated_log_begins_at_its_head(url: str) -> None:
    with rollbook.connect(url) as client:
        log = client.open("cut")
        assert [each.value for each in log.read()] == [b"3", b"4"]
        assert [value for batch in log.read_batches() for value in batch.values()] == [b"3", b"4"]

    async def read() -> list[bytes]:
        async with rollbook.aio.connect(url) as client:
            return [each.value async for each in (await client.open("cut")).read()]

    assert asyncio.run(read()) == [b"3", b"4"]


@defect(
    "skipped-records-are-not-named",
    "`tail(…, skip_truncated=True)` and `--skip-truncated` skipped truncated records in silence.",
)
def test_skipped_truncated_records_are_reported(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def follow() -> list[bytes]:
        async with rollbook.aio.connect(url) as client:
            log = await client.open("cut")
            return [each.value async for each in log.tail(1, skip_truncated=True)]

    with rollbook.connect(url) as client, caplog.at_level(logging.WARNING):
        log = client.open("cut")
        assert [each.value for each in log.tail(0, skip_truncated=True)] == [b"3", b"4"]
        assert "3 records from 0 to 2" in caplog.text
        assert asyncio.run(follow()) == [b"3", b"4"]
        assert "2 records from 1 to 2" in caplog.text
    options = ("--from", "0", "--skip-truncated", "-o", "raw", "--server", url)
    done = commands.run("log", "tail", "cut", *options)
    assert done.returncode == 0
    assert b"3 records from 0 on were truncated" in done.stderr
