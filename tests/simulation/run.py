"""Runs seeds of a world on all cores and says what came of it."""

import gc
import json
import multiprocessing
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, Final, TypeVar

from tests.simulation.schedule import Case
from tests.simulation.shrink import shrink
from tests.simulation.worlds import Report, Scene, scene
from tests.tally import Tally

SEEDS_PER_TASK: Final = 20
FAILURES_MAX: Final = 10  # More of them teach nothing new.
WEAK_MAX: Final = 5  # Or half of them: of more, it is the world that proves nothing.
SHRINK_RUNS_MAX: Final = 1500
SHRINK_S_MAX: Final = 90.0

Progress = Callable[[int, int], None]
Say = Callable[[str], None]
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SeedResult:
    """What crosses from a worker process: a report without its history."""

    seed: int
    broke: str | None
    detail: str
    digest: str
    weakness: str | None
    callbacks: int
    cpu_s: float
    appends: int
    unsettled: int  # Of these.
    is_decisive: bool | None  # None: its world has no such steps.
    overlapped: dict[str, int]
    met: dict[tuple[str, str], int]


def simulate(seeds: Sequence[int], world: str, progress: Progress, say: Say | None = None) -> Tally:
    """A seed passes if every rule held and the run was worth something; a weak one is skipped, if not most are."""
    say = say or _say
    tally = Tally("seeds")
    try:
        scene(world)
    except KeyError as unknown:
        say(str(unknown.args[0]))
        tally.failed += 1
        return tally
    weak: Counter[str] = Counter()
    overlapped: Counter[str] = Counter()
    met: Counter[tuple[str, str]] = Counter()
    callbacks, cpu_s, failed = 0, 0.0, 0
    appends, unsettled, decisive = 0, 0, 0
    progress(0, len(seeds))
    for done, result in enumerate(_results(seeds, world), 1):
        progress(done, len(seeds))
        callbacks += result.callbacks
        cpu_s += result.cpu_s
        appends += result.appends
        unsettled += result.unsettled
        decisive += bool(result.is_decisive)
        overlapped.update(result.overlapped)
        met.update(result.met)
        if result.broke is not None:
            failed += 1
            say(f"seed {result.seed} of {world} fails: {result.detail}")
            if failed == 1:
                _explain(result.seed, world, say)
            if failed == FAILURES_MAX:
                say(f"stopped after {failed} failures")
                break
        elif result.weakness is not None:
            weak["no fault overlapped" if "fault" in result.weakness else "too many unknowns"] += 1
        else:
            tally.passed += 1
    tally.failed = failed
    say(f"{len(seeds) / cpu_s:.0f} seeds and {callbacks / cpu_s:,.0f} callbacks per CPU-second")
    if decisive:
        say(f"in {decisive / len(seeds):.0%} of seeds two faults overlapped a decisive step")
    say(f"{unsettled / max(appends, 1):.1%} of {appends:,} appends ended unknown")
    faults = ", ".join(f"{kind} {count:,}" for kind, count in sorted(overlapped.items()))
    say(f"faults that overlapped an append: {faults or 'none'}")
    for line in coverage(met):
        say(line)
    for reason, count in sorted(weak.items()):
        say(f"{count:,} seeds prove too little and are not counted: {reason}")
    if weak.total() > max(WEAK_MAX, tally.passed):
        say("most prove too little: something in this world keeps others from their work")
        tally.failed += 1
    return tally


def coverage(met: Counter[tuple[str, str]]) -> Iterator[str]:
    """Which faults were in force during which steps of a protocol: a table, and what is empty in it."""
    if not met:
        return
    faults = sorted(dict.fromkeys(fault for fault, _ in met))
    steps = sorted(dict.fromkeys(step for _, step in met))
    width = max(map(len, faults))
    yield "steps that were under way while a fault was in force:"
    yield " " * width + "".join(f"{step[:9]:>10}" for step in steps)
    for fault in faults:
        yield f"{fault:<{width}}" + "".join(f"{met[fault, step]:>10,}" for step in steps)
    empty = [f"{step} during {fault}" for fault in faults for step in steps if not met[fault, step]]
    yield f"never: {', '.join(empty) or 'nothing'}"


