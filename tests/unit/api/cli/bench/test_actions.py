"""`rollbook bench`: its latencies and counts are correct, and it deletes its logs."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook.api.cli.bench import actions as bench_work
from rollbook.api.cli.bench.load import SendSchedule, Stopwatch, at_pace, flood
from rollbook.api.cli.demo.cluster import LOG_SERVERS
from rollbook.api.cli.latencies import new_latencies, percentiles
from tests.support.dev import PATIENCE_S
from tests.support.zookeeper import free_port
from tests.unit.api.cli.shell import Shell

MS = 1_000_000


# --- Measuring ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value_ns", [1_234, 987_654, 5 * MS, 1_234 * MS, 99_000 * MS])
def test_latencies_are_exact_to_a_hundredth(value_ns: int) -> None:
    latencies = new_latencies()
    latencies.observe(1_000, 999)
    latencies.observe(value_ns)
    assert latencies.quantile(1.0) == pytest.approx(value_ns / 1e9, rel=0.01)
    assert latencies.quantile(0.999) == pytest.approx(1e-6, rel=0.01)


class SlowWriter:
    """Blocks its first send for a while, as a stopped server does, then acks records at once."""

    def __init__(self, stops_for_s: float, offsets: list[int]) -> None:
        self._stops_for_s = stops_for_s
        self._offsets = iter(offsets)

    async def send(self, value: bytes) -> Any:
        if self._stops_for_s:
            stops_for_s, self._stops_for_s = self._stops_for_s, 0.0
            await asyncio.sleep(stops_for_s)
        return self.submit(value)

    def submit(self, _: bytes) -> Any:
        acked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        acked.set_result(next(self._offsets))
        return acked

    async def flush(self) -> None: ...


async def test_latency_is_measured_from_the_due_time() -> None:
    """Otherwise a stalled server would look fast, because it is sent fewer records."""
    latencies = new_latencies()
    writer: Any = SlowWriter(0.2, list(range(21)))
    clock, pace = (
        Stopwatch(latencies, 21, PATIENCE_S),
        SendSchedule(time.perf_counter_ns(), 10 * MS),
    )
    assert await at_pace(writer, lambda _: b"", clock, pace) == 21
    await asyncio.sleep(0)  # Let the last record's callback run.
    median = latencies.quantile(0.5)
    assert latencies.count == 21
    assert median is not None
    assert median >= 0.09


async def test_sends_due_after_the_end_are_not_awaited() -> None:
    writer: Any = SlowWriter(0.0, [0])
    an_hour = 3_600_000 * MS
    clock, pace = (
        Stopwatch(new_latencies(), 10, PATIENCE_S),
        SendSchedule(time.perf_counter_ns(), an_hour),
    )
    assert await at_pace(writer, lambda _: b"", clock, pace) == 1


async def test_flood_checks_that_offsets_are_consecutive() -> None:
    clock = Stopwatch(new_latencies(), 6, PATIENCE_S)
    writer: Any = SlowWriter(0.0, [7, 8, 9, 10, 11, 12])
    assert await flood(writer, [b""] * 3, clock, first=7) == 6
    twice: Any = SlowWriter(0.0, [7, 8, 9, 9, 10, 11])
    with pytest.raises(AssertionError, match="9 is not 10"):
        await flood(twice, [b""] * 3, clock, first=7)


# --- The commands -------------------------------------------------------------------------------


def benchmarks_logs(shell: Shell) -> list[str]:
    return [name for name in shell.run("log", "ls", "-o", "raw").split() if "bench-" in name]


QUICK = ("--seconds", "0.2")


def assert_ordered(found: dict[str, Any]) -> None:
    told = [found[name] for name in ("p50_ms", "p99_ms", "p999_ms", "max_ms")]
    told = [each for each in told if each is not None]
    assert told[0] > 0
    assert told == sorted(told)


@pytest.mark.parametrize(
    ("timed", "told"),
    [
        (0, {}),
        (1, {"max_ms"}),
        (2, {"p50_ms", "max_ms"}),
        (99, {"p50_ms", "max_ms"}),
        (100, {"p50_ms", "p99_ms", "max_ms"}),
        (999, {"p50_ms", "p99_ms", "max_ms"}),
        (1000, {"p50_ms", "p99_ms", "p999_ms", "max_ms"}),
    ],
)
def test_percentile_is_reported_only_with_enough_samples(timed: int, told: set[str]) -> None:
    latencies = new_latencies()
    for number in range(timed):
        latencies.observe((number + 1) * 1_000_000)
    found = percentiles(latencies)
    assert found.pop("timed") == timed
    assert {name for name, each in found.items() if each is not None} == set(told)
    assert list(found) == ["p50_ms", "p99_ms", "p999_ms", "max_ms"]


def test_short_append_bench_times_enough_records_for_p99(shell: Shell) -> None:
    """If there are few records, bursts are smaller; one record of each burst is timed."""
    found = shell.json("bench", "append", "--records", 1_000, "--seconds", 60)
    assert (found["records"], found["timed"]) == (1_000, 100)
    assert found["p99_ms"] <= found["max_ms"]
    assert found["p999_ms"] is None


def test_appends_are_counted_and_their_logs_deleted(shell: Shell) -> None:
    found = shell.json("bench", "append", "--size", 1000, "--logs", 2, "--writers", 2, *QUICK)
    assert (found["logs"], found["writers"], found["record_bytes"]) == (2, 4, 1000)
    assert found["records"] > 0
    rate = found["records"] / found["seconds"]
    assert found["records_per_s"] == pytest.approx(rate, rel=0.05)
    assert found["mib_per_s"] == pytest.approx(rate * 1000 / 2**20, rel=0.05, abs=0.01)
    assert found["timed"] > 0
    assert_ordered(found)
    assert benchmarks_logs(shell) == []


def test_bench_with_keep_keeps_its_log_and_records(shell: Shell) -> None:
    sizes = ("--records", 30, "--in-flight", 1, "--seconds", 60)
    found = shell.json("bench", "append", *sizes, "--keep")
    (log,) = found["logs"]
    assert benchmarks_logs(shell) == [log]
    assert found["records"] == 30
    # The log also holds the warm-up records.
    assert int(shell.run("log", "show", log, "-o", "raw")) >= 2 * 30
    shell.run("log", "rm", log, "--yes")


@pytest.mark.parametrize("how", ["values", "records"])
def test_every_record_is_read_by_every_reader(shell: Shell, how: str) -> None:
    words = ("--records", 1_234, "--logs", 2, "--readers", 2, "--as", how)
    found = shell.json("bench", "read", *words)
    assert (found["records"], found["readers"]) == (2 * 1_234, 4)
    assert benchmarks_logs(shell) == []


def test_bench_tail_times_records_end_to_end(shell: Shell) -> None:
    found = shell.json("bench", "tail", "--rate", 200, *QUICK)
    assert 0 < found["timed"] <= found["records"] <= 50
    assert_ordered(found)
    assert benchmarks_logs(shell) == []


def test_bench_without_a_server_names_rollbook_dev(shell: Shell) -> None:
    shell.run("bench", "append", "--server", f"log://127.0.0.1:{free_port()}", *QUICK, code=5)
    assert "rollbook dev" in shell.errors
    assert "not deleted" not in shell.errors


def test_bench_without_a_configured_server_starts_a_cluster(
    shell: Shell, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLBOOK_SERVER")
    folders = []

    @asynccontextmanager
    async def cluster(folder: str) -> AsyncIterator[Any]:
        folders.append(folder)
        yield SimpleNamespace(addresses=dict.fromkeys(LOG_SERVERS, server))

    monkeypatch.setattr(bench_work, "demo_cluster", cluster)
    assert int(shell.run("bench", "append", *QUICK, "-o", "raw")) > 0
    assert shell.errors.startswith("starting three bookies")
    assert not os.path.exists(folders[0])


def test_terminated_bench_deletes_its_logs(shell: Shell) -> None:
    command = (sys.executable, "-m", "rollbook.api.cli.main", "bench", "tail", "--seconds", "600")
    with subprocess.Popen(command) as running:
        deadline = time.monotonic() + PATIENCE_S
        while not benchmarks_logs(shell):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running.terminate()
        assert running.wait(PATIENCE_S) == 130
    assert benchmarks_logs(shell) == []


def test_invalid_bench_options_are_refused(shell: Shell) -> None:
    shell.run("bench", "tail", "--size", 7, code=2)
    shell.run("bench", "append", "--rate", 0, code=2)
    shell.run("bench", "read", "--seconds", 1, code=2)


class SlowClient:
    """Creates a log even after its caller was cancelled; `logs` are those not yet deleted."""

    def __init__(self) -> None:
        self.logs: list[str] = []
        self.is_asked = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def open(self, name: str, create: bool) -> str:
        assert create
        self.is_asked.set()
        await self.goes_on.wait()
        self.logs.append(name)
        return name

    async def delete(self, name: str, grace_s: float) -> None:
        assert grace_s == 0
        self.logs.remove(name)


async def test_log_created_after_cancellation_is_deleted() -> None:
    client: Any = SlowClient()

    async def bench() -> None:
        async with bench_work.new_logs(client, 3, keep=False):
            raise AssertionError("the bench is cancelled before this point")

    running = asyncio.create_task(bench())
    await client.is_asked.wait()
    running.cancel()
    await asyncio.sleep(0)
    client.goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert client.logs == []
