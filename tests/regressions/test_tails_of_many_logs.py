"""Work that needs no owner is shared by all servers: tails of many logs and reads of closed
segments.
"""

import json
from collections.abc import Iterator

import pytest

import rollbook
from rollbook.logservice.ids import LogName
from tests.regressions.defects import defect
from tests.support import commands, log_processes
from tests.support.log_processes import LogProcesses

LOGS = [LogName("many", f"log-{number}") for number in range(12)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogProcesses]:
    with log_processes.running(tmp_path_factory.mktemp("tails")) as found:
        found.start_server("log-1")
        found.start_server("log-2")
        yield found


def opened_at(cluster: LogProcesses) -> float:
    with rollbook.connect(cluster.url) as client:
        stats = [client.stats(each.address).stats for each in cluster.servers.values()]
    return sum(each["rollbook_log_logs_opened_total"] for each in stats)


def read_at_each(cluster: LogProcesses) -> list[float]:
    with rollbook.connect(cluster.url) as client:
        stats = [client.stats(each.address).stats for each in cluster.servers.values()]
    return [each["rollbook_log_told_records_total"] for each in stats]


@defect(
    "replays-read-at-the-owner-only",
    "All readers of old records read at the log's owner, while other servers could have read the same bookies.",
)
def test_closed_segments_are_read_at_all_servers(cluster: LogProcesses) -> None:
    values = [b"%d" % number for number in range(80)]
    with rollbook.connect(cluster.url) as client:
        log = client.open("replayed", create=True)
        for first in range(0, 72, 9):
            log.append_many(values[first : first + 9])
            log.roll()
        log.append_many(values[72:])
        before = read_at_each(cluster)
        for start in range(0, 80, 9):  # Like parallel readers with one segment each.
            batches = log.read_batches(start, min(start + 9, 80), anywhere=True)
            assert [v for batch in batches for v in batch.values()] == values[start : start + 9]
        gains = [after - was for after, was in zip(read_at_each(cluster), before, strict=True)]
        assert sum(gains) == 80
        assert all(gains), gains
        whole = [v for batch in log.read_batches(anywhere=True) for v in batch.values()]
        assert whole == values


@defect(
    "requesting-many-tails-opens-the-logs",
    "Tails had to be requested log by log, and each request opened its log: a ledger and half a second each.",
)
def test_tails_of_many_logs_are_returned_without_opening_them(cluster: LogProcesses) -> None:
    """TW1."""
    with rollbook.connect(cluster.url) as client:
        for log in LOGS:
            client.open(str(log), create=True)
        client.open(str(LOGS[0])).append_many([b"a", b"b"])
        before = opened_at(cluster)
        with client.tails(prefix="many/") as watch:
            known = watch.ready(30)
            assert {log: tail.tail for log, tail in known.items()} == {
                log: 2 if log == LOGS[0] else 0 for log in LOGS
            }
            assert all(tail.is_exact and len(tail.uid) == 32 for tail in known.values())
            assert watch.next(0) is not None  # The first update contains all logs.
            client.open(str(LOGS[0])).append(b"c")
            news = watch.next(30)
            assert news is not None
            assert [(tail.log, tail.tail) for tail in news.tails] == [(LOGS[0], 3)]
            lines = commands.run(
                "log", "tails", "many/", "-o", "ndjson", "--server", cluster.url
            ).stdout.splitlines()
            rows = {row["log"]: row for row in map(json.loads, lines)}
            assert set(rows) == {str(log) for log in LOGS}
            assert (rows["many/log-0"]["tail"], rows["many/log-0"]["exact"]) == (3, True)
            assert rows["many/log-0"]["uid"] == known[LOGS[0]].uid
            assert opened_at(cluster) == before
            first = next(iter(cluster.servers.values()))
            first.child.kill()
            # The remaining server answers for all logs.
            with client.tails(prefix="many/") as again:
                assert set(again.ready(30)) == set(LOGS)
            watch.ready(30)
            assert set(watch.known) == set(LOGS)
