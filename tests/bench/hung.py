"""Effect of a hanging bookie (SIGSTOP) on writers and readers, and memory of a writer in a slow
cluster.

Four real bookies and a client with its defaults, each a process.

A writer adds 100 B in bursts, with 1,000 adds in flight, while one of its three bookies stops. With
an ack quorum of two it does not wait until the window is full of entries that only this bookie
lacks. With three, everything waits until the deadline has passed. Then the fourth bookie takes
over. The pause is the longest time in which nothing was confirmed.

A reader reads entries of 1 KiB one by one from random positions of a closed ledger in the page
cache, with each of the ledger's bookies stopped in turn. The worst of the three counts.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import structlog

from rollbook.ledger import ClientConfig
from tests.bench import Figure, judged
from tests.bench.ledger import Found, OurClient, cluster_of
from tests.interop.cluster import Make
from tests.support import zookeeper

Run = Callable[..., Found]

_CONFIG: Final = ClientConfig()
_SECONDS: Final = 9.0
_READS: Final = 4_000
_MIB: Final = 1024 * 1024
_AGAIN: Final = 0.8  # Of the pace with all bookies: then the one that hangs costs nothing any more.


def figures(runs: int) -> Iterator[Figure]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with (
        zookeeper.running() as server,
        zookeeper.tree(server) as tree,
        tempfile.TemporaryDirectory() as folder,
        cluster_of(tree, Path(folder, "ours"), Make.ROLLBOOK, bookies=4) as cluster,
    ):
        worker = cluster.children.start_module("tests.bench.load.hung_worker", cluster.metadata)
        client = OurClient(worker)

        def run(job: str, **arguments: Any) -> Found:
            # One that hung before may have to register again.
            cluster.wait_until(lambda: all(each.standing for each in cluster.bookies), "all serve")
            pids = {bookie.bookie_id: bookie.pid for bookie in cluster.bookies}
            return client.run(job, "v3", pids=pids, **arguments)

        yield from _writes(run, runs, ack=2)
        yield from _writes(run, runs, ack=3)
        yield from _reads(run, runs)
        yield from _outruns(run, runs)


def _writes(run: Run, runs: int, ack: int) -> Iterator[Figure]:
    found = [run("write", ack=ack, seconds=_SECONDS) for _ in range(runs)]
    what = f"quorum of {ack}, one of three bookies hangs: the writer's"
    calm = median(each["before"] for each in found)
    pauses = [each["pause_s"] for each in found]
    yield judged(f"{what} pause", "s", _CONFIG.add_deadline_s, pauses)
    yield judged(f"{what} pace before", "adds/s", None, [each["before"] for each in found])
    yield judged(f"{what} pace after", "adds/s", _AGAIN * calm, [each["after"] for each in found])


def _reads(run: Run, runs: int) -> Iterator[Figure]:
    found = [run("read", count=_READS) for _ in range(runs)]
    worst = [[each[f"hung_{number}"] for number in range(3)] for each in found]
    calm = [each["p99_ns"] / 1e6 for each in found]
    hung = [max(reads["p99_ns"] for reads in each) / 1e6 for each in worst]
    slowest = [max(reads["slowest_ns"] for reads in each) / 1e6 for each in worst]
    yield judged("reads of 1 KiB: p99", "ms", None, calm)
    yield judged("reads while one of three bookies hangs: p99", "ms", 3 * median(calm), hung)
    yield judged("reads while one of three bookies hangs: slowest", "ms", None, slowest)


def _outruns(run: Run, runs: int) -> Iterator[Figure]:
    found = [run("outrun", seconds=_SECONDS) for _ in range(runs)]
    mib: dict[str, list[float]] = {
        name: [each[name] / _MIB for each in found]
        for name in ("sent_bytes", "kept_bytes", "grown_bytes")
    }
    window = _CONFIG.writer_window_bytes / _MIB
    yield judged("a writer that outruns its bookies: appended", "MiB", None, mib["sent_bytes"])
    yield judged("most that it kept, its window", "MiB", window, mib["kept_bytes"])
    yield judged("most that its process grew by", "MiB", 2 * window, mib["grown_bytes"])
