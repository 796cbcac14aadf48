"""The log benchmark refuses unknown jobs, reports missing peers, compares figures and draws plots."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bench import Figure, compared, logs, logs_kafka, plots, stillness
from tests.bench.ledger import BenchFailed, Found
from tests.bench.load.jobs import SHARES, percentiles
from tests.bench.logs import JOBS, OURS_ALONE, UNSYNCED, figures
from tests.bench.logs_peers import CannotBeHad, LogSide, fetch
from tests.support import log_processes
from tests.support.bookies import PATIENCE_S
from tests.support.processes import family


def test_unknown_job_is_refused_before_anything_runs() -> None:
    with pytest.raises(SystemExit, match=r"no such part: .nothing.; there are\s+small"):
        next(figures(1, only=["nothing"]))
    assert set(OURS_ALONE) < set(JOBS)
    assert set(UNSYNCED) < set(JOBS)


def test_failed_fetch_raises_with_command_and_reason() -> None:
    with pytest.raises(CannotBeHad, match="`sh -c echo no way out >&2; exit 1` failed: no way out"):
        fetch(["sh", "-c", "echo no way out >&2; exit 1"])
    fetch(["true"])


def test_unavailable_peers_are_reported_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rollbook is measured without them."""

    @contextmanager
    def ours(_: Path) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(start_server=lambda _: None, url="", children=_Children())

    monkeypatch.setattr(log_processes, "running", ours)
    monkeypatch.setenv("PATH", str(tmp_path))  # No Java, no Go.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with logs.sides_of(logs.PEERS) as sides:
        assert [side.name for side in sides] == ["ours"]
    told = capsys.readouterr().err
    assert "blocked: Kafka: its servers run on Java 17 or later, and there is no `java`" in told
    assert "blocked: JetStream: its server is built from source, and there is no `go`" in told


class _Children:
    def start_module(self, *_: str) -> None: ...


def test_class_path_of_kafka_is_cached_while_its_files_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "kafka_2.13-4.2.0.jar"
    jar.touch()
    asked = tmp_path / "asked"
    tool = tmp_path / "mvn"
    tool.write_text(
        f'#!/bin/sh\necho >> {asked}\nfor each; do case $each in -Dmdep.outputFile=*) printf %s {jar} > "${{each#*=}}";; esac; done\n'
    )
    tool.chmod(0o755)
    (tmp_path / "java").symlink_to(tool)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert [logs_kafka.class_path(), logs_kafka.class_path()] == [str(jar)] * 2
    assert asked.read_text() == "\n"
    jar.unlink()  # As after Maven's store was cleared.
    logs_kafka.class_path()
    assert asked.read_text() == "\n\n"


def test_peer_without_sync_does_not_set_the_target() -> None:
    values = {"ours": [30.0], "Kafka": [10.0], "Kafka, not synced": [50.0]}
    found = list(compared("it", "/s", values, 2.0, 15.0, aside=["Kafka, not synced"]))
    assert [figure.name for figure in found] == ["it: ours", "it: Kafka", "it: Kafka, not synced"]
    assert (found[0].rival_name, found[0].target, found[0].advantage) == ("Kafka", 20.0, 3.0)


def test_only_processes_of_the_measured_side_run() -> None:
    """Processes shared by two sides run in the turns of both. A resumed side warms up first."""
    happened: list[str] = []
    with family() as children:
        ours, server, one, other = (children.start("sleep", "600").pid for _ in range(4))
        sides = [
            _Side("ours", [ours]),
            _Side("Kafka", [server, one]),
            _Side("by another", [server, other]),
        ]
        for side in sides:
            stillness.lie_down(side)

        def measure(side: LogSide, number: int) -> dict[str, float]:
            assert isinstance(side, _Side)
            for pid in (ours, server, one, other):
                _wait_for(pid, "S" if pid in side.pids() else "T")
            happened.append(f"{side.name} {number}")
            assert side.worked == number + 1
            return {"rate": 1.0}

        logs._Runs(sides, 2, measure)
        for pid in children.pids():
            _wait_for(pid, "T")
    assert happened == [f"{side.name} {number}" for number in range(2) for side in sides]


