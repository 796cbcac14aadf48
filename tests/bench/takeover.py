"""A log server is killed under load: how long each of its logs is unavailable, and for which steps.

Two log servers with a thousand logs, three bookies and the client are processes on this machine.
Every log gets an append, and the next one a second after its ack. Half of the logs lose their owner
by SIGKILL. With defaults each must accept appends again within 2 s (median and last log).
Afterwards all logs are read: no acked record may be missing or repeated, and offsets are dense.

Also shown is the CPU of each process from the kill to the last log's return, divided by the number
of logs that were away. It includes the CPU of the appends. One of the bookies serves the metadata.

The surviving server logs how long each step took (`log_opened`):

    detect    from the first request for that log until its owner counts as dead: half a second of refusals
    wait      for a turn, since only some logs are opened at a time
    read      the list
    fence     the last ledger fenced, its end found, closed
    replay    what has to be remembered, from its end
    create    a ledger, as far as it was not made meanwhile
    list      the compare-and-set
    begin     the first entry confirmed
"""

import json
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import structlog

from tests.bench import Figure, judged, parts_of
from tests.support import log_processes
from tests.support.log_processes import LogProcesses

STEPS: Final = ("detect", "wait", "read", "fence", "replay", "create", "list", "begin")
TARGET_S: Final = 2.0
_PATIENCE_S: Final = 180.0


@dataclass(frozen=True)
class Size:
    logs: int = 1_000
    every_s: float = 1.0
    warm_s: float = 2.0
    seconds: float = 8.0


FULL: Final = Size()


@dataclass(frozen=True, slots=True)
class Case:
    what: str
    servers: int
    stopped: int = 0  # Log servers that stand still from the same moment on,
    bookies_killed: int = 0  # and bookies that are killed with the owner.
    target_s: float | None = TARGET_S


CASES: Final = {
    "kill": Case("kill -9 of one of two log servers", 2),
    "kill-bookie": Case("the same, and of a bookie", 2, bookies_killed=1, target_s=None),
    "kill-stop": Case("kill -9 of one of three, another stands still", 3, stopped=1, target_s=None),
}
_USUAL: Final = ("kill", "kill-stop")


def figures(
    runs: int, size: Size = FULL, *, only: Collection[str] | None = None
) -> Iterator[Figure]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    for name in parts_of(CASES, only or _USUAL):
        case = CASES[name]
        found = [_measure(case, size) for _ in range(runs)]
        yield from _told(case, found)


@dataclass(frozen=True, slots=True)
class _TakeoverRun:
    away_s: Sequence[float]  # Of those whose owner was killed, in order.
    others_s: Sequence[float]  # Of those whose owner was not.
    steps_ms: dict[str, list[float]]
    cpu_ms: dict[str, float]  # Of each process, for a log.
    lost: int  # Logs that did not come back.


def _told(case: Case, found: Sequence[_TakeoverRun]) -> Iterator[Figure]:
    what = case.what
    assert not any(each.lost for each in found), "there are logs that were not appended to again"
    yield judged(f"{what}: median log", "s", case.target_s, [median(e.away_s) for e in found])
    yield judged(f"{what}: last log", "s", case.target_s, [max(e.away_s) for e in found])
    for step in STEPS:
        for name, pick in (("median", median), ("max", max)):
            values = [pick(each.steps_ms[step]) for each in found if each.steps_ms[step]]
            yield judged(f"  {step}, {name}", "ms", None, values or [0.0])
    yield judged("  longest pause of a log that kept its owner", "s", None,
                 [max(each.others_s, default=0.0) for each in found])  # fmt: skip
    for name in found[0].cpu_ms:
        yield judged(f"  CPU for a log, {name}", "ms", None, [each.cpu_ms[name] for each in found])


def _measure(case: Case, size: Size) -> _TakeoverRun:
    with tempfile.TemporaryDirectory() as folder, log_processes.running(Path(folder)) as cluster:
        says = {}
        for number in range(case.servers):
            name = f"log-{number + 1}"
            says[name] = Path(folder) / f"{name}.log"
            cluster.start_server(name, says[name])
        return _strike(case, size, cluster, list(says.values()))


def _strike(case: Case, size: Size, cluster: LogProcesses, says: Sequence[Path]) -> _TakeoverRun:
    worker = cluster.children.start_module("tests.bench.load.takeover_worker", cluster.url)
    servers = list(cluster.servers.values())
    killed, stopped = servers[0], servers[1 : 1 + case.stopped]
    bookies = cluster.bookies[-case.bookies_killed :] if case.bookies_killed else []
    survivors = [
        each for each in cluster.servers.values() if each is not killed and each not in stopped
    ]
    watched = {"log server": survivors[0].pid} | {
        f"bookie {number}": bookie.pid
        for number, bookie in enumerate(cluster.bookies, 1)
        if bookie not in bookies
    }
    job = {
        "logs": [f"t{number:05d}" for number in range(size.logs)],
        "every_s": size.every_s,
        "warm_s": size.warm_s,
        "seconds": size.seconds,
        "kill": [killed.pid, *(each.child.pid for each in bookies)],
        "stop": [each.pid for each in stopped],
        "watch": watched,
    }
    worker.say(json.dumps(job))
    answer = json.loads(worker.line(_PATIENCE_S))
    if "error" in answer:
        raise RuntimeError(answer["error"])
    found = answer["value"]
    if found["wrong"]:
        raise RuntimeError("; ".join(found["wrong"][:5]))
    mine = [log for log, owner in found["owners"].items() if owner == killed.address]
    still = {each.address for each in stopped}
    others = [log for log, owner in found["owners"].items() if owner not in still]
    pauses = found["pauses_s"]
    away = found["away_s"]
    return _TakeoverRun(
        sorted(away[log] for log in mine if log in away),
        [pauses[log] for log in others if log in pauses and log not in set(mine)],
        _steps(says, set(mine)),
        {name: 1000 * cpu / max(1, len(mine)) for name, cpu in found["cpu_s"].items()},
        sum(log not in away for log in mine),
    )


def _steps(says: Sequence[Path], logs: Collection[str]) -> dict[str, list[float]]:
    steps: dict[str, list[float]] = {step: [] for step in STEPS}
    for path in says:
        for line in path.read_text().splitlines():
            event: dict[str, Any] = json.loads(line)
            if event["event"] != "log_opened" or event["log"] not in logs:
                continue
            if event["owner_epoch"] < 2:
                continue  # Before the kill.
            for step in STEPS:
                steps[step].append(event.get(f"{step}_ms", 0.0))
    return steps