def digests(seeds: Sequence[int], world: str) -> Iterator[tuple[int, str]]:
    """Each seed with the digest of its trace."""
    for result in _results(seeds, world):
        yield result.seed, result.digest


def find_failure(actors: Scene, seeds: Sequence[int]) -> tuple[int, Report] | None:
    """The first seed that fails, searched in this process."""
    for seed in seeds:
        report = actors.run(actors.case(seed))
        if report.broke is not None:
            return seed, report
    return None


def parallel(work: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
    """Results in the order of the tasks. Each has a process of its own, and each core one of these.

    So what a task leaves behind need not be collected: it goes with its process.
    """
    # Forked: a fresh interpreter would take as long to start as a hundred seeds take to run.
    fork = multiprocessing.get_context("fork")
    settle()
    waiting = deque(enumerate(tasks))
    running: dict[Connection, tuple[int, ForkProcess]] = {}
    results: dict[int, Result] = {}
    wanted = 0
    try:
        while wanted < len(tasks):
            while waiting and len(running) < (os.cpu_count() or 1):
                number, task = waiting.popleft()
                ours, theirs = fork.Pipe(duplex=False)
                process = fork.Process(target=_work_and_send, args=(work, task, theirs))
                process.start()
                theirs.close()
                running[ours] = number, process
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                number, process = running.pop(ready)
                results[number] = _received(ready, process)
            while wanted in results:
                yield results.pop(wanted)
                wanted += 1
    finally:  # Also when the caller has seen enough.
        for _, process in running.values():
            process.terminate()
            process.join()


def settle() -> None:
    """What is loaded by now stays: collections in a child need not look at it."""
    gc.collect()
    gc.freeze()


def _work_and_send(work: Callable[[Task], Result], task: Task, theirs: Connection) -> None:
    theirs.send(work(task))


def _received(ours: Connection, process: ForkProcess) -> Any:
    try:
        return ours.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"a worker has ended with code {process.exitcode}") from None
    finally:
        ours.close()
        process.join()


def _results(seeds: Sequence[int], world: str) -> Iterator[SeedResult]:
    tasks = [
        (world, seeds[start : start + SEEDS_PER_TASK])
        for start in range(0, len(seeds), SEEDS_PER_TASK)
    ]
    for results in parallel(_run_some, tasks):
        yield from results


def _run_some(task: tuple[str, Sequence[int]]) -> list[SeedResult]:
    world, seeds = task
    gc.disable()  # Most of what a run leaves are cycles: a tenth of its time.
    actors = scene(world)
    return [_run_one(actors, seed) for seed in seeds]


def _run_one(actors: Scene, seed: int) -> SeedResult:
    start = time.process_time()
    report = actors.run(actors.case(seed))
    cpu_s = time.process_time() - start
    history = report.history
    return SeedResult(
        seed,
        report.broke,
        report.detail,
        report.digest,
        history.weakness(),
        report.callbacks,
        cpu_s,
        len(history.appends),
        sum(1 for _ in history.unknowns()),
        history.is_decisive(),
        history.overlapped(),
        history.met() if history.calls else {},
    )


def _explain(seed: int, world: str, say: Say) -> None:
    """The shortest case that fails in the same way, ready to be kept."""
    actors = scene(world)

    def run(case: Case) -> str | None:
        return actors.run(case).broke

    say(f"cutting it down, for {SHRINK_S_MAX:g} s at most")
    shrunk = shrink(actors.case(seed), run, SHRINK_RUNS_MAX, SHRINK_S_MAX)
    more = "" if shrunk.is_least else " (there may be less of it: time was up)"
    say(f"shrunk in {shrunk.runs} runs to a case that breaks {shrunk.broke!r}{more}:")
    say(str(shrunk.case))
    say("what happened:")
    final = actors.run(shrunk.case, tell=True)
    for line in final.story:
        say(line)
    say(f"broken: {final.detail}")
    say("to keep it, say why in this, and store it as tests/simulation/regressions/NAME.json:")
    kept = {
        "why": final.detail,
        "broke": shrunk.broke,
        "mutant": None,
        "case": shrunk.case.to_json(),
    }
    say(json.dumps(kept, indent=1, ensure_ascii=False))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
