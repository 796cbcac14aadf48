"""The toy protocol and its world."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from rollbook.proto.ids import BookieId
from tests.simulation.mutants import AckBeforeSync
from tests.simulation.schedule import Case, Fault, Kind, Step
from tests.simulation.worlds import scene
from tests.simulation.worlds.toy.drills import DRILLS
from tests.simulation.worlds.toy.ledger import IN_RECOVERY, OPEN, Ledger
from tests.simulation.worlds.toy.oracle import COPIES, OUTCOMES
from tests.simulation.worlds.toy.scene import Parts, ToyScene
from tests.simulation.worlds.toy.words import (
    APPEND,
    BOOKIES,
    CLOSE,
    FOLLOW,
    READER,
    RECOVER,
    WRITER,
)

ROOT = Path(__file__).parents[4]
QUIET = tuple(Step(100_000 + 10_000 * number, WRITER, APPEND) for number in range(12))


def case_of(*faults: Fault, steps: tuple[Step, ...] = QUIET) -> Case:
    return Case("toy", 7, steps, faults)


def test_run_without_faults_confirms_every_entry() -> None:
    closing = (*QUIET, Step(300_000, READER, FOLLOW), Step(400_000, WRITER, CLOSE))
    report = ToyScene().run(case_of(steps=closing))
    assert report.broke is None
    assert [append.position for append in report.history.appends] == list(range(12))
    assert [delivery.position for delivery in report.history.deliveries] == list(range(12))
    assert report.history.weakness() == "no fault overlapped an append"


def test_recovery_stops_the_writer() -> None:
    steps = (*QUIET, Step(150_000, "recovery-1", RECOVER))
    report = ToyScene().run(case_of(steps=steps), tell=True)
    assert report.broke is None
    outcomes = [append.outcome.value for append in report.history.appends]
    assert outcomes[0] == "applied"
    assert outcomes[-1] == "not_applied"


def test_dead_bookies_are_replaced() -> None:
    dead = Fault(125_000, Kind.POWER_CUT, ("b1", "b2"), for_us=1_300_000)
    report = ToyScene().run(case_of(dead), tell=True)
    assert report.broke is None
    assert {append.outcome.value for append in report.history.appends} == {"applied"}
    (changed,) = [line for line in report.story if "metadata: the ledger is open" in line][1:]
    assert changed.endswith(("b4 b5 b3", "b5 b4 b3"))


def test_power_cut_reveals_acks_before_sync() -> None:
    """With only the rules that users can observe: confirmed entries are lost. How many bytes a
    power cut loses is random, so not every seed fails.
    """
    forgetful = ToyScene(Parts(bookie=AckBeforeSync), OUTCOMES)
    case = case_of(
        *(Fault(90_000, Kind.SLOW_DISK, (name,), amount=1_400_000) for name in BOOKIES),
        Fault(160_000, Kind.POWER_CUT, BOOKIES, for_us=50_000),
    )
    broken = [forgetful.run(replace(case, seed=seed)).broke for seed in range(20)]
    assert sum(broke in (COPIES, "truncated", "linearizable") for broke in broken) > 5


def test_case_runs_identically_twice() -> None:
    actors = scene("toy")
    for seed in range(5):
        first, second = (actors.run(actors.case(seed)) for _ in range(2))
        assert first.digest == second.digest
        assert list(first.history.lines()) == list(second.history.lines())


def test_telling_the_story_does_not_change_the_run() -> None:
    actors = scene("toy")
    told, untold = (actors.run(actors.case(3), tell=tell) for tell in (True, False))
    assert told.digest == untold.digest
    assert told.story
    assert not untold.story


def test_protocol_passes_the_drills_of_planted_bugs() -> None:
    for drill in DRILLS:
        actors = ToyScene(drill=drill)
        reports = [actors.run(actors.case(seed)) for seed in range(20)]
        assert [report.detail for report in reports if report.broke] == []


def test_other_seeds_give_other_runs() -> None:
    actors = scene("toy")
    assert len({actors.run(actors.case(seed)).digest for seed in range(10)}) == 10


def test_traces_do_not_depend_on_the_hash_seed() -> None:
    """For the protocol and for a mutant, whose failing runs end early."""
    code = (
        "from tests.simulation.mutants import by_name\n"
        "from tests.simulation.worlds.toy.scene import Parts, ToyScene\n"
        "for parts in (Parts(), by_name('one-negative').parts):\n"
        "    scene = ToyScene(parts)\n"
        "    for seed in range(25): print(seed, scene.run(scene.case(seed)).digest)\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("0", "1")
    ]
    first, second = (process.communicate(timeout=60)[0] for process in processes)
    assert first == second
    assert first.count("\n") == 50


def test_ledger_values_survive_round_trip_and_find_ensembles() -> None:
    first, second = tuple(BOOKIES[:3]), tuple(BOOKIES[2:])
    ledger = Ledger(OPEN, ((0, first),)).with_ensemble(4, second)
    assert Ledger.unpack(ledger.pack()) == ledger
    assert [ledger.ensemble_of(entry) for entry in (0, 3, 4, 9)] == [first, first, second, second]
    replaced = ledger.with_ensemble(4, first)  # No entry was confirmed in the replaced fragment.
    assert replaced.fragments == ((0, first), (4, first))
    assert Ledger(IN_RECOVERY, ((0, (BookieId("x"),)),)).with_last(-1).last == -1
