"""Logs accept appends as long as an ack quorum of bookies is alive."""

import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollbook.api.client import sync
from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.sync import SyncClient, SyncLog
from tests.regressions.defects import defect
from tests.support import bookies, commands, log_processes
from tests.support.log_processes import LogProcesses

_QUICK = LogClientConfig(timeout_s=30.0)
_PATIENCE_S = 30.0


class _Cluster:
    """Three bookies and two log servers. Tests stop and start the third bookie."""

    def __init__(self, processes: LogProcesses, folder: Path) -> None:
        self.processes = processes
        self._folder = folder / "bk-3"

    def stop_a_bookie(self) -> None:
        """Stops it cleanly, as for an upgrade. It is no longer registered when this returns."""
        self.processes.bookies[2].terminate()
        self.processes.bookies[2].wait()

    def format_it(self) -> None:
        """Formats the stopped bookie, as after a replacement of its disk."""
        words = bookies.arguments(self._folder, self.processes.metadata, bookie_id="bk-3")
        done = commands.run("bookie", "format", "--yes", *words[2:])
        assert done.returncode == 0, done.stderr

    def start_it_again(self) -> None:
        processes = self.processes
        again = bookies.start(
            processes.children,
            self._folder,
            processes.metadata,
            "--log-level",
            "error",
            bookie_id="bk-3",
        )
        bookies.serving([again])
        processes.bookies[2] = again


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Cluster]:
    folder = tmp_path_factory.mktemp("availability")
    with log_processes.running(folder) as found:
        for name in ("log-1", "log-2"):
            found.start_server(name)
        yield _Cluster(found, folder)


def _owner_pid(cluster: LogProcesses, client: SyncClient, log: str) -> int:
    (owner,) = client.lookup([log])
    return cluster.pid_of(owner.address)


@defect(
    "one-bookie-away-stops-logs",
    "With one of three bookies away new logs and logs whose owner changed took no append.",
)
def test_appends_succeed_with_one_of_three_bookies_away(cluster: _Cluster) -> None:
    with sync.connect(cluster.processes.url, _QUICK) as client:
        old = client.open("old", create=True)
        old.append(b"before")
        cluster.stop_a_bookie()
        assert client.open("new", create=True).append(b"first").first_offset == 0
        os.kill(_owner_pid(cluster.processes, client, "old"), 9)
        assert old.append(b"after").first_offset == 1
        assert [record.value for record in old.read()] == [b"before", b"after"]
        degraded = old.segments()[-1]
        assert degraded.degraded_to == 2
        cluster.start_it_again()
        due = time.monotonic() + _PATIENCE_S
        while (last := old.segments()[-1]).degraded_to:
            assert time.monotonic() < due, "it was not rolled to a full ensemble"
            time.sleep(0.1)
        assert last.segment_id > degraded.segment_id
        assert last.reason == "full ensemble"
        assert old.append(b"full").first_offset == 2
        assert [record.value for record in old.read()] == [b"before", b"after", b"full"]


@defect(
    "missing-copies-are-not-reported",
    "Nothing reported that a log had fewer copies than configured.",
)
def test_a_degraded_segment_is_reported(cluster: _Cluster) -> None:
    processes = cluster.processes
    with sync.connect(processes.url, _QUICK) as client:
        cluster.stop_a_bookie()
        log = client.open("reported", create=True)
        log.append(b"first")
        started = [each for each in log.journal() if each.kind == "segment_started"]
        assert [each.details.get("degraded_to") for each in started] == ["2 bookies"]
        at = {"ROLLBOOK_SERVER": processes.url}
        explained = commands.run("explain", "reported", environment=at).stdout.decode()
        assert "2 of 3 bookies" in explained
        due = time.monotonic() + _PATIENCE_S
        while sum(each.logs_degraded for each in client.servers()) < 1:
            assert time.monotonic() < due, "no server reports it"
            time.sleep(0.2)
    health = commands.run("cluster", "health", "--metadata", processes.metadata)
    assert health.returncode == 8
    assert re.search(rb"degraded_logs +[1-9]", health.stdout), health.stdout


@defect(
    "formatted-bookie-stays-in-the-ensemble",
    "A log kept a segment on a bookie that had been formatted: the missing copy was not reported, and the next"
    " append cost the log its owner.",
)
def test_new_records_have_all_copies_after_a_bookie_was_formatted(tmp_path: Path) -> None:
    """LS16: the formatted bookie fences writers that send to it, and an idle log starts a new
    segment.
    """
    with log_processes.running(tmp_path) as processes:
        processes.start_server("log-1")
        cluster = _Cluster(processes, tmp_path)
        with sync.connect(processes.url, _QUICK) as client:
            written = client.open("written", create=True)
            resting = client.open("resting", create=True)
            resting.append(b"first")
            with _writing(written):
                cluster.stop_a_bookie()
                cluster.format_it()
                cluster.start_it_again()
                due = time.monotonic() + _PATIENCE_S
                while sum(each.logs_degraded for each in client.servers()) < 1:
                    assert time.monotonic() < due, "no server reports it"
                    time.sleep(0.2)
                at = {"ROLLBOOK_SERVER": processes.url}
                explained = commands.run("explain", "resting", environment=at).stdout.decode()
                assert "is not written to bk-3" in explained, explained
                for log in (written, resting):
                    while (last := log.segments()[-1]).segment_id == 0:
                        assert time.monotonic() < due, f"{log.name} writes to two bookies"
                        time.sleep(0.2)
                    assert last.degraded_to == 0
                assert last.reason == "vacant seat"
            resting.append(b"second")
            ledgers = [str(log.segments()[-1].ledger_id) for log in (written, resting)]
            for log in (written, resting):
                log.roll()
        verified = commands.run("ledger", "verify", *ledgers, "--metadata", processes.metadata)
        assert verified.returncode == 0, verified.stdout


@contextmanager
def _writing(log: SyncLog) -> Iterator[None]:
    """Appends records continuously while the block runs."""
    log.append(b"first")
    is_over = threading.Event()

    def write() -> None:
        while not is_over.wait(0.05):
            log.append(b"more")

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            yield
        finally:
            is_over.set()
        writing.result()
