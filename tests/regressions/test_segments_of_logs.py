"""Ledgers that are segments of logs, looked at and changed as ledgers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.regressions.defects import defect
from tests.support import commands, log_processes
from tests.support.log_processes import LogProcesses


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogProcesses]:
    with log_processes.running(Path(tmp_path_factory.mktemp("cluster"))) as cluster:
        cluster.start_server("log-1")
        yield cluster


def _rollbook(cluster: LogProcesses, *words: str, code: int = 0) -> str:
    environment = {"ROLLBOOK_SERVER": cluster.url, "ROLLBOOK_METADATA": cluster.metadata}
    done = commands.run(*words, environment=environment)
    assert done.returncode == code, done.stderr.decode()
    return (done.stderr if code else done.stdout).decode()


def _segments(cluster: LogProcesses, log: str) -> list[str]:
    _rollbook(cluster, "log", "append", log, "one", "two", "--create")
    _rollbook(cluster, "log", "roll", log)
    _rollbook(cluster, "log", "append", log, "three")
    return _rollbook(cluster, "log", "segments", log, "-o", "raw").split()


@defect(
    "ledger-rm-destroys-a-segment-of-a-log",
    "`rollbook ledger rm N` deleted a segment of a live log unasked, and its records were lost.",
)
def test_a_segment_of_a_log_is_removed_only_if_its_log_is_named(cluster: LogProcesses) -> None:
    first, *_ = _segments(cluster, "shop/orders")
    for words in ((), ("--part-of-log", "shop/other")):
        refused = _rollbook(cluster, "ledger", "rm", first, "--yes", *words, code=2)
        assert "segment of the log shop/orders" in refused
        assert "--part-of-log shop/orders" in refused
    assert _rollbook(cluster, "log", "read", "shop/orders", "-o", "raw") == "one\ntwo\nthree\n"
    _rollbook(cluster, "ledger", "rm", first, "--yes", "--part-of-log", "shop/orders")


@defect(
    "ledger-recover-stops-the-owner-of-a-log",
    "`rollbook ledger recover N` fenced the segment that a log was being written to, unasked.",
)
def test_a_segment_of_a_log_is_recovered_only_if_its_log_is_named(cluster: LogProcesses) -> None:
    *_, last = _segments(cluster, "shop/carts")
    refused = _rollbook(cluster, "ledger", "recover", last, code=2)
    assert "segment of the log shop/carts" in refused
    assert "open" in _rollbook(cluster, "ledger", "show", last)
    own = _rollbook(cluster, "ledger", "create", "-o", "raw").strip()
    _rollbook(cluster, "ledger", "recover", own)  # Of no log.
    _rollbook(cluster, "ledger", "recover", last, "--part-of-log", "shop/carts")
    _rollbook(cluster, "log", "append", "shop/carts", "four")
