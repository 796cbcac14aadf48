"""Comparison with peers and choice of the harder of two targets in the ledger benchmark."""

from typing import Any

import pytest

from tests.bench import Figure, compared
from tests.bench.ledger import JOBS, Side, Sides, Size, figures
from tests.bench.peer import PeerFailed


def _ours(
    unit: str, values: dict[str, list[float]], factor: float | None, target: float | None
) -> Figure:
    first, *others = compared("work", unit, values, factor, target)
    assert first.name == "work: ours"
    assert [(each.target, each.holds, each.rival) for each in others] == [(None, None, None)] * 2
    return first


def test_rate_target_comes_from_the_fastest_peer() -> None:
    values = {"ours": [90.0, 110.0, 100.0], "Java V2": [40.0], "Java V3": [50.0]}
    found = _ours("adds/s", values, 2.0, 80.0)
    assert (found.value, found.target, found.holds) == (100.0, 100.0, True)
    assert (found.rival_name, found.advantage) == ("Java V3", 2.0)
    assert not _ours("adds/s", values, 2.0, 120.0).holds


def test_time_target_comes_from_the_fastest_peer() -> None:
    values = {"ours": [4.0], "Java V2": [10.0], "Java V3": [20.0]}
    found = _ours("ms", values, 0.5, None)
    assert (found.target, found.holds) == (5.0, True)
    assert (found.rival_name, found.advantage) == ("Java V2", 2.5)
    assert not _ours("ms", values, 0.5, 3.0).holds
    assert _ours("ms", values, None, None).holds is None


def test_only_the_absolute_target_counts_without_peers() -> None:
    (found,) = compared("work", "ms", {"ours": [4.0]}, 0.5, 5.0)
    assert (found.target, found.holds, found.advantage) == (5.0, True, None)


def test_unknown_job_is_refused_before_anything_runs() -> None:
    with pytest.raises(SystemExit, match=r"no such part: .nothing.; there are\s+adds"):
        next(figures(1, only=["nothing"]))
    assert "adds" in JOBS


# --- A peer that fails ----------------------------------------------------------------------------


class _NoCluster:
    bookies = ()


def _side(name: str, run: Any) -> Side:
    no_cluster: Any = _NoCluster()
    return Side(name, no_cluster, ("v2", "v3"), run)


def _tailed(milliseconds: int) -> dict[str, int]:
    return {"p50_ns": milliseconds * 1_000_000}


def _java(outcomes: list[Any]) -> Side:
    def run(*_: Any, **__: Any) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, PeerFailed):
            raise outcome
        return outcome

    return _side("java", run)


def _beside_ours(java: Side, bare: Any = None) -> Sides:
    return Sides(
        _side("ours", lambda *_, **__: _tailed(1)), java, _side("bare Python", bare or _never)
    )


def _never(*_: Any, **__: Any) -> Any:
    raise AssertionError("it can add, and nothing else")


FAILED = PeerFailed("no bookies")


def test_failed_run_of_java_is_repeated() -> None:
    outcomes = [FAILED, _tailed(5), FAILED, FAILED, _tailed(7)]
    mine, others = JOBS["tailing"](_beside_ours(_java(outcomes)), 2, Size())
    assert (mine.value, mine.rival, mine.rival_name) == (1.0, 6.0, "Java V3")
    assert others.value == 6.0
    assert not outcomes


def test_repeated_failures_of_java_are_reported_and_skipped() -> None:
    mine, others = JOBS["tailing"](
        _beside_ours(_java([_tailed(5), FAILED, FAILED, FAILED])), 2, Size()
    )
    assert mine.rival == 5.0
    assert others.name.endswith("Java V3, but for 1 of 2 runs")
    (alone,) = JOBS["tailing"](_beside_ours(_java([FAILED] * 6)), 2, Size())
    assert (alone.value, alone.rival, alone.holds) == (1.0, None, True)


# --- What Python can reach ------------------------------------------------------------------------


def test_bare_python_is_shown_but_sets_no_target() -> None:
    added = {"p50_ns": 9_000_000, "p99_ns": 9_000_000}
    sides = _beside_ours(
        _java([added] * 2), lambda *_, **__: {"p50_ns": 100_000, "p99_ns": 200_000}
    )
    sides = sides._replace(ours=_side("ours", lambda *_, **__: added))
    found = {figure.name: figure for figure in JOBS["alone"](sides, 1, Size())}
    bare = found["one add at a time: p50: bare Python"]
    assert (bare.value, bare.target, bare.rival) == (0.1, None, None)
    assert found["one add at a time: p50: ours"].rival_name == "Java V2"
    assert found["one add at a time: p50: ours"].target == 9.0
