"""The programs of examples/spark, in the session that all tests share."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from examples.spark import latest_by_key, sessions, word_count
from rollbook.api.client.sync import SyncClient
from tests.regressions.lone_server import Site

pytestmark = pytest.mark.timeout(300)  # The first test waits for the JVM.
_NOON_US: Final = 1_700_000_000_000_000
_MINUTE_US: Final = 60_000_000


def test_words_are_counted(spark: Any, site: Site, client: SyncClient, name: str) -> None:
    client.open(name, create=True).append_many([b"to be or not", b"  to be", b""])
    found = word_count.counts(spark, site.url, name).collect()
    assert [tuple(row) for row in found] == [("be", 2), ("to", 2), ("not", 1), ("or", 1)]


def test_latest_record_of_each_key_is_found(
    spark: Any, site: Site, client: SyncClient, name: str
) -> None:
    log = client.open(name, create=True)
    log.append_many([b"1", b"2", b"3", b"4"], keys=[b"a", b"b", b"a", None])
    found = latest_by_key.latest(spark, site.url, name).collect()
    assert [tuple(row) for row in found] == [("a", "3"), ("b", "2")]


def test_sessions_are_written_once_they_are_over(
    spark: Any, site: Site, client: SyncClient, name: str, tmp_path: Path
) -> None:
    clicks, visits = client.open(name, create=True), client.open(f"{name}-to", create=True)

    def click(user: bytes, *minutes: int) -> None:
        times = [_NOON_US + minute * _MINUTE_US for minute in minutes]
        clicks.append_many([b""] * len(times), keys=[user] * len(times), event_times=times)

    def run() -> list[tuple[bytes | None, int, int]]:
        sessions.run(spark, site.url, name, f"{name}-to", str(tmp_path / "checkpoint"))
        found = []
        for record in visits.read():
            told = json.loads(record.value)
            start, end = (datetime.fromisoformat(told[each]) for each in ("start", "end"))
            assert start.tzinfo
            assert end > start >= datetime.fromtimestamp(_NOON_US / 1e6, UTC)
            found.append((record.key, (end - start).seconds // 60, told["clicks"]))
        return found

    click(b"ann", 0, 3, 4)
    click(b"bob", 1)
    assert run() == []  # The sessions may still get late clicks.
    click(b"ann", 60)
    assert run() == [(b"ann", 9, 3), (b"bob", 5, 1)]
    click(b"bob", 200)
    assert run() == [(b"ann", 9, 3), (b"bob", 5, 1), (b"ann", 5, 1)]