def test_side_that_does_not_resume_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stillness, "_BACK_S", 0.0)
    monkeypatch.setattr(stillness, "_PAUSE_S", 0.0)
    side = _Side("Kafka", [])
    side.fails_with = "7 logs have no leader"
    with (
        pytest.raises(stillness.NotBack, match=r"Kafka does not work .* 7 logs have no leader"),
        stillness.awake(side),
    ):
        pytest.fail("its turn began")


def _wait_for(pid: int, state: str) -> None:
    """Waits for a state in `/proc`: S is sleeping, T is stopped."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) != state:
        assert time.monotonic() < deadline_s, f"process {pid} is {found}, not {state}"
        time.sleep(0.01)


class _Side(LogSide):
    fails_with: str | None = None
    worked = 0

    def __init__(self, name: str, pids: list[int]) -> None:
        self.name = name
        self._pids = pids

    def pids(self) -> list[int]:
        return self._pids

    def run(self, job: str, **arguments: Any) -> Found:
        if self.fails_with is not None:
            raise BenchFailed(self.fails_with)
        self.worked += 1
        return {}

    def cpu_s(self) -> Mapping[str, float]:
        raise NotImplementedError

    def spare(self) -> AbstractContextManager[Mapping[str, int]]:
        raise NotImplementedError


def test_percentiles_and_spread_match_the_latencies() -> None:
    found = percentiles([number * 10 for number in range(1, 1_001)])
    assert (found["p50_ns"], found["p99_ns"], found["p999_ns"]) == (5_010, 9_910, 10_000)
    spread = dict(zip(SHARES, found["spread_ns"], strict=True))
    assert (spread[0.0], spread[0.5], spread[0.99]) == (10, 5_010, 9_910)
    assert found["spread_ns"] == sorted(found["spread_ns"])
    assert list(SHARES) == sorted(set(SHARES))


def test_plots_show_bars_of_several_sides_and_their_curves() -> None:
    spread = [min(100.0, number) for number in range(len(SHARES))]
    figures = [
        Figure("writer, 100 B: ours", 5.0, "records/s", 1.0, True),
        Figure("writer, 100 B: Kafka", 2.0, "records/s", None, None),
        Figure("writer, 100 B: p50: ours", 1.0, "ms", None, None, spread=spread),
        Figure("writer, 100 B: p99: ours", 2.0, "ms", None, None),
        Figure("only ours: ours", 3.0, "/s", None, None),
    ]
    rows = [asdict(figure) for figure in figures]
    assert plots.bars(rows) == [
        {"title": "writer, 100 B", "unit": "records/s", "sides": {"ours": 5.0, "Kafka": 2.0}}
    ]
    (curve,) = plots.curves(rows)
    assert (curve["title"], curve["unit"]) == ("writer, 100 B", "ms")
    points = curve["sides"]["ours"]
    # The curve ends at the first of the slowest.
    assert points == list(zip(SHARES[:101], range(101), strict=True))


def test_plot_merges_figures_of_earlier_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(plots, "python_with", lambda *_: "python")
    monkeypatch.setattr(
        plots, "fetch", lambda _: drawn.append(json.loads((tmp_path / "panels.json").read_text()))
    )
    for side, value in (("ours", 1.0), ("Kafka", 2.0), ("ours", 3.0)):
        plots.plot([Figure(f"it: {side}", value, "/s", None, None)], tmp_path)
    assert [panel["sides"] for panel in drawn[-1]["bars"]] == [{"ours": 3.0, "Kafka": 2.0}]


def test_figures_are_saved_if_they_cannot_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nowhere(*_: str) -> None:
        raise CannotBeHad("no way out")

    monkeypatch.setattr(plots, "python_with", nowhere)
    plots.plot([Figure("it: ours", 1.0, "/s", None, None)], tmp_path)
    assert capsys.readouterr().err == "blocked: plots: no way out\n"
    assert "it: ours" in json.loads((tmp_path / "figures.json").read_text())
