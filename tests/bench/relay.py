"""Cost of relaying: a client that reaches the owner of a log, and one that reaches only another
server.

They alternate on the same log. There are two log servers and three bookies, each a process.

A thousand slow readers take 512 KiB per second each. The memory is the growth of a server that has
just begun to relay.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

import structlog

from tests.bench import Figure, judged
from tests.bench.ledger import BenchFailed, OurClient
from tests.bench.logs import resident_mib
from tests.support import log_processes
from tests.support.log_processes import LogProcesses

KIB: Final = 1024
_SECONDS: Final = 3.0
_COUNT_MAX: Final = 50_000_000
_LONE: Final = 500
_WARM_UP: Final = 300
_SLOW_READERS: Final = 1_000
_SLOW_S: Final = 20.0
_FILLED: Final = 100_000  # Records of 1 KiB.
_ENTRY, _OWNER = "log-1", "log-2"


def figures(runs: int) -> Iterator[Figure]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with (
        tempfile.TemporaryDirectory() as folder,
        log_processes.running(Path(folder)) as cluster,
    ):
        for name in (_ENTRY, _OWNER):
            cluster.start_inside(name)
        sides = {"direct": _client(cluster, _OWNER), "relayed": _client(cluster, _ENTRY)}
        log = _log_of_owner(sides["direct"])
        for side in sides.values():
            side.run("alone", "", log=log, size=100, count=_WARM_UP)
        yield from _slow_readers(
            cluster, sides["direct"], log
        )  # First: later the server has memory to spare.
        yield from _pipelined(sides, log, runs)
        yield from _alone(sides, log, runs)


def _client(cluster: LogProcesses, server: str) -> OurClient:
    url = f"log://{cluster.servers[server].address}"
    return OurClient(cluster.children.start_module("tests.bench.load.logs_worker", url))


def _log_of_owner(client: OurClient) -> str:
    """Where a log is placed goes by its name."""
    for number in range(50):
        log = f"relay-{number}"
        client.run("make", "", logs=[log])
        if client.run("placed", "", log=log)["owner"].startswith(f"{_OWNER}."):
            return log
    raise BenchFailed("no log was placed on the server that is to own it")


def _pipelined(sides: dict[str, OurClient], log: str, runs: int) -> Iterator[Figure]:
    for size in (100, KIB):
        job = {"log": log, "size": size, "count": _COUNT_MAX, "seconds": _SECONDS}
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(runs):
            for name, side in sides.items():
                found = side.run("flood", "", **job)
                rates[name].append(found["count"] / found["seconds"])
        what = f"one pipelined writer, {size:,} B"
        yield judged(f"{what}: direct", "records/s", None, rates["direct"])
        least = 0.4 * median(rates["direct"])
        yield judged(f"{what}: relayed", "records/s", least, rates["relayed"])


def _alone(sides: dict[str, OurClient], log: str, runs: int) -> Iterator[Figure]:
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(runs):
        for name, side in sides.items():
            found = side.run("alone", "", log=log, size=100, count=_LONE)
            times[name].append(found["p50_ns"] / 1e6)
    yield judged("one append at a time: p50, direct", "ms", None, times["direct"])
    most = 2 * median(times["direct"])
    yield judged("one append at a time: p50, relayed", "ms", most, times["relayed"])


def _slow_readers(cluster: LogProcesses, client: OurClient, log: str) -> Iterator[Figure]:
    client.run("flood", "", log=log, size=KIB, count=_FILLED, seconds=60)
    entry, owner = cluster.servers[_ENTRY], cluster.servers[_OWNER]
    wanted = f"{_OWNER}.invalid:{owner.address.rpartition(':')[2]}"
    worker = cluster.children.start_module("tests.bench.load.relay_worker", entry.address, wanted)
    Path(f"/proc/{entry.pid}/clear_refs").write_text("5")  # The peak counts from now on.
    before = resident_mib(entry.pid, "VmRSS")
    slow = {"log": log, "readers": _SLOW_READERS, "seconds": _SLOW_S}
    found = OurClient(worker).run("slow", "", **slow)
    grown = resident_mib(entry.pid, "VmHWM") - before
    what = f"{_SLOW_READERS:,} slow readers"
    yield judged(f"{what}: memory of the server that relays, at most", "MiB", 128.0, [grown])
    yield judged(f"{what}: events that they took", "events/s", None, [found["events"] / _SLOW_S])
    yield judged(f"{what}: lines that were hung up on", "", None, [found["again"]])
