"""Running seeds on all cores: results are counted, ordered, and explained if they fail."""

import json
import os
from dataclasses import replace

import pytest

from tests.simulation import run
from tests.simulation.mutants import by_name, search, show
from tests.simulation.run import digests, parallel, simulate
from tests.simulation.schedule import Case
from tests.simulation.worlds import Scene, scene
from tests.simulation.worlds.toy.oracle import EVERY_RULE


def test_seeds_pass_and_weak_runs_are_not_counted() -> None:
    said: list[str] = []
    progress: list[int] = []
    tally = simulate(range(60), "toy", lambda done, _total: progress.append(done), said.append)
    assert tally.failed == 0
    weak = sum(int(line.split()[0]) for line in said if "prove too little" in line)
    assert tally.passed + weak == 60
    assert progress == list(range(61))


def test_several_runs_that_are_all_weak_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [replace(each, weakness="no fault") for each in run._results(range(12), "toy")]
    monkeypatch.setattr(run, "_results", lambda _seeds, _world: iter(results))
    tally = simulate(range(12), "toy", lambda _done, _total: None, lambda _line: None)
    assert (tally.passed, tally.failed) == (0, 1)
    monkeypatch.setattr(run, "_results", lambda _seeds, _world: iter(results[:1]))
    tally = simulate(range(1), "toy", lambda _done, _total: None, lambda _line: None)
    assert (tally.passed, tally.failed) == (0, 0)


def test_digests_are_ordered_and_match_a_run_in_this_process() -> None:
    told = list(digests(range(5, 50), "toy"))
    assert [seed for seed, _ in told] == list(range(5, 50))
    actors = scene("toy")
    assert told[7] == (12, actors.run(actors.case(12)).digest)


def test_failing_seed_is_shrunk_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = by_name("one-negative").scene()
    monkeypatch.setattr(run, "scene", lambda _name: broken)
    said: list[str] = []
    seeds = range(5, 20)
    tally = simulate(seeds, "toy", lambda _done, _total: None, said.append)
    assert tally.failed > 0
    assert any("truncated: entry" in line for line in said)
    kept = json.loads(next(line for line in said if line.startswith("{")))
    case = Case.from_json(kept["case"])
    assert kept["broke"] == broken.run(case).broke
    first = next(seed for seed in seeds if broken.run(broken.case(seed)).broke)
    assert len(case.faults) < len(broken.case(first).faults)


def square(number: int) -> int:
    return number * number


def test_parallel_results_keep_the_order_of_tasks() -> None:
    assert list(parallel(square, range(50))) == [number * number for number in range(50)]


def end_at_once(number: int) -> int:
    os._exit(number)


def test_worker_that_ends_without_a_result_raises() -> None:
    with pytest.raises(RuntimeError, match="ended with code 3"):
        list(parallel(end_at_once, [3]))


def test_unknown_name_is_reported_with_valid_names() -> None:
    said: list[str] = []
    assert not simulate(range(5), "moon", lambda _done, _total: None, said.append).holds
    assert not show("moon", 0, said.append).holds
    assert "there are: bookie, cluster, ledger, logs, toy" in said[0]
    assert "hasty-negative" in said[1]


def test_planted_bug_is_found_with_fresh_seeds() -> None:
    found = search(("hasty-negative", 0, EVERY_RULE))
    assert found.seed is not None
    assert found.seeds == found.seed + 1
    mutant: Scene = by_name("hasty-negative").scene()
    assert mutant.run(mutant.case(found.seed)).detail == found.detail


def test_show_of_a_planted_bug_prints_its_story() -> None:
    said: list[str] = []
    assert show("ack-before-sync", 0, said.append).holds
    text = "\n".join(said)
    assert "A bookie answers first" in text
    assert "writer appends entry" in text
    assert "broken: durable ack" in text
