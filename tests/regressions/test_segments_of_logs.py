"""Ledger commands used on ledgers that are segments of logs."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.ledger import connect
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
    "`rollbook ledger rm N` deleted a segment of a live log without asking, and its records were lost.",
)
def test_a_segment_of_a_log_is_removed_only_if_its_log_is_named(cluster: LogProcesses) -> None:
    first, *_ = _segments(cluster, "shop/orders")
    for words in ((), ("--part-of-log", "shop/other")):
        refused = _rollbook(cluster, "ledger", "rm", first, "--yes", *words, code=2)
        assert "segment of the log shop/orders" in refused
        assert "--part-of-log shop/orders" in refused
    assert _rollbook(cluster, "log", "read", "shop/orders", "-o", "raw") == "one\ntwo\nthree\n"


@defect(
    "lost-segment-is-not-named",
    "`explain` and `verify` called a log sound although one of its segments had been deleted.",
)
def test_deleted_segment_is_reported_by_explain_and_verify(cluster: LogProcesses) -> None:
    """LO1: the segment counts as lost even if readers still get its records from memory."""
    first, *_ = _segments(cluster, "shop/returns")

    async def remove() -> None:  # Deletes the ledger like a Java tool would.
        async with connect(cluster.metadata) as ledgers:
            await ledgers.delete(int(first))

    asyncio.run(remove())
    explained = _rollbook(cluster, "explain", "shop/returns")
    assert f"ledger {first} was deleted" in explained
    assert f"ledger_id={first}" in _rollbook(cluster, "log", "verify", "shop/returns", code=7)
    assert "lost" in _rollbook(cluster, "log", "segments", "shop/returns")


@defect(
    "ledger-recover-stops-the-owner-of-a-log",
    "`rollbook ledger recover N` fenced the open segment of a log without being asked to.",
)
def test_a_segment_of_a_log_is_recovered_only_if_its_log_is_named(cluster: LogProcesses) -> None:
    *_, last = _segments(cluster, "shop/carts")
    refused = _rollbook(cluster, "ledger", "recover", last, code=2)
    assert "segment of the log shop/carts" in refused
    assert "open" in _rollbook(cluster, "ledger", "show", last)
    own = _rollbook(cluster, "ledger", "create", "-o", "raw").strip()
    _rollbook(cluster, "ledger", "recover", own)  # This ledger belongs to no log.
    _rollbook(cluster, "ledger", "recover", last, "--part-of-log", "shop/carts")
    _rollbook(cluster, "log", "append", "shop/carts", "four")
